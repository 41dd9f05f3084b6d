"""What forgetting does to every row of every table: to those it is about, and to no others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentmem.segment import Message, Segment
from agentmem.storage import ids
from agentmem.storage.archive import Archive, Store
from agentmem.storage.schema import metadata
from tests.filled_store import NOW, USERS, Filled, Rows, fill_store, rows_of

Difference = dict[str, dict[tuple[Any, ...], dict[str, Any] | None]]
"""Per table and key: None where the row is gone, else the values that are others now."""

ME = USERS[0]
FORGOTTEN = {"state": "forgotten", "content_hash": "", "searchable": 0}
UNQUOTED = {"cost.raw": [""]}
BARE = UNQUOTED | {
    "decision.reason": "", "decision.alternative": "", "decision.tool_call": None,
}  # fmt: skip
LOGS = {(1,): None, (3,): None, (4,): None}
"""The logs that have seen what was forgotten. That of `early` ended before, another user's not."""


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Filled]:
    path = tmp_path_factory.mktemp("filled") / "me.db"
    return path, fill_store(path)[0]


@pytest.fixture
def path(origin: tuple[Path, Filled], tmp_path: Path) -> Path:
    return Path(shutil.copy(origin[0], tmp_path / "me.db"))


@pytest.fixture
def mine(origin: tuple[Path, Filled]) -> Filled:
    return origin[1]


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Objects in a row's JSON as values of their own."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if prefix == "" and name in ("decision", "effect", "cost", "reply") and value is not None:
            value = json.loads(value)
        if isinstance(value, dict) and name != "tool_call":
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def keyed(rows: Rows, table: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    names = [column.name for column in metadata.tables[table].primary_key]
    found = [flat(dict(row)) for row in rows[table]]
    return {tuple(row[name] for name in names): row for row in found}


def difference(before: Rows, after: Rows) -> Difference:
    found: Difference = {}
    for table in metadata.tables:
        old, new = keyed(before, table), keyed(after, table)
        changed: dict[tuple[Any, ...], dict[str, Any] | None] = {}
        for key, row in old.items():
            if key not in new:
                changed[key] = None
            elif new[key] != row:
                now = new[key]
                gone = {name: None for name in row if name not in now}
                changed[key] = gone | {n: now[n] for n in now if n not in row or now[n] != row[n]}
        changed |= {key: row for key, row in new.items() if key not in old}
        if changed:
            found[table] = changed
    return found


def done(path: Path, act: Callable[[Archive], object]) -> Difference:
    """What an act of the first user changed; the change log is not in it."""
    before = rows_of(path)
    with Store.open(path, durability="relaxed") as store:
        act(store.for_user(ME))
        assert [finding for finding in store.check() if finding.status == "fail"] == []
    found = difference(before, rows_of(path))
    found.pop("changes", None)
    return found


def forget(*segment_ids: int) -> Callable[[Archive], None]:
    def act(archive: Archive) -> None:
        with archive.write() as transaction:
            for one in segment_ids:
                transaction.forget(one)

    return act


def bare(about: int) -> dict[str, Any]:
    """A decision without its words; the numbers of its evidence stay."""
    return BARE | {f"decision.evidence.{about}.why": ""}


def gone(table: str, *keys: Any) -> Difference:
    return {table: {key if isinstance(key, tuple) else (key,): None for key in keys}}


def test_a_message_takes_its_words_from_every_table_and_leaves_all_others(
    path: Path, mine: Filled
) -> None:
    one = mine.code
    assert done(path, forget(one)) == {
        "segments": {(one,): FORGOTTEN},
        "turns": {(1,): {"text": ""}},
        "decisions": {
            (1,): bare(one) | {"effect.why": ""}, (2,): bare(one), (3,): UNQUOTED,
            (4,): bare(mine.name),
        },
        # What is also said elsewhere holds from when it was said there.
        "facts": {(1,): {"valid_from": NOW + 24}},
        "recordings": LOGS,
        **gone("messages", (one, 0)),
        **gone("words", one),
        **gone("embeddings", (1, one), (2, one)),
        **gone("windows", (mine.main, 1)),
        **gone("fact_sources", (mine.user, one, "patterns", 0)),
        **gone("fact_reads", (mine.user, one, "patterns")),
    }  # fmt: skip


def test_an_answer_takes_what_models_said_from_its_turn_on(path: Path, mine: Filled) -> None:
    one = mine.answer
    assert done(path, forget(one)) == {
        "segments": {(one,): FORGOTTEN},
        "turns": {(1,): {"reply.text": ""}},
        "decisions": {
            (1,): UNQUOTED, (2,): bare(mine.code), (3,): bare(mine.name), (4,): UNQUOTED,
            (5,): bare(one), (6,): UNQUOTED,
        },
        "recordings": LOGS,
        **gone("messages", (one, 0)),
        **gone("words", one),
    }  # fmt: skip


def test_what_models_said_in_turns_before_it_stays(path: Path, mine: Filled) -> None:
    one = mine.name
    assert done(path, forget(one)) == {
        "segments": {(one,): FORGOTTEN | {"pinned": 0}},
        "decisions": {(3,): bare(one), (4,): bare(one)},
        "recordings": LOGS,
        **gone("facts", 4),
        **gone("messages", (one, 0)),
        **gone("words", one),
        **gone("embeddings", (1, one), (2, one)),
        **gone("windows", (mine.main, 0)),
        **gone("fact_sources", *((mine.user, one, "patterns", each) for each in (1, 3))),
        **gone("fact_reads", (mine.user, one, "patterns")),
    }


def test_the_newer_first_in_one_transaction_is_as_either_alone(path: Path, mine: Filled) -> None:
    found = done(path, forget(mine.name, mine.code))
    assert found["decisions"] == {
        (1,): bare(mine.code) | {"effect.why": ""}, (2,): bare(mine.code), (3,): bare(mine.name),
        (4,): bare(mine.name),
    }  # fmt: skip
    assert found["facts"] == {(1,): None, (4,): None}


def test_a_turn_loses_what_it_has_of_a_text_and_nothing_that_others_said(
    path: Path, mine: Filled
) -> None:
    def turns(segment_id: int, name: str) -> Any:
        copy = Path(shutil.copy(path, path.with_name(f"{name}.db")))
        return done(copy, forget(segment_id))["turns"]

    assert turns(mine.guest, "a part of it") == {(3,): {"text": ""}}
    assert turns(mine.doubt, "more than it") == {(4,): {"text": ""}}
    assert turns(mine.doubted, "quoted by the user") == {(4,): {"reply.text": ""}}


def test_a_version_of_a_block_goes_and_the_one_before_it_is_live(path: Path, mine: Filled) -> None:
    one = mine.newer_block
    assert done(path, forget(one)) == {
        "segments": {
            (one,): {"state": "forgotten", "content_hash": ""}, (mine.block,): {"state": "live"},
        },
        "decisions": {(4,): UNQUOTED},
        "recordings": LOGS,
        **gone("block_edits", (mine.user, "human", 2)),
        **gone("messages", (one, 0)),
        **gone("windows", (mine.main, 4)),
    }  # fmt: skip


def test_a_passage_takes_its_tags_and_an_import_the_name_of_its_file(
    path: Path, mine: Filled
) -> None:
    both = mine.passage, mine.imported
    assert done(path, forget(*both)) == {
        "segments": {(both[0],): FORGOTTEN, (both[1],): FORGOTTEN | {"source": None}},
        "decisions": {(2,): UNQUOTED, (4,): UNQUOTED},
        "recordings": LOGS,
        **gone("passage_tags", *((mine.user, tag, both[0]) for tag in ("fruit", "früchte"))),
        **gone("messages", *((one, 0) for one in both)),
        **gone("words", *both),
    }


def test_the_log_that_a_segment_began_with_ends_with_it(path: Path, mine: Filled) -> None:
    with Store.open(path, durability="relaxed") as store:
        archive = store.for_user(ME)
        archive.remove_session("main")
        with archive.write() as transaction:
            new = transaction.session("new")
            before = transaction.counters(new)
            said = Segment((Message("user", "New here."),))
            stored = transaction.add_segment(new, 1, said)
            transaction.add_recording(new, before, [["say", "New here."]])
        forget(stored.id)(archive)
        assert archive.recordings(new) == [] and archive.recordings(mine.early) != []


def test_a_log_that_began_right_after_the_newest_segment_has_seen_it(
    path: Path, mine: Filled
) -> None:
    assert done(path, forget(mine.parked))["recordings"] == LOGS


def test_a_log_that_is_ended_ends_alone(path: Path, mine: Filled) -> None:
    def end(archive: Archive) -> None:
        with archive.write() as transaction:
            transaction.end_log(mine.main)

    assert done(path, end) == gone("recordings", 1, 4)


@pytest.mark.parametrize("portion", [500, 1])
def test_a_session_goes_with_its_words_elsewhere_and_its_guests_stay(
    path: Path, mine: Filled, monkeypatch: pytest.MonkeyPatch, portion: int
) -> None:
    monkeypatch.setattr(ids, "_PORTION", portion)
    own = (mine.code, mine.answer, mine.name, mine.tool, mine.doubt, mine.doubted, mine.block)
    made = mine.summary
    assert done(path, lambda archive: archive.remove_session("main")) == {
        # In no window any more; what others hold, parked or is core memory is where it was.
        "segments": dict.fromkeys((one,) for one in own)
        | {(made,): FORGOTTEN, (mine.lone,): {"state": "archived"}},
        "decisions": {
            (1,): None,
            (2,): bare(mine.code),
            (3,): None,
            (4,): bare(mine.name),
            (5,): bare(mine.answer),
            (6,): bare(mine.tool),
        },
        "recordings": LOGS,
        **gone("sessions", mine.main),
        **gone("leases", mine.main),
        **gone("turns", 1, 2, 4),
        **gone("decided", (1, mine.code), (3, mine.answer), (3, mine.name)),
        **gone("windows", *((mine.main, at) for at in range(6)), (mine.work, 0)),
        **gone("messages", *((one, 0) for one in (*own, made)), (mine.tool, 1)),
        **gone("words", *(set(own) - {mine.block}), made),
        **gone("lineage", (made, 0), (made, 1)),
        **gone("embeddings", *((s, one) for s in (1, 2) for one in (mine.code, mine.name, made))),
        **gone("block_edits", (mine.user, "empty", 1), (mine.user, "human", 1)),
        **gone("facts", 1, 4),
        **gone(
            "fact_sources",
            (mine.user, mine.code, "patterns", 0),
            *((mine.user, mine.name, "patterns", each) for each in (1, 3)),
        ),
        **gone("fact_reads", *((mine.user, one, "patterns") for one in (mine.code, mine.name))),
    }


def test_a_session_that_wrote_a_block_last_leaves_the_version_before_it_live(
    path: Path, mine: Filled
) -> None:
    found = done(path, lambda archive: archive.remove_session("wörk"))
    own = (mine.gone, mine.summary, mine.guest, mine.imported, mine.passage, mine.newer_block)
    assert found["segments"] == dict.fromkeys((one,) for one in (*own, mine.lone, mine.parked)) | {
        (mine.block,): {"state": "live"}
    }
    assert found["block_edits"] == {(mine.user, "human", 2): None}
    assert found["windows"] == {
        **gone("windows", *((mine.main, at) for at in (2, 3, 4, 5)))["windows"],
        **gone("windows", (mine.work, 0), (mine.work, 1))["windows"],
    }
    assert found["facts"] == {(3,): None}
    assert found["recordings"] == LOGS


def test_what_was_made_of_it_and_is_forgotten_already_is_in_nobodys_way(
    path: Path, mine: Filled
) -> None:
    with Store.open(path, durability="relaxed") as store:
        archive = store.for_user(ME)
        forget(mine.summary)(archive)
        assert archive.descendants([mine.code]) == set()
        assert archive.remove_session("main") == 7


def test_a_removed_session_ends_the_logs_that_saw_its_first_words(path: Path) -> None:
    with Store.open(path, durability="relaxed") as store:
        archive = store.for_user(ME)
        with archive.write() as transaction:
            talk, other = transaction.session("talk"), transaction.session("other")
            transaction.add_segment(talk, 1, Segment((Message("user", "One."),)))
            transaction.add_recording(other, transaction.counters(other), [["say", "One?"]])
            transaction.add_segment(talk, 2, Segment((Message("user", "Two."),)))
        archive.remove_session("talk")
        assert archive.recordings(other) == []


def test_the_kv_of_what_may_have_seen_it_goes_and_no_other(path: Path, mine: Filled) -> None:
    with Store.open(path, durability="relaxed") as store:
        archive = store.for_user(ME)
        folders = {}
        for one in (archive, store.for_user(USERS[1])):
            for row in one.sessions():
                folder = one.kv_folder(row)
                folder.create()
                folders[one.user, row.name] = folder.path
                for key in (mine.code - 1, mine.code, mine.answer, mine.name, mine.tool, "text"):
                    (folder.path / folder.file_name(key, 1)).write_bytes(b"kv")

        def left(user: str, session: str) -> list[int]:
            there = folders[user, session].glob("*.kv")
            return sorted(int(file.name.split(".")[0]) for file in there if file.name[0] != "s")

        forget(mine.name, mine.answer)(archive)
        assert left(ME, "main") == left(ME, "early") == [mine.code - 1, mine.code]
        assert not list(folders[ME, "main"].glob("s*"))
        archive.remove_session("wörk")
        assert not folders[ME, "wörk"].exists() and folders[ME, "main"].exists()
        archive.forget_all()
        assert not folders[ME, "main"].exists() and not folders[ME, "early"].exists()
        assert all(len(left(USERS[1], name)) == 5 for name in ("main", "wörk", "early"))


def test_of_everything_only_the_name_and_that_it_went_is_left(path: Path, mine: Filled) -> None:
    before = rows_of(path)
    with Store.open(path, durability="relaxed") as store:
        archive = store.for_user(ME)
        seen = archive.last_change()
        last = max(one.segment.id for row in archive.sessions()
                   for one in archive.session_segments(row.id))  # fmt: skip
        archive.forget_all()
        told = [(change.op, change.segment_id) for change in archive.changes(seen)]
        assert told == [("forget", one) for one in range(mine.code, last + 1)]
        assert [finding for finding in store.check() if finding.status == "fail"] == []
        assert store.purge()
    after = rows_of(path)
    for table in ("users", "spaces"):
        assert after[table] == before[table]
    for table in set(metadata.tables) - {"users", "spaces", "changes"}:
        assert len(after[table]) == len(before[table]) // 2 and after[table] < before[table], table
    assert mine.word.encode() not in path.read_bytes()


def told(path: Path, act: Callable[[Archive], object]) -> list[tuple[str, int]]:
    """The changes that others, who follow the log, see of an act of the first user."""
    with Store.open(path, durability="relaxed") as store:
        archive = store.for_user(ME)
        seen = archive.last_change()
        act(archive)
        return [(change.op, change.segment_id) for change in archive.changes(seen)]


def test_others_are_told_of_every_segment_that_changed_and_of_no_other(
    path: Path, mine: Filled
) -> None:
    copy = Path(shutil.copy(path, path.with_name("copy.db")))
    newer = mine.newer_block
    assert told(copy, forget(newer)) == [("forget", newer), ("state", mine.block)]
    facts = [("fact", mine.name), ("fact", mine.guest)]
    assert told(path, forget(mine.code)) == [*facts, ("forget", mine.code)]
    own = (mine.answer, mine.name, mine.tool, mine.block, mine.doubt, mine.doubted)
    assert told(path, lambda archive: archive.remove_session("main")) == [
        ("forget", mine.summary),
        ("fact", mine.guest),
        ("state", mine.lone),
        ("state", mine.guest),
        *(("forget", one) for one in own),
    ]
