"""Rows of one store in another, under the same ids: what a replay in a store of its own begins
with. The other store is a fresh one: only users, sessions and vectors have other ids there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, select

from agentmem.storage.ids import portions
from agentmem.storage.rows import BlockEdit, BlockRow
from agentmem.storage.schema import (
    block_edits,
    blocks,
    decided,
    decisions,
    lineage,
    messages,
    passage_tags,
    segments,
    sessions,
    turns,
    words,
)
from agentmem.storage.segments import are_of

Rows = dict[str, list[dict[str, Any]]]
"""Rows by the name of their table."""

_OF_SEGMENTS = (messages, words, passage_tags)
_ORDER: tuple[Table, ...] = (
    segments, messages, lineage, words, passage_tags, turns, decisions, decided,
)  # fmt: skip


def segment_rows(connection: Connection, owner: int, ids: Sequence[int]) -> Rows:
    """A user's segments with their messages, words, tags and parents."""
    rows: Rows = {table.name: [] for table in (segments, *_OF_SEGMENTS, lineage)}
    for portion in portions(ids):
        mine = select(segments).where(are_of(owner, portion))
        found = [dict(row) for row in connection.execute(mine).mappings()]
        there = [row["id"] for row in found]
        rows["segments"] += found
        columns = [(table, table.c.segment_id) for table in _OF_SEGMENTS]
        for table, column in (*columns, (lineage, lineage.c.child_id)):
            query = select(table).where(column.in_(there))
            rows[table.name] += [dict(row) for row in connection.execute(query).mappings()]
    return rows


def history_rows(
    connection: Connection, owner: int, session_id: int, *, num_turns: int, last_decision: int
) -> Rows:
    """The first turns of a session, and its decisions up to one."""
    mine = select(sessions.c.id).where(sessions.c.user_id == owner, sessions.c.id == session_id)
    said = select(turns).where(turns.c.session_id.in_(mine), turns.c.number <= num_turns)
    made = select(decisions).where(
        decisions.c.session_id.in_(mine), decisions.c.id <= last_decision
    )
    found = [dict(row) for row in connection.execute(made).mappings()]
    rows: Rows = {
        "turns": [dict(row) for row in connection.execute(said).mappings()],
        "decisions": found,
        "decided": [],
    }
    for portion in portions([row["id"] for row in found]):
        query = select(decided).where(decided.c.decision_id.in_(portion))
        rows["decided"] += [dict(row) for row in connection.execute(query).mappings()]
    for row in found:
        if row["undone_by"] is not None and row["undone_by"] > last_decision:
            row["undone_by"] = None
    return rows


def put(connection: Connection, owner: int, session_id: int, rows: Rows) -> None:
    """Insert rows, all as this session's."""
    for table in _ORDER:
        values = rows.get(table.name, [])
        for row in values:
            if "session_id" in row:
                row["session_id"] = session_id
            if "user_id" in row:
                row["user_id"] = owner
        if values:
            connection.execute(insert(table), values)


def put_block(
    connection: Connection, owner: int, block: BlockRow, edits: Sequence[BlockEdit]
) -> None:
    """Put a block and its edits in the place of what there is of it."""
    connection.execute(
        delete(blocks).where(blocks.c.user_id == owner, blocks.c.label == block.label)
    )
    mine = {"user_id": owner, "label": block.label}
    row = {"description": block.description, "max_tokens": block.max_tokens}
    connection.execute(insert(blocks).values(**mine, **row, version=block.version))
    for edit in edits:
        connection.execute(insert(block_edits).values(**{**asdict(edit), **mine}))
