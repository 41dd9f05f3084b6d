"""Turns that are awaited: each after the others, and cancelled for itself alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agentmem import Agent, ScriptedModel
from agentmem.errors import InvalidInput
from agentmem.models.base import Delta, Options, Part
from tests.agents import make_agent

LINE = "One two three four five."


class Slow(ScriptedModel):
    """Takes its time for each word."""

    def generate(self, prompt: Sequence[Part], options: Options) -> Iterator[Delta]:
        for delta in super().generate(prompt, options):
            yield delta
            time.sleep(0.02)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with make_agent(tmp_path, Slow(default=LINE)) as made:
        yield made


def answers(agent: Agent) -> list[tuple[str, str]]:
    turns = agent.memory.archive.turns(agent.memory.session.id)
    return [(turn.text, (turn.reply or {}).get("text", "")) for turn in turns]


def test_streams_and_chats_asked_for_together_are_answered_in_turn(agent: Agent) -> None:
    async def stream(text: str) -> str:
        return "".join([piece async for piece in agent.astream(text)])

    async def together() -> None:
        first, second, third = await asyncio.gather(
            stream("First"), stream("Second"), agent.achat("Third")
        )
        assert (first, second, third.text) == (LINE, LINE, LINE)

    asyncio.run(together())
    assert answers(agent) == [("First", LINE), ("Second", LINE), ("Third", LINE)]


def test_cancelling_a_turn_that_waits_leaves_the_one_that_is_answered_alone(agent: Agent) -> None:
    async def cancel_the_second() -> str:
        first = asyncio.create_task(agent.achat("First"))
        second = asyncio.create_task(agent.achat("Second"))
        await asyncio.sleep(0.03)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        return (await first).text

    assert asyncio.run(cancel_the_second()) == LINE
    assert answers(agent) == [("First", LINE)]


def test_cancelling_a_turn_ends_its_reply_and_not_the_next(agent: Agent) -> None:
    async def cancel_the_first() -> str:
        first = asyncio.create_task(agent.achat("First"))
        second = asyncio.create_task(agent.achat("Second"))
        while not answers(agent):
            await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return (await second).text

    assert asyncio.run(cancel_the_first()) == LINE
    (_, cut), (_, whole) = answers(agent)
    assert LINE.startswith(cut) and cut != LINE and whole == LINE


def test_a_reader_may_await_another_turn_or_walk_away(agent: Agent) -> None:
    async def read() -> None:
        pieces = agent.astream("First")
        async for _ in pieces:
            assert (await agent.achat("Second")).text == LINE
            break
        other = agent.astream("Third")
        await anext(other)
        await other.aclose()  # type: ignore[attr-defined]

    asyncio.run(read())
    assert answers(agent)[:2] == [("First", LINE), ("Second", LINE)]
    text, cut = answers(agent)[2]
    assert text == "Third" and LINE.startswith(cut) and cut != LINE


def test_what_is_wrong_with_a_turn_is_raised_where_it_is_awaited(agent: Agent) -> None:
    with pytest.raises(InvalidInput, match="empty"):
        asyncio.run(agent.achat(" "))
    assert asyncio.run(agent.achat("Hello")).text == LINE


def test_a_cancel_before_the_first_event_holds(agent: Agent) -> None:
    events = agent.events("First")
    agent.cancel()
    assert list(events)[-1].finish_reason == "interrupted"  # type: ignore[union-attr]
    assert agent.chat("Second").text == LINE
