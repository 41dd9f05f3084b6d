"""One sender at a time for each session: a lock that dies with its holder, and a row that names it.

The lock is a file named by the session's id, in a folder beside the store.
"""

from __future__ import annotations

import logging
import os
import socket
from types import TracebackType

from agentmem.errors import SessionBusy, StoreError
from agentmem.storage import faults, lease_rows
from agentmem.storage.database import Database
from agentmem.storage.engine import create_folder
from agentmem.storage.lock import FileLock

logger = logging.getLogger(__name__)


class Lease:
    """A session held for one sender, until `close()`; a context manager. Made by `take`."""

    def __init__(self, database: Database, session_id: int, lock: FileLock) -> None:
        self.session_id = session_id
        self._database = database
        self._lock: FileLock | None = lock
        self._pid = os.getpid()

    @classmethod
    def take(cls, database: Database, session_id: int, now: float) -> Lease:
        """Take the session now, or not at all.

        Raises:
            SessionBusy: naming the process that has it.
        """
        folder = database.path.with_name(f"{database.path.name}.leases")
        lock = FileLock(folder / f"{int(session_id)}.lock")
        with faults.typed_errors(lock.path):
            create_folder(folder)
            acquired = lock.acquire(0)
        if not acquired:
            lock.close()
            raise _busy(database, session_id)
        lease = cls(database, session_id, lock)
        try:
            with database.write() as connection:
                lease_rows.put(connection, session_id, socket.gethostname(), os.getpid(), now)
        except BaseException:
            lease._unlock()
            raise
        return lease

    def close(self) -> None:
        """Give the session back. Closing twice is harmless."""
        if self._lock is None:
            return
        if self._pid != os.getpid():  # a forked child holds nothing
            self._lock = None
            return
        try:
            with self._database.write() as connection:
                lease_rows.remove(connection, self.session_id)
        except StoreError as error:
            # The row only names the holder; a full or closed store must not keep the session.
            logger.debug("the lease of session %d left its row: %s", self.session_id, error)
        finally:
            self._unlock()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()


def _busy(database: Database, session_id: int) -> SessionBusy:
    with database.read() as connection:
        held_by = lease_rows.holder(connection, session_id)
    if held_by is None:
        who = "another process"
    else:
        host, pid = held_by
        who = "this process" if pid == os.getpid() else f"process {pid} on {host}"
    return SessionBusy(
        f"Session {session_id} of {database.path} is being used by {who}. "
        "Wait for it to end, or use another session."
    )
