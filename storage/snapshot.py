"""What of a session changes in time, as it is now: of many rows, only these columns.

It knows nothing of what was said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from agentmem.storage import sessions, windows
from agentmem.storage.rows import WindowEntry
from agentmem.storage.schema import decisions, turns
from agentmem.storage.schema import segments as segment_rows
from agentmem.storage.segments import select_segments


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """A session at one moment.

    Args:
        unanswered: numbers of its turns without a reply.
        last_decision: its newest; 0 before the first.
        segments: id, state, pinned, kept_until, recalls and used_turn of each, by id; of those
            that were not forgotten.
    """

    num_turns: int
    unanswered: tuple[int, ...]
    last_decision: int
    settings: Mapping[str, Any]
    window: tuple[WindowEntry, ...]
    segments: tuple[tuple[int, str, int, int, int, int], ...]


def take(connection: Connection, user_id: int, session_id: int) -> SessionSnapshot:
    """A user's session as it is in this transaction.

    Raises:
        InvalidInput: the user has no such session.
    """
    sessions.check_owner(connection, user_id, session_id)
    row = next(one for one in sessions.all_of(connection, user_id) if one.id == session_id)
    mine = turns.c.session_id == session_id
    unanswered = (
        select(turns.c.number).where(mine, turns.c.reply.is_(None)).order_by(turns.c.number)
    )
    newest = select(func.max(decisions.c.id)).where(decisions.c.session_id == session_id)
    of = segment_rows.c
    changing = (
        select_segments(user_id)
        .with_only_columns(of.id, of.state, of.pinned, of.kept_until, of.recalls, of.used_turn)
        .where(of.session_id == session_id)
        .order_by(of.id)
    )
    return SessionSnapshot(
        row.num_turns,
        tuple(connection.execute(unanswered).scalars()),
        connection.execute(newest).scalar() or 0,
        row.settings,
        tuple(windows.load(connection, session_id)),
        tuple((one[0], *one[1:]) for one in connection.execute(changing)),
    )
