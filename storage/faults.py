"""SQLite's and the operating system's errors as agentmem's: typed, with the path and what to do."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection

from agentmem.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
)

_IOERR_WRITE = 778
"""SQLite's extended code for a write that failed for any reason but ENOSPC: quotas, size limits."""


def locked(path: Path, seconds: float) -> StoreLocked:
    """The error for a write lock that did not come free in time."""
    return StoreLocked(
        f"The store {path} is locked by another process: waited {seconds:g} s. "
        "Try again, or end the process that holds it."
    )


def read_only(path: Path, reason: str) -> StoreReadOnly:
    """The error for a store that cannot be written."""
    return StoreReadOnly(
        f"The store {path} cannot be written: {reason}. "
        "Make the file and its folder writable, or choose another store."
    )


def corrupt(path: Path, reason: str) -> StoreCorrupt:
    """The error for a damaged file."""
    return StoreCorrupt(
        f"The store {path} is damaged: {reason}. Restore it from a backup, or choose another store."
    )


def full(path: Path, reason: str) -> StoreFull:
    """The error for a disk that is full."""
    return StoreFull(
        f"The store {path} could not grow: {reason}. Nothing of this change was stored. "
        "Free space on its disk and try again."
    )


def typed(error: sqlite3.Error, path: Path, seconds: float) -> StoreError | None:
    """The typed error for one of SQLite's; None where it is a fault of our own SQL."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    match code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return locked(path, seconds)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return read_only(path, str(error))
        case sqlite3.SQLITE_CANTOPEN:
            return read_only(path, "SQLite could not open it or the files beside it")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return corrupt(path, str(error))
        case sqlite3.SQLITE_FULL:
            return full(path, str(error))
        case sqlite3.SQLITE_IOERR if code == _IOERR_WRITE:
            return full(path, "a write failed (disk full, a quota, a size limit, or a bad disk)")
        case sqlite3.SQLITE_IOERR:
            return StoreError(
                f"The disk under the store {path} failed: {error}. Close the store, check the "
                "disk, and open it again; what was acknowledged is kept."
            )
        case sqlite3.SQLITE_ERROR if str(error).startswith(("no such table", "no such column")):
            return corrupt(path, str(error))
    return None


@contextmanager
def typed_errors(path: Path, seconds: float = 0.0) -> Iterator[None]:
    """Raise SQLite's and the system's errors about `path` as agentmem's."""
    try:
        yield
    except sqlite3.Error as error:
        fault = typed(error, path, seconds)
        raise (fault or StoreError(f"The store {path} failed: {error}.")) from error
    except OSError as error:
        raise _os_error(error, path) from error


def _os_error(error: OSError, path: Path) -> StoreError:
    match error.errno:
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return read_only(path, error.strerror or "permission denied")
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return full(path, error.strerror or "the disk is full")
    return StoreError(
        f"The store {path} cannot be opened: {error.strerror or error}. "
        "Give the path of a file in a folder that exists or can be made."
    )


def no_wal(path: Path, mode: str) -> StoreError:
    """The error for a file system on which SQLite cannot keep a write-ahead log."""
    return StoreError(
        f"The store {path} cannot use a write-ahead log: the journal mode is {mode!r}. "
        "Put it on a local disk: network file systems cannot share one between processes."
    )


def is_io_error(error: sqlite3.Error) -> bool:
    """Whether the disk failed under SQLite."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF == sqlite3.SQLITE_IOERR


def path_of(connection: Connection) -> Path:
    """The store file a connection belongs to, for messages."""
    return Path(connection.engine.url.database or "")
