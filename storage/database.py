"""One store file and its transactions: many readers, one writer at a time, over all processes.

Every write runs under a lock file and BEGIN IMMEDIATE, is committed whole or not at all, and is
durable when `write` returns. Knows nothing of tables.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, Pool, RootTransaction

from agentmem.errors import StoreError, StoreLocked
from agentmem.storage import faults
from agentmem.storage.backup import copy_file
from agentmem.storage.engine import BEGIN, Durability, make_engine
from agentmem.storage.lock import FileLock

_open_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_inherited_pools: list[Pool] = []
"""Connections a forked child got from its parent: never used and never closed there."""


class Database:
    """An open store file whose schema is current.

    Args:
        path: the file, absolute and with links resolved.
        lock: the store's write lock.
    """

    def __init__(
        self, path: Path, lock: FileLock, *, durability: Durability, lock_seconds: float
    ) -> None:
        self.path = path
        self.lock_seconds = lock_seconds
        self._lock = lock
        self._engine: Engine | None = make_engine(
            path, durability=durability, lock_seconds=lock_seconds
        )
        self._identity = _identity(path)
        _open_databases.add(self)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One snapshot of the store: fetch what you need and leave, it holds back checkpoints."""
        reader = self._running().execution_options(**{BEGIN: "DEFERRED"})
        with reader.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction: committed when the block ends, rolled back when it raises.

        Raises:
            StoreLocked: the write lock did not come free in time.
            StoreReadOnly, StoreFull, StoreError: nothing of the block was stored.
        """
        engine = self._running()
        with self.locked(), engine.connect() as connection:
            self._check_identity()
            with self._begin(connection):
                yield connection

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the write lock: for writes, checkpoints and the last close."""
        if self._lock.held_by_me:
            raise StoreError(
                f"The store {self.path} is being written by this thread already. "
                "Do all of one change in one `write()` block."
            )
        with faults.typed_errors(self._lock.path):
            acquired = self._lock.acquire(self.lock_seconds)
        if not acquired:
            raise faults.locked(self.path, self.lock_seconds)
        try:
            yield
        finally:
            self._lock.release()

    def purge(self) -> bool:
        """Empty the log into the file and give free pages back; False where a reader is in the way.

        Deleted rows are zeroed in the file when they are deleted, but the log still holds them.
        """
        with self.locked(), self._raw() as connection:
            # A script: `execute` would take one step of it, which frees one page.
            connection.executescript("PRAGMA incremental_vacuum;")
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    @contextmanager
    def _raw(self) -> Iterator[sqlite3.Connection]:
        """A connection outside any transaction, for what cannot run in one."""
        pooled = self._running().raw_connection()
        try:
            connection = pooled.driver_connection
            assert isinstance(connection, sqlite3.Connection)
            with faults.typed_errors(self.path, self.lock_seconds):
                yield connection
        finally:
            pooled.close()

    def copy_to(self, target: Path) -> None:
        """Copy the store into a new file, as it is now; others may write meanwhile."""
        with self._raw() as connection:
            copy_file(connection, target)

    def close(self) -> None:
        """Close every connection. Closing the last one of all processes empties the log."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        _open_databases.discard(self)
        # Whoever holds the lock has a connection open, so ours is not the last: no checkpoint then.
        acquired = self._lock.acquire(min(self.lock_seconds, 1.0))
        try:
            engine.dispose()
        finally:
            if acquired:
                self._lock.release()
            self._lock.close()

    def _running(self) -> Engine:
        if self._engine is None:
            raise StoreError(f"The store {self.path} is closed. Open it again.")
        return self._engine

    def _begin(self, connection: Connection) -> RootTransaction:
        """Begin; only a failed BEGIN may be tried again, nothing has been done by then."""
        deadline = time.monotonic() + self.lock_seconds
        while True:
            try:
                return connection.begin()
            except StoreLocked:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.005 * random.random())

    def _check_identity(self) -> None:
        """Notice that the file was replaced: what we wrote would vanish with the old one."""
        if _identity(self.path) != self._identity:
            raise StoreError(
                f"The store {self.path} was moved, removed or replaced while it was open. "
                "Close it and open it again."
            )

    def _after_fork_in_child(self) -> None:
        if self._engine is not None:
            _inherited_pools.append(self._engine.pool)
            self._engine.dispose(close=False)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _reset_in_child() -> None:
    for database in tuple(_open_databases):
        database._after_fork_in_child()


os.register_at_fork(after_in_child=_reset_in_child)
