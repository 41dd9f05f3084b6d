"""Opening, locking, copying and checking a store file."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from agentmem.decision import Decision
from agentmem.errors import (
    InvalidInput,
    SchemaNewer,
    StoreCorrupt,
    StoreError,
    StoreLocked,
)
from agentmem.segment import Message, Segment, ToolCall
from agentmem.storage.archive import Archive, Finding, Store
from agentmem.storage.engine import APPLICATION_ID, create_file, make_engine, wal_is_sound
from agentmem.storage.lock import FileLock
from agentmem.storage.schema import SCHEMA_VERSION

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "me.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path, lock_seconds=5) as opened:
        yield opened


def remember(archive: Archive, *texts: str) -> list[int]:
    session_id = archive.session("main").id
    with archive.write() as transaction:
        return [
            transaction.add_segment(session_id, 1, Segment((Message("user", text),))).id
            for text in texts
        ]


def texts(archive: Archive) -> list[str]:
    session_id = archive.session("main").id
    return [stored.segment.text for stored in archive.session_segments(session_id)]


def raw(path: Path, *statements: str) -> None:
    """Run SQL on a store file as a foreign program would."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


# Opening.


def test_what_was_stored_is_there_when_the_store_is_opened_again(path: Path) -> None:
    with Store.open(path) as store:
        remember(store.for_user("ann"), "one", "two")
    with Store.open(str(path), create=False) as store:
        assert texts(store.for_user("ann")) == ["one", "two"]


@pytest.mark.parametrize("name", ["Ünï ストア/é.db", "100%?mode=ro#x.db", ":memory:", "a/b/c.db"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with Store.open(path) as store:
        remember(store.for_user("ann"), "one")
        assert store.path == path
    assert path.stat().st_size > 0
    with Store.open(path) as store:
        assert texts(store.for_user("ann")) == ["one"]


def test_a_relative_path_is_where_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Store.open("me.db") as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        remember(store.for_user("ann"), "one")
        assert store.check()[0].status == "ok"
    assert (tmp_path / "me.db").exists()


def test_two_names_of_one_file_share_one_lock(tmp_path: Path, path: Path) -> None:
    with Store.open(path) as store:
        (tmp_path / "link.db").symlink_to(path)
        with (
            Store.open(tmp_path / "link.db", lock_seconds=0.1) as other,
            store.for_user("ann").write(),
            pytest.raises(StoreLocked),
            other.for_user("ann").write(),
        ):
            pass


def test_files_are_for_the_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        with Store.open(tmp_path / "a" / "b" / "me.db") as store:
            archive = store.for_user("ann")
            remember(archive, "one")
            with archive.lease(archive.session("main").id):
                store.backup(tmp_path / "a" / "copy.db")
                made = {p: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "a").rglob("*")}
    finally:
        os.umask(umask)
    assert {"me.db", "me.db-wal", "me.db-shm", "me.db.lock", "copy.db"} <= {p.name for p in made}
    assert {p: mode for p, mode in made.items() if mode & 0o077} == {}
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


def test_every_connection_gets_the_settings(path: Path) -> None:
    create_file(path)
    engine = make_engine(path, durability="full", lock_seconds=30)
    relaxed = make_engine(path, durability="relaxed", lock_seconds=1)
    with engine.connect() as connection:
        wanted = {
            "busy_timeout": 30_000,
            "journal_mode": "wal",
            "synchronous": 2,
            "foreign_keys": 1,
            "secure_delete": 1,
            "trusted_schema": 0,
            "cell_size_check": 1,
            "temp_store": 2,
            "journal_size_limit": 67_108_864,
            "wal_autocheckpoint": 1000,
            "auto_vacuum": 2,
            "application_id": APPLICATION_ID,
        }
        got = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in wanted}
        assert got == wanted
    with relaxed.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 1
    engine.dispose()
    relaxed.dispose()


def test_opening_a_current_store_loads_neither_alembic_nor_faiss(path: Path) -> None:
    Store.open(path).close()
    script = (
        "import sys; from agentmem.storage.archive import Store; "
        "Store.open(sys.argv[1]).for_user('ann').sessions(); "
        "print({'alembic', 'faiss', 'torch'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert result.stdout == "set()\n"


def test_a_store_that_must_exist_is_not_made(path: Path) -> None:
    with pytest.raises(StoreError, match=f"no store at {path}"):
        Store.open(path, create=False)
    assert list(path.parent.iterdir()) == []


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch(0o600)
    with Store.open(path) as store:
        remember(store.for_user("ann"), "one")
        assert [finding for finding in store.check() if finding.status == "fail"] == []


def test_a_store_whose_making_was_interrupted_is_finished(path: Path) -> None:
    create_file(path)
    with Store.open(path) as store:
        remember(store.for_user("ann"), "one")
        assert [finding for finding in store.check() if finding.status == "fail"] == []
    assert sorted(file.name for file in path.parent.iterdir()) == ["me.db", "me.db.lock"]


def test_a_store_without_one_of_its_tables_is_damaged(path: Path) -> None:
    Store.open(path).close()
    raw(path, "DROP TABLE words")
    with Store.open(path) as store, pytest.raises(StoreCorrupt, match="no such table: words"):
        remember(store.for_user("ann"), "one")


@pytest.mark.parametrize("bad", ["", "a\0b"])
def test_a_path_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(InvalidInput, match="`path`"):
        Store.open(bad)


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"{tmp_path} is a folder"):
        Store.open(tmp_path)


def test_a_file_cannot_be_a_folder_of_stores(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file/me.db", "file/deeper/me.db"):
        with pytest.raises(StoreError, match="cannot be opened"):
            Store.open(tmp_path / name)


@pytest.mark.parametrize("content", [b"hello", b"not a database at all\n" * 1000, b"\0" * 8192])
def test_what_is_no_database_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match=str(path)):
        Store.open(path)
    assert path.read_bytes() == content


def test_somebody_elses_database_is_refused_and_left_alone(path: Path) -> None:
    raw(path, "CREATE TABLE theirs(x)", "INSERT INTO theirs VALUES ('kept')")
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="not one of agentmem's"):
        Store.open(path)
    assert path.read_bytes() == before


def test_a_truncated_store_is_noticed(path: Path) -> None:
    with Store.open(path) as store:
        remember(store.for_user("ann"), *("x" * 5000 for _ in range(20)))
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(StoreCorrupt, match=f"{path}.*backup"), Store.open(path) as store:
        texts(store.for_user("ann"))


def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    Store.open(path).close()
    raw(path, f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(SchemaNewer, match=f"{path} has schema {SCHEMA_VERSION + 1}"):
        Store.open(path)
    assert path.read_bytes() == before
    assert sorted(path.parent.glob("*backup*")) == []


def test_a_closed_store_says_so(path: Path) -> None:
    store = Store.open(path)
    archive = store.for_user("ann")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        archive.sessions()
    with pytest.raises(StoreError, match="closed"), archive.write():
        pass


def test_closing_empties_the_log(path: Path) -> None:
    with Store.open(path) as store:
        remember(store.for_user("ann"), "one")
        assert path.with_name("me.db-wal").stat().st_size > 0
    assert sorted(file.name for file in path.parent.iterdir()) == ["me.db", "me.db.lock"]


# Transactions.


def test_no_update_is_lost_between_threads(path: Path) -> None:
    """The driver's own BEGIN would come after the SELECT, and this would lose most updates."""
    create_file(path)
    engine = make_engine(path, durability="relaxed", lock_seconds=30)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE counter (value INTEGER)"))
        connection.execute(text("INSERT INTO counter VALUES (0)"))

    def count() -> None:
        for _ in range(25):
            with engine.begin() as connection:
                value = connection.execute(text("SELECT value FROM counter")).scalar_one()
                connection.execute(text("UPDATE counter SET value = :new"), {"new": value + 1})

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT value FROM counter")).scalar_one() == 100
    engine.dispose()


def test_threads_write_turn_after_turn(store: Store) -> None:
    archive = store.for_user("ann")
    session_id = archive.session("main").id

    def talk() -> None:
        for _ in range(10):
            with archive.write() as transaction:
                transaction.add_turn(session_id, None, "hello")

    threads = [threading.Thread(target=talk) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [turn.number for turn in archive.turns(session_id)] == list(range(1, 41))


def test_a_reader_sees_the_state_before_a_write_and_does_not_wait(path: Path) -> None:
    with Store.open(path, lock_seconds=0.2) as store, Store.open(path) as other:
        archive, writer = store.for_user("ann"), other.for_user("ann")
        remember(archive, "one")
        session_id = archive.session("main").id
        with writer.write() as transaction:
            transaction.add_segment(session_id, 1, Segment((Message("user", "two"),)))
            assert texts(archive) == ["one"]
        assert texts(archive) == ["one", "two"]


def test_a_lock_that_stays_taken_is_a_typed_error(path: Path) -> None:
    with Store.open(path, lock_seconds=0.1) as store:
        archive = store.for_user("ann")
        remember(archive, "one")
        lock = FileLock(path.with_name("me.db.lock"))
        assert lock.acquire(0)
        with pytest.raises(StoreLocked, match=f"{path} is locked.*0.1 s"):
            remember(archive, "two")
        lock.release()
        lock.close()
        remember(archive, "three")
        assert texts(archive) == ["one", "three"]


def test_a_foreign_program_that_holds_the_database_is_a_typed_error(path: Path) -> None:
    with Store.open(path, lock_seconds=0.1) as store:
        archive = store.for_user("ann")
        remember(archive, "one")
        foreign = sqlite3.connect(path, isolation_level=None)
        foreign.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreLocked, match=str(path)):
            remember(archive, "two")
        assert texts(archive) == ["one"]
        foreign.execute("ROLLBACK")
        foreign.close()
        remember(archive, "three")


def test_a_busy_database_is_tried_again_until_it_is_free(path: Path) -> None:
    with Store.open(path, lock_seconds=10) as store:
        archive = store.for_user("ann")
        remember(archive, "one")
        foreign = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        foreign.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.2, foreign.execute, ["ROLLBACK"])
        timer.start()
        remember(archive, "two")
        timer.join()
        foreign.close()
        assert texts(archive) == ["one", "two"]


def test_a_removed_lock_file_does_not_let_two_writers_in(path: Path) -> None:
    with Store.open(path, lock_seconds=0.1) as store, Store.open(path) as other:
        remember(store.for_user("ann"), "one")
        path.with_name("me.db.lock").unlink()
        with (
            other.for_user("ann").write(),
            pytest.raises(StoreLocked),
            store.for_user("ann").write(),
        ):
            pass


def test_a_store_moved_away_while_open_is_not_written(path: Path) -> None:
    store = Store.open(path)
    archive = store.for_user("ann")
    remember(archive, "one")
    path.rename(path.with_name("moved.db"))
    with pytest.raises(StoreError, match="moved, removed or replaced"):
        remember(archive, "two")
    path.with_name("moved.db").rename(path)
    remember(archive, "three")
    store.close()


# Copies.


def test_a_backup_is_the_store_as_it_was(store: Store, tmp_path: Path) -> None:
    archive = store.for_user("ann")
    remember(archive, "one", "two")
    store.backup(tmp_path / "copy.db")
    remember(archive, "three")
    with Store.open(tmp_path / "copy.db", create=False) as copy:
        assert texts(copy.for_user("ann")) == ["one", "two"]
        remember(copy.for_user("ann"), "other")
    assert texts(archive) == ["one", "two", "three"]


def test_a_backup_replaces_no_file(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    target.write_text("precious")
    with pytest.raises(InvalidInput, match="exists"):
        store.backup(target)
    with pytest.raises(InvalidInput, match="exists"):
        store.backup(store.path)
    assert target.read_text() == "precious"


def test_a_backup_that_fails_leaves_nothing(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        store.backup(tmp_path / "no such folder" / "copy.db")
    assert not (tmp_path / "no such folder").exists()


def test_a_backup_of_a_damaged_store_is_refused_and_leaves_nothing(
    store: Store, path: Path, tmp_path: Path
) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("DELETE FROM sqlite_master WHERE name = 'ix_segments_user_id'")
    connection.commit()
    connection.close()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreCorrupt):
        store.backup(tmp_path / "copy.db")
    assert sorted(tmp_path.rglob("*")) == before


# Checks.


def findings(store: Store) -> dict[str, Finding]:
    return {finding.name: finding for finding in store.check()}


def test_a_healthy_store_passes_every_check(store: Store) -> None:
    archive = store.for_user("ann")
    session_id = archive.session("main").id
    exchange = Segment(
        (
            Message("assistant", "", (ToolCall("1", "search"), ToolCall("2", "search"))),
            Message("tool", "found", (), "2"),
            Message("tool", "nothing", (), "1"),
        ),
        kind="tool_exchange",
    )
    with archive.write() as transaction:
        transaction.add_segment(session_id, 1, exchange)
    found = findings(store)
    assert set(found) == {
        "integrity", "references", "schema", "journal", "hashes", "tool pairs", "trust", "words",
        "core memory", "facts", "windows", "records", "logs", "counts", "sqlite", "permissions",
        "file system",
    }  # fmt: skip
    sound = "ok" if wal_is_sound(sqlite3.sqlite_version_info) else "warn"
    assert {name: finding.status for name, finding in found.items()} == {
        name: sound if name == "sqlite" else "ok" for name in found
    }
    assert all(bool(finding.fix) == (finding.status != "ok") for finding in found.values())
    assert found["counts"].message == "1 users, 1 sessions, 0 turns, 1 segments, 0 decisions."


def test_the_check_finds_a_tool_call_without_its_result(store: Store) -> None:
    archive = store.for_user("ann")
    session_id = archive.session("main").id
    orphan = Segment((Message("assistant", "", (ToolCall("1", "search"),)),))
    with archive.write() as transaction:
        stored = transaction.add_segment(session_id, 1, orphan)
    finding = findings(store)["tool pairs"]
    assert finding.status == "fail" and str(stored.id) in finding.message


@pytest.mark.parametrize("damaged", ["{bad", "[1]", "3", "null", '{"action": "drop"}'])
@pytest.mark.parametrize(
    ("table", "column", "finding"),
    [
        ("messages", "tool_calls", "hashes"),
        ("sessions", "settings", "records"),
        ("turns", "reply", "records"),
        *(("decisions", column, "records") for column in (
            "decision", "window_before", "window_after", "states_before", "effect", "cost"
        )),
    ],
)  # fmt: skip
def test_the_check_finds_json_that_is_not_what_was_stored(
    store: Store, path: Path, table: str, column: str, finding: str, damaged: str
) -> None:
    archive = store.for_user("ann")
    session_id = archive.session("main").id
    call = Segment(
        (Message("assistant", "", (ToolCall("1", "f"),)), Message("tool", "r", (), "1")),
        kind="tool_exchange",
    )
    with archive.write() as transaction:
        stored = transaction.add_segment(session_id, 1, call)
        transaction.answer_turn(transaction.add_turn(session_id, None, "hi").id, {"text": "ok"})
        transaction.add_decision(
            session_id, 1, Decision("keep", (stored.id,), "user"), window_before=(),
            window_after=(), states_before={}, effect={}, cost={},
        )  # fmt: skip
    assert [name for name, one in findings(store).items() if one.status == "fail"] == []
    damage = f"UPDATE {table} SET {column} = '{damaged}' WHERE {column} IS NOT NULL"  # noqa: S608
    raw(path, damage)
    may_be = damaged.startswith("{") and column in ("settings", "reply", "effect", "cost")
    expected = [] if may_be and damaged != "{bad" else [finding]
    assert [name for name, one in findings(store).items() if one.status == "fail"] == expected


def test_the_check_finds_readable_files(store: Store, path: Path) -> None:
    remember(store.for_user("ann"), "one")
    path.chmod(0o644)
    finding = findings(store)["permissions"]
    assert (finding.status, finding.fix) == ("fail", "chmod 600 me.db")


def test_the_check_finds_missing_words(store: Store, path: Path) -> None:
    remember(store.for_user("ann"), "one", "two")
    raw(path, "DELETE FROM words WHERE segment_id = 1")
    assert findings(store)["words"].status == "warn"


def test_the_check_finds_rows_that_lead_nowhere(store: Store, path: Path) -> None:
    remember(store.for_user("ann"), "one", "two")
    raw(path, "DELETE FROM segments WHERE id = 1")
    assert findings(store)["references"].status == "fail"


def test_the_check_finds_an_unfinished_schema(store: Store, path: Path) -> None:
    raw(path, "UPDATE alembic_version SET version_num = '0000'")
    assert findings(store)["schema"].status == "fail"


@pytest.mark.parametrize(
    ("version", "sound"),
    [
        ((3, 40, 1), False), ((3, 44, 5), False), ((3, 44, 6), True), ((3, 45, 0), False),
        ((3, 50, 6), False), ((3, 50, 7), True), ((3, 51, 0), False), ((3, 51, 2), False),
        ((3, 51, 3), True), ((3, 52, 0), False), ((3, 52, 1), True), ((3, 54, 1), True),
    ],
)  # fmt: skip
def test_sqlite_versions_with_the_log_race_are_known(version: tuple[int, ...], sound: bool) -> None:
    assert wal_is_sound(version) is sound


def test_purging_gives_space_back(store: Store, path: Path) -> None:
    archive = store.for_user("ann")
    remember(archive, *("x" * 20_000 for _ in range(50)))
    assert store.purge()
    full = path.stat().st_size
    archive.remove_session("main")
    assert store.purge()
    assert path.stat().st_size < full / 4
    assert path.with_name("me.db-wal").stat().st_size == 0


def test_purging_under_a_reader_says_that_it_is_not_done(path: Path) -> None:
    with Store.open(path, lock_seconds=0.1) as store:
        archive = store.for_user("ann")
        remember(archive, "one")
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM segments").fetchone()
        remember(archive, "two")
        assert not store.purge()
        reader.close()
        assert store.purge()
