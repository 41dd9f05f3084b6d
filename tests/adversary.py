"""A whole agent against a server that means it no good, and what must hold whatever it does.

A script says how the server answers a turn, a review and a summary. `play` lets an agent talk to
it and checks every promise: a useful reply or a typed error, nothing lost, nothing changed, no
request over the budget, and a conversation that goes on as soon as the server is well.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from agentmem import Agent, Budget, Decided, Reply
from agentmem.errors import AgentmemError, ModelUnavailable, UndoBlocked
from agentmem.models import openai_chat
from agentmem.models.base import ChatModel, Part
from agentmem.models.embed import HashEmbedder
from agentmem.models.langchain import LangChainModel
from agentmem.modes import RecallMode
from agentmem.segment import Message, Segment, ToolCall
from tests.agents import window
from tests.fake_openai import Behaviour, FakeOpenAI, Handler, reply, serving, tool_calls

Kind = Literal["turn", "review", "summary"]
SUMMARY_TEXT = "Ingrid keeps the key of box 4711 in Oslo until 14 May."
ANSWER = "I have noted all of it."
NOBODY = "http://127.0.0.1:9/v1"
"""An address at which nobody listens."""


def kind_of(asked: Mapping[str, Any]) -> Kind:
    """What a request asks for: a reply, a review's decisions, or a summary."""
    names = {tool["function"]["name"] for tool in asked.get("tools", ())}
    last = str(asked["messages"][-1].get("content") or "")
    if "drop_segments" in names or "conversation memory" in last:
        return "review"
    return "summary" if "Write only the summary" in last else "turn"


def offered_ids(asked: Mapping[str, Any]) -> list[int]:
    """The segments a review's question lists."""
    text = "\n".join(str(message.get("content") or "") for message in asked["messages"])
    return [int(found) for found in re.findall(r"^(\d+)\|", text, re.MULTILINE)]


def decide(*calls: tuple[str, Callable[[list[int]], Any]]) -> Behaviour:
    """Tool calls over the segments on offer: each a name and what makes its arguments of ids."""

    def behave(handler: Handler) -> None:
        ids = offered_ids(handler.asked)
        made = [
            (f"call_{number}", name, _as_text(arguments(ids)))
            for number, (name, arguments) in enumerate(calls)
        ]
        tool_calls(*made)(handler)

    return behave


def say(text: Callable[[list[int]], Any]) -> Behaviour:
    """The same as text."""
    return lambda handler: reply(_as_text(text(offered_ids(handler.asked))))(handler)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def listed(ids: Iterable[Any]) -> dict[str, Any]:
    """The arguments a review's tools take."""
    return {"segment_ids": list(ids)}


answered = reply(ANSWER)
dropped = decide(("drop_segments", listed))
summarized = reply(SUMMARY_TEXT)


@dataclass(frozen=True, kw_only=True)
class Script:
    """How a server answers, and what may come of it.

    Args:
        name: what is wrong.
        turn, review, summary: how it answers each.
        fails: a turn may end with `ModelUnavailable`, which says so.
        says: what every error's text holds.
        max_tokens: the budget.
        seconds: of one call of the model.
        review_seconds: of a review.
        most_requests: requests of one turn.
        most_seconds: of one turn.
        turns: how many are played.
        listens: whether there is a server at all.
        recall: as `Agent` takes it.
    """

    name: str
    turn: Behaviour = answered
    review: Behaviour = dropped
    summary: Behaviour = summarized
    fails: bool = False
    says: str = ""
    max_tokens: int = 1024
    seconds: float = 30.0
    review_seconds: float = 30.0
    most_requests: int = 16
    most_seconds: float = 20.0
    turns: int = 3
    listens: bool = True
    recall: RecallMode = "kv"

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    def behave(self, handler: Handler) -> None:
        """Answer one request."""
        {"turn": self.turn, "review": self.review, "summary": self.summary}[kind_of(handler.asked)](
            handler
        )

    @property
    def budget(self) -> Budget:
        """The ceilings the agent is given."""
        return Budget(self.max_tokens, seconds=self.review_seconds)


HEALTHY = Script(name="healthy")


@dataclass
class Outcome:
    """What came of a script.

    Args:
        replies: of the turns that were answered.
        errors: of those that were not.
        decided: every decision, carried out or refused.
        requests: the bodies the server saw while the script was played.
        looked_up: the queries the agent's tool ran with.
        seconds: of each turn.
    """

    replies: list[Reply] = field(default_factory=list)
    errors: list[AgentmemError] = field(default_factory=list)
    decided: list[Decided] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    looked_up: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def asked(self, kind: Kind) -> list[dict[str, Any]]:
        """The requests of a kind."""
        return [body for body in self.requests if kind_of(body) == kind]

    def carried_out(self, action: str) -> list[Decided]:
        """The controller's decisions of a kind that were carried out."""
        return [
            event
            for event in self.decided
            if event.valid and event.source == "controller" and event.action == action
        ]


class Watch:
    """Counts every request as the agent counts and notes those over the budget."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.model: ChatModel | None = None
        self.over: list[str] = []

    def __call__(self, body: dict[str, Any]) -> None:
        assert self.model is not None
        prompt = self.model.count_tokens(Part("sent", tuple(map(_message, body["messages"]))))
        tools = body.get("tools", [])
        described = json.dumps([one["function"] for one in tools], ensure_ascii=False)
        offered = self.model.count_tokens(Part("tools", (Message("system", described),)))
        sizes = {
            "messages": prompt,
            "tools": offered if tools else 0,
            "reply": body.get("max_tokens", 0),
        }
        if sum(sizes.values()) > self.max_tokens:
            self.over.append(f"{kind_of(body)}: {sizes} > {self.max_tokens}")


def _message(sent: Mapping[str, Any]) -> Message:
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in sent.get("tool_calls") or ()
    )
    return Message(sent["role"], sent.get("content") or "", calls, sent.get("tool_call_id"))


@dataclass
class Looking:
    """A tool and what it was asked; its results grow where they are told to."""

    grows: bool = False
    queries: list[str] = field(default_factory=list)

    def look_up(self, query: str) -> str:
        """Look something up in the notes.

        Args:
            query: What to look for.
        """
        self.queries.append(query)
        return f"{query}: 42 boxes. " * (10 ** len(self.queries) if self.grows else 1)


def make_agent(folder: Path, server: FakeOpenAI, script: Script, looking: Looking) -> Agent:
    """An agent over the server's model, with a tool, reviewed by that model."""
    with pytest.MonkeyPatch.context() as patch:
        quick = functools.partial(
            openai_chat.openai_model, seconds=script.seconds, first_wait_seconds=0.001
        )
        patch.setattr(openai_chat, "openai_model", quick)
        return Agent(
            "openai-compatible:m",
            base_url=server.url if script.listens else NOBODY,
            store=folder / "me.db",
            budget=script.budget,
            embedder=HashEmbedder(),
            controller="llm",
            recall=script.recall,
            system_prompt="Be kind.",
            tools=[looking.look_up],
            max_new_tokens=128,
        )


def said(number: int) -> str:
    """What the user says in a turn: long enough that a dozen of them need a review."""
    return (
        f"Entry {number}: Ingrid moved box {4700 + number} to shelf {number} in Oslo on "
        f"{number + 2} May. She decided that the blue one goes to Lucca, and that Omar must count "
        "the spoons before anyone opens the others. The weather was fine and we had some soup."
    )


NUM_BEFORE = 7


def converse(folder: Path) -> None:
    """A store with a conversation that fills its window nearly up to the warning line."""
    turn = reply("Noted, all of it, with pleasure. " * 3)
    script = Script(name="before", turn=turn, recall="off")
    with serving(script.behave) as server:
        with make_agent(folder, server, script, Looking()) as agent:
            for number in range(1, NUM_BEFORE + 1):
                agent.chat(said(number))


def play(
    script: Script, folder: Path, *, before: Path | None = None, looking: Looking | None = None
) -> Outcome:
    """Play a script, check every promise, and return what came of it.

    Args:
        script: what the server does.
        folder: for the store.
        before: a folder with a store to go on from.
        looking: the agent's tool.
    """
    if before is not None:
        shutil.copytree(before, folder, dirs_exist_ok=True)
    looking = looking or Looking()
    outcome = Outcome(looked_up=looking.queries)
    watch = Watch(script.max_tokens)
    texts = [said(NUM_BEFORE + number) for number in range(1, script.turns + 1)]
    with serving(script.behave) as server:
        server.watch = watch
        with make_agent(folder, server, script, looking) as agent:
            watch.model = agent.model
            known = originals(agent)
            for text in texts:
                one_turn(agent, server, script, text, outcome)
                check_kept(agent, known)
            server.behaviours = [HEALTHY.behave]
            assert isinstance(agent.model, LangChainModel)
            agent.model.seconds = HEALTHY.seconds
            if script.listens:
                check_goes_on(agent, texts, outcome, known)
        if not script.listens:
            healthy = replace(HEALTHY, max_tokens=script.max_tokens)
            with make_agent(folder, server, healthy, looking) as agent:
                check_goes_on(agent, texts, outcome, known)
    assert watch.over == []
    return outcome


def check_goes_on(
    agent: Agent, texts: Sequence[str], outcome: Outcome, known: dict[int, Segment]
) -> None:
    """With a server that is well again: every message is there, and the next one is answered."""
    again = "Are you there again?"
    assert agent.chat(again).text == ANSWER
    check_kept(agent, known)
    rows = agent.memory.archive.turns(agent.memory.session.id)[-len(texts) - 1 :]
    assert [row.text for row in rows] == [*texts, again]
    answers = [row.reply["text"] for row in rows[:-1] if row.reply is not None]
    assert answers == [one.text for one in outcome.replies]
    check_undo(agent)
    assert agent.chat("And now?").text == ANSWER
    check_kept(agent, known)


def one_turn(agent: Agent, server: FakeOpenAI, script: Script, text: str, outcome: Outcome) -> None:
    """One turn, held to its ceilings: a reply that says something, or a typed error."""
    began, num_before = time.monotonic(), len(server.requests)
    num_looked_up = len(outcome.looked_up)
    try:
        for event in agent.events(text):
            if isinstance(event, Decided):
                outcome.decided.append(event)
            elif isinstance(event, Reply):
                assert event.text.strip(), "a reply that says nothing"
                outcome.replies.append(event)
    except ModelUnavailable as error:
        assert script.fails, f"an error where a reply was due: {error}"
        assert script.says in str(error)
        assert len(str(error)) < 2000
        outcome.errors.append(error)
    outcome.seconds.append(time.monotonic() - began)
    requests = server.requests[num_before:]
    outcome.requests += requests
    assert outcome.seconds[-1] < script.most_seconds
    assert len(requests) <= script.most_requests
    assert len(outcome.looked_up) - num_looked_up <= 32
    assert agent.context.num_tokens <= script.max_tokens
    newest = [stored.segment for stored in agent.memory.turn_segments(agent.memory.turn)]
    assert newest[0].text == text and newest[0].id in agent.context


def originals(agent: Agent) -> dict[int, Segment]:
    """Every segment of the conversation by its id, as the archive has it."""
    stored = agent.memory.archive.session_segments(agent.memory.session.id)
    return {one.segment.id: one.segment for one in stored}


def check_kept(agent: Agent, known: dict[int, Segment]) -> None:
    """What was there is there, to the byte, and is what its hash says; what is new is noted."""
    now = originals(agent)
    for id, segment in known.items():
        assert now[id] == segment
        assert replace(now[id]).content_hash == segment.content_hash
    for segment in now.values():
        if segment.kind == "summary":
            sources = [now[parent] for parent in segment.parents]
            assert all(source.kind != "summary" for source in sources)
            count = agent.context.count
            assert count(segment) < sum(map(count, sources))
            assert segment.text.count("[Summary") == 1
    known |= now


def check_undo(agent: Agent) -> None:
    """A decision is taken back at once, and the last of the reviews' wherever it fits."""
    before = window(agent)
    movable = [entry.id for entry in agent.context if entry.segment.kind == "turn"]
    agent.memory.drop(movable[0])
    agent.memory.undo()
    assert window(agent) == before
    rows = agent.memory.archive.decisions(session_id=agent.memory.session.id, limit=99)
    reviewed = [one for one in rows if one.decision.source != "user" and one.undone_by is None]
    for row in reviewed[:1]:
        try:
            agent.memory.undo(row.id)
        except UndoBlocked as blocked:
            assert blocked.tokens_over > 0
        else:
            left = row.decision.action in ("drop", "summarize")
            assert not left or set(row.decision.segment_ids) <= {e.id for e in agent.context}
