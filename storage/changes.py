"""The change log in SQL, which derived tiers follow; written in the transaction of the change.

There is one writer at a time, so the order of `sn` is the order of commits: a reader that has seen
`sn` will never find a smaller one later.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, bindparam, func, insert, select

from agentmem.storage.rows import Change, ChangeOp
from agentmem.storage.schema import changes

_insert = insert(changes)
_after = (
    select(changes.c.sn, changes.c.op, changes.c.segment_id)
    .where(changes.c.user_id == bindparam("user_id"), changes.c.sn > bindparam("seen"))
    .order_by(changes.c.sn)
)


def append(connection: Connection, user_id: int, op: ChangeOp, ids: Iterable[int]) -> None:
    """Log one change of each segment."""
    rows = [{"user_id": user_id, "op": op, "segment_id": segment_id} for segment_id in ids]
    if rows:
        connection.execute(_insert, rows)


def after(connection: Connection, user_id: int, sn: int) -> list[Change]:
    """A user's changes later than `sn`, oldest first."""
    rows = connection.execute(_after, {"user_id": user_id, "seen": sn})
    return [Change(*row) for row in rows]


def last(connection: Connection, user_id: int) -> int:
    """The user's newest `sn`; 0 where there is none."""
    query = select(func.max(changes.c.sn)).where(changes.c.user_id == user_id)
    return connection.execute(query).scalar() or 0
