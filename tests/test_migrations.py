"""Upgrading a store: to the very schema, with its rows, or not at all."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, insert

from agentmem.errors import SchemaNewer, StoreCorrupt
from agentmem.segment import Message, Segment
from agentmem.storage import check, migrate
from agentmem.storage.archive import Store
from agentmem.storage.engine import APPLICATION_ID
from agentmem.storage.schema import SCHEMA_VERSION, metadata

REBUILD = """
from alembic import op
import sqlalchemy as sa

revision, down_revision, branch_labels, depends_on = "{revision}", "{down}", None, None


def upgrade():
    with op.batch_alter_table("segments", table_kwargs={{"sqlite_autoincrement": True}}) as batch:
        batch.add_column(sa.Column("mood", sa.Text()))
        batch.alter_column("kind", nullable=True)
    {more}
    op.execute("PRAGMA user_version={version}")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "me.db"


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


def test_a_new_store_has_the_schema_that_the_code_speaks_of(path: Path) -> None:
    Store.open(path).close()
    engine = create_engine(f"sqlite:///{path.with_name('made.db')}")
    metadata.create_all(engine)
    engine.dispose()
    assert described(path) == described(path.with_name("made.db"))

    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def fill(path: Path) -> None:
    with Store.open(path) as store:
        archive = store.for_user("ann")
        session_id = archive.session("main").id
        with archive.write() as transaction:
            for text in ("one", "two"):
                transaction.add_segment(session_id, 1, Segment((Message("user", text),)))


def add_revision(folder: Path, monkeypatch: pytest.MonkeyPatch, more: str = "pass") -> int:
    """Pretend that there is a newer revision, which makes the table of segments anew."""
    version = SCHEMA_VERSION + 1
    shutil.copytree(migrate.MIGRATIONS, folder)
    script = REBUILD.format(
        revision=f"{version:04}", down=f"{SCHEMA_VERSION:04}", version=version, more=more
    )
    (folder / "versions" / f"{version:04}_next.py").write_text(script)
    monkeypatch.setattr(migrate, "MIGRATIONS", folder)
    monkeypatch.setattr(migrate, "SCHEMA_VERSION", version)
    monkeypatch.setattr("agentmem.storage.store.SCHEMA_VERSION", version)
    monkeypatch.setattr(check, "SCHEMA_VERSION", version)
    return version


def rows(path: Path, query: str) -> list[Any]:
    connection = sqlite3.connect(path)
    found = connection.execute(query).fetchall()
    connection.close()
    return found


def test_an_older_store_is_copied_and_upgraded_with_its_rows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path)
    version = add_revision(tmp_path / "migrations", monkeypatch)
    with Store.open(path) as store:
        archive = store.for_user("ann")
        session_id = archive.session("main", create=False).id
        stored = archive.session_segments(session_id)
        assert [each.segment.text for each in stored] == ["one", "two"]
        assert [finding.name for finding in store.check() if finding.status == "fail"] == []
    assert rows(path, "PRAGMA user_version") == [(version,)]
    assert rows(path, "SELECT mood FROM segments") == [(None,), (None,)]
    # A rebuilt parent table would have deleted these, had foreign keys been enforced.
    assert rows(path, "SELECT content FROM messages") == [("one",), ("two",)]

    copy = path.with_name(f"me.db.schema-{SCHEMA_VERSION}.backup")
    assert copy.stat().st_mode & 0o077 == 0
    assert rows(copy, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert rows(copy, "SELECT content FROM messages") == [("one",), ("two",)]


def store_of_schema(path: Path, version: int) -> None:
    """A store as that revision left it, with a user, a session and a segment."""
    engine = create_engine(f"sqlite:///{path}")
    config = Config()
    config.set_main_option("script_location", str(migrate.MIGRATIONS))
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, f"{version:04}")
        connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
        said = Segment((Message("user", "one"),))
        for table, values in {
            "users": {"id": 1, "name": "ann"},
            "sessions": {"id": 1, "user_id": 1, "name": "main", "created": 0.0, "settings": "{}"},
            "segments": {"id": 1, "user_id": 1, "session_id": 1, "turn": 1, "kind": "turn",
                         "origin": "user", "trust": 2, "created": 0.0, "state": "live",
                         "content_hash": said.content_hash, "pinned": 0, "kept_until": 0,
                         "recalls": 0, "used_turn": 0, "searchable": 0},
            "messages": {"segment_id": 1, "ordinal": 0, "role": "user", "content": "one"},
        }.items():  # fmt: skip
            connection.execute(insert(metadata.tables[table]).values(values))
    engine.dispose()
    path.chmod(0o600)


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_a_store_of_every_older_schema_is_upgraded_to_the_very_schema(
    path: Path, version: int
) -> None:
    store_of_schema(path, version)
    with Store.open(path) as store:
        archive = store.for_user("ann")
        (stored,) = archive.session_segments(archive.session("main", create=False).id)
        assert stored.segment.text == "one"
        assert archive.blocks() == [] and archive.passage_ids() == []
        assert [finding.name for finding in store.check() if finding.status == "fail"] == []
    fresh = path.with_name("fresh.db")
    Store.open(fresh).close()
    assert described(path) == described(fresh)


def test_the_copy_of_an_upgrade_goes_with_the_first_that_is_forgotten(path: Path) -> None:
    store_of_schema(path, 1)
    backup = path.with_name("me.db.schema-1.backup")
    others = path.with_name("me.db.schema-x.backup"), path.with_name("you.db.schema-1.backup")
    for other in others:
        other.touch(0o600)
    with Store.open(path) as store:
        archive = store.for_user("ann")
        archive.remove_session(archive.session("empty").name)
        assert backup.exists()
        with archive.write() as transaction:
            transaction.forget(1)
        assert transaction.num_backups == 1
    assert not backup.exists()
    assert all(other.exists() for other in others)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("op.execute('DELETE FROM messages WHERE segment_id = 1')", StoreCorrupt),
        ("op.execute('UPDATE messages SET segment_id = 99 WHERE segment_id = 1')", StoreCorrupt),
        ("raise RuntimeError('in the middle')", RuntimeError),
    ],
)
def test_an_upgrade_that_would_lose_something_changes_nothing(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: str,
    error: type[Exception],
) -> None:
    fill(path)
    before = described(path)
    with monkeypatch.context() as patch:
        add_revision(tmp_path / "migrations", patch, more)
        for _ in range(2):  # the second finds the copy of the first
            with pytest.raises(error):
                Store.open(path)
    assert described(path) == before
    with Store.open(path) as store:
        archive = store.for_user("ann")
        stored = archive.session_segments(archive.session("main").id)
        assert [each.segment.text for each in stored] == ["one", "two"]


def test_an_upgraded_store_is_refused_by_the_older_code(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        add_revision(tmp_path / "migrations", patch)
        fill(path)
    with pytest.raises(SchemaNewer):
        Store.open(path)
