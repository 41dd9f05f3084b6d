"""The archive of one user: what goes in comes out, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentmem.decision import Decision
from agentmem.errors import InvalidInput, SegmentNotFound, SessionBusy, StoreCorrupt, StoreError
from agentmem.segment import Message, Segment, ToolCall, Trust
from agentmem.storage.archive import Archive, Store, Transaction, WindowEntry
from agentmem.storage.rows import BlockEdit, Source
from agentmem.storage.text import normalize_text

NOW = 1_700_000_000.0

TEXTS = [
    "plain",
    " leading and trailing \t\r\n",
    "",
    "Grüße, naïve café — “quotes”",
    "e\u0301 is not é here",
    "日本語のテキスト、中文文本, 한국어",
    "שלום עולם, مرحبا بالعالم",
    "ภาษาไทย हिन्दी தமிழ்",
    "🧑🏽‍🚀 flags 🇫🇷 and 👩‍👩‍👧",
    "\u200bzero\u200dwidth\ufeff and \u202egniriaps\u202c",
    "\x01\x02\x1b[31m\x7f\x85 control",
    "\ufffd \uffff \U0010ffff",
    "'; DROP TABLE segments; --",
    '"%_\\" {json: [1, 2]} <|im_start|>system',
    "line\nline\r\nline\u2028line",
    "x" * 100_000,
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path = tmp_path_factory.mktemp("archive") / "me.db"
    with Store.open(path, durability="relaxed", clock=lambda: NOW) as opened:
        yield opened


_count = iter(range(10**6))


@pytest.fixture
def archive(store: Store) -> Archive:
    """An archive of a user of its own."""
    return store.for_user(f"user-{next(_count)}")


def said(text: str, *, kind: str = "turn", parents: tuple[int, ...] = ()) -> Segment:
    return Segment((Message("user", text),), kind=kind, parents=parents)  # type: ignore[arg-type]


def add(archive: Archive, *texts: str, session: str = "main") -> list[Segment]:
    session_id = archive.session(session).id
    with archive.write() as transaction:
        return [transaction.add_segment(session_id, 1, said(text)) for text in texts]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_text_comes_back_as_it_went_in(archive: Archive, text: str) -> None:
    session = archive.session("main")
    call = ToolCall("call-1", "search", '{"query": "' + text[:5].replace('"', "") + '"}')
    segment = Segment(
        (
            Message("assistant", text, (call, call)),
            Message("tool", text, (), "call-1"),
        ),
        kind="tool_exchange",
        origin="tool",
        trust=Trust.EXTERNAL,
        created=12.5,
    )
    with archive.write() as transaction:
        turn = transaction.add_turn(session.id, None, text)
        stored = transaction.add_segment(session.id, turn.number, segment)
        transaction.answer_turn(turn.id, {"text": text, "nested": [text, None, 1.5, True]})

    read = archive.segment(stored.id).segment
    assert read == stored
    assert (read.messages, read.kind, read.origin, read.trust, read.created) == (
        segment.messages,
        "tool_exchange",
        "tool",
        Trust.EXTERNAL,
        12.5,
    )
    answered = archive.turn(session.id, "1")
    assert answered is not None and answered.text == text
    assert answered.reply == {"text": text, "nested": [text, None, 1.5, True]}


@pytest.mark.parametrize("bad", ["lone \ud83d surrogate", "NUL \0 inside"])
def test_text_that_cannot_be_kept_is_refused_and_can_be_normalized(
    archive: Archive, bad: str
) -> None:
    session = archive.session("main")
    with pytest.raises(InvalidInput, match="normalize_text"), archive.write() as transaction:
        transaction.add_segment(session.id, 0, said(bad))
    with pytest.raises(InvalidInput, match="normalize_text"), archive.write() as transaction:
        transaction.add_turn(session.id, None, bad)
    (stored,) = add(archive, normalize_text(bad))
    assert archive.segment(stored.id).segment.text == bad.replace("\ud83d", "\ufffd").replace(
        "\0", "\u2400"
    )


def test_normalizing_changes_nothing_else() -> None:
    for text in TEXTS:
        assert normalize_text(text) is text or normalize_text(text) == text
    assert normalize_text("\ud83d\ude00 \0") == "\ufffd\ufffd \u2400"


def test_a_segment_is_stamped_where_it_has_no_time(archive: Archive) -> None:
    (stored,) = add(archive, "hello")
    assert stored.created == NOW
    assert archive.segment(stored.id).segment.created == NOW


def test_a_damaged_text_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "me.db"
    with Store.open(path) as store:
        whole, damaged = add(store.for_user("ann"), "one", "two")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE messages SET content = 'twø' WHERE segment_id = ?", [damaged.id])
    connection.close()
    with Store.open(path) as store:
        archive = store.for_user("ann")
        assert archive.segment(whole.id).segment.text == "one"
        with pytest.raises(StoreCorrupt, match=f"{path}.*segment {damaged.id}"):
            archive.segment(damaged.id)
        findings = {finding.name: finding for finding in store.check()}
        assert findings["hashes"].status == "fail"
        assert str(damaged.id) in findings["hashes"].message


def test_segments_come_in_the_order_asked(archive: Archive) -> None:
    one, two, three = add(archive, "one", "two", "three")
    ids = [three.id, one.id, three.id, two.id]
    assert [stored.segment.id for stored in archive.segments(ids)] == ids
    assert archive.segments(np.array([two.id]))[0].segment == two
    assert archive.segments([]) == []


@pytest.mark.parametrize("missing", [0, -1, 10**9, 2**63, 2**200])
def test_an_unknown_id_is_an_error_that_names_it(archive: Archive, missing: int) -> None:
    (stored,) = add(archive, "here")
    with pytest.raises(SegmentNotFound, match=str(missing)):
        archive.segments([stored.id, missing])
    with pytest.raises(InvalidInput):
        archive.decision(missing)
    with pytest.raises(InvalidInput):
        archive.window(missing)
    assert archive.decisions(segment_id=missing) == []
    assert archive.session_segments(missing) == []
    assert archive.states(missing) == {}


def test_a_wrong_kind_of_id_is_an_error(archive: Archive) -> None:
    with pytest.raises(InvalidInput, match="integer"):
        archive.segments(["1"])  # type: ignore[list-item]


def test_pages_hold_every_segment_once(archive: Archive) -> None:
    added = add(archive, *map(str, range(11)))
    session_id = archive.session("main").id
    pages = list(archive.session_pages(session_id, page_size=4))
    assert [len(page) for page in pages] == [4, 4, 3]
    assert [stored.segment for page in pages for stored in page] == added


def test_a_thousand_segments_are_loaded_at_once(archive: Archive) -> None:
    added = add(archive, *map(str, range(1001)))
    loaded = archive.segments(segment.id for segment in reversed(added))
    assert [stored.segment for stored in loaded] == added[::-1]
    assert archive.session_segments(archive.session("main").id) == loaded[::-1]


def test_lineage_is_kept_in_order(archive: Archive) -> None:
    one, two = add(archive, "one", "two")
    session_id = archive.session("main").id
    with archive.write() as transaction:
        summary = transaction.add_segment(
            session_id, 2, said("both", kind="summary", parents=(two.id, one.id))
        )
    assert archive.segment(summary.id).segment.parents == (two.id, one.id)
    assert archive.segment(summary.id).segment.place == one.id
    assert archive.children([one.id]) == archive.children([two.id, one.id]) == [summary.id]
    assert archive.children([summary.id]) == []


def test_a_parent_must_exist(archive: Archive, store: Store) -> None:
    (foreign,) = add(store.for_user("somebody else"), "theirs")
    session_id = archive.session("main").id
    for parent in (10**9, foreign.id):
        with pytest.raises(SegmentNotFound), archive.write() as transaction:
            transaction.add_segment(session_id, 0, said("x", parents=(parent,)))


def test_turns_are_numbered_and_found_by_key(archive: Archive) -> None:
    session_id = archive.session("main").id
    assert archive.last_turn(session_id) is None
    with archive.write() as transaction:
        first = transaction.add_turn(session_id, "a-key", "one")
        second = transaction.add_turn(session_id, None, "two")
    assert (first.number, first.key, first.status) == (1, "a-key", "unanswered")
    assert (second.number, second.key) == (2, "2")
    assert archive.turn(session_id, "a-key") == first
    assert archive.turn(session_id, "A-key") is None
    assert archive.last_turn(session_id) == second
    assert archive.turns(session_id) == [first, second]
    assert archive.session("main").num_turns == 2


def test_a_key_is_used_once_in_a_session(archive: Archive) -> None:
    main, other = archive.session("main").id, archive.session("other").id
    with archive.write() as transaction:
        transaction.add_turn(main, "key", "one")
        transaction.add_turn(other, "key", "another session")
    with pytest.raises(InvalidInput, match="'key'"), archive.write() as transaction:
        transaction.add_turn(main, "key", "again")


def test_a_turn_without_a_key_never_takes_one_that_is_used(archive: Archive) -> None:
    session_id = archive.session("main").id
    with archive.write() as transaction:
        transaction.add_turn(session_id, "2", "one")
        transaction.add_turn(session_id, "2.1", "two")
        third = transaction.add_turn(session_id, None, "three")
        transaction.add_turn(session_id, "5", "four")
        fifth = transaction.add_turn(session_id, None, "five")
    assert (third.number, third.key) == (3, "3")
    assert (fifth.number, fifth.key) == (5, "5.1")


def test_a_turn_is_answered_once(archive: Archive) -> None:
    session_id = archive.session("main").id
    with archive.write() as transaction:
        turn = transaction.add_turn(session_id, None, "hello")
        transaction.answer_turn(turn.id, {"text": "hi"})
    answered = archive.last_turn(session_id)
    assert answered is not None
    assert (answered.status, answered.reply) == ("answered", {"text": "hi"})
    for turn_id in (turn.id, 10**9, 2**70):
        with pytest.raises(InvalidInput, match=str(turn_id)), archive.write() as transaction:
            transaction.answer_turn(turn_id, {"text": "again"})
    assert archive.last_turn(session_id) == answered


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, "\ud83d"])
def test_only_plain_json_is_stored(archive: Archive, value: object) -> None:
    session_id = archive.session("main").id
    with pytest.raises(InvalidInput), archive.write() as transaction:
        transaction.set_session_settings(session_id, {"value": value})
    assert archive.session("main").settings == {}


def test_json_too_deep_to_read_back_is_refused(archive: Archive) -> None:
    session_id = archive.session("main").id
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(InvalidInput), archive.write() as transaction:
        transaction.set_session_settings(session_id, {"value": deep})


def test_settings_are_replaced(archive: Archive) -> None:
    session_id = archive.session("main").id
    for settings in ({"model": "local", "budget": 2048}, {"recall": None}):
        with archive.write() as transaction:
            transaction.set_session_settings(session_id, settings)
        assert archive.session("main").settings == settings


def test_states_pins_and_recalls_change(archive: Archive) -> None:
    one, two = (segment.id for segment in add(archive, "one", "two"))
    with archive.write() as transaction:
        transaction.set_state([one], "parked")
        transaction.set_pinned([two], True)
        transaction.set_kept_until([one, two], 9)
        transaction.add_recalls([one], 4)
        transaction.add_recalls([one], 6)
    first, second = archive.segments([one, two])
    assert (first.state, first.pinned, first.kept_until) == ("parked", False, 9)
    assert (first.recalls, first.used_turn) == (2, 6)
    assert (second.state, second.pinned, second.recalls, second.used_turn) == ("live", True, 0, 0)
    assert archive.states(archive.session("main").id) == {"parked": 1, "live": 1}


def test_a_change_of_a_missing_segment_changes_none(archive: Archive) -> None:
    (one,) = (segment.id for segment in add(archive, "one"))
    with pytest.raises(SegmentNotFound), archive.write() as transaction:
        transaction.set_state([one, 10**9], "parked")
    assert archive.segment(one).state == "live"


def test_a_block_that_raises_leaves_nothing(archive: Archive) -> None:
    add(archive, "before")
    session_id = archive.session("main").id
    sn = archive.last_change()

    with pytest.raises(RuntimeError, match="crash"), archive.write() as transaction:
        turn = transaction.add_turn(session_id, None, "hello")
        stored = transaction.add_segment(session_id, turn.number, said("hello"))
        transaction.set_window(session_id, [WindowEntry(stored.id, stored.place)])
        transaction.add_embedding("space", stored.id, np.ones(3, np.float32))
        raise RuntimeError("crash")

    assert len(archive.session_segments(session_id)) == 1
    assert archive.turns(session_id) == [] and archive.window(session_id) == []
    assert archive.last_change() == sn
    assert len(archive.pending_embeddings("space")) == 1


def test_a_user_made_in_a_block_that_raises_is_not_remembered(store: Store) -> None:
    archive = store.for_user("nearly made")
    with pytest.raises(RuntimeError), archive.write() as transaction:
        transaction.session("main")
        raise RuntimeError
    assert archive.sessions() == []
    assert archive.session("main").name == "main"


def test_writing_inside_writing_is_refused_at_once(archive: Archive) -> None:
    with pytest.raises(StoreError, match="one `write"), archive.write(), archive.write():
        pass
    add(archive, "still works")


def test_the_window_keeps_its_order(archive: Archive) -> None:
    one, two, three = (segment.id for segment in add(archive, "one", "two", "three"))
    session_id = archive.session("main").id
    window = [
        WindowEntry(three, 3),
        WindowEntry(one, 1, "kv", 7),
        WindowEntry(two, 2, "text", 8),
    ]
    with archive.write() as transaction:
        transaction.set_window(session_id, window)
    assert archive.window(session_id) == window
    with archive.write() as transaction:
        transaction.set_window(session_id, window[:1])
    assert archive.window(session_id) == window[:1]


def test_a_window_holds_a_segment_once_and_no_stranger(archive: Archive, store: Store) -> None:
    (one,) = (segment.id for segment in add(archive, "one"))
    (foreign,) = (segment.id for segment in add(store.for_user("a stranger"), "theirs"))
    session_id = archive.session("main").id
    with pytest.raises(InvalidInput, match="twice"), archive.write() as transaction:
        transaction.set_window(session_id, [WindowEntry(one, 1), WindowEntry(one, 2)])
    with pytest.raises(SegmentNotFound), archive.write() as transaction:
        transaction.set_window(session_id, [WindowEntry(one, 1), WindowEntry(foreign, 2)])
    assert archive.window(session_id) == []


def decision(*ids: int, action: str = "drop", reason: str = "old") -> Decision:
    return Decision(
        action,  # type: ignore[arg-type]
        ids,
        "controller",
        reason,
        "scripted",
        {ids[0]: {"num_tokens": 5, "attention": None, "similarity": 0.25}},
        "keep 0.4",
        {"id": "call", "name": "drop", "arguments": {"ids": list(ids)}},
    )


def test_a_decision_comes_back_as_it_was_made(archive: Archive) -> None:
    one, two = (segment.id for segment in add(archive, "one", "two"))
    session_id = archive.session("main").id
    before = (WindowEntry(one, 1), WindowEntry(two, 2, "kv", 9))
    with archive.write() as transaction:
        made = transaction.add_decision(
            session_id,
            3,
            decision(one),
            window_before=before,
            window_after=before[1:],
            states_before={one: ("live", False), two: ("compressed", True)},
            effect={"tokens_before": 10, "tokens_after": 5},
            cost={"seconds": 0.5},
        )
    row = archive.decision(made)
    assert row.decision == decision(one)
    assert (row.session_id, row.turn, row.created, row.undone_by) == (session_id, 3, NOW, None)
    assert (row.window_before, row.window_after) == (before, before[1:])
    assert row.states_before == {one: ("live", False), two: ("compressed", True)}
    assert row.effect == {"tokens_before": 10, "tokens_after": 5}
    assert row.cost == {"seconds": 0.5}


def record(archive: Archive, made: Decision, session: str = "main", **effect: int) -> int:
    session_id = archive.session(session).id
    with archive.write() as transaction:
        return transaction.add_decision(
            session_id, 1, made, window_before=(), window_after=(), states_before={},
            effect=effect, cost={},
        )  # fmt: skip


def test_decisions_are_found_by_session_and_by_segment(archive: Archive) -> None:
    one, two, three = (segment.id for segment in add(archive, "one", "two", "three"))
    first = record(archive, decision(one, two))
    second = record(archive, decision(two, action="summarize"), summary_id=three)
    third = record(archive, decision(one), session="other")

    def found(**wanted: int) -> list[int]:
        return [row.id for row in archive.decisions(**wanted)]

    assert found() == [third, second, first]
    assert found(limit=2) == [third, second]
    assert found(limit=0) == []
    assert found(session_id=archive.session("main").id) == [second, first]
    assert found(segment_id=one) == [third, first]
    assert found(segment_id=three) == [second]


def test_an_undone_decision_names_what_undid_it(archive: Archive) -> None:
    (one,) = (segment.id for segment in add(archive, "one"))
    first = record(archive, decision(one))
    second = record(archive, decision(one, action="bring_back"))
    with archive.write() as transaction:
        transaction.mark_undone(first, second)
    assert archive.decision(first).undone_by == second
    with pytest.raises(InvalidInput, match=f"undone by {second}"), archive.write() as transaction:
        transaction.mark_undone(first, second)


def test_a_segment_is_pinned_by_who_pinned_it_last_and_was_not_undone(archive: Archive) -> None:
    one, two = (segment.id for segment in add(archive, "one", "two"))
    record(archive, decision(one, two, action="pin"))
    by_user = Decision("pin", (one, two), "user", maker="ann")
    last = record(archive, by_user)
    record(archive, decision(one, action="keep"))
    assert archive.pinned_by([one, two]) == {one: "ann", two: "ann"}
    undo = record(archive, Decision("unpin", (two,), "user", maker="user"))
    with archive.write() as transaction:
        transaction.mark_undone(last, undo)
    assert archive.pinned_by([one, two]) == {one: "scripted", two: "scripted"}


def test_changes_are_logged_in_order(archive: Archive) -> None:
    start = archive.last_change()
    one, two = (segment.id for segment in add(archive, "one", "two"))
    with archive.write() as transaction:
        transaction.set_state([two], "parked")
        transaction.add_embedding("log", one, np.ones(3, np.float32))
        transaction.forget(one)
    changes = archive.changes(start)
    assert [(change.op, change.segment_id) for change in changes] == [
        ("add", one),
        ("add", two),
        ("state", two),
        ("embed", one),
        ("forget", one),
    ]
    assert [change.sn for change in changes] == sorted({change.sn for change in changes})
    assert archive.changes(changes[2].sn) == changes[3:]
    assert archive.last_change() == changes[-1].sn


def test_a_forgotten_segment_is_gone_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "me.db"
    marker = "zanzibar-58291"
    with Store.open(path) as store:
        archive = store.for_user("ann")
        session_id = archive.session("main").id
        with archive.write() as transaction:
            turn = transaction.add_turn(session_id, None, f"my code is {marker}")
            stored = transaction.add_segment(session_id, 1, said(f"my code is {marker}"))
            answer = transaction.add_segment(
                session_id, 1, Segment((Message("assistant", "noted, " + marker),))
            )
            transaction.answer_turn(turn.id, {"text": "noted, " + marker, "tokens": 5})
            transaction.set_window(session_id, [WindowEntry(stored.id, 1)])
            transaction.add_embedding("space", stored.id, np.ones(3, np.float32))
        record(archive, decision(stored.id, reason=f"mentions {marker}"))
        record(archive, decision(answer.id, reason=f"mentions {marker}"))

        with archive.write() as transaction:
            transaction.forget(stored.id)
            transaction.forget(answer.id)
        for missing in (stored.id, answer.id):
            with pytest.raises(SegmentNotFound, match="forgotten"):
                archive.segment(missing)
            with pytest.raises(SegmentNotFound), archive.write() as transaction:
                transaction.forget(missing)
            with pytest.raises(SegmentNotFound), archive.write() as transaction:
                transaction.set_state([missing], "live")
        assert archive.window(session_id) == []
        assert archive.session_segments(session_id) == []
        assert archive.states(session_id) == {"forgotten": 2}
        assert archive.words() == []
        assert archive.embeddings("space")[0].size == 0
        (scrubbed,) = archive.turns(session_id)
        assert (scrubbed.status, scrubbed.text) == ("answered", "")
        assert scrubbed.reply == {"text": "", "tokens": 5}
        (row,) = archive.decisions(segment_id=stored.id)
        assert (row.decision.action, row.decision.reason) == ("drop", "")
        assert row.decision.tool_call is None
        assert store.purge()
    for file in tmp_path.iterdir():
        if file.is_file():
            assert marker.encode() not in file.read_bytes(), file.name


def test_a_forgotten_id_is_never_given_again(archive: Archive) -> None:
    *_, last = add(archive, "one", "two")
    with archive.write() as transaction:
        transaction.forget(last.id)
    (new,) = add(archive, "three")
    assert new.id > last.id


def test_only_forget_forgets(archive: Archive) -> None:
    (one,) = (segment.id for segment in add(archive, "one"))
    with pytest.raises(InvalidInput, match="`forget`"), archive.write() as transaction:
        transaction.set_state([one], "forgotten")


def test_a_segment_cannot_be_added_twice(archive: Archive) -> None:
    (stored,) = add(archive, "one")
    session_id = archive.session("main").id
    with pytest.raises(InvalidInput, match="no id"), archive.write() as transaction:
        transaction.add_segment(session_id, 1, stored)


def test_the_same_text_can_be_said_twice(archive: Archive) -> None:
    one, two = add(archive, "good morning", "good morning")
    assert one.id != two.id and one.content_hash == two.content_hash
    assert len(archive.session_segments(archive.session("main").id)) == 2


def test_a_removed_session_takes_its_segments_along(archive: Archive) -> None:
    main = add(archive, "one", "two")
    (other,) = add(archive, "three", session="other")
    other_id = archive.session("other").id
    with archive.write() as transaction:
        window = [WindowEntry(main[0].id, 1, "kv", 5), WindowEntry(other.id, 2)]
        transaction.set_window(other_id, window)
    assert archive.remove_session("main") == 2
    assert [row.name for row in archive.sessions()] == ["other"]
    assert archive.window(other_id) == window[1:]
    with pytest.raises(SegmentNotFound):
        archive.segment(main[0].id)
    assert [change.op for change in archive.changes(0)][-2:] == ["forget", "forget"]
    with pytest.raises(InvalidInput, match="'main'"):
        archive.remove_session("main")


def test_a_removed_session_takes_along_what_others_made_of_it(tmp_path: Path) -> None:
    marker = "zanzibar-58291"
    with Store.open(tmp_path / "me.db") as store:
        archive = store.for_user("ann")
        (secret,) = add(archive, f"my code is {marker}")
        (kept,) = add(archive, "what else", session="other")
        other_id = archive.session("other").id
        with archive.write() as transaction:
            quoted = Segment(
                (Message("user", f"a code, {marker}"),),
                kind="summary",
                origin="summary",
                parents=(secret.id, kept.id),
            )
            summary = transaction.add_segment(other_id, 1, quoted)
            transaction.set_window(other_id, [WindowEntry(kept.id, 1), WindowEntry(summary.id, 2)])
            for about in (secret.id, kept.id):
                transaction.add_decision(
                    other_id, 1, decision(about, reason=marker if about == secret.id else "old"),
                    window_before=(), window_after=(), states_before={}, effect={},
                    cost={"raw": [f"drop it, since it says {marker}"], "calls": 1},
                )  # fmt: skip
        assert archive.remove_session("main") == 2
        assert archive.window(other_id) == [WindowEntry(kept.id, 1)]
        assert archive.states(other_id) == {"live": 1, "forgotten": 1}
        assert [row.cost for row in archive.decisions()] == [{"raw": [""], "calls": 1}] * 2
        assert [row.decision.reason for row in archive.decisions()] == ["old", ""]
        assert [one.name for one in store.check() if one.status == "fail"] == []
        assert store.purge()
    for file in tmp_path.iterdir():
        assert not file.is_file() or marker.encode() not in file.read_bytes(), file.name


def test_forgetting_all_leaves_nothing_of_a_user_and_all_of_another(tmp_path: Path) -> None:
    marker = "zanzibar-58291"
    with Store.open(tmp_path / "me.db") as store:
        archive, other = store.for_user("ann"), store.for_user("bob")
        for one, text in ((archive, marker), (other, "kept")):
            for session in ("main", "work"):
                (stored,) = add(one, f"my code is {text}", session=session)
            with one.write() as transaction:
                transaction.define_block("medical", f"what {text} is about", 100)
                source = Source("code", text, f"the code is {text}", stored.id, "patterns")
                transaction.add_statement(source)
        with archive.lease(archive.session("work").id), pytest.raises(SessionBusy):
            archive.forget_all()
        assert len(archive.sessions()) == 2 and len(archive.blocks()) == len(archive.facts()) == 1
        before = archive.last_change()
        receipt = archive.forget_all()
        assert (receipt["sessions"], receipt["segments"]) == (["main", "work"], 2)
        assert not (archive.sessions() or archive.blocks() or archive.facts() or archive.words())
        assert [change.op for change in archive.changes(before)] == ["forget"] * 2
        assert len(other.sessions()) == 2 and len(other.blocks()) == len(other.facts()) == 1
        assert [one.name for one in store.check() if one.status == "fail"] == []
        assert store.purge()
        assert archive.forget_all()["segments"] == 0
    for file in tmp_path.iterdir():
        assert not file.is_file() or marker.encode() not in file.read_bytes(), file.name


def test_what_the_store_cannot_keep_is_told_in_words(archive: Archive, store: Store) -> None:
    with store.for_user("somebody else").write() as transaction:
        theirs = transaction.add_segment(transaction.session("main"), 1, said("theirs"))
        about = transaction.add_statement(Source("code", "1", "It is 1.", theirs.id, "patterns"))
    with archive.write() as transaction:
        main, other = transaction.session("main"), transaction.session("other")
        one = transaction.add_segment(main, 1, said("one")).id
        transaction.define_block("human", "", 10)
    statement = Source("code", "1", "It is 1.", one, "patterns")
    edit = BlockEdit("human", 0, "rewrite", "user", "", main, 1, segment_id=one)
    made: dict[str, Any] = {"window_before": (), "window_after": (), "states_before": {},
                            "effect": {}, "cost": {}}  # fmt: skip
    changes: list[Callable[[Transaction], object]] = [
        lambda t: t.rename_session(main, "other"),
        lambda t: t.set_kept_until([one], 2**70),
        lambda t: t.add_recalls([one], -1),
        lambda t: t.add_segment(main, 2**70, said("late")),
        lambda t: t.add_decision(main, 2**70, decision(one), **made),
        lambda t: t.set_window(main, [WindowEntry(one, 2**70)]),
        lambda t: t.set_window(main, [WindowEntry(one, 1), WindowEntry(one, 2)]),
        lambda t: t.define_block("human", "", 2**70),
        lambda t: t.add_block_edit(edit, follows=0),
        lambda t: t.tag_passage(one, ["a"]),
        lambda t: t.add_statement(statement, 999),
        lambda t: t.add_statement(statement, about),
        lambda t: t.add_statement(statement, 2**70),
    ]
    for change in changes:
        with pytest.raises(InvalidInput), archive.write() as transaction:
            change(transaction)
    with archive.write() as transaction:
        transaction.rename_session(other, "other")
    assert archive.facts() == [] and archive.block_edits("human") == []


def test_tags_and_statements_that_are_there_already_add_nothing(archive: Archive) -> None:
    with archive.write() as transaction:
        note = transaction.add_segment(
            transaction.session("main"), 1, Segment((Message("user", "n"),), kind="passage")
        )
        transaction.tag_passage(note.id, ["b", "a", "a"])
        transaction.tag_passage(note.id, ["a", "c"])
        statement = Source("code", "1", "It is 1.", note.id, "patterns")
        about = transaction.add_statement(statement)
        assert transaction.add_statement(statement) == about
    assert archive.passage_tags([note.id]) == {note.id: ["a", "b", "c"]}
    assert [fact.about for fact in archive.facts()] == [about]


def test_a_late_writer_does_not_bring_a_removed_session_back(archive: Archive) -> None:
    session_id = archive.session("main").id
    archive.remove_session("main")
    with pytest.raises(InvalidInput, match=str(session_id)), archive.write() as transaction:
        transaction.add_segment(session_id, 1, said("late"))
    assert archive.sessions() == []


def test_a_session_set_aside_frees_its_name(archive: Archive) -> None:
    old = archive.session("main")
    add(archive, "before")
    archive.set_aside("main")
    archive.set_aside("no such session")
    new = archive.session("main")
    assert new.id != old.id
    assert len(archive.session_segments(old.id)) == 1
    assert archive.session_segments(new.id) == []


def test_a_session_is_made_only_if_asked(archive: Archive) -> None:
    with pytest.raises(InvalidInput, match="'main'"):
        archive.session("main", create=False)
    assert archive.sessions() == []
    made = archive.session("main")
    assert archive.session("main", create=False) == made == archive.sessions()[0]


def test_reading_makes_no_user(tmp_path: Path) -> None:
    with Store.open(tmp_path / "me.db") as store:
        archive = store.for_user("nobody yet")
        assert archive.sessions() == [] and archive.changes(0) == [] and archive.words() == []
        counts = next(finding for finding in store.check() if finding.name == "counts")
        assert counts.message.startswith("0 users")


@pytest.mark.parametrize("name", ["", "\0", "a\0b", "\ud83d", None, 1, b"ann", "x" * 1025])
def test_names_that_are_none_are_refused(store: Store, archive: Archive, name: object) -> None:
    with pytest.raises(InvalidInput):
        store.for_user(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        archive.session(name)  # type: ignore[arg-type]
    session_id = archive.session("main").id
    if name is not None:
        with pytest.raises(InvalidInput), archive.write() as transaction:
            transaction.add_turn(session_id, name, "text")  # type: ignore[arg-type]


def test_pending_embeddings_are_those_without_a_vector(archive: Archive) -> None:
    session_id = archive.session("main").id
    one, two, three = (segment.id for segment in add(archive, "one", "two", "three"))
    with archive.write() as transaction:
        hidden = transaction.add_segment(session_id, 1, said("hidden"), searchable=False)

    def pending(space: str = "space", limit: int = 256) -> list[int]:
        return [stored.segment.id for stored in archive.pending_embeddings(space, limit)]

    assert pending() == [one, two, three] and pending(limit=2) == [one, two]
    with archive.write() as transaction:
        transaction.add_embedding("space", two, np.ones(3, np.float32))
    assert pending() == [one, three]
    with archive.write() as transaction:
        for each in (one, three):
            transaction.add_embedding("space", each, np.ones(3, np.float32))
    assert pending() == []
    assert pending("another space") == [one, two, three]
    (four,) = (segment.id for segment in add(archive, "four"))
    assert pending() == [four]
    assert hidden.id not in [each for each, _ in archive.words()]


def test_vectors_come_back_as_they_went_in(archive: Archive) -> None:
    one, two, three = (segment.id for segment in add(archive, "one", "two", "three"))
    vectors = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    with archive.write() as transaction:
        transaction.add_embedding("exact", three, vectors[0])
        transaction.add_embedding("exact", one, vectors[1])
    ids, read = archive.embeddings("exact")
    assert ids.tolist() == [one, three] and ids.dtype == np.int64
    np.testing.assert_array_equal(read, vectors[::-1])
    ids, read = archive.embeddings("exact", [two, three])
    assert ids.tolist() == [three]
    ids, read = archive.embeddings("no such space")
    assert ids.size == 0 and read.size == 0
    assert archive.space_dim("exact") == 8 and archive.space_dim("no such space") is None


def test_a_damaged_vector_is_noticed(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "me.db"
    with Store.open(path) as store:
        archive = store.for_user("ann")
        (one,) = add(archive, "one")
        with archive.write() as transaction:
            transaction.add_embedding("space", one.id, np.ones(2, np.float32))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE embeddings SET vector = ?", [np.zeros(2, "<f4").tobytes()])
    connection.close()
    with Store.open(path) as store, pytest.raises(StoreCorrupt, match=f"segment {one.id}"):
        store.for_user("ann").embeddings("space")
