"""KV records as files: what is written comes back bit by bit, or not at all."""

from __future__ import annotations

import errno
import logging
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.errors import InvalidInput, StoreCorrupt, StoreError, StoreFull, Unsupported
from agentmem.storage.kv_disk import KVDisk
from agentmem.storage.kv_file import Owner, RecordFile, read_record
from agentmem.storage.kv_folder import KVFolder, forget_kv, session_folder, user_folder
from agentmem.storage.kv_manifest import Manifest, read_manifest
from agentmem.storage.kv_record import KVRecord
from tests.kv_records import record, same

ME = Owner("me", "a model")


@pytest.fixture
def folder(tmp_path: Path) -> KVFolder:
    return session_folder(tmp_path / "me.db", "ann", 7, 1.5)


def disk_in(folder: KVFolder, max_bytes: int = 2**20, model: str = "a model") -> KVDisk:
    return KVDisk(folder, model=model, max_bytes=max_bytes)


def file_nbytes(folder: KVFolder) -> int:
    return RecordFile(1, record(), Owner(folder.owner, "a model")).nbytes


def file_in(folder: Path, key: int | str = 3, owner: Owner = ME) -> Path:
    path = folder / "a file"
    RecordFile(key, record(20), owner).write(path)
    return path


@settings(deadline=None, max_examples=25)
@given(
    num_tokens=st.integers(1, 70),
    page_nbytes=st.lists(st.integers(1, 200), min_size=1, max_size=4),
    key=st.one_of(st.integers(-5, 10**12), st.text(max_size=20)),
    seed=st.integers(0, 10),
)
def test_a_record_comes_back_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory,
    num_tokens: int,
    page_nbytes: list[int],
    key: int | str,
    seed: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "one.kv"
    written = record(num_tokens, seed=seed, page_nbytes=tuple(page_nbytes))
    file = RecordFile(key, written, ME)
    file.write(path)
    assert path.stat().st_size == file.nbytes
    assert same(read_record(path, key, ME), written)


def test_a_large_record_is_read_by_several_threads_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    written = record(64, page_nbytes=(900_000,) * 5)
    path = tmp_path / "large.kv"
    RecordFile(1, written, ME).write(path)
    assert same(read_record(path, 1, ME), written)
    damage(path, path.stat().st_size - 2 * 3_600_000)
    with pytest.raises(StoreCorrupt, match="layer 3"):
        read_record(path, 1, ME)


def damage(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_one_flipped_bit_anywhere_is_found(tmp_path: Path) -> None:
    path = file_in(tmp_path)
    whole = path.read_bytes()
    unseen = 0
    for offset in range(len(whole)):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        try:
            assert same(read_record(path, 3, ME), record(20))
            unseen += 1
        except StoreCorrupt as error:
            assert str(path) in str(error)
    # Behind a layer lie zeros that nobody reads.
    assert unseen == -(2 * 96) % 64 + -(2 * 40) % 64


@pytest.mark.parametrize("length", [0, 7, 47, 48, 300, -65, -1])
def test_a_truncated_file_is_found(tmp_path: Path, length: int) -> None:
    path = file_in(tmp_path)
    os.truncate(path, length if length >= 0 else path.stat().st_size + length)
    with pytest.raises(StoreCorrupt):
        read_record(path, 3, ME)


def test_a_longer_file_is_found(tmp_path: Path) -> None:
    path = file_in(tmp_path)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(StoreCorrupt, match="bytes instead of"):
        read_record(path, 3, ME)


def test_a_record_of_another_user_model_or_key_is_refused(tmp_path: Path) -> None:
    path = file_in(tmp_path)
    with pytest.raises(Unsupported, match="another user"):
        read_record(path, 3, replace(ME, session="somebody else"))
    with pytest.raises(Unsupported, match="of model a model, not another"):
        read_record(path, 3, replace(ME, model="another"))
    with pytest.raises(StoreCorrupt, match="holds 3 instead of '3'"):
        read_record(path, "3", ME)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path = file_in(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(StoreError):
        read_record(link, 3, ME)


@pytest.mark.parametrize("name", ["../../etc", "a/b", "..", "a\0b", "\ud800", "A" * 5000, "ä"])
def test_no_name_escapes_the_folder(tmp_path: Path, name: str) -> None:
    folder = session_folder(tmp_path / "me.db", name, 1, 0.0)
    assert folder.path.parent.parent == tmp_path / "me.db.kv"
    disk = disk_in(folder)
    assert disk.put(name, record()) == ()
    assert same(disk.get(name), record())
    assert len(list((tmp_path / "me.db.kv").rglob("*.kv"))) == 1


def test_two_users_never_share_a_folder(tmp_path: Path) -> None:
    names = ["ann", "Ann", "ann ", "änn", "a/nn"]
    assert len({str(user_folder(tmp_path / "me.db", name)).lower() for name in names}) == 5


def test_folders_and_files_are_for_the_owner_alone(folder: KVFolder) -> None:
    old = os.umask(0)
    try:
        disk_in(folder).put(1, record())
        folder.write(Manifest(folder.owner, "a model"))
    finally:
        os.umask(old)
    root = folder.path.parent.parent
    for path in (root, *root.rglob("*")):
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


def test_nothing_is_made_before_something_is_kept(folder: KVFolder) -> None:
    disk = disk_in(folder)
    assert disk.get(1) is None and not disk.forget(1) and not disk.has(1)
    assert not folder.path.parent.parent.exists()


def test_the_disk_stays_within_its_bytes_and_the_least_valuable_goes(folder: KVFolder) -> None:
    one = file_nbytes(folder)
    disk = disk_in(folder, 3 * one + one // 2)
    for key in (1, 2, 3):
        assert disk.put(key, record()) == ()
    assert disk.get(1) is not None
    assert disk.put(4, record()) == (2,)
    assert sorted(map(str, disk)) == ["1", "3", "4"] and len(disk) == 3
    assert folder.nbytes == disk.nbytes <= disk.max_bytes


def test_a_record_larger_than_the_disk_is_not_kept_and_nothing_leaves_for_it(
    folder: KVFolder,
) -> None:
    disk = disk_in(folder, file_nbytes(folder))
    assert disk.put(1, record()) == ()
    assert disk.put(2, record(64)) == (2,)
    assert disk.has(1) and not disk.has(2)


def test_a_key_is_kept_once(folder: KVFolder) -> None:
    disk = disk_in(folder)
    disk.put(1, record(seed=1))
    disk.put(1, record(seed=2))
    assert same(disk.get(1), record(seed=2)) and len(os.listdir(folder.path)) == 1
    assert disk.forget(1) and not disk.forget(1)
    assert os.listdir(folder.path) == [] and disk.nbytes == 0


def test_tokens_are_known_without_reading(folder: KVFolder) -> None:
    disk = disk_in(folder)
    disk.put(1, record(5))
    next(folder.path.iterdir()).unlink()
    assert disk.token_ids(1) == (0, 1, 2, 3, 4) and disk.token_ids(2) is None
    assert disk.get(1) is None and not disk.has(1)


def test_a_damaged_file_is_deleted_when_it_is_found(folder: KVFolder) -> None:
    disk = disk_in(folder)
    disk.put(1, record())
    damage(next(folder.path.iterdir()), 60)
    with pytest.raises(StoreCorrupt):
        disk.get(1)
    assert not disk.has(1) and os.listdir(folder.path) == [] and disk.nbytes == 0


def test_a_key_that_cannot_be_named_is_not_kept(folder: KVFolder) -> None:
    assert disk_in(folder).put((1, 2), record()) == ((1, 2),)


def test_a_full_disk_costs_the_record_and_nothing_else(
    folder: KVFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = disk_in(folder)
    disk.put(1, record())
    room = 150
    real = os.write

    def write(fd: int, data: memoryview) -> int:
        nonlocal room
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = real(fd, data[:room])
        room -= count
        return count

    monkeypatch.setattr(os, "write", write)
    with caplog.at_level(logging.WARNING):
        assert disk.put(2, record()) == (2,) and disk.put(3, record()) == (3,)
    assert disk.num_failed == 2 and len(caplog.records) == 1
    assert "No space left" in caplog.text
    assert len(os.listdir(folder.path)) == 1 and same(disk.get(1), record())
    with pytest.raises(StoreFull):
        RecordFile(2, record(), ME).write(folder.path / "x")
    monkeypatch.undo()
    assert disk.put(2, record()) == () and same(disk.get(2), record())


def test_a_folder_that_cannot_be_made_costs_the_record_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "me.db.kv").write_text("a file in the way")
    disk = disk_in(session_folder(tmp_path / "me.db", "ann", 1, 0.0))
    assert disk.put(1, record()) == (1,)
    assert disk.num_failed == 1 and disk.nbytes == 0


def test_a_writer_killed_half_way_leaves_nothing_that_counts(folder: KVFolder) -> None:
    disk = disk_in(folder)
    disk.put(1, record())
    manifest = Manifest(folder.owner, "a model", disk.leave({1: ""}))
    (folder.path / "9.4.kv.tmp").write_bytes(b"half")
    (folder.path / "9.3.kv").write_bytes(b"of an earlier session")
    again = disk_in(folder)
    again.take_up(manifest.records)
    assert len(os.listdir(folder.path)) == 1 and same(again.get(1), record())
    assert again.put(9, record(seed=9)) == () and same(again.get(9), record(seed=9))


def test_what_a_clean_close_left_is_taken_up_once(folder: KVFolder) -> None:
    disk = disk_in(folder)
    disk.put(1, record(seed=1))
    disk.put("a text", record(seed=2))
    disk.put(3, record(seed=3))
    disk.get(1)
    saved = disk.leave({1: "as said", "a text": "as read"})
    assert [one.key for one in saved] == ["a text", 1]
    folder.write(Manifest(folder.owner, "a model", saved, change=12))
    manifest = folder.take()
    assert manifest == Manifest(folder.owner, "a model", saved, change=12)
    assert folder.take() is None
    again = disk_in(folder)
    again.take_up(saved)
    assert same(again.get(1), record(seed=1)) and same(again.get("a text"), record(seed=2))
    assert not again.has(3) and folder.nbytes == again.nbytes
    assert len(os.listdir(folder.path)) == 2


def test_a_smaller_budget_takes_up_less(folder: KVFolder) -> None:
    disk = disk_in(folder)
    for key in range(4):
        disk.put(key, record())
    again = disk_in(folder, disk.nbytes // 2)
    again.take_up(disk.leave(dict.fromkeys(range(4), "")))
    assert sorted(map(str, again)) == ["2", "3"]
    assert folder.nbytes == again.nbytes <= again.max_bytes


@pytest.mark.parametrize("fault", ["flipped", "cut", "empty", "version", "another session"])
def test_a_manifest_that_is_wrong_is_none(folder: KVFolder, fault: str) -> None:
    folder.write(Manifest(folder.owner, "a model"))
    path = folder.path / "manifest"
    text = path.read_bytes()
    if fault == "flipped":
        damage(path, len(text) - 10)
    elif fault == "another session":
        folder.write(Manifest("somebody else", "a model"))
    elif fault == "version":
        path.write_bytes(text.replace(b'"version":1', b'"version":2'))
    else:
        path.write_bytes(text[: len(text) // 2] if fault == "cut" else b"")
    assert folder.take() is None
    assert not path.exists()


def test_a_manifest_leaves_out_files_that_are_gone(folder: KVFolder) -> None:
    disk = disk_in(folder)
    disk.put(1, record())
    disk.put(2, record())
    folder.write(Manifest(folder.owner, "a model", disk.leave({1: "", 2: ""})))
    disk.forget(1)
    manifest = folder.take()
    assert manifest is not None and [one.key for one in manifest.records] == [2]


def test_forgetting_deletes_in_every_session_what_may_have_seen_it(tmp_path: Path) -> None:
    store = tmp_path / "me.db"
    folders = [session_folder(store, "ann", number, 0.0) for number in (1, 2)]
    other = session_folder(store, "bob", 3, 0.0)
    for folder in (*folders, other):
        disk = disk_in(folder)
        for key in (4, 5, 12, "recall:4"):
            disk.put(key, record())
        names: dict[int | str, str] = dict.fromkeys((4, 5, 12, "recall:4"), "")
        folder.write(Manifest(folder.owner, "a model", disk.leave(names)))
        (folder.path / "4.9.kv.tmp").write_bytes(b"half of it")
    assert forget_kv(user_folder(store, "ann"), 5) == 2 * 4
    for folder in folders:
        assert sorted(os.listdir(folder.path)) == ["4.1.kv", "manifest"]
        manifest = read_manifest(folder.path / "manifest")
        assert manifest is not None and [one.key for one in manifest.records] == [4]
    assert len(os.listdir(other.path)) == 6


def test_the_longest_unused_of_other_sessions_makes_room(tmp_path: Path) -> None:
    store = tmp_path / "me.db"
    for number in (1, 2, 3):
        folder = session_folder(store, "ann", number, 0.0)
        disk_in(folder).put(1, record(160))
        os.utime(folder.path, (number, number))
    size = folder.nbytes
    mine = session_folder(store, "ann", 4, 0.0)
    assert mine.make_room(100 * size) == 97 * size
    assert mine.make_room(4 * size) == 2 * size
    assert sorted(path.name for path in mine.path.parent.iterdir()) == ["2", "3"]


def test_a_negative_budget_is_refused(folder: KVFolder) -> None:
    with pytest.raises(InvalidInput, match="-1"):
        disk_in(folder, -1)


def test_a_view_reads_what_was_there_and_changes_nothing(folder: KVFolder) -> None:
    disk = disk_in(folder)
    disk.put(1, record(seed=1))
    disk.put(2, record(seed=2))
    view = disk.view()
    disk.put(3, record(seed=3))
    disk.put(1, record(seed=9))
    assert list(view) == [1, 2] and view.nbytes < disk.nbytes
    assert view.put(4, record()) == (4,) and view.forget(2) and not view.has(2)
    assert same(disk.get(2), record(seed=2)) and same(disk.get(1), record(seed=9))
    # Its file went when the disk replaced it: gone, never the other record.
    assert view.get(1) is None and not view.has(1)
    assert view.token_ids(2) is None and disk.view().view().token_ids(3) == record(seed=3).token_ids


def test_a_view_does_not_delete_what_it_finds_damaged(folder: KVFolder) -> None:
    disk = disk_in(folder)
    disk.put(1, record())
    view = disk.view()
    damage(next(folder.path.iterdir()), 60)
    with pytest.raises(StoreCorrupt):
        view.get(1)
    assert not view.has(1) and disk.has(1) and len(os.listdir(folder.path)) == 1


def test_clearing_leaves_no_file(folder: KVFolder) -> None:
    disk = disk_in(folder)
    disk.put(1, record())
    disk.put("2", record())
    disk.clear()
    assert len(disk) == 0 and disk.nbytes == 0 and not folder.path.exists()
    assert disk.put(1, record()) == () and same(disk.get(1), record())


def test_a_record_put_while_the_old_one_is_found_damaged_stays(
    folder: KVFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = disk_in(folder)
    disk.put(1, record(seed=1))

    def replaced(path: Path, key: int | str, owner: Owner) -> KVRecord:
        monkeypatch.undo()
        disk.put(1, record(seed=2))
        raise StoreCorrupt("It was read in the middle.")

    monkeypatch.setattr("agentmem.storage.kv_disk.read_record", replaced)
    with pytest.raises(StoreCorrupt):
        disk.get(1)
    assert same(disk.get(1), record(seed=2))
