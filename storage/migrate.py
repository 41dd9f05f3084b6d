"""Bringing a store's schema to the newest revision, once, before anybody uses it.

A store that exists is copied first. The upgrade is one transaction with foreign keys unenforced (a
rebuilt parent table would delete its children), and it is checked before it is committed. Loading
alembic is left to the store that needs it.
"""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

from sqlalchemy import Connection, Engine

from agentmem.errors import SchemaNewer
from agentmem.storage import faults
from agentmem.storage.backup import copy_file, upgrade_backup
from agentmem.storage.engine import APPLICATION_ID, connect_read_only, make_engine
from agentmem.storage.schema import SCHEMA_VERSION

MIGRATIONS = Path(__file__).parent / "migrations"

logger = logging.getLogger(__name__)


def schema_version(path: Path, seconds: float) -> int:
    """The revision of a store file; 0 for one without tables. Writes nothing.

    Raises:
        StoreCorrupt: it is not a database, or not one of agentmem's.
        SchemaNewer: a newer agentmem wrote it.
    """
    with faults.typed_errors(path, seconds):
        if not path.stat().st_size:
            return 0
        connection = connect_read_only(path, seconds)
        try:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        finally:
            connection.close()
    if application != APPLICATION_ID:
        raise faults.corrupt(path, "it is a SQLite database, but not one of agentmem's")
    if version > SCHEMA_VERSION:
        raise SchemaNewer(
            f"The store {path} has schema {version}, this agentmem knows {SCHEMA_VERSION}. "
            "Nothing was written. Upgrade agentmem to use it."
        )
    return int(version)


def upgrade(path: Path, lock_seconds: float) -> Path | None:
    """Bring the store to the newest schema; the path of the copy made before, if one was.

    Call it under the write lock.
    """
    version = schema_version(path, lock_seconds)
    if version == SCHEMA_VERSION:
        return None
    copy = None
    if version:
        copy = upgrade_backup(path, version)
        with faults.typed_errors(path, lock_seconds):
            copy.unlink(missing_ok=True)  # of an upgrade that did not finish
            source = sqlite3.connect(path, isolation_level=None, timeout=lock_seconds)
            try:
                copy_file(source, copy)
            finally:
                source.close()
        logger.info("upgrading %s from schema %d; its copy is %s", path, version, copy)
    engine = make_engine(path, durability="full", lock_seconds=lock_seconds, migrating=True)
    try:
        _run(engine, path)
    finally:
        engine.dispose()
    return copy


def _run(engine: Engine, path: Path) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:
        counted = _row_counts(connection)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        _check(connection, path, counted)


def _row_counts(connection: Connection) -> dict[str, int]:
    from sqlalchemy import func, inspect, select, table

    names = inspect(connection).get_table_names()
    return {
        name: connection.execute(select(func.count()).select_from(table(name))).scalar_one()
        for name in names
    }


def _check(connection: Connection, path: Path, before: dict[str, int]) -> None:
    """Refuse an upgrade that lost rows or broke references; raising rolls it back."""
    after = _row_counts(connection)
    lost = [name for name, rows in before.items() if after.get(name, 0) < rows]
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
    if lost or broken:
        raise faults.corrupt(
            path,
            f"its upgrade to schema {SCHEMA_VERSION} was undone, it lost rows of {lost} "
            f"and left {len(broken)} broken references",
        )
