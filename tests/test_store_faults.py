"""Faults of the disk and of SQLite come out typed, name the file, and cost nothing acknowledged."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentmem.errors import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
)
from agentmem.storage import faults
from agentmem.storage.archive import Store

ROOT = Path(__file__).resolve().parent.parent


def run(script: str, *args: object) -> dict[str, object]:
    """Run a script in a process of its own; it prints one JSON object."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, *map(str, args)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    answer: dict[str, object] = json.loads(result.stdout)
    return answer


def full(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA max_page_count=2")
    connection.execute("CREATE TABLE t(x)")
    connection.execute("INSERT INTO t VALUES (?)", ["x" * 10_000])


def read_only(path: Path) -> None:
    sqlite3.connect(path).execute("CREATE TABLE t(x)").connection.close()
    sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True).execute("INSERT INTO t VALUES (1)")


def not_a_database(path: Path) -> None:
    path.write_bytes(b"something else entirely" * 100)
    sqlite3.connect(path).execute("SELECT * FROM sqlite_master")


def busy(path: Path) -> None:
    first = sqlite3.connect(path, isolation_level=None)
    first.execute("BEGIN EXCLUSIVE")
    sqlite3.connect(path, timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")


def no_folder(path: Path) -> None:
    sqlite3.connect(path.parent / "no such folder" / "me.db")


@pytest.mark.parametrize(
    ("provoke", "kind"),
    [
        (full, StoreFull),
        (read_only, StoreReadOnly),
        (not_a_database, StoreCorrupt),
        (busy, StoreLocked),
        (no_folder, StoreReadOnly),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_sqlites_errors_come_out_typed(
    provoke: Callable[[Path], None], kind: type[StoreError], tmp_path: Path
) -> None:
    path = tmp_path / "me.db"
    with pytest.raises(kind, match=str(path)) as failure, faults.typed_errors(path):
        provoke(path)
    assert isinstance(failure.value.__cause__, sqlite3.Error)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EROFS, StoreReadOnly),
        (errno.EACCES, StoreReadOnly),
        (errno.ENOSPC, StoreFull),
        (errno.EIO, StoreError),
    ],
)
def test_the_systems_errors_come_out_typed(
    number: int, kind: type[StoreError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "me.db"

    def refuse(*args: object, **kwargs: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(kind, match=str(path)) as failure:
        Store.open(path)
    assert type(failure.value) is kind


IN_A_FOLDER_THAT_CANNOT_BE_WRITTEN = """
import json, os, sys, tempfile
from agentmem.errors import AgentmemError
from agentmem.storage.archive import Store
from agentmem.segment import Message, Segment

folder = tempfile.mkdtemp()
path = os.path.join(folder, "me.db")
store = Store.open(path)
store.for_user("ann").session("main")
answers = {}

def attempt(name, action):
    try:
        action()
        answers[name] = "done"
    except AgentmemError as error:
        answers[name] = type(error).__name__ + " " + str(path in str(error))

os.chmod(path, 0o400)
os.chmod(folder, 0o500)
if os.geteuid() == 0:
    store.close()
    os.chown(folder, 65534, 65534)
    for name in os.listdir(folder):
        os.chown(os.path.join(folder, name), 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
attempt("existing", lambda: Store.open(path))
attempt("new", lambda: Store.open(os.path.join(folder, "new.db")))
attempt("deeper", lambda: Store.open(os.path.join(folder, "a", "b", "new.db")))
os.chmod(folder, 0o700)
os.chmod(path, 0o600)
attempt("afterwards", lambda: Store.open(path).for_user("ann").session("main", create=False))
print(json.dumps(answers))
"""


def test_a_folder_that_cannot_be_written_is_a_typed_error() -> None:
    answers = run(IN_A_FOLDER_THAT_CANNOT_BE_WRITTEN)
    assert answers == {
        "existing": "StoreReadOnly True",
        "new": "StoreReadOnly False",
        "deeper": "StoreReadOnly False",
        "afterwards": "done",
    }


ON_A_FULL_DISK = """
import json, os, resource, signal, sys
from agentmem.errors import StoreFull
from agentmem.storage.archive import Store
from agentmem.segment import Message, Segment

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = sys.argv[1]
store = Store.open(path)
archive = store.for_user("ann")
session = archive.session("main").id

def remember(number):
    with archive.write() as transaction:
        text = str(number) + "x" * 3000
        turn = transaction.add_turn(session, None, text)
        transaction.add_segment(session, turn.number, Segment((Message("user", text),)))

acked = 0
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path + "-wal") + 1_000_000, hard))
message = ""
for number in range(500):
    try:
        remember(number)
        acked += 1
    except StoreFull as error:
        message = str(error)
        break
readable = len(archive.session_segments(session))
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
remember(500)
after = [len(archive.session_segments(session)), len(archive.turns(session))]
store.close()
with Store.open(path) as store:
    failed = [finding.name for finding in store.check() if finding.status == "fail"]
    reopened = len(store.for_user("ann").session_segments(session))
print(json.dumps([acked, message, readable, after, failed, reopened]))
"""


def test_a_full_disk_costs_nothing_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "me.db"
    acked, message, readable, after, failed, reopened = run(ON_A_FULL_DISK, path)
    assert isinstance(acked, int) and 10 < acked < 500
    assert str(path) in str(message) and "Free space" in str(message)
    assert readable == acked
    assert after == [acked + 1, acked + 1]
    assert failed == [] and reopened == acked + 1
