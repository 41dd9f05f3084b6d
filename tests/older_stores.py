"""Stores as older versions left them, their tables filled, and what becomes of them."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

from agentmem.storage import migrate
from agentmem.storage.engine import create_file
from tests.filled_store import Row, Rows, rows_of

ADDED = {"segments": {"source": None}}
"""Columns that tables got after the first version, and what the rows of older ones have there."""


def described(path: Path) -> dict[str, Any]:
    """Everything SQLite says of the tables of a file, but the text they were made with."""
    connection = sqlite3.connect(path)
    names = [
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        if name != "alembic_version" and not name.startswith("sqlite_")
    ]
    tables = {}
    for name in names:
        indexes = connection.execute("SELECT * FROM pragma_index_list(?)", [name]).fetchall()
        keys = connection.execute("SELECT * FROM pragma_foreign_key_list(?)", [name]).fetchall()
        tables[name] = {
            "columns": connection.execute("SELECT * FROM pragma_table_info(?)", [name]).fetchall(),
            "keys": sorted(key[2:] for key in keys),
            "indexes": {
                (index[1] if not index[1].startswith("sqlite_") else "", *index[2:]): [
                    column
                    for (column,) in connection.execute(
                        "SELECT name FROM pragma_index_info(?)", [index[1]]
                    )
                ]
                for index in indexes
            },
            "kind": connection.execute(
                "SELECT wr, strict FROM pragma_table_list WHERE name = ?", [name]
            ).fetchone(),
            "counts": connection.execute(
                "SELECT sql LIKE '%AUTOINCREMENT%' FROM sqlite_master WHERE name = ?", [name]
            ).fetchone(),
        }
    connection.close()
    return tables


def store_of_schema(path: Path, version: int, rows: Rows) -> None:
    """Make a store as that version had it, with those of the rows and values that it knew."""
    create_file(path)
    engine = create_engine(f"sqlite:///{path}")
    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS))
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, f"{version:04}")
    engine.dispose()
    store = sqlite3.connect(path)
    known = {name: _columns(store, name) for name in rows_of(path)}
    store.execute("DELETE FROM sqlite_sequence")
    for table in known:
        for row in rows[table]:
            if table != "sqlite_sequence" or dict(row)["name"] in known:
                values = {name: value for name, value in row if name in known[table]}
                names, marks = ", ".join(values), ", ".join("?" * len(values))
                insert = f"INSERT INTO {table} ({names}) VALUES ({marks})"  # noqa: S608
                store.execute(insert, list(values.values()))
    store.commit()
    store.close()


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    rows = connection.execute("SELECT name FROM pragma_table_info(?)", [table])
    return [name for (name,) in rows]


def upgraded(rows: Rows, newest: Rows) -> Rows:
    """The rows of an older store in the newest schema: all there, what is new empty.

    Args:
        newest: rows of any store of the newest schema that has some in every table.
    """
    found: Rows = {}
    for table, examples in newest.items():
        names = [name for name, _ in next(iter(examples))]
        found[table] = {_upgraded(row, names, table) for row in rows.get(table, ())}
    return found


def _upgraded(row: Row, names: list[str], table: str) -> Row:
    values = ADDED.get(table, {}) | dict(row)
    return tuple((name, values[name]) for name in names)
