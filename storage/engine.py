"""SQLite as the store uses it: how the file is made, and what every connection is told.

The driver never begins a transaction: SQLAlchemy's `begin` event does, with BEGIN IMMEDIATE for
writers (the driver's own habit of beginning late loses updates silently) and BEGIN DEFERRED for
readers, which then never wait for a writer.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import URL, Connection, Engine, ExceptionContext, NullPool, create_engine, event

from agentmem.errors import StoreError
from agentmem.storage import faults

Durability = Literal["full", "relaxed"]

APPLICATION_ID = 0x41474D45
"""What marks a SQLite file as agentmem's ("AGME")."""

BEGIN = "agentmem_begin"
"""The execution option that says how a transaction begins: IMMEDIATE (the default) or DEFERRED."""

_SYNCHRONOUS = {"full": "PRAGMA synchronous=FULL", "relaxed": "PRAGMA synchronous=NORMAL"}
_PRAGMAS = (
    "PRAGMA secure_delete=ON",
    "PRAGMA trusted_schema=OFF",
    "PRAGMA cell_size_check=ON",
    "PRAGMA mmap_size=0",
    "PRAGMA temp_store=MEMORY",  # no memory text in temporary files
    "PRAGMA journal_size_limit=67108864",
    "PRAGMA wal_autocheckpoint=1000",
    *(
        ("PRAGMA fullfsync=ON", "PRAGMA checkpoint_fullfsync=ON")
        if sys.platform == "darwin"
        else ()
    ),
)


def wal_is_sound(version: tuple[int, ...]) -> bool:
    """Whether this SQLite is free of the WAL-reset race (two writers or checkpoints at once).

    The write lock keeps our own processes from meeting it; other programs on the same file do not
    take that lock. 3.52.0 has the fix and was withdrawn for other faults.
    """
    return (
        (version >= (3, 51, 3) and version != (3, 52, 0))
        or (3, 50, 7) <= version < (3, 51)
        or (3, 44, 6) <= version < (3, 45)
    )


def create_folder(folder: Path) -> None:
    """Make a folder and its parents, each for the owner alone (mode 0700)."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue  # another process made it meanwhile


def create_file(path: Path) -> None:
    """Make an empty store file for the owner alone (mode 0600), before SQLite opens it.

    SQLite gives -wal and -shm the mode of the database. `auto_vacuum` must be set before the
    journal mode: later it is silently ignored. Call it under the write lock.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if path.stat().st_size:
            return  # somebody else was first; an empty one was left by a crash just here
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        # A pragma takes no parameters: this is APPLICATION_ID, and a test compares them.
        connection.execute("PRAGMA application_id=0x41474D45")
    finally:
        connection.close()


def connect_read_only(path: Path, seconds: float) -> sqlite3.Connection:
    """A plain connection that cannot write: to look at a file before it is known to be ours."""
    uri = path.as_uri() + "?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=seconds)


def make_engine(
    path: Path, *, durability: Durability, lock_seconds: float, migrating: bool = False
) -> Engine:
    """The engine of one store file.

    Args:
        path: an existing file.
        durability: "full" survives power loss; "relaxed" may lose the last commits to it.
        lock_seconds: how long SQLite itself waits for a lock.
        migrating: leave foreign keys unenforced (rebuilding a parent table would delete all its
            children) and keep no connection open.
    """
    options: dict[str, Any] = {"poolclass": NullPool} if migrating else {}
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": lock_seconds},  # the busy timeout
        **options,
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        (mode,) = cursor.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise faults.no_wal(path, mode)
        cursor.execute(_SYNCHRONOUS[durability])
        cursor.execute("PRAGMA foreign_keys=OFF" if migrating else "PRAGMA foreign_keys=ON")
        for pragma in _PRAGMAS:
            cursor.execute(pragma)
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        mode = connection.get_execution_options().get(BEGIN, "IMMEDIATE")
        connection.exec_driver_sql("BEGIN DEFERRED" if mode == "DEFERRED" else "BEGIN IMMEDIATE")

    @event.listens_for(engine, "handle_error")
    def _translate(context: ExceptionContext) -> StoreError | None:
        error = context.original_exception
        if not isinstance(error, sqlite3.Error):
            return None
        if faults.is_io_error(error):
            # After a failed fsync the connection's view of the file cannot be trusted.
            context.is_disconnect = True
        return faults.typed(error, path, lock_seconds)

    return engine
