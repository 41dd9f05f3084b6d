"""The window of each session in SQL: which segments, in what order and place, via what."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, select

from agentmem.errors import InvalidInput
from agentmem.storage.ids import portions
from agentmem.storage.rows import WindowEntry
from agentmem.storage.schema import segments, windows


def load(connection: Connection, session_id: int) -> list[WindowEntry]:
    """A session's window, in order."""
    query = (
        select(windows.c.segment_id, windows.c.place, windows.c.via, windows.c.until_turn)
        .where(windows.c.session_id == session_id)
        .order_by(windows.c.ordinal)
    )
    return [WindowEntry(*row) for row in connection.execute(query)]


def held_elsewhere(connection: Connection, session_id: int, ids: Sequence[int]) -> set[int]:
    """Those of the segments that stand in another session's window to stay."""
    found: set[int] = set()
    for portion in portions(ids):
        query = select(windows.c.segment_id).where(
            windows.c.segment_id.in_(portion),
            windows.c.session_id != session_id,
            windows.c.until_turn.is_(None),
        )
        found.update(connection.execute(query).scalars())
    return found


def misplaced(connection: Connection) -> list[int]:
    """Segments that stand in a window to stay and are not live, by id.

    Not of core memory: what is edited in one session leaves another's window at its next turn.
    """
    query = (
        select(segments.c.id)
        .distinct()
        .join(windows, windows.c.segment_id == segments.c.id)
        .where(
            windows.c.until_turn.is_(None),
            segments.c.state != "live",
            segments.c.kind != "core_block",
        )
        .order_by(segments.c.id)
    )
    return list(connection.execute(query).scalars())


def replace(connection: Connection, session_id: int, entries: Sequence[WindowEntry]) -> None:
    """Make these entries, in this order, the window.

    Raises:
        InvalidInput: a segment stands in it twice.
    """
    ids = [entry.segment_id for entry in entries]
    if len(set(ids)) != len(ids):
        twice = next(segment_id for segment_id in ids if ids.count(segment_id) > 1)
        raise InvalidInput(f"A segment stands in a window once: got {twice} twice.")
    connection.execute(delete(windows).where(windows.c.session_id == session_id))
    rows = [
        {
            "session_id": session_id,
            "ordinal": ordinal,
            "segment_id": entry.segment_id,
            "place": entry.place,
            "via": entry.via,
            "until_turn": entry.until_turn,
        }
        for ordinal, entry in enumerate(entries)
    ]
    if rows:
        connection.execute(insert(windows), rows)
