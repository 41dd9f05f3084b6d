"""Who holds which session, in SQL: for people to read. The lock on the file is what holds it."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from agentmem.errors import InvalidInput
from agentmem.storage.schema import leases, sessions


def put(connection: Connection, session_id: int, host: str, pid: int, since: float) -> None:
    """Note the holder of a session.

    Raises:
        InvalidInput: the session was removed meanwhile.
    """
    there = select(sessions.c.id).where(sessions.c.id == session_id)
    if connection.execute(there).first() is None:
        raise InvalidInput(f"No session {session_id}: it was removed.")
    remove(connection, session_id)
    values = {"session_id": session_id, "host": host, "pid": pid, "since": since}
    connection.execute(insert(leases).values(values))


def remove(connection: Connection, session_id: int) -> None:
    """Note that nobody holds a session."""
    connection.execute(delete(leases).where(leases.c.session_id == session_id))


def holder(connection: Connection, session_id: int) -> tuple[str, int] | None:
    """Host and process id of the last noted holder."""
    query = select(leases.c.host, leases.c.pid).where(leases.c.session_id == session_id)
    row = connection.execute(query).first()
    return None if row is None else (row[0], row[1])
