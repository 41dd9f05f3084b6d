"""No user ever sees another's rows, however alike their names are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agentmem.decision import Decision
from agentmem.errors import InvalidInput, SegmentNotFound
from agentmem.segment import Message, Segment
from agentmem.storage.archive import Archive, Store, WindowEntry
from agentmem.storage.vector import VectorIndex
from agentmem.storage.words import WordIndex

NAMES = [
    "a", "A", "a_", "a%", "a.b", "a-b", "a ", " a", "%", "_", "1", "１", "é", "e\u0301",
    "john_doe", "john-doe", "acme", "acme-corp", "' OR 1=1 --", 'x"', "x'); DROP TABLE users; --",
    "../../x", "/etc/passwd", "a\nb", "\u202egnp", "null", "None", "x" * 1024, "x" * 1023,
]  # fmt: skip


def remember(archive: Archive, text: str) -> Segment:
    session_id = archive.session("main").id
    with archive.write() as transaction:
        turn = transaction.add_turn(session_id, "1", text)
        stored = transaction.add_segment(session_id, turn.number, Segment((Message("user", text),)))
        transaction.set_window(session_id, [WindowEntry(stored.id, stored.place)])
        transaction.add_embedding("space", stored.id, np.ones(4, np.float32))
        transaction.add_decision(
            session_id, 1, Decision("pin", (stored.id,), "user"), window_before=(),
            window_after=(), states_before={}, effect={}, cost={},
        )  # fmt: skip
    return stored


def test_users_with_names_alike_share_nothing(tmp_path: Path) -> None:
    with Store.open(tmp_path / "me.db", durability="relaxed") as store:
        stored = {name: remember(store.for_user(name), f"secret of {name!r}") for name in NAMES}
        for name in NAMES:
            archive = store.for_user(name)
            mine = stored[name]
            (session,) = archive.sessions()
            assert [row.segment for row in archive.session_segments(session.id)] == [mine]
            assert [row.decision.segment_ids for row in archive.decisions()] == [(mine.id,)]
            assert [change.segment_id for change in archive.changes(0)] == [mine.id, mine.id]
            assert archive.embeddings("space")[0].tolist() == [mine.id]
            assert WordIndex(archive).search("secret", 100)[0].tolist() == [mine.id]
            vectors = VectorIndex(archive, "space", 4)
            assert vectors.search(np.ones(4, np.float32), 100)[0].tolist() == [mine.id]


def test_a_strangers_ids_do_not_exist(tmp_path: Path) -> None:
    with Store.open(tmp_path / "me.db", durability="relaxed") as store:
        ann, bob = store.for_user("john_doe"), store.for_user("john-doe")
        theirs, session = remember(ann, "ann's secret"), ann.session("main")
        remember(bob, "bob's own")
        (made,) = ann.decisions()
        (turn,) = ann.turns(session.id)

        for read in (bob.window, bob.turns, bob.last_turn, bob.lease):
            with pytest.raises(InvalidInput) as failure:
                read(session.id)
            assert "secret" not in str(failure.value)
        assert bob.states(session.id) == {} and bob.session_segments(session.id) == []
        assert bob.decisions(session_id=session.id) == bob.decisions(segment_id=theirs.id) == []
        assert bob.children([theirs.id]) == [] and bob.words([theirs.id]) == []
        assert bob.embeddings("space", [theirs.id])[0].size == 0
        with pytest.raises(SegmentNotFound):
            bob.segments([theirs.id])
        with pytest.raises(InvalidInput):
            bob.decision(made.id)
        with pytest.raises(InvalidInput):
            bob.turn(session.id, "1")

        with pytest.raises(InvalidInput), bob.write() as transaction:
            transaction.answer_turn(turn.id, {"text": "forged"})
        with pytest.raises(InvalidInput), bob.write() as transaction:
            transaction.mark_undone(made.id, made.id)
        with pytest.raises(InvalidInput), bob.write() as transaction:
            transaction.set_session_settings(session.id, {})
        with pytest.raises(InvalidInput), bob.write() as transaction:
            transaction.add_turn(session.id, None, "forged")
        with pytest.raises(InvalidInput), bob.write() as transaction:
            transaction.remove_session(session.id)
        with pytest.raises(InvalidInput), bob.write() as transaction:
            transaction.rename_session(session.id, "forged")
        for change in ("set_pinned", "set_kept_until", "add_recalls"):
            with pytest.raises(SegmentNotFound), bob.write() as transaction:
                getattr(transaction, change)([theirs.id], 1)
        with pytest.raises(SegmentNotFound), bob.write() as transaction:
            transaction.add_embedding("space", theirs.id, np.ones(4, np.float32))
        assert ann.session("main") == session and ann.turns(session.id) == [turn]


def test_nothing_of_a_stranger_is_told_or_copied(tmp_path: Path) -> None:
    with Store.open(tmp_path / "me.db", durability="relaxed") as store:
        ann, bob = store.for_user("john_doe"), store.for_user("john-doe")
        remember(ann, "ann's secret")
        session = ann.session("main")
        note = Segment((Message("user", "ann's note"),), kind="passage", origin="user")
        with ann.write() as transaction:
            noted = transaction.add_segment(session.id, 1, note, state="archived")
            transaction.tag_passage(noted.id, ["private"])
            gone = transaction.add_segment(session.id, 1, Segment((Message("user", "gone"),)))
            before = transaction.counters(session.id)
            transaction.add_recording(session.id, before, [["say", "ann's secret"]])
        mine = [stored.segment.id for stored in ann.session_segments(session.id)]
        assert noted.id in mine and ann.passage_tags(mine) and ann.recordings(session.id)

        assert bob.passage_tags(mine) == {} and bob.passage_ids(("private",)) == []
        assert bob.existing(mine) == [] and bob.pinned_by(mine) == {} and bob.echoes(mine) == {}
        assert not any(bob.segment_rows(mine).values())
        assert not any(bob.history_rows(session.id, num_turns=9, last_decision=999).values())
        for read in (bob.recordings, bob.snapshot, bob.elsewhere, bob.counters):
            with pytest.raises(InvalidInput):
                read(session.id)
        with pytest.raises(InvalidInput), bob.write() as transaction:
            transaction.add_recording(session.id, before, [["say", "forged"]])
        with ann.write() as transaction:
            transaction.forget(gone.id)
        assert ann.forgotten(gone.id) == 1 and bob.forgotten(gone.id) is None


def test_removing_a_users_session_leaves_all_others(tmp_path: Path) -> None:
    with Store.open(tmp_path / "me.db", durability="relaxed") as store:
        for name in NAMES:
            remember(store.for_user(name), name)
        for count, name in enumerate(NAMES):
            assert store.for_user(name).remove_session("main") == 1
            rest = [len(store.for_user(other).sessions()) for other in NAMES]
            assert rest == [0] * (count + 1) + [1] * (len(NAMES) - count - 1)
