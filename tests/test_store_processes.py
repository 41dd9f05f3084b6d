"""Several processes on one store: killed at any moment, writing at once, forked, holding sessions.

Each test runs its processes under one driver of its own, a plain single-threaded Python, because
forking the test runner (with threads of torch and hypothesis in it) would be another test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentmem.errors import SessionBusy
from agentmem.segment import Message, Segment
from agentmem.storage.archive import Archive, Store
from agentmem.storage.vector import VectorIndex
from agentmem.storage.words import WordIndex

ROOT = Path(__file__).resolve().parent.parent


def command(script: str, *args: object) -> list[str]:
    return [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, *map(str, args)]


def run(script: str, *args: object) -> Any:
    """Run a driver to its end; it prints one JSON value."""
    result = subprocess.run(
        command(script, *args), cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


KILL_LOOP = """
import json, os, random, select, signal, sys, time
from agentmem.segment import Message, Segment
from agentmem.storage.archive import Store, WindowEntry

path, rounds = sys.argv[1], int(sys.argv[2])
rng = random.Random(1)

def said(role, text):
    return Segment((Message(role, text),))

def talk(write_end, round_number):
    archive = Store.open(path).for_user("ann")
    session = archive.session("main").id
    number = 0
    while True:
        number += 1
        key = f"{round_number}-{number}"
        with archive.write() as transaction:
            turn = transaction.add_turn(session, key, "x" * rng.randint(1, 5000))
            user = transaction.add_segment(session, turn.number, said("user", key))
            reply = transaction.add_segment(session, turn.number, said("assistant", key))
            entries = [WindowEntry(segment.id, segment.id) for segment in (user, reply)]
            transaction.set_window(session, entries)
            transaction.answer_turn(turn.id, {"text": key})
        os.write(write_end, key.encode() + b"\\n")  # acknowledged: after the commit

acked, faults, slowest = set(), [], 0.0
for round_number in range(rounds):
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        talk(write_end, round_number)
    os.close(write_end)
    select.select([read_end], [], [], 30)
    time.sleep(rng.random() * 0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(read_end, "rb") as pipe:
        acked |= {line.decode() for line in pipe.read().split(b"\\n") if line}

    start = time.perf_counter()
    store = Store.open(path, create=False)
    archive = store.for_user("ann")
    session = archive.session("main", create=False).id
    slowest = max(slowest, time.perf_counter() - start)
    turns = archive.turns(session)
    texts = {}
    for stored in archive.session_segments(session):
        texts.setdefault(stored.turn, []).append(stored.segment.text)
    keys = {turn.key for turn in turns}
    if acked - keys:
        faults.append(["lost", sorted(acked - keys)])
    for turn in turns:
        if turn.status != "answered" or texts.get(turn.number) != [turn.key, turn.key]:
            faults.append(["torn", turn.key])
    if len(texts) != len(turns) or len(archive.changes(0)) != 2 * len(turns):
        faults.append(["torn", round_number])
    newest = [2 * len(turns) - 1, 2 * len(turns)]
    if [entry.segment_id for entry in archive.window(session)] != newest:
        faults.append(["window", round_number])
    store.close()
with Store.open(path) as store:
    faults += [finding.name for finding in store.check() if finding.status == "fail"]
print(json.dumps({"acked": len(acked), "faults": faults, "slowest": slowest}))
"""


def test_what_was_acknowledged_survives_being_killed_and_no_turn_is_torn(tmp_path: Path) -> None:
    result = run(KILL_LOOP, tmp_path / "me.db", 30)
    assert result["faults"] == []
    assert result["acked"] >= 30
    assert result["slowest"] < 1.0


TWO_WRITERS = """
import json, os, sys, threading
from agentmem.segment import Message, Segment
from agentmem.storage.archive import Store

path, processes, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
pids = []
for process in range(processes):
    pid = os.fork()
    if pid == 0:
        try:
            archive = Store.open(path).for_user("ann")
            session = archive.session("main").id
            for number in range(count):
                text = f"{process}-{number}"
                with archive.write() as transaction:
                    turn = transaction.add_turn(session, text, text)
                    transaction.add_segment(session, turn.number, Segment((Message("user", text),)))
        except BaseException as error:
            sys.stderr.write(repr(error))
            os._exit(1)
        os._exit(0)
    pids.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
with Store.open(path) as store:
    archive = store.for_user("ann")
    (session,) = archive.sessions()
    turns = archive.turns(session.id)
    segments = archive.session_segments(session.id)
    failed = [finding.name for finding in store.check() if finding.status == "fail"]
print(json.dumps({
    "codes": codes,
    "numbers": [turn.number for turn in turns],
    "keys": sorted(turn.key for turn in turns),
    "segments": [stored.segment.text for stored in segments] == [turn.key for turn in turns],
    "failed": failed,
}))
"""


def test_processes_that_make_and_write_a_store_at_once_lose_nothing(tmp_path: Path) -> None:
    result = run(TWO_WRITERS, tmp_path / "deep" / "me.db", 3, 25)
    assert result == {
        "codes": [0, 0, 0],
        "numbers": list(range(1, 76)),
        "keys": sorted(f"{process}-{number}" for process in range(3) for number in range(25)),
        "segments": True,
        "failed": [],
    }


FORK = """
import json, os, sys
from agentmem.storage.archive import Store

store = Store.open(sys.argv[1])
archive = store.for_user("ann")
session = archive.session("main").id
lease = archive.lease(session)

def say(text):
    with archive.write() as transaction:
        transaction.add_turn(session, text, text)

say("before")
pool = store._database._engine.pool
pid = os.fork()
if pid == 0:
    try:
        assert store._database._engine.pool is not pool
        for number in range(20):
            say(f"child-{number}")
        lease.close()  # it is the parent's: nothing happens
    except BaseException as error:
        sys.stderr.write(repr(error))
        os._exit(1)
    os._exit(0)
for number in range(20):
    say(f"parent-{number}")
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
try:
    archive.lease(session)
    still_held = False
except Exception as error:
    still_held = type(error).__name__ == "SessionBusy"
lease.close()
archive.lease(session).close()
keys = [turn.key for turn in archive.turns(session)]

pid = os.fork()
if pid == 0:  # forked in the middle of a write: the child has no part in it
    os._exit(0)
os.waitpid(pid, 0)
with archive.write() as transaction:
    pid = os.fork()
    if pid == 0:
        try:
            store.close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    transaction.add_turn(session, "after", "after")
failed = [finding.name for finding in store.check() if finding.status == "fail"]
print(json.dumps([code, sorted(keys), still_held, archive.last_turn(session).key, failed]))
"""


def test_a_forked_process_goes_on_with_connections_of_its_own(tmp_path: Path) -> None:
    code, keys, still_held, last, failed = run(FORK, tmp_path / "me.db")
    both = [f"{who}-{number}" for who in ("child", "parent") for number in range(20)]
    assert code == 0
    assert keys == sorted(["before", *both])
    assert still_held and last == "after" and failed == []


FORK_A_LOCK = """
import json, os, sys
from pathlib import Path
from agentmem.storage.lock import FileLock

lock = FileLock(Path(sys.argv[1]))
answers = []

def in_child(hold_after_fork):
    ready_read, ready_write = os.pipe()
    answer_read, answer_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(ready_read, 1)
        os.write(answer_write, b"taken" if lock.acquire(0) else b"refused")
        os._exit(0)
    if hold_after_fork:
        assert lock.acquire(1)
    os.write(ready_write, b"x")
    os.waitpid(pid, 0)
    answers.append(os.read(answer_read, 100).decode())

assert lock.acquire(0)
in_child(False)
lock.release()
in_child(True)
lock.release()
in_child(False)
answers.append(lock.acquire(0))
print(json.dumps(answers))
"""


def test_a_forked_process_does_not_share_its_parents_lock(tmp_path: Path) -> None:
    assert run(FORK_A_LOCK, tmp_path / "lock") == ["refused", "refused", "taken", True]


NO_CLOSE = """
import sys
from agentmem.storage.archive import Store

archive = Store.open(sys.argv[1]).for_user("ann")
lease = archive.lease(archive.session("main").id)
"""


def test_a_process_that_closes_nothing_ends_at_once(tmp_path: Path) -> None:
    subprocess.run(command(NO_CLOSE, tmp_path / "me.db"), cwd=ROOT, timeout=30, check=True)
    with Store.open(tmp_path / "me.db") as store:
        archive = store.for_user("ann")
        archive.lease(archive.session("main", create=False).id).close()


# Leases.


HOLD = """
import sys, time
from agentmem.storage.archive import Store

archive = Store.open(sys.argv[1]).for_user("ann")
lease = archive.lease(archive.session("main").id)
print("held", flush=True)
time.sleep(60)
"""


def test_a_lease_names_its_holder_and_is_free_when_the_holder_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "me.db"
    with subprocess.Popen(command(HOLD, path), cwd=ROOT, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with Store.open(path) as store:
            archive = store.for_user("ann")
            session_id = archive.session("main", create=False).id
            with pytest.raises(SessionBusy, match=f"process {holder.pid} on"):
                archive.lease(session_id)
            with pytest.raises(SessionBusy):
                archive.remove_session("main")
            archive.lease(archive.session("another session").id).close()

            os.kill(holder.pid, signal.SIGKILL)
            holder.wait()
            with archive.lease(session_id):
                pass


def test_a_second_lease_in_one_process_is_refused(tmp_path: Path) -> None:
    with Store.open(tmp_path / "me.db") as store, Store.open(tmp_path / "me.db") as other:
        archive = store.for_user("ann")
        session_id = archive.session("main").id
        with archive.lease(session_id):
            for again in (archive, store.for_user("ann"), other.for_user("ann")):
                with pytest.raises(SessionBusy, match="this process"):
                    again.lease(session_id)
        lease = archive.lease(session_id)
        lease.close()
        lease.close()
        archive.lease(session_id).close()


def test_a_lease_given_back_after_the_store_was_closed_is_free(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "me.db")
    archive = store.for_user("ann")
    lease = archive.lease(archive.session("main").id)
    store.close()
    lease.close()
    with Store.open(tmp_path / "me.db") as store:
        archive = store.for_user("ann")
        archive.lease(archive.session("main").id).close()


def test_a_lease_that_is_dropped_is_free(tmp_path: Path) -> None:
    with Store.open(tmp_path / "me.db") as store:
        archive = store.for_user("ann")
        archive.lease(archive.session("main").id)
        archive.lease(archive.session("main").id).close()


# Derived tiers.


def remember(archive: Archive, text: str, vector: list[float]) -> int:
    session_id = archive.session("main").id
    with archive.write() as transaction:
        stored = transaction.add_segment(session_id, 1, Segment((Message("user", text),)))
        transaction.add_embedding("space", stored.id, np.array(vector, np.float32))
    return stored.id


REMEMBER_AND_FORGET = """
import sys
import numpy as np
from agentmem.segment import Message, Segment
from agentmem.storage.archive import Store

with Store.open(sys.argv[1], create=False) as store:
    archive = store.for_user("ann")
    with archive.write() as transaction:
        segment = Segment((Message("user", "a cherry"),))
        stored = transaction.add_segment(archive.session("main").id, 1, segment)
        transaction.add_embedding("space", stored.id, np.array([0, 1], np.float32))
        transaction.forget(int(sys.argv[2]))
    print(stored.id)
"""


def test_the_next_search_sees_what_another_process_wrote_and_forgot(tmp_path: Path) -> None:
    path = tmp_path / "me.db"
    with Store.open(path) as store:
        archive = store.for_user("ann")
        apple = remember(archive, "an apple", [1, 0])
        words, vectors = WordIndex(archive), VectorIndex(archive, "space", 2)
        east = np.array([1, 0], np.float32)
        assert words.search("apple cherry", 5)[0].tolist() == [apple]
        assert vectors.search(east, 5)[0].tolist() == [apple]

        cherry = run(REMEMBER_AND_FORGET, path, apple)
        assert words.search("apple cherry", 5)[0].tolist() == [cherry]
        assert vectors.search(east, 5)[0].tolist() == [cherry]
        assert words.check().status == vectors.check().status == "ok"
