"""The window of each session in SQL: which segments, in what order and place, via what."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, select

from agentmem.errors import InvalidInput
from agentmem.storage.rows import WindowEntry
from agentmem.storage.schema import windows


def load(connection: Connection, session_id: int) -> list[WindowEntry]:
    """A session's window, in order."""
    query = (
        select(windows.c.segment_id, windows.c.place, windows.c.via, windows.c.until_turn)
        .where(windows.c.session_id == session_id)
        .order_by(windows.c.ordinal)
    )
    return [WindowEntry(*row) for row in connection.execute(query)]


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
