"""Upgrading a store: to the very schema, with its rows, or not at all."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from agentmem.errors import SchemaNewer, StoreCorrupt
from agentmem.segment import Message, Segment
from agentmem.storage import check, migrate
from agentmem.storage.archive import Store
from agentmem.storage.schema import SCHEMA_VERSION, metadata
from tests.older_stores import described

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
