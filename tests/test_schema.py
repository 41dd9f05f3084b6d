"""The schema as it stands in a store file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import UniqueConstraint

from agentmem.storage import migrate
from agentmem.storage.archive import Store
from agentmem.storage.engine import APPLICATION_ID
from agentmem.storage.schema import SCHEMA_VERSION, metadata


def test_every_table_is_strict(tmp_path: Path) -> None:
    Store.open(tmp_path / "me.db").close()
    connection = sqlite3.connect(tmp_path / "me.db")
    listed = connection.execute("SELECT name, strict FROM pragma_table_list WHERE type='table'")
    strict = {name: bool(flag) for name, flag in listed if not name.startswith("sqlite_")}
    connection.close()
    assert {name for name, flag in strict.items() if flag} == set(metadata.tables)
    assert {name for name, flag in strict.items() if not flag} == {"alembic_version"}


def test_what_is_deleted_with_a_user_is_everything_of_that_user(tmp_path: Path) -> None:
    """Every table but the two that belong to nobody hangs on a user, directly or through others."""
    hanging = {"users"}
    while (
        grown := {
            table.name
            for table in metadata.tables.values()
            if any(
                key.column.table.name in hanging and key.ondelete == "CASCADE"
                for key in table.foreign_keys
            )
        }
        - hanging
    ):
        hanging |= grown
    assert set(metadata.tables) - hanging == {"spaces"}


def test_every_foreign_key_is_indexed() -> None:
    """Without an index on it, deleting a parent reads the whole child table."""
    for table in metadata.tables.values():
        leading = {index.columns[0].name for index in table.indexes}
        leading |= {next(iter(table.primary_key.columns)).name}
        leading |= {
            next(iter(constraint.columns)).name
            for constraint in table.constraints
            if isinstance(constraint, UniqueConstraint)
        }
        for constraint in table.foreign_key_constraints:
            first = next(iter(constraint.columns)).name
            assert first in leading, f"{table.name}.{first}"


def test_the_newest_revision_is_the_schema_version() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS))
    config.set_main_option("path_separator", "os")
    heads = ScriptDirectory.from_config(config).get_heads()
    assert [int(head) for head in heads] == [SCHEMA_VERSION]


def test_a_store_file_is_marked(tmp_path: Path) -> None:
    Store.open(tmp_path / "me.db").close()
    connection = sqlite3.connect(tmp_path / "me.db")
    marks = [
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("application_id", "user_version", "auto_vacuum", "journal_mode")
    ]
    connection.close()
    assert marks == [APPLICATION_ID, SCHEMA_VERSION, 2, "wal"]
    assert APPLICATION_ID.to_bytes(4, "big") == b"AGME"
