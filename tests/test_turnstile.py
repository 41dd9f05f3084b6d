"""One turn or act at a time: what others do meanwhile is refused, or is no part of the turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentmem import Agent, ScriptedModel, Store, replay
from agentmem.errors import SessionBusy
from agentmem.events import Token
from agentmem.models.base import Delta, Options, Part
from agentmem.models.scripted import ToolCalls
from agentmem.turnstile import Turnstile
from tests.agents import make_agent, talk

LINE = "One two three four five."


def replays(folder: Path) -> bool:
    with Store.open(folder / "me.db") as store:
        return replay(store.for_user("default")).same


def stream_with(agent: Agent, interrupt: Callable[[Agent], Any]) -> str:
    """A reply's text; something is done at its second word."""
    text = ""
    for event in agent.events("Count"):
        if isinstance(event, Token):
            text += event.text
            if text == "One two":
                interrupt(agent)
    return text


def set_recall(agent: Agent) -> None:
    agent.recall = "off"


ACTS: dict[str, Callable[[Agent], Any]] = {
    "pin": lambda agent: agent.memory.pin(2),
    "undo": lambda agent: agent.memory.undo(),
    "forget": lambda agent: agent.memory.forget(2),
    "passage": lambda agent: agent.memory.passages.insert("Pears cost 3."),
    "block": lambda agent: agent.memory.blocks.append("human", "Has a dog."),
    "recall": set_recall,
    "turn": lambda agent: agent.chat("Me too"),
}


@pytest.mark.parametrize("act", ACTS)
def test_an_act_while_a_reply_streams_is_refused_and_the_reply_is_whole(
    tmp_path: Path, act: str
) -> None:
    with make_agent(tmp_path, ScriptedModel(default=LINE)) as agent:
        talk(agent, 1)

        def refused(agent: Agent) -> None:
            with pytest.raises(SessionBusy, match="it is answering a turn"):
                ACTS[act](agent)

        assert stream_with(agent, refused) == LINE
        if act not in ("turn", "undo"):
            ACTS[act](agent)
        assert agent.chat("Count").text == LINE
        assert agent.memory.turn == 3
    assert replays(tmp_path)


def test_a_search_and_an_import_while_a_reply_streams_leave_the_turn_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("The attic key is 8812.\n")
    with make_agent(tmp_path, ScriptedModel(default=LINE)) as agent:
        talk(agent, 2)

        def looks(agent: Agent) -> None:
            assert agent.memory.search("market")
            agent.memory.import_file(tmp_path / "notes.md")
            assert agent.memory.search("attic")[0].segment.text.startswith("The attic key")
            assert agent.memory.passages.search("apples") == []
            agent.memory.candidates()

        assert stream_with(agent, looks) == LINE
        agent.chat("What is the attic key?")
    assert replays(tmp_path)


def test_a_search_by_a_tool_leaves_the_turn_alone(tmp_path: Path) -> None:
    agents: list[Agent] = []

    def look(query: str) -> str:
        """Look something up.

        Args:
            query: What.
        """
        return agents[0].memory.search(query)[0].segment.text

    model = ScriptedModel(["ok.", ToolCalls.of("look", query="market"), "Apples."])
    with make_agent(tmp_path, model, tools=[look], budget=1000) as agent:
        agents.append(agent)
        talk(agent, 1)
        assert agent.chat("What did I buy?").text == "Apples."
    assert replays(tmp_path)


class Waiting(ScriptedModel):
    """Goes on after its first word when it is told to."""

    def __init__(self) -> None:
        super().__init__(default=LINE)
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def generate(self, prompt: Sequence[Part], options: Options) -> Iterator[Delta]:
        for delta in super().generate(prompt, options):
            yield delta
            self.begun.set()
            assert self.goes_on.wait(10)


def test_another_thread_is_told_that_the_session_is_busy(tmp_path: Path) -> None:
    model = Waiting()
    with make_agent(tmp_path, model) as agent, ThreadPoolExecutor(1) as pool:
        first = pool.submit(agent.chat, "First")
        assert model.begun.wait(10)
        with pytest.raises(SessionBusy, match="it is answering a turn"):
            agent.chat("Second")
        with pytest.raises(SessionBusy):
            agent.memory.pin(2)
        assert agent.memory.search("First")
        model.goes_on.set()
        assert first.result(10).text == LINE
        assert agent.chat("Second").turn == 2
    assert replays(tmp_path)


def test_each_event_may_be_read_in_another_thread(tmp_path: Path) -> None:
    with make_agent(tmp_path, ScriptedModel(default=LINE)) as agent:
        stream, pieces = agent.stream("Count"), []
        while True:
            with ThreadPoolExecutor(1) as pool:
                piece = pool.submit(next, stream, None).result(10)
            if piece is None:
                break
            pieces.append(piece)
        assert "".join(pieces) == LINE
        talk(agent, 1)
    assert replays(tmp_path)


def test_a_stream_that_nobody_closes_keeps_the_session_until_it_is_closed(tmp_path: Path) -> None:
    with make_agent(tmp_path, ScriptedModel(default=LINE)) as agent:
        stream = agent.stream("Count")
        next(stream)
        with pytest.raises(SessionBusy, match="closed"):
            agent.chat("Hello")
        stream.close()
        assert agent.chat("Hello").turn == 2


def test_who_is_let_in_has_it_alone_and_may_lend_it() -> None:
    turnstile = Turnstile()
    with turnstile.apart():
        assert not turnstile.is_inside
    with turnstile.enter("it is painted"):
        assert turnstile.is_inside and not turnstile.is_others
        with pytest.raises(SessionBusy, match="it is painted"), turnstile.enter("again"):
            pass
        with turnstile.apart():
            assert turnstile.is_others and not turnstile.is_inside
        assert turnstile.is_inside
    assert not turnstile.is_inside and not turnstile.is_others
