"""What waits between turns: done in small steps, by whoever comes next, never in a turn's way."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from agentmem import Agent, ScriptedModel, consolidate_memory, open_memory
from agentmem.consolidation import Chore, chores_for, consolidate
from agentmem.errors import ModelUnavailable
from agentmem.models.base import Capabilities
from agentmem.models.embed import HashEmbedder
from agentmem.worker import Worker
from tests.agents import make_agent, talk
from tests.cli_run import run_cli

MANAGES = Capabilities(calls_tools=True, manages_memory=True)


class Counting(Chore):
    """Has so much to do, and notes when it did it."""

    name = "counted"

    def __init__(self, left: int) -> None:
        self.left = left
        self.times: list[float] = []

    def run(self) -> int:
        if not self.left:
            return 0
        self.left -= 1
        self.times.append(time.monotonic())
        return 1


class Slow(Counting):
    """Takes its time, and knows whether it is at work."""

    is_working = False

    def run(self) -> int:
        self.is_working = True
        time.sleep(0.05)
        self.is_working = False
        return super().run()


class Broken(Chore):
    """Fails as nobody foresaw."""

    name = "broken"

    def run(self) -> int:
        raise ZeroDivisionError("a bug")


class Failing(Chore):
    """Cannot be done now."""

    name = "failed"

    def run(self) -> int:
        raise ModelUnavailable("down")


def summarized(agent: Agent) -> tuple[int, list[int]]:
    """A summary of the first turns' messages, and their ids."""
    talk(agent, 6)
    ids = [one for turn in range(1, 6) for one in agent.turn_segments(turn)]
    decided = agent.memory.summarize(*ids)
    row = agent.memory.archive.decision(decided.id)
    return int(row.effect["summary_id"]), ids


def test_what_is_left_of_a_forgotten_summary_is_summarized_again(tmp_path: Path) -> None:
    with make_agent(tmp_path, budget=1000) as agent:
        summary_id, ids = summarized(agent)
        agent.memory.forget(ids[0])
        done = consolidate_memory(agent.memory)
        assert done["summarized again"] == len(ids) - 1
        (child,) = agent.memory.archive.children(ids[1:])[-1:]
        again = agent.memory.segment(child)
        assert again.segment.kind == "summary" and again.segment.parents == tuple(ids[1:])
        assert child != summary_id and child not in agent.context
        assert agent.memory.search(again.segment.text, 1)[0].segment.id == child
        assert consolidate_memory(agent.memory)["summarized again"] == 0


def test_what_is_too_little_for_a_summary_is_archived(tmp_path: Path) -> None:
    with make_agent(tmp_path, budget=1000) as agent:
        _, ids = summarized(agent)
        for one in ids[:-1]:
            agent.memory.forget(one)
        assert consolidate_memory(agent.memory)["summarized again"] == 1
        assert agent.memory.segment(ids[-1]).state == "archived"


def test_imports_get_their_vectors_without_a_turn(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("The gate code is 4471.\n\n" + "Apples are green. " * 400)
    with make_agent(tmp_path) as agent:
        agent.memory.import_file(notes)
        assert consolidate_memory(agent.memory)["embedded"] > 0
        assert not agent.memory.archive.pending_embeddings(HashEmbedder().name)


def test_a_model_that_manages_memory_reads_the_facts_and_another_leaves_it_to_patterns(
    tmp_path: Path,
) -> None:
    with make_agent(tmp_path) as agent:
        agent.chat("The red bike belongs to Ingrid.")
        answer = (
            '{"statements":[{"subject":"the red bike","value":"Ingrid",'
            '"sentence":"The red bike belongs to Ingrid.","ended":false}]}'
        )
        able = ScriptedModel([answer], capabilities=MANAGES, name="reader")
        assert consolidate_memory(agent.memory, model=able)["read for facts"] == 1
        assert len(able.history) == 1
        assert {s.written_by for f in agent.memory.facts() for s in f.sources} >= {"reader"}
        unable = ScriptedModel()
        consolidate_memory(agent.memory, model=unable)
        assert not unable.history


def test_a_chore_that_fails_leaves_the_others_done(caplog: pytest.LogCaptureFixture) -> None:
    assert consolidate([Failing(), Counting(3)]) == {"failed": 0, "counted": 3}
    assert "left for the next time: down" in caplog.text


def test_a_worker_begins_no_step_while_a_turn_runs_and_goes_on_afterwards() -> None:
    chore = Counting(0)
    worker = Worker([chore])
    try:
        with worker.resting():
            chore.left = 5
            time.sleep(0.05)
            began_after = time.monotonic()
        deadline = time.monotonic() + 5
        while chore.left and time.monotonic() < deadline:
            time.sleep(0.005)
    finally:
        worker.close()
    assert len(chore.times) == 5 and min(chore.times) >= began_after


def test_a_turn_waits_for_the_step_that_runs_and_none_runs_during_it() -> None:
    chore = Slow(40)
    worker = Worker([chore])
    try:
        for _ in range(3):
            deadline = time.monotonic() + 5
            while not chore.is_working and time.monotonic() < deadline:
                time.sleep(0.001)
            with worker.resting(), worker.resting():
                left = chore.left
                for _ in range(10):
                    assert not chore.is_working
                    time.sleep(0.002)
                assert chore.left == left
    finally:
        worker.close()
    assert 0 < chore.left < 40


def test_what_ends_the_thread_is_logged_and_raised_where_it_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Worker([Failing(), Broken()])
    deadline = time.monotonic() + 5
    while "a bug" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.005)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        worker.close()
    assert "left for the next time: down" in caplog.text
    with worker.resting():
        pass


def test_an_agent_consolidates_between_its_turns_and_leaves_no_thread(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("The gate code is 4471.")
    with make_agent(tmp_path, background=True) as agent:
        agent.chat("Hello.")
        agent.memory.import_file(notes)
        agent.chat("Hello again.")
        deadline = time.monotonic() + 5
        pending = agent.memory.archive.pending_embeddings
        while pending(HashEmbedder().name) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not pending(HashEmbedder().name)
    assert "agentmem-worker" not in {thread.name for thread in threading.enumerate()}


def test_the_command_says_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTMEM_STORE", str(tmp_path / "me.db"))
    with make_agent(tmp_path) as agent:
        agent.chat("My locker code is 58291.")
    ran = run_cli("consolidate", "--json")
    assert ran.code == 0 and '"read_for_facts"' in ran.stdout
    with open_memory(store=tmp_path / "me.db", embedder=HashEmbedder()) as memory:
        assert {chore.name for chore in chores_for(memory, None)} == {
            "embedded", "read for facts", "summarized again"
        }  # fmt: skip
