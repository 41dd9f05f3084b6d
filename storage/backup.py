"""A copy of a live store, through SQLite: copying the file misses what is still in the log.

An upgrade leaves one beside the store, which holds all that was said: it goes with the first thing
that is forgotten.
"""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path

from agentmem.errors import InvalidInput
from agentmem.storage import faults


def upgrade_backup(path: Path, version: int) -> Path:
    """Where a store of this schema is copied to before it is upgraded."""
    return path.with_name(f"{path.name}.schema-{version}.backup")


def upgrade_backups(path: Path) -> list[Path]:
    """The copies of a store that upgrades left beside it."""
    pattern = re.compile(re.escape(path.name) + r"\.schema-\d+\.backup")
    return sorted(one for one in path.parent.iterdir() if pattern.fullmatch(one.name))


def copy_file(source: sqlite3.Connection, target: Path) -> None:
    """Copy a store into a new file for the owner alone (mode 0600), and check the copy.

    Raises:
        InvalidInput: the file exists.
        StoreCorrupt: the source is damaged, so the copy would be.
        StoreFull, StoreReadOnly: the copy cannot be written; what was written is removed.
    """
    with faults.typed_errors(target):
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            raise InvalidInput(
                f"The backup {target} exists. Give the path of a new file."
            ) from None
        try:
            _copy(source, target)
        except BaseException:
            for suffix in ("", "-wal", "-shm"):
                target.with_name(target.name + suffix).unlink(missing_ok=True)
            raise


def _copy(source: sqlite3.Connection, target: Path) -> None:
    copy = sqlite3.connect(target, isolation_level=None)
    try:
        source.backup(copy)
        (answer,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
        if answer != "ok":
            raise faults.corrupt(target, answer)
    finally:
        copy.close()
