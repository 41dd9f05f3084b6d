"""Where a log begins that does not begin with an empty session: the state it was found in.

The log holds only what changes in time; texts, turns and decisions are read from the archive, where
they stay as they were. It knows nothing of what comes after.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentmem.audit.records import block_items, window_items
from agentmem.storage.archive import Archive, BlockRow, SessionRow, Transaction, WindowEntry

OTHER_SESSIONS = "(other sessions)"
"""What stands in a replay's store for the user's other sessions."""


def snapshot_of(archive: Archive, session: SessionRow) -> dict[str, Any] | None:
    """The state of a session as plain JSON; None where nothing was said in it yet."""
    now = archive.snapshot(session.id)
    if not now.segments and not now.num_turns:
        return None
    others = archive.elsewhere(session.id, ever=True)
    return {
        "turns": now.num_turns,
        "unanswered": list(now.unanswered),
        "decisions": now.last_decision,
        "settings": dict(now.settings),
        "window": window_items(now.window),
        "held": _held_elsewhere(archive, session, [one[0] for one in now.segments]),
        "segments": [list(one) for one in now.segments],
        "blocks": block_items(others.blocks),
        "facts": [list(one) for one in others.stated],
    }


def _held_elsewhere(archive: Archive, session: SessionRow, ids: Sequence[int]) -> list[int]:
    """What stands in other sessions' windows to stay; core memory stands in all of them."""
    held = archive.segments(sorted(archive.held_elsewhere(session.id, ids)))
    return [one.segment.id for one in held if one.segment.kind != "core_block"]


def fill(
    transaction: Transaction,
    session_id: int,
    *,
    source: Archive,
    source_session: SessionRow,
    state: Mapping[str, Any],
    space: str,
) -> None:
    """Give a session of a fresh store the state that `snapshot_of` told.

    Args:
        source: where texts, turns, decisions and vectors are read from.
        space: of the vectors.
    """
    fields = {row[0]: row[1:] for row in state["segments"]}
    rows = source.segment_rows(list(fields))
    for row in rows["segments"]:
        names = ("state", "pinned", "kept_until", "recalls", "used_turn")
        row.update(zip(names, fields[row["id"]], strict=True))
    history = source.history_rows(
        source_session.id, num_turns=state["turns"], last_decision=state["decisions"]
    )
    for row in history["turns"]:
        if row["number"] in state["unanswered"]:
            row["reply"] = None
    transaction.put_rows(session_id, rows | history)
    transaction.set_session_settings(session_id, state["settings"])
    transaction.set_window(session_id, [WindowEntry(*entry) for entry in state["window"]])
    if held := [WindowEntry(one, one) for one in state.get("held", ())]:
        transaction.set_window(transaction.session(OTHER_SESSIONS), held)
    add_vectors(transaction, source, space, list(fields))
    add_blocks(transaction, source, source_session, [BlockRow(*one) for one in state["blocks"]])
    add_statements(transaction, source, [tuple(one) for one in state["facts"]])


def known_statements(archive: Archive, wanted: Collection[tuple[int, str]]) -> set[tuple[int, str]]:
    """Segments with statements, and who read them, of those that are wanted."""
    facts = archive.facts({segment_id for segment_id, _ in wanted}) if wanted else []
    return {(one.segment_id, one.written_by) for fact in facts for one in fact.sources}


def add_statements(
    transaction: Transaction, source: Archive, wanted: Collection[tuple[int, str]]
) -> None:
    """Add what was read in segments, about what it was found to be about."""
    facts = source.facts({segment_id for segment_id, _ in wanted}) if wanted else []
    found = [(one, fact.about) for fact in facts for one in fact.sources]
    for one, about in sorted(found, key=lambda pair: (pair[0].segment_id, pair[0].ordinal)):
        if (one.segment_id, one.written_by) in wanted:
            transaction.put_statement(one, about)


def add_blocks(
    transaction: Transaction, source: Archive, session: SessionRow, blocks: Sequence[BlockRow]
) -> None:
    """Make core memory what it was at these versions.

    Args:
        session: of the source; edits of others are filed under another here.
    """
    sessions = {session.id: transaction.session(session.name)}
    for block in blocks:
        edits = [one for one in source.block_edits(block.label) if one.version <= block.version]
        for one in edits:
            if one.session_id not in sessions:
                sessions[one.session_id] = transaction.session(OTHER_SESSIONS)
        mine = [replace(one, session_id=sessions[one.session_id]) for one in edits]
        transaction.put_block(block, mine)


def add_foreign(transaction: Transaction, source: Archive, ids: Collection[int]) -> dict[str, int]:
    """Let segments of the user's other sessions be found, as they were said: new and unchanged.

    Returns:
        Their ids by their texts.
    """
    rows = source.segment_rows(sorted(ids))
    rows["segments"] = [row for row in rows["segments"] if row["state"] != "forgotten"]
    for row in rows["segments"]:
        row.update(state="archived", pinned=0, kept_until=0, recalls=0, used_turn=0)
    there = {row["id"] for row in rows["segments"]}
    for table in ("messages", "words", "passage_tags"):
        rows[table] = [row for row in rows[table] if row["segment_id"] in there]
    # A parent may be of a session whose segments came before, or is gone: nobody reads it here.
    rows["lineage"] = [
        row for row in rows["lineage"] if there.issuperset((row["child_id"], row["parent_id"]))
    ]
    transaction.put_rows(transaction.session(OTHER_SESSIONS), rows)
    return {one.segment.text: one.segment.id for one in source.segments(sorted(there))}


def add_vectors(
    transaction: Transaction, source: Archive, space: str, ids: Collection[int]
) -> None:
    """Give segments the vectors they have in the source."""
    found, vectors = source.embeddings(space, sorted(ids))
    for segment_id, vector in zip(found.tolist(), vectors, strict=True):
        transaction.add_embedding(space, segment_id, vector)
