"""One store: a SQLite file that any number of processes of one machine may have open.

Opening makes the file if it is missing and upgrades it if it is older. Data is reached through
`for_user` only.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from agentmem.errors import InvalidInput, StoreError
from agentmem.storage import check, faults, migrate
from agentmem.storage.database import Database
from agentmem.storage.engine import Durability, create_file, create_folder
from agentmem.storage.lock import FileLock
from agentmem.storage.rows import Finding
from agentmem.storage.schema import SCHEMA_VERSION
from agentmem.storage.user_archive import Archive

logger = logging.getLogger(__name__)


class Store:
    """An open store. Make one with `Store.open`, close it with `close()` or `with`."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self.path = database.path
        self._database = database
        self._clock = clock

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        create: bool = True,
        durability: Durability = "full",
        lock_seconds: float = 30.0,
        clock: Callable[[], float] = time.time,
    ) -> Store:
        """Open a store file.

        Args:
            path: such as `me.db`; folders that are missing are made for the owner alone.
            create: make the store if there is none.
            durability: "full" keeps what was acknowledged through a power loss; "relaxed" may lose
                the last commits to one, but not to a killed process.
            lock_seconds: how long a write waits for other writers.
            clock: seconds since the epoch; for stamps only, order never depends on it.

        Raises:
            StoreError: there is no store here and `create` is False, or the path cannot be one.
            StoreCorrupt: the file is damaged, or not a store.
            SchemaNewer: a newer agentmem wrote it; nothing was changed.
            StoreReadOnly: the file or its folder cannot be written.
            StoreLocked: another process holds the write lock for too long.
        """
        file = _resolve(path)
        with faults.typed_errors(file, lock_seconds):
            if file.is_dir():
                raise StoreError(
                    f"The store {file} is a folder. Give the path of a file, such as "
                    f"{file / 'me.db'}."
                )
            if not create and not file.exists():
                raise StoreError(f"There is no store at {file}. Give the path of an existing one.")
            create_folder(file.parent)
            if file.exists() and not os.access(file, os.W_OK):
                raise faults.read_only(file, "the file is read-only")
            lock = FileLock(file.with_name(f"{file.name}.lock"))
            try:
                _prepare(file, lock, lock_seconds)
                database = Database(file, lock, durability=durability, lock_seconds=lock_seconds)
                with database.read():
                    pass  # so that what keeps a connection from being made is raised here
            except BaseException:
                lock.close()
                raise
        return cls(database, clock)

    def for_user(self, name: str) -> Archive:
        """Everything of one user, and of no other.

        Raises:
            InvalidInput: the name is empty, not a str, or holds NUL.
        """
        return Archive(self._database, name, self._clock)

    def check(self) -> list[Finding]:
        """Look for damage, and for what may lead to it. Reads everything; changes nothing."""
        return check.check(self._database)

    def backup(self, path: str | Path) -> None:
        """Copy the store, as it is now, into a new file; others may write meanwhile.

        Raises:
            InvalidInput: the file exists.
        """
        self._database.copy_to(_resolve(path))

    def purge(self) -> bool:
        """Remove what was forgotten from the files too, and give space back to the disk.

        Returns:
            False where a reader still needs the old pages: call it again later.
        """
        return self._database.purge()

    def close(self) -> None:
        """Close the store. Closing twice is harmless; archives of it raise `StoreError` then."""
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _resolve(path: str | Path) -> Path:
    """The real file: two names for it must not lead to two locks."""
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInput(f"`path` must be the path of a file: got {text!r}.")
    return Path(text).resolve()


def _prepare(file: Path, lock: FileLock, lock_seconds: float) -> None:
    """Make the file and its tables, or upgrade them; a store that is current is not touched."""
    if file.exists() and migrate.schema_version(file, lock_seconds) == SCHEMA_VERSION:
        lock.probe()
        return
    if not lock.acquire(lock_seconds):
        raise faults.locked(file, lock_seconds)
    try:
        create_file(file)
        migrate.upgrade(file, lock_seconds)
    finally:
        lock.release()
