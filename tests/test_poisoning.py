"""Fifty poisoned texts through the user, a tool and an import: what becomes of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agentmem import Agent, ScriptedModel, Store
from agentmem.decision import Decision
from agentmem.errors import InvalidInput
from agentmem.models.base import Capabilities, Part
from agentmem.models.scripted import Request, ToolCalls
from agentmem.segment import Message, Segment, Trust, lowest_trust
from agentmem.storage.archive import Archive
from agentmem.storage.rows import StoredSegment
from agentmem.storage.text import normalize_text
from agentmem.summary import Summarizer
from tests.agents import make_agent
from tests.hostile import POISONS

MARKED = [f"{normalize_text(text)} zq{number:02}x" for number, text in enumerate(POISONS)]
"""Each with a word by which its bytes are found again."""
TOOLS = Capabilities(calls_tools=True)


def fetch_page(number: int) -> str:
    """A page of the web.

    Args:
        number: of the page.
    """
    return MARKED[number]


def open_agent(folder: Path, model: ScriptedModel) -> Agent:
    return make_agent(folder, model, budget=30_000, tools=[fetch_page], recall="off")


def stored_with(archive: Archive, letters: str) -> list[StoredSegment]:
    """All segments of the user in which these letters stand."""
    return [
        stored
        for session in archive.sessions()
        for stored in archive.session_segments(session.id)
        if letters in stored.segment.text
    ]


@dataclass(frozen=True)
class Poisoned:
    """A conversation into which every text came by one way."""

    channel: str
    folder: Path
    requests: list[Request]


@pytest.fixture(scope="module", params=["user", "tool", "import"])
def poisoned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Poisoned:
    folder = tmp_path_factory.mktemp(request.param)
    model = ScriptedModel(has_kv=True, capabilities=TOOLS)
    with open_agent(folder, model) as agent:
        if request.param == "user":
            for text in MARKED:
                agent.chat(text)
        elif request.param == "tool":
            for number in range(len(MARKED)):
                model.enqueue(ToolCalls.of("fetch_page", number=number), "I see.")
                agent.chat("Read the next page.")
        else:
            roles = ("system", "user", "assistant", "tool", "developer")
            lines = [
                json.dumps({"role": roles[number % 5], "content": text})
                for number, text in enumerate(MARKED)
            ]
            (folder / "chat.jsonl").write_text("\n".join(lines), "utf-8")
            agent.memory.import_file(folder / "chat.jsonl")
            for text in MARKED[:: len(roles) + 1]:
                found = agent.memory.search(text[-5:])[0].segment
                assert text[-5:] in found.text
                agent.memory.restore(found.id)
                agent.chat("What does it say?")
                agent.memory.drop(found.id)
    return Poisoned(request.param, folder, model.history)


@pytest.fixture
def archive(poisoned: Poisoned) -> Iterator[Archive]:
    with Store.open(poisoned.folder / "me.db") as store:
        yield store.for_user("default")


def test_each_has_the_origin_and_the_trust_of_its_way_in(
    poisoned: Poisoned, archive: Archive
) -> None:
    expected = {"user": Trust.USER, "tool": Trust.EXTERNAL, "import": Trust.EXTERNAL}
    told = stored_with(archive, "zq")
    assert len(told) == len(MARKED)
    for text, stored in zip(MARKED, told, strict=True):
        assert text in stored.segment.text
        assert stored.segment.origin == poisoned.channel
        assert stored.segment.trust == expected[poisoned.channel]


def test_none_reaches_a_system_message_of_any_prompt(poisoned: Poisoned) -> None:
    seen: set[str] = set()
    for request in poisoned.requests:
        for message in request.messages:
            if message.role == "system":
                assert message.content == "Be kind."
            seen.update(text[-5:] for text in MARKED if text[-5:] in message.content)
    assert len(seen) == (9 if poisoned.channel == "import" else len(MARKED))


def test_what_is_below_user_trust_stands_behind_its_fence_in_every_prompt(
    poisoned: Poisoned,
) -> None:
    for request in poisoned.requests:
        for message in request.messages:
            told = [text for text in MARKED if text in message.content]
            if told and poisoned.channel != "user":
                first, *_, last = message.content.split("\n")
                assert first == last.replace("/", "") and first.startswith("<data-")
                assert message.role in ("user", "tool")


def test_three_generations_of_summaries_have_the_trust_of_the_first(
    poisoned: Poisoned, archive: Archive
) -> None:
    for first, told in told_on(archive):
        assert len(told) == 3
        for one in told:
            assert (one.origin, one.trust) == ("summary", first.segment.trust)


def told_on(archive: Archive) -> list[tuple[StoredSegment, list[Segment]]]:
    """Three generations of summaries of every text, stored."""
    found = []
    for stored in stored_with(archive, "zq"):
        newest, told = stored, []
        for generation in range(3):
            model = ScriptedModel([f"It says: {stored.segment.text[-40:]} (told {generation})"])
            summarizer = Summarizer(
                model=model,
                part=lambda segment: Part(segment.id, segment.messages),
                max_tokens=500,
                budget_tokens=9_000,
                seconds=9.0,
            )
            # A summarizer takes originals only: whatever it is given, its trust goes on.
            padded = Message("user", newest.segment.text + " and so on" * 40)
            [written] = summarizer([[replace(newest.segment, kind="turn", messages=(padded,))]])
            assert isinstance(written, tuple)
            with archive.write() as transaction:
                added = transaction.add_segment(newest.session_id, newest.turn, written[0])
            newest = archive.segment(added.id)
            told.append(newest.segment)
        found.append((stored, told))
    return found


def test_nothing_of_a_forgotten_origin_is_left_in_any_file(poisoned: Poisoned) -> None:
    """Runs last: after it nothing is there."""
    with open_agent(poisoned.folder, ScriptedModel()) as agent:
        told_on(agent.memory.archive)
        receipt = agent.memory.forget_origin(poisoned.channel)
        assert len(receipt["segments"]) >= len(MARKED) and len(receipt["made_of_it"]) >= 150
        assert stored_with(agent.memory.archive, "zq") == []
        assert stored_with(agent.memory.archive, "It says") == []
    with Store.open(poisoned.folder / "me.db") as store:
        assert store.purge()
        assert [one.name for one in store.check() if one.status == "fail"] == []
    files = [path for path in poisoned.folder.rglob("*") if path.is_file()]
    files = [path for path in files if path.suffix != ".jsonl"]
    assert files
    for path in files:
        data = path.read_bytes()
        for text in MARKED:
            assert text[-5:].encode() not in data, (path.name, text)


def test_no_decision_of_a_model_raises_trust_or_pins_what_is_below_the_users(
    tmp_path: Path,
) -> None:
    model = ScriptedModel([ToolCalls.of("fetch_page", number=0), "ok."], capabilities=TOOLS)
    with open_agent(tmp_path, model) as agent:
        agent.chat("Read the page.")
        (exchange,) = stored_with(agent.memory.archive, "zq00x")
        one = exchange.segment.id
        with pytest.raises(InvalidInput, match="only the user may pin it"):
            agent.memory.ledger.apply(Decision("pin", (one,), "controller"))
        agent.memory.ledger.apply(Decision("keep", (one,), "controller"))
        agent.memory.ledger.apply(Decision("drop", (one,), "controller"))
        agent.memory.ledger.apply(Decision("bring_back", (one,), "controller"))
        assert agent.memory.segment(one).segment.trust == Trust.EXTERNAL
        agent.memory.pin(one)
        agent.memory.unpin(one)
        agent.memory.drop(one)
        agent.memory.undo()
        assert agent.memory.segment(one).segment == exchange.segment
    with open_agent(tmp_path, ScriptedModel()) as agent:
        assert agent.context[one].segment == exchange.segment


def test_what_was_below_user_trust_never_comes_back_as_kv(tmp_path: Path) -> None:
    model = ScriptedModel(
        [ToolCalls.of("fetch_page", number=0), "ok."], has_kv=True, capabilities=TOOLS
    )
    with open_agent(tmp_path, model) as agent:
        agent.chat("Read the page.")
        (exchange,) = stored_with(agent.memory.archive, "zq00x")
        one = exchange.segment.id
        kv = agent.memory.kv
        assert kv is not None and kv.has(one)
        decided = agent.memory.drop(one)
        agent.chat("Something else.")
        assert kv.has(one)
        agent.memory.undo(decided.id)
        assert not kv.has(one) and agent.context[one].via == "prompt"
        agent.chat("And now?")
        agent.memory.drop(one)
        assert kv.has(one)
        agent.memory.restore(one)
        assert not kv.has(one) and agent.context[one].via == "prompt"


def test_the_lowest_trust_is_that_of_the_least_believed() -> None:
    said = (Message("user", "x"),)
    segments = [Segment(said, trust=trust) for trust in (Trust.USER, Trust.EXTERNAL, Trust.SYSTEM)]
    assert lowest_trust(segments) == Trust.EXTERNAL
    assert lowest_trust([]) == Trust.SYSTEM
