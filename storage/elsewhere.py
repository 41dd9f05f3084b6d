"""What was changed of a user's memory by others than the session whose log is kept: its other
sessions, imports, consolidation. What they said is found by the change log; here is the rest.
"""

from __future__ import annotations

from sqlalchemy import Connection, select

from agentmem.storage.rows import BlockRow
from agentmem.storage.schema import blocks, changes, fact_sources, segments


def has_changed(connection: Connection, user_id: int, session_id: int, after: int) -> bool:
    """Whether a session's own segments were added or moved after a change.

    Versions of blocks do not count: every session may write them.
    """
    query = (
        select(changes.c.sn)
        .join(segments, segments.c.id == changes.c.segment_id)
        .where(
            changes.c.user_id == user_id,
            changes.c.sn > after,
            changes.c.op.in_(("add", "state")),
            segments.c.session_id == session_id,
            segments.c.kind != "core_block",
        )
    )
    return connection.execute(query.limit(1)).first() is not None


def stated(connection: Connection, user_id: int, after: int) -> list[tuple[int, str]]:
    """Segments whose facts were laid out anew after a change, and who read them, by id."""
    query = (
        select(fact_sources.c.segment_id, fact_sources.c.written_by)
        .join(changes, changes.c.segment_id == fact_sources.c.segment_id)
        .where(
            fact_sources.c.user_id == user_id,
            changes.c.user_id == user_id,
            changes.c.sn > after,
            changes.c.op == "fact",
        )
        .distinct()
        .order_by(fact_sources.c.segment_id, fact_sources.c.written_by)
    )
    return [(segment_id, by) for segment_id, by in connection.execute(query)]


def block_rows(connection: Connection, user_id: int) -> list[BlockRow]:
    """A user's blocks by label, each with the newest version it ever had."""
    query = select(blocks).where(blocks.c.user_id == user_id).order_by(blocks.c.label)
    return [
        BlockRow(row.label, row.description, row.max_tokens, row.version)
        for row in connection.execute(query)
    ]
