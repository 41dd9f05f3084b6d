"""Parking: RAM above, disk below, each within its budget, and what leaves first."""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.errors import InvalidInput
from agentmem.storage.kv_disk import KVDisk
from agentmem.storage.kv_file import Owner, RecordFile
from agentmem.storage.kv_folder import KVFolder, session_folder
from agentmem.storage.kv_parking import Parking
from agentmem.storage.kv_record import KVRecord
from agentmem.storage.kv_shelf import value_per_byte
from tests.kv_records import record, same

RAM_BYTES = record().nbytes
FILE_BYTES = RecordFile(1, record(), Owner("", "")).nbytes + 128


def disk_in(folder: Path, max_bytes: int = 2**20) -> KVDisk:
    return KVDisk(session_folder(folder / "me.db", "ann", 1, 0.0), model="m", max_bytes=max_bytes)


def test_parking_stays_within_its_bytes_and_lets_idle_records_go() -> None:
    one = record()
    parking = Parking(RAM_BYTES * 2)
    assert parking.put("a", one) == () and parking.put("b", one) == ()
    assert parking.get("a") is one
    assert parking.put("c", one) == ("b",)
    assert sorted(map(str, parking)) == ["a", "c"] and parking.nbytes == 2 * RAM_BYTES


def test_what_ram_cannot_hold_moves_down_and_is_found_there(tmp_path: Path) -> None:
    parking = Parking(RAM_BYTES * 2, disk_in(tmp_path))
    for key in range(5):
        assert parking.put(key, record(seed=key)) == ()
    assert parking.nbytes == 2 * RAM_BYTES and len(os.listdir(folder_of(parking).path)) == 3
    assert parking.disk_nbytes == folder_of(parking).nbytes
    for key in range(5):
        assert parking.has(key) and same(parking.get(key), record(seed=key))
        assert parking.token_ids(key) == record(seed=key).token_ids
    assert sorted(map(str, parking)) == ["0", "1", "2", "3", "4"] and len(parking) == 5
    assert parking.token_ids(9) is None and parking.get(9) is None and not parking.has(9)


def folder_of(parking: Parking) -> KVFolder:
    assert isinstance(parking.disk, KVDisk)
    return parking.disk.folder


def test_what_the_disk_cannot_hold_vanishes(tmp_path: Path) -> None:
    parking = Parking(RAM_BYTES, disk_in(tmp_path, 2 * FILE_BYTES))
    gone = [parking.put(key, record(seed=key)) for key in range(5)]
    assert gone == [(), (), (), (0,), (1,)]
    assert sorted(map(str, parking)) == ["2", "3", "4"]


def test_a_record_larger_than_ram_goes_straight_to_disk(tmp_path: Path) -> None:
    parking = Parking(RAM_BYTES, disk_in(tmp_path))
    parking.put("small", record())
    assert parking.put("large", record(64)) == ()
    assert parking.nbytes == RAM_BYTES and same(parking.get("large"), record(64))


def test_a_record_larger_than_both_is_not_kept_and_nothing_leaves_for_it(tmp_path: Path) -> None:
    for parking in (Parking(RAM_BYTES), Parking(RAM_BYTES, disk_in(tmp_path, FILE_BYTES))):
        parking.put("small", record())
        assert parking.put("large", record(256)) == ("large",)
        assert parking.has("small") and not parking.has("large")


def test_a_key_is_parked_once_and_forgotten_at_once(tmp_path: Path) -> None:
    parking = Parking(RAM_BYTES, disk_in(tmp_path))
    for _ in range(2):
        parking.put("a", record(seed=1))
        parking.put("b", record(seed=2))
    assert len(parking) == 2
    for key in ("a", "b"):
        assert parking.forget(key) and not parking.forget(key) and parking.get(key) is None
    assert parking.nbytes == parking.disk_nbytes == 0
    assert os.listdir(folder_of(parking).path) == []


def test_a_key_put_again_is_never_its_old_record(tmp_path: Path) -> None:
    parking = Parking(RAM_BYTES, disk_in(tmp_path))
    parking.put("a", record(seed=1))
    parking.put("b", record(seed=2))  # "a" moves down
    parking.put("a", record(seed=3))  # "b" moves down
    assert same(parking.get("a"), record(seed=3)) and same(parking.get("b"), record(seed=2))
    assert parking.forget("a") and parking.get("a") is None


def test_a_flush_moves_everything_down(tmp_path: Path) -> None:
    parking = Parking(disk=disk_in(tmp_path))
    for key in range(4):
        parking.put(key, record(seed=key))
    assert parking.flush() == () and parking.nbytes == 0
    assert all(same(parking.get(key), record(seed=key)) for key in range(4))


def test_a_flush_into_too_little_room_keeps_what_was_used_last(tmp_path: Path) -> None:
    parking = Parking(disk=disk_in(tmp_path, 2 * FILE_BYTES))
    for key in range(4):
        parking.put(key, record(seed=key))
    parking.get(0)
    assert parking.flush() == (1, 2)
    assert sorted(map(str, parking)) == ["0", "3"]


def test_a_damaged_record_is_none_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parking = Parking(0, disk_in(tmp_path))
    parking.put("a", record())
    (file,) = folder_of(parking).path.iterdir()
    file.write_bytes(b"nonsense")
    with caplog.at_level(logging.WARNING):
        assert parking.has("a") and parking.get("a") is None and not parking.has("a")
    assert parking.num_damaged == 1 and str(file) in caplog.text and not file.exists()


def test_a_copied_parking_goes_its_own_way(tmp_path: Path) -> None:
    parking = Parking(2 * RAM_BYTES, disk_in(tmp_path))
    for key in range(4):
        parking.put(key, record(seed=key))
    files = sorted(os.listdir(folder_of(parking).path))
    fork = parking.copy()
    assert sorted(map(str, fork)) == ["0", "1", "2", "3"]
    fork.forget(0)
    fork.forget(3)
    for key in range(10, 14):
        fork.put(key, record(seed=key))
    fork.flush()
    assert fork.nbytes == 0 and same(fork.get(1), record(seed=1)) and not fork.has(0)
    assert sorted(os.listdir(folder_of(parking).path)) == files
    assert sorted(map(str, parking)) == ["0", "1", "2", "3"]
    parking.put(1, record(seed=99))
    parking.put(20, record(seed=20))
    assert fork.get(1) is None and not fork.has(20)


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(InvalidInput, match="-1"):
        Parking(-1)


def test_of_two_records_the_longer_idle_is_worth_less() -> None:
    assert value_per_byte(16, 100, 1) > value_per_byte(16, 100, 2)


def test_of_two_records_the_larger_for_the_same_tokens_is_worth_less() -> None:
    assert value_per_byte(16, 100, 3) > value_per_byte(16, 200, 3)


def test_a_short_segment_is_worth_more_a_byte_for_a_forward_is_never_free() -> None:
    assert value_per_byte(16, 100, 3) > value_per_byte(160, 1000, 3)


def test_a_dense_record_leaves_before_a_packed_one_of_the_same_age() -> None:
    packed, dense = record(page_nbytes=(50,)), record(page_nbytes=(200,))
    parking = Parking(300)
    parking.put("dense", dense)
    parking.put("packed", packed)
    parking.get("dense")
    assert parking.put("new", record(page_nbytes=(100,))) == ("dense",)


def test_eight_threads_offload_and_fetch_bit_exact(tmp_path: Path) -> None:
    num_threads, num_rounds, num_keys = 8, 1000, 6
    made = [record(seed=seed) for seed in range(64)]
    parking = Parking(10 * RAM_BYTES, disk_in(tmp_path, num_threads * num_keys * FILE_BYTES))
    over: list[int] = []

    def work(thread: int) -> int:
        wrong = 0
        held: dict[int, KVRecord] = {}
        for round_ in range(num_rounds):
            key = thread * num_keys + round_ % num_keys
            if key in held:
                wrong += not same(parking.get(key), held[key])
            if round_ % 7 == 0 and key in held:
                del held[key]
                wrong += not parking.forget(key) or parking.has(key)
            held[key] = made[(round_ * 5 + thread) % 64]
            parking.put(key, held[key])
            if parking.nbytes > parking.max_bytes:
                over.append(parking.nbytes)
        return wrong + sum(not same(parking.get(key), one) for key, one in held.items())

    with ThreadPoolExecutor(num_threads) as pool:
        assert list(pool.map(work, range(num_threads))) == [0] * num_threads
    assert not over and len(parking) == num_threads * num_keys
    assert len(os.listdir(folder_of(parking).path)) == len(parking) - 10
    assert folder_of(parking).nbytes == parking.disk_nbytes


def test_a_record_can_be_fetched_while_it_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parking = Parking(RAM_BYTES, disk_in(tmp_path))
    parking.put("a", record(seed=1))
    writing, go_on = threading.Event(), threading.Event()
    real = RecordFile.write

    def slow(self: RecordFile, path: Path) -> None:
        writing.set()
        assert go_on.wait(10)
        real(self, path)

    monkeypatch.setattr(RecordFile, "write", slow)
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(parking.put, "b", record(seed=2))
        assert writing.wait(10)
        started = time.monotonic()
        assert parking.has("a") and same(parking.get("a"), record(seed=1))
        assert time.monotonic() - started < 5
        go_on.set()
        assert put.result(10) == ()
    assert same(parking.get("a"), record(seed=1)) and same(parking.get("b"), record(seed=2))


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "get", "forget", "fork"]), st.integers(0, 7)),
        max_size=40,
    )
)
def test_whatever_happens_a_record_is_the_last_one_put_or_gone(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("parking")
    parking = Parking(2 * RAM_BYTES, disk_in(folder, 3 * FILE_BYTES))
    put: dict[int, KVRecord] = {}
    for step, (name, key) in enumerate(operations):
        here = set(parking)
        if name == "put":
            put[key] = record(seed=step)
            assert key not in parking.put(key, put[key])
        elif name == "forget":
            assert parking.forget(key) == (key in here)
            put.pop(key, None)
        elif name == "fork":
            fork = parking.copy()
            fork.forget(key)
            fork.put(key + 1, record(seed=999))
        found = parking.get(key) if name == "get" else parking.copy().get(key)
        assert found is None if key not in parking else same(found, put[key])
        assert parking.nbytes <= 2 * RAM_BYTES and parking.disk_nbytes <= 3 * FILE_BYTES
        assert set(parking) <= set(put)
        assert folder_of(parking).nbytes == parking.disk_nbytes


def test_two_thousand_turns_stay_within_both_budgets(tmp_path: Path) -> None:
    ram_bytes, disk_bytes = 20 * RAM_BYTES, 60 * FILE_BYTES
    parking = Parking(ram_bytes, disk_in(tmp_path, disk_bytes))
    for turn in range(2000):
        parking.put(turn, record(1 + turn * 7 % 100, seed=turn % 50))
        wanted = turn * 31 % (turn + 1)
        if parking.get(wanted) is not None:
            parking.forget(wanted)
        if turn % 100 == 0:
            assert folder_of(parking).nbytes == parking.disk_nbytes
        assert parking.nbytes <= ram_bytes and parking.disk_nbytes <= disk_bytes
    assert parking.disk_nbytes > disk_bytes // 2
