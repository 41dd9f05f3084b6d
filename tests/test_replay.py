"""Replay: a recorded session comes to the same state again, or says where it does not."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentmem import (
    Agent,
    Budget,
    Candidate,
    Message,
    Replay,
    ScriptedModel,
    Segment,
    Store,
    open_memory,
    replay,
    state_hash,
)
from agentmem.audit.log import Log
from agentmem.audit.snapshot import snapshot_of
from agentmem.cli.export import rows
from agentmem.errors import InvalidInput, ModelUnavailable, ReplayDiverged, StoreCorrupt
from agentmem.facts.model_extraction import ModelExtractor
from agentmem.models.base import Capabilities, Options, Part
from agentmem.models.embed import HashEmbedder
from agentmem.models.scripted import Line
from agentmem.policies import POLICIES
from agentmem.policies.window import WindowPolicy
from agentmem.storage.archive import Archive, Counters, RecordingRow
from agentmem.storage.recordings import pack, unpack
from tests.agents import make_agent, talk
from tests.cli_run import ROOT
from tests.sessions import RandomSession

SEEDS = range(19)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Nineteen random sessions in their own stores; in every second one things are forgotten."""
    folders = {}
    for seed in SEEDS:
        folders[seed] = tmp_path_factory.mktemp(f"session{seed}")
        RandomSession(folders[seed], seed, forgets=seed % 2 == 1).play(2)
    return folders


def replayed(folder: Path, session: str = "default") -> Replay:
    with Store.open(folder / "me.db") as store:
        return replay(store.for_user("default"), session)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_session_replays_to_the_same_state(played: dict[int, Path], seed: int) -> None:
    came_to = replayed(played[seed])
    assert came_to.same and came_to.recorded == came_to.replayed, came_to.difference
    assert came_to.difference == ""
    assert seed % 2 or came_to.begins_after == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_a_long_random_session_replays_to_the_same_state(tmp_path: Path, seed: int) -> None:
    RandomSession(tmp_path, seed, forgets=seed % 2 == 1).play(80)
    came_to = replayed(tmp_path)
    assert came_to.same, came_to.difference


def test_the_random_sessions_hold_everything_that_comes_from_outside(
    played: dict[int, Path],
) -> None:
    kinds, acts = set(), set()
    for folder in played.values():
        with Store.open(folder / "me.db") as store:
            for row in store.for_user("default").recordings(1):
                kinds |= {record[0] for record in row.records}
                acts |= {record[1] for record in row.records if record[0] == "do"}
    assert kinds >= {
        "open", "turn", "do", "say", "aside", "error", "count", "has", "attention", "states",
        "tool", "vector", "clock", "from", "weigh", "weight", "unread", "blocks",
    }  # fmt: skip
    assert acts >= {
        "pin", "drop", "summarize", "bring_back", "undo", "keep", "blocks.append",
        "blocks.define", "blocks.rewrite", "blocks.undo", "passages.insert",
    }  # fmt: skip


def test_a_reader_that_walks_away_is_replayed(tmp_path: Path) -> None:
    with make_agent(tmp_path, ScriptedModel(default="One two three four five.")) as agent:
        talk(agent, 6)
        stream = agent.stream("Count")
        assert next(stream) + next(stream) == "One two"
        stream.close()
        events = agent.events("This message makes the window too full to stay as it is. " * 2)
        next(events)
        events.close()  # type: ignore[attr-defined]
        talk(agent, 1)
    assert replayed(tmp_path).same


def test_acts_without_a_model_are_replayed(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 3)
    with open_memory(store=tmp_path / "me.db", embedder=HashEmbedder()) as memory:
        memory.pin(2)
        memory.drop(3)
        memory.undo()
        memory.unpin(2)
        memory.drop(4, 5)
    with make_agent(tmp_path) as agent:
        talk(agent, 2)
    came_to = replayed(tmp_path)
    assert came_to.same and (came_to.turns, came_to.decisions) == (5, 5)


def test_what_was_said_in_other_sessions_is_found_again(tmp_path: Path) -> None:
    with make_agent(tmp_path, session="work") as agent:
        agent.chat("The door code is 4711.")
        talk(agent, 2)
    with make_agent(tmp_path) as agent:
        talk(agent, 2)
    with make_agent(tmp_path, session="work") as agent:
        agent.chat("The alarm code is 1234.")
    with make_agent(tmp_path) as agent:
        agent.chat("What is the door code? And what is the alarm code?")
        recalled = [entry.segment.text for entry in agent.context if entry.recalled]
        assert any("4711" in text for text in recalled)
    assert replayed(tmp_path).same and replayed(tmp_path, "work").same


def test_other_users_of_the_store_change_nothing(tmp_path: Path) -> None:
    for turn in range(3):
        with make_agent(tmp_path) as agent:
            talk(agent, 1)
            agent.memory.drop(agent.context.entries[-1].id)
        with make_agent(tmp_path, user="ann") as other:
            talk(other, turn + 1)
            other.memory.drop(other.context.entries[-1].id)
    assert replayed(tmp_path).same
    with Store.open(tmp_path / "me.db") as store:
        assert replay(store.for_user("ann"), "default").same


def test_core_memory_facts_and_imports_from_elsewhere_are_taken_over(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("The boiler is serviced in May. The attic key is 8812.\n")
    with make_agent(tmp_path, session="work") as agent:
        agent.memory.blocks.append("human", "Is called Ann.")
        agent.chat("My locker code is 111.")
    with make_agent(tmp_path) as agent:
        agent.chat("Hello there.")
        assert "Ann" in agent.window_text()
        agent.memory.blocks.append("human", "Has a dog.")
    with make_agent(tmp_path, session="work") as agent:
        agent.memory.blocks.replace("human", "dog", "cat")
        agent.memory.blocks.define("diet", max_tokens=50)
        agent.memory.passages.insert("Pears cost 3.", ["fruit"])
        agent.chat("My locker code is 222 now.")
    with make_agent(tmp_path) as agent:
        agent.memory.import_file(tmp_path / "notes.md")
        agent.chat("What is the attic key?")
        assert "8812" in agent.window_text() and "cat" in agent.window_text()
        agent.memory.blocks.undo("human")
        agent.chat("My locker code is 333 now.")
        stated = {"subject": "locker code", "value": "333", "ended": False,
                  "sentence": "My locker code is 333 now."}  # fmt: skip
        model = ScriptedModel(default=json.dumps({"statements": [stated]}), name="reader")
        agent.memory.fact_keeper.extract_pending(ModelExtractor(model))
        agent.chat("My dog is called Rex.")
    with make_agent(tmp_path, session="work") as agent:
        agent.chat("My locker code is 444 now.")
    for session in ("default", "work"):
        came_to = replayed(tmp_path, session)
        assert came_to.same and came_to.begins_after == 0, came_to.difference
    with Store.open(tmp_path / "me.db") as store:
        locker = [fact for fact in store.for_user("default").facts() if "locker" in fact.subject]
    assert {fact.value for fact in locker} >= {"111", "222", "333", "444"}
    assert "reader" in {source.written_by for fact in locker for source in fact.sources}


def test_an_edit_that_another_session_came_before_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_agent(tmp_path) as agent, make_agent(tmp_path, session="work") as other:
        talk(agent, 1)
        talk(other, 1)
        write = agent.memory.archive.write

        def overtaken(**options: Any) -> Any:
            monkeypatch.undo()
            other.memory.blocks.append("human", "Has a dog.")
            return write(**options)

        monkeypatch.setattr(agent.memory.archive, "write", overtaken)
        block = agent.memory.blocks.append("human", "Is called Ann.")
        assert block.text == "Has a dog.\nIs called Ann."
        talk(agent, 1)
        talk(other, 1)
    for session in ("default", "work"):
        came_to = replayed(tmp_path, session)
        assert came_to.same and came_to.begins_after == 0, came_to.difference


def test_where_others_moved_its_segments_the_log_begins_anew(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 3)
    with make_agent(tmp_path, session="work") as agent:
        talk(agent, 1)
        agent.memory.restore(2)
    came_to = replayed(tmp_path)
    assert came_to.same and came_to.begins_after == 3
    with make_agent(tmp_path) as agent:
        with agent.memory.archive.write() as transaction:
            transaction.set_state([3], "archived")
        talk(agent, 1)
        with agent.memory.archive.write() as transaction:
            note = Segment((Message("user", "Made between turns."),), kind="summary", parents=(2,))
            transaction.add_segment(agent.memory.session.id, 4, note, state="archived")
        agent.memory.pin(2)
        talk(agent, 2)
    came_to = replayed(tmp_path)
    assert came_to.same and (came_to.begins_after, came_to.turns) == (4, 2)
    assert came_to.decisions == 1


def test_judgements_are_recorded_as_numbers_and_what_is_certain_too(tmp_path: Path) -> None:
    class Certain(ScriptedModel):
        def weigh(
            self,
            examples: Sequence[Part],
            parts: Sequence[Part],
            answers: Sequence[str],
            options: Options,
        ) -> Iterator[tuple[float, ...]]:
            for part in parts:
                if part.key == 8:
                    raise ModelUnavailable("gone")
                yield (-float("inf"), -0.7, -0.6863)

    can = Capabilities(calls_tools=True, has_logits=True)
    limits = Budget(1500, warn_at=0.1, free_to=0.05)
    with make_agent(
        tmp_path, Certain(capabilities=can), controller="scored", budget=limits, policy="mixture"
    ) as agent:
        talk(agent, 8)
        weights = [r for row in agent.memory.archive.recordings(1) for r in row.records]
    assert ["weight", 2, [-float("inf"), -0.7, -0.6863]] in weights
    assert "error" in {record[0] for record in weights}
    assert replayed(tmp_path).same


def test_the_key_of_the_fence_is_in_the_store_and_in_no_export(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 1)
        archive = agent.memory.archive
        key = agent.memory.outside.fence.key.hex()
        assert key in str([row.records for row in archive.recordings(1)])
        assert key not in json.dumps(list(rows(archive)))


CHILD = """
import os, signal, sys
from pathlib import Path
from agentmem import ScriptedModel
from tests.agents import make_agent, talk

calls = 0

def reply(prompt, options):
    global calls
    calls += 1
    if calls == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return "ok."

agent = make_agent(Path(sys.argv[1]), ScriptedModel(default=reply, has_kv=True), budget=300)
agent.chat("My locker code is 58291.")
talk(agent, 5)
agent.memory.pin(2)
agent.chat("What is my locker code?")
talk(agent, 5)
"""


def test_a_session_killed_in_the_middle_of_a_turn_replays_to_what_was_committed(
    tmp_path: Path,
) -> None:
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert child.returncode == -signal.SIGKILL
    with Store.open(tmp_path / "me.db") as store:
        turns = store.for_user("default").turns(1)
    assert [turn.status for turn in turns][-2:] == ["answered", "unanswered"]
    came_to = replayed(tmp_path)
    assert came_to.same and came_to.turns == 9
    with make_agent(tmp_path, ScriptedModel(has_kv=True), budget=300) as agent:
        talk(agent, 3)
    assert replayed(tmp_path).same


@dataclass(frozen=True)
class _NewestFirst(WindowPolicy):
    """A policy of the same name that decides otherwise."""

    def score(self, candidate: Candidate, candidates: Sequence[Candidate]) -> float:
        return -super().score(candidate, candidates)

    def __repr__(self) -> str:
        return "WindowPolicy()"


@pytest.fixture(scope="module")
def dull(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session in which a window policy decided."""
    folder = tmp_path_factory.mktemp("dull")
    with make_agent(folder, budget=200, recall="text") as agent:
        agent.chat("My locker code is 58291.")
        talk(agent, 7)
        agent.memory.summarize(*[entry.id for entry in agent.context.entries[-6:]])
    return folder


@pytest.fixture
def copied(dull: Path, tmp_path: Path) -> Path:
    with Store.open(dull / "me.db") as store:
        store.backup(tmp_path / "me.db")
    return tmp_path


def edit(folder: Path, kind: str, change: str) -> None:
    """Change the last row of the log that has a record of this kind, by an expression on it."""
    connection = sqlite3.connect(folder / "me.db")
    rows = connection.execute("SELECT id, body FROM recordings ORDER BY id DESC").fetchall()
    for row_id, body in rows:
        text = unpack(body, row_id)
        if f'["{kind}"' in text:
            old, new = change.split(" -> ")
            assert old in text, text
            body = pack(text.replace(old, new, 1))
            connection.execute("UPDATE recordings SET body = ? WHERE id = ?", [body, row_id])
            break
    connection.commit()
    connection.close()


def test_a_changed_policy_diverges_and_names_turn_call_and_both_hashes(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POLICIES, "window", _NewestFirst)
    with pytest.raises(ReplayDiverged) as caught:
        replayed(copied)
    error = caught.value
    assert error.turn > 1 and error.call > 0
    assert error.recorded.startswith("say ") and error.replayed.startswith("say ")
    assert error.recorded != error.replayed
    assert error.recorded in str(error) and error.replayed in str(error)
    assert f"Turn {error.turn}, record {error.call}" in str(error)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("say", '["say"," -> ["say","0'),
        ("turn", '["turn",null,false -> ["turn","again",false'),
        ("aside", '["aside"," -> ["say","'),
        ("do", '"summarize" -> "drop"'),
        ("count", '["count"," -> ["count","0'),
    ],
)
def test_a_tampered_row_of_the_log_diverges(copied: Path, kind: str, change: str) -> None:
    edit(copied, kind, change)
    try:
        came_to = replayed(copied)
    except ReplayDiverged:
        return
    assert not came_to.same and came_to.difference


def test_a_changed_output_of_the_model_is_another_state(copied: Path) -> None:
    connection = sqlite3.connect(copied / "me.db")
    changed = '{"text": "No.", "finish_reason": "stop"}'
    connection.execute("UPDATE turns SET reply = ? WHERE number = 3", [changed])
    connection.commit()
    connection.close()
    with pytest.raises(ReplayDiverged, match="Turn 3"):
        replayed(copied)


def test_a_changed_message_of_the_user_diverges_at_its_turn(copied: Path) -> None:
    connection = sqlite3.connect(copied / "me.db")
    connection.execute("UPDATE turns SET text = 'Something else.' WHERE number = 5")
    connection.commit()
    connection.close()
    with pytest.raises(ReplayDiverged, match="Turn 5"):
        replayed(copied)


def test_a_changed_segment_is_named(copied: Path) -> None:
    connection = sqlite3.connect(copied / "me.db")
    connection.execute("UPDATE segments SET pinned = 1 WHERE id = 5")
    connection.commit()
    connection.close()
    came_to = replayed(copied)
    assert not came_to.same and came_to.recorded != came_to.replayed
    assert came_to.difference.startswith("segment 5: recorded {")


def test_a_damaged_row_is_corrupt_and_the_check_finds_it(copied: Path) -> None:
    connection = sqlite3.connect(copied / "me.db")
    connection.execute("UPDATE recordings SET body = x'789c00' WHERE id = 4")
    connection.commit()
    connection.close()
    with pytest.raises(StoreCorrupt, match="Row 4"):
        replayed(copied)
    with Store.open(copied / "me.db") as store:
        found = [one for one in store.check() if one.status == "fail"]
    assert [one.name for one in found] == ["logs"] and "[4]" in found[0].message


def test_a_policy_of_ones_own_is_passed(tmp_path: Path) -> None:
    with make_agent(tmp_path, budget=300, policy=WindowPolicy()) as agent:
        talk(agent, 1)
    own = type("Own", (WindowPolicy,), {"name": "own"})
    with make_agent(tmp_path, budget=300, policy=own()) as agent:
        talk(agent, 2)
    with pytest.raises(ReplayDiverged, match="policy of its own"):
        replayed(tmp_path)
    with Store.open(tmp_path / "me.db") as store:
        assert replay(store.for_user("default"), policy=own()).same


# Forgetting


SECRET = "Saffron-Quokka-91"


def files_with(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in
            path.read_bytes()]  # fmt: skip


def log(archive: Archive) -> str:
    return "".join(str(row.records) for row in archive.recordings(1))


def test_nothing_of_what_was_forgotten_is_left_in_the_log_or_in_the_file(tmp_path: Path) -> None:
    def tells(prompt: Sequence[Part], options: Options) -> str:
        return f"They spoke of {SECRET}." if options.ephemeral else f"I noted {SECRET}."

    model = ScriptedModel(default=tells, has_kv=True)
    with make_agent(tmp_path, model, budget=600) as agent:
        talk(agent, 2)
        first = agent.chat(f"The word is {SECRET}. " + "It must not get out. " * 8, turn="x").turn
        agent.memory.summarize(*agent.turn_segments(3))
        assert SECRET in log(agent.memory.archive)
        for one in agent.turn_segments(3):
            agent.memory.forget(one)
        for stored in agent.memory.archive.session_segments(agent.memory.session.id):
            if SECRET in stored.segment.text:
                agent.memory.forget(stored.segment.id)
        assert log(agent.memory.archive) == ""
        model.enqueue("Fine.", "Fine.", "Fine.")
        talk(agent, 2)
        agent.memory.pin(agent.context.entries[-1].id)
        assert SECRET not in log(agent.memory.archive) and first == "x"
    with Store.open(tmp_path / "me.db") as store:
        assert store.purge()
    assert files_with(tmp_path, SECRET) == []
    came_to = replayed(tmp_path)
    assert came_to.same and (came_to.begins_after, came_to.turns, came_to.decisions) == (3, 2, 1)


def test_forgetting_ends_the_logs_of_all_sessions_that_may_have_seen_it_and_no_others(
    tmp_path: Path,
) -> None:
    for session in ("early", "default", "late"):
        with make_agent(tmp_path, session=session) as agent:
            talk(agent, 2)
    late = make_agent(tmp_path, session="late")
    talk(late, 1)
    with make_agent(tmp_path) as agent:
        agent.memory.forget(agent.turn_segments(1)[0])
        with Store.open(tmp_path / "me.db") as store:
            archive = store.for_user("default")
            rows = [len(archive.recordings(row.id)) for row in archive.sessions()]
        assert rows[0] > 0 and rows[1:] == [0, 0]
        talk(agent, 1)
    talk(late, 3)
    late.close()
    for session, begins_after in (("early", 0), ("default", 2), ("late", 3)):
        came_to = replayed(tmp_path, session)
        assert came_to.same and came_to.begins_after == begins_after, session


def test_directly_after_forgetting_there_is_nothing_to_replay_and_it_says_so(
    tmp_path: Path,
) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 3)
        agent.memory.forget(3)
    came_to = replayed(tmp_path)
    assert came_to.same and (came_to.turns, came_to.begins_after) == (0, 3)


def test_a_turn_that_was_unanswered_where_the_log_begins_is_answered_again(
    tmp_path: Path,
) -> None:
    def answers(prompt: Sequence[Part], options: Options) -> Line:
        return ModelUnavailable("gone") if fails else "ok."

    with make_agent(tmp_path, ScriptedModel(default=answers)) as agent:
        fails = False
        agent.chat("First.")
        fails = True
        with pytest.raises(ModelUnavailable):
            agent.chat("Second.", turn="x")
        agent.memory.forget(2)
        fails = False
        agent.chat("Second.", turn="x")
    came_to = replayed(tmp_path)
    assert came_to.same and came_to.begins_after == 2, came_to.difference


def test_a_store_of_an_older_agentmem_is_replayed_from_where_its_log_begins(
    tmp_path: Path,
) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 2)
        agent.memory.drop(4)
    connection = sqlite3.connect(tmp_path / "me.db")
    connection.execute("DELETE FROM recordings")
    connection.commit()
    connection.close()
    with make_agent(tmp_path) as agent:
        talk(agent, 3)
        agent.memory.undo()
    came_to = replayed(tmp_path)
    assert came_to.same and (came_to.turns, came_to.begins_after) == (3, 2)


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_where_a_log_begins_is_read_before_the_write_and_again_if_it_was_overtaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_overtaken: bool
) -> None:
    with make_agent(tmp_path) as agent, make_agent(tmp_path, session="work") as other:
        talk(agent, 3)
        agent.memory.forget(3)
        archive, writing, read_while_writing = agent.memory.archive, [False], []
        write = archive.write

        @contextmanager
        def watched(**options: Any) -> Iterator[Any]:
            writing[0] = True
            with write(**options) as transaction:
                yield transaction
            writing[0] = False

        def looked(*of: Any) -> Any:
            state = snapshot_of(*of)
            read_while_writing.append(writing[0])
            if is_overtaken and len(read_while_writing) == 1:
                other.memory.pin(4)
            return state

        monkeypatch.setattr(archive, "write", watched)
        monkeypatch.setattr("agentmem.audit.recorder.snapshot_of", looked)
        talk(agent, 1)
        assert read_while_writing == [False, True][: 1 + is_overtaken]
        assert agent.memory.segment(4).pinned is is_overtaken
        monkeypatch.undo()
    came_to = replayed(tmp_path)
    assert came_to.same and came_to.begins_after == 3, came_to.difference


# Costs, and what it leaves alone


def test_the_log_grows_by_a_few_hundred_bytes_a_turn(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        sizes = []
        for _ in range(3):
            talk(agent, 6)
            connection = sqlite3.connect(tmp_path / "me.db")
            (size,) = connection.execute("SELECT sum(length(body)) FROM recordings").fetchone()
            connection.close()
            sizes.append(size)
    slopes = [(b - a) / 6 for a, b in zip(sizes, sizes[1:], strict=False)]
    assert max(slopes) < 400 and max(slopes) < 1.5 * min(slopes) + 100, slopes


class Counted(list[Any]):
    """Counts how many of its items are read."""

    num_read = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.num_read += len(found) if isinstance(at, slice) else 1
        return found


def test_a_log_is_played_in_time_linear_to_its_length() -> None:
    def items_read(num_turns: int) -> int:
        records = (["turn", None, False, 1], ["clock", 1], ["unread", [1]])
        rows = [RecordingRow(at, 0.0, Counters(0, 0, 0, 0), 0, records) for at in range(num_turns)]
        log = Log(rows)
        items = log._items = Counted(log._items)
        while log.input() is not None:
            assert log.elsewhere() == [] and log.coming_changes == 0 and log.left() is None
            log.take("clock")
            log.take("unread")
            assert log.coming() is log.commit()
        return items.num_read

    assert items_read(200) < 2.1 * items_read(100)


def test_a_replay_loads_no_model_and_changes_nothing(dull: Path) -> None:
    before = (dull / "me.db").read_bytes()
    code = (
        "import sys; from agentmem import Store, replay; "
        f"store = Store.open({str(dull / 'me.db')!r}); "
        "assert replay(store.for_user('default')).same; store.close(); "
        "assert not {'torch', 'transformers', 'tokenizers'} & set(sys.modules), 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    assert (dull / "me.db").read_bytes() == before


def test_a_replay_can_be_kept_and_does_not_replace_a_file(dull: Path, tmp_path: Path) -> None:
    with Store.open(dull / "me.db") as store:
        archive = store.for_user("default")
        replay(archive, into=tmp_path / "again.db")
        with Store.open(tmp_path / "again.db") as again:
            assert state_hash(again.for_user("default"), "default") == state_hash(
                archive, "default"
            )
        with pytest.raises(InvalidInput, match="exists"):
            replay(archive, into=tmp_path / "again.db")
        with pytest.raises(InvalidInput, match="No session 'none'"):
            replay(archive, "none")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with make_agent(tmp_path) as made:
        yield made


def test_the_state_hash_is_of_the_state_and_of_nothing_else(agent: Agent) -> None:
    talk(agent, 2)
    archive = agent.memory.archive
    before = state_hash(archive, "default")
    agent.memory.search("market")
    assert state_hash(archive, "default") == before
    agent.memory.pin(2)
    pinned = state_hash(archive, "default")
    assert pinned != before
    agent.memory.unpin(2)
    # The decision stays on record.
    assert state_hash(archive, "default") not in (before, pinned)
