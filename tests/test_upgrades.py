"""Filled stores of every older version: upgraded with every row, killed at any statement."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agentmem.storage.archive import Store
from agentmem.storage.backup import upgrade_backup
from agentmem.storage.schema import SCHEMA_VERSION, metadata
from agentmem.storage.vector import VectorIndex
from agentmem.storage.words import WordIndex
from tests.filled_store import USERS, WORD, Filled, fill_store, rows_of
from tests.older_stores import described, store_of_schema, upgraded

ROOT = Path(__file__).resolve().parent.parent
OLDER = range(1, SCHEMA_VERSION)

RECORDED = {
    1: "d7175db0ecbb76d4",
    2: "15ca1310afd39920",
    3: "46bb9b6f21ab57c8",
    4: "959ba6119c09839c",
    5: "482ac51f4452b8a5",
}
"""What each version's tables were when it was released, as a hash: what made them never changes."""


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Filled]]:
    """A filled store of the newest schema."""
    path = tmp_path_factory.mktemp("filled") / "me.db"
    return path, fill_store(path)


@pytest.fixture(scope="module", params=OLDER)
def older(
    request: pytest.FixtureRequest,
    newest: tuple[Path, list[Filled]],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, int]:
    """A filled store of an older schema, and which."""
    path = tmp_path_factory.mktemp("older") / "me.db"
    store_of_schema(path, request.param, rows_of(newest[0]))
    return path, request.param


def test_every_table_of_a_filled_store_has_rows_of_both_users(
    newest: tuple[Path, list[Filled]],
) -> None:
    counts = {table: len(rows) for table, rows in rows_of(newest[0]).items()}
    assert {table for table, count in counts.items() if count >= 2} >= set(metadata.tables)


def test_a_version_that_was_released_is_what_it_was(older: tuple[Path, int]) -> None:
    path, version = older
    tables = described(path)
    for table in tables.values():
        table["indexes"] = sorted(table["indexes"].items())
    text = repr(sorted(tables.items()))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == RECORDED[version]


def test_every_row_of_an_older_store_is_there_after_the_upgrade(
    older: tuple[Path, int], newest: tuple[Path, list[Filled]], tmp_path: Path
) -> None:
    path = Path(shutil.copy(older[0], tmp_path / "me.db"))
    before = rows_of(path)
    with Store.open(path) as store:
        assert [finding for finding in store.check() if finding.status == "fail"] == []
    assert rows_of(path) == upgraded(before, rows_of(newest[0]))
    assert described(path) == described(newest[0])
    assert rows_of(upgrade_backup(path, older[1])) == before


def test_an_upgraded_store_is_searched_and_written_as_a_new_one(
    older: tuple[Path, int], newest: tuple[Path, list[Filled]], tmp_path: Path
) -> None:
    path = Path(shutil.copy(older[0], tmp_path / "me.db"))
    for at in (path, Path(shutil.copy(newest[0], tmp_path / "new.db"))):
        with Store.open(at, durability="relaxed") as store:
            for name, mine in zip(USERS, newest[1], strict=True):
                archive = store.for_user(name)
                words = WordIndex(archive)
                told = words.search(WORD[name], 9)[0].tolist()
                assert sorted(told) == [mine.code, mine.answer, mine.summary]
                assert mine.name in words.search("日本語", 1)[0].tolist()
                for space, dim in (("hash:4", 4), ("mini", 2)):
                    vectors = VectorIndex(archive, space, dim)
                    ids, _ = vectors.search(np.eye(4, dtype=np.float32)[1][:dim], 1)
                    assert ids.tolist() == [mine.name]
                (row,) = (row for row in archive.turns(mine.main) if row.number == 1)
                assert row.reply == {"text": f"Noted {mine.word}.", "tokens": 5, "nil": None}
                assert archive.decision(1 if name == USERS[0] else 7).undone_by is not None
                with archive.write() as transaction:
                    transaction.forget(mine.code)
                with archive.write() as transaction:
                    stored = archive.segment(mine.answer).segment
                    copy = type(stored)(stored.messages, origin="user", source="x")
                    new = transaction.add_segment(mine.main, 4, copy)
                assert new.id > newest[1][-1].doubted


def test_the_copy_of_an_upgrade_goes_with_the_first_that_is_forgotten(
    older: tuple[Path, int], newest: tuple[Path, list[Filled]], tmp_path: Path
) -> None:
    path = Path(shutil.copy(older[0], tmp_path / "me.db"))
    backup = upgrade_backup(path, older[1])
    names = ("me.db.schema-x.backup", "you.db.schema-1.backup", "me.db.schema-1.backup.mine")
    others = [path.with_name(name) for name in names]
    for other in others:
        other.touch(0o600)
    with Store.open(path) as store:
        archive = store.for_user(USERS[0])
        archive.remove_session(archive.session("empty").name)
        assert backup.exists()
        with archive.write() as transaction:
            transaction.forget(newest[1][0].code)
        assert transaction.num_backups == 1
    assert not backup.exists()
    assert all(other.exists() for other in others)


KILLED = """
import json, os, shutil, signal, sqlite3, sys
from pathlib import Path
import alembic.command
from agentmem.storage.archive import Store
from tests.filled_store import rows_of
from tests.older_stores import upgraded

newest, folder, *olders = map(Path, sys.argv[1:])
path = folder / "me.db"
connect = sqlite3.connect

def run(older, kill_at):
    \"\"\"Upgrade in a child that dies before its n-th statement; how many it began.\"\"\"
    shutil.copy(older, path)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        def count(statement):
            os.write(write_end, b"x")
            count.seen += 1
            if count.seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        count.seen = 0
        def traced(*args, **options):
            connection = connect(*args, **options)
            connection.set_trace_callback(count)
            return connection
        sqlite3.connect = sqlite3.dbapi2.connect = traced
        Store.open(path).close()
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        seen = len(pipe.read())
    os.waitpid(pid, 0)
    return seen

faults, old, new = [], 0, 0
for older in olders:
    before = rows_of(older)
    after = upgraded(before, rows_of(newest))
    total = run(older, 0)
    few = max(1, total // (12 if older == olders[0] else 3))
    for point in sorted({*range(1, total, few), *range(total - 5, total + 1)}):
        run(older, point)
        rows = rows_of(path)
        old, new = old + (rows == before), new + (rows == after)
        if rows not in (before, after):
            faults.append([str(older), point])
        if point % 4 == 0:
            with Store.open(path) as store:
                faults += [finding.name for finding in store.check() if finding.status == "fail"]
            if rows_of(path) != after:
                faults.append(["not upgraded later", str(older), point])
        for left in folder.iterdir():
            left.unlink()
print(json.dumps({"faults": faults, "old": old, "new": new}))
"""


def test_an_upgrade_killed_at_any_statement_leaves_the_old_store_or_the_new_one_whole(
    newest: tuple[Path, list[Filled]], tmp_path: Path
) -> None:
    olders = [tmp_path / f"{version}.db" for version in OLDER]
    for version, path in zip(OLDER, olders, strict=True):
        store_of_schema(path, version, rows_of(newest[0]))
    (folder := tmp_path / "killed").mkdir()
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", KILLED]
    result = subprocess.run(
        [*command, *map(str, (newest[0], folder, *olders))],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["faults"] == []
    assert told["old"] > 20 and told["new"] >= len(olders)
