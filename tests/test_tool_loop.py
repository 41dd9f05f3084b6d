"""The tool loop ends, with an answer in words, whatever the model does."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentmem import Agent, Reply, ScriptedModel, Store, Token, replay
from agentmem.conversation.tool_loop import ToolLimits
from agentmem.errors import ModelUnavailable
from agentmem.models.base import Options, Part
from agentmem.models.scripted import ScriptItem, ToolCalls
from agentmem.segment import Message, ToolCall, Trust
from agentmem.storage.rows import StoredSegment
from tests.agents import make_agent

COUNTER = itertools.count()


def look(place: str = "") -> str:
    """Look.

    Args:
        place: Where.
    """
    return "nothing"


def count_up() -> str:
    """Count."""
    return str(next(COUNTER))


def agent_with(folder: Path, model: ScriptedModel, **limits: object) -> Agent:
    agent = make_agent(folder, model, tools=[look, count_up], budget=2000)
    agent.session._loop._limits = ToolLimits(**limits)  # type: ignore[arg-type]
    return agent


def exchanges(agent: Agent) -> list[tuple[Message, ...]]:
    return [
        entry.segment.messages for entry in agent.context if entry.segment.kind == "tool_exchange"
    ]


def test_the_same_call_with_the_same_result_three_times_ends_it(tmp_path: Path) -> None:
    script = [
        ToolCalls((ToolCall("", "look", text),)) for text in ('{"place":"a"}', '{"place": "a"}')
    ]
    model = ScriptedModel(script, default=ToolCalls.of("look", place="a"))
    with agent_with(tmp_path, model) as agent:
        events = list(agent.events("Look around"))
        reply = events[-1]
        assert isinstance(reply, Reply) and len(model.history) == 4
        assert reply.text == "I found no answer: the same call gave the same result 3 times."
        assert "".join(event.text for event in events if isinstance(event, Token)) == reply.text
        assert model.history[-1].options.tools == ()
        note = exchanges(agent)[-1][-1].content
        assert note == (
            "nothing\n[No more tools: the same call gave the same result 3 times. "
            "Answer in words now.]"
        )


def test_other_results_of_the_same_call_go_on_until_rounds_are_over(tmp_path: Path) -> None:
    model = ScriptedModel(default=ToolCalls.of("count_up"))
    with agent_with(tmp_path, model) as agent:
        assert agent.chat("Count").text == "I found no answer: 7 rounds of calls are enough."
        assert len(model.history) == 8 and len(exchanges(agent)) == 7


def test_an_answer_without_tools_is_the_models_own(tmp_path: Path) -> None:
    def answers(prompt: Sequence[Part], options: Options) -> str | ToolCalls:
        return ToolCalls.of("look") if options.tools else "There is nothing."

    with agent_with(tmp_path, ScriptedModel(default=answers)) as agent:
        assert agent.chat("Look").text == "There is nothing."


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("", "nosuch", "{}"),
        ToolCall("", "look", "no json"),
        ToolCall("", "look", "[1]"),
        ToolCall("", "look", '{"colour": 1}'),
        ToolCall("", "", "{}"),
        ToolCall("", "look", '{"place": ' + "[" * 100_000),
    ],
)
def test_three_invalid_calls_in_a_row_end_it(tmp_path: Path, call: ToolCall) -> None:
    other = iter(range(99))

    def wrong(prompt: Sequence[Part], options: Options) -> ToolCalls:
        return ToolCalls((ToolCall(f"c{next(other)}", call.name, call.arguments),))

    with agent_with(tmp_path, ScriptedModel(default=wrong), repeats=99) as agent:
        if len(call.arguments) < 1000:
            assert "3 calls in a row were invalid" in agent.chat("Go").text
        else:
            assert "no room for the results" in agent.chat("Go").text


def test_a_valid_call_between_invalid_ones_starts_the_count_anew(tmp_path: Path) -> None:
    wrong = [ToolCalls.of("nosuch", number=i) for i in range(4)]
    right = ToolCalls.of("count_up")
    script: list[ScriptItem] = [wrong[0], wrong[1], right, wrong[2], wrong[3], "Done."]
    with agent_with(tmp_path, ScriptedModel(script)) as agent:
        assert agent.chat("Go").text == "Done."


def test_calls_over_the_limit_are_not_run_and_every_one_that_is_has_its_result(
    tmp_path: Path,
) -> None:
    many = ToolCalls(tuple(ToolCall("", "count_up", "{}") for _ in range(20)))
    model = ScriptedModel(default=many)
    with agent_with(tmp_path, model) as agent:
        agent.chat("Count")
        told = [m for messages in exchanges(agent) for m in messages]
        calls = [call.id for message in told for call in message.tool_calls]
        results = [message.tool_call_id for message in told if message.role == "tool"]
        assert calls == results and len(calls) == 32


def test_tokens_and_seconds_of_a_turn_are_limited(tmp_path: Path) -> None:
    call = (ToolCall("", "count_up", "{}"),)
    chatty = ScriptedModel(default=ToolCalls(call, "so many words " * 10))
    with agent_with(tmp_path, chatty, tokens=50) as agent:
        agent.chat("Count")
        assert len(chatty.history) == 3
        assert "tokens were generated" in exchanges(agent)[-1][-1].content
    slow = ScriptedModel(default=ToolCalls(call))
    with make_agent(tmp_path, slow, tools=[count_up], budget=2000, new=True) as agent:
        clock: Iterator[float] = itertools.count(0, 200)
        agent.session._loop._monotonic = lambda: next(clock)
        assert "300 seconds have passed" in agent.chat("Count").text
        assert len(slow.history) == 3


def test_a_model_that_fails_after_a_call_loses_neither_message_nor_call(tmp_path: Path) -> None:
    model = ScriptedModel([ToolCalls.of("look"), ModelUnavailable("down")])
    with agent_with(tmp_path, model) as agent:
        with pytest.raises(ModelUnavailable):
            agent.chat("Look around", turn="a")
        kinds = [s.segment.kind for s in agent.memory.turn_segments(1)]
        assert kinds == ["turn", "tool_exchange"]
        assert agent.chat("Look around", turn="a").text == "ok."


def test_a_tool_that_raises_is_run_once_and_the_turn_is_answered_and_replayed(
    tmp_path: Path,
) -> None:
    class HTTPError(Exception):
        pass

    num_runs = itertools.count()

    def fetch(page: str) -> str:
        """Fetch.

        Args:
            page: Which.
        """
        next(num_runs)
        raise HTTPError("502")

    model = ScriptedModel([ToolCalls.of("fetch"), ToolCalls.of("fetch", page="a"), "It is down."])
    with make_agent(tmp_path, model, tools=[fetch], budget=2000) as agent:
        assert agent.chat("Fetch it", turn="a").text == "It is down."
        assert agent.chat("Fetch it", turn="a").repeated and next(num_runs) == 1
        told = [messages[-1].content for messages in exchanges(agent)]
        assert told == ["Error: missing a required argument: 'page'", "Error: 502"]
    with Store.open(tmp_path / "me.db") as store:
        came_to = replay(store.for_user("default"), "default")
        assert came_to.same, came_to.difference


LONG = "\n".join(f"Row {i} holds the value {i * 7919}." for i in range(1000))


def rows(pad: str = "") -> str:
    """Rows.

    Args:
        pad: Of no use.
    """
    return LONG


def archived(agent: Agent) -> list[StoredSegment]:
    return [
        stored
        for stored in agent.memory.archive.session_segments(agent.memory.session.id)
        if stored.segment.origin == "tool"
    ]


def test_a_long_result_is_stored_whole_as_parts_of_the_exchange(tmp_path: Path) -> None:
    model = ScriptedModel([ToolCalls.of("rows"), "Fine."])
    with make_agent(tmp_path, model, tools=[rows], budget=1000) as agent:
        assert agent.chat("Read the rows").usage.peak_tokens <= 1000
        exchange, *parts = archived(agent)
        shown = exchange.segment.messages[1].content
        assert f"{len(LONG):,} characters, stored whole in {len(parts)} parts" in shown
        assert shown.startswith(LONG[:500]) and shown.endswith(LONG[-300:]) and len(shown) < 1100
        assert "".join(part.segment.text for part in parts) == LONG
        for part in parts:
            assert part.segment.kind == "document_part" and part.state == "archived"
            assert part.segment.trust is Trust.EXTERNAL
            assert part.segment.parents == (exchange.segment.id,)
        agent.chat("Row 600 holds the value what?")
        back = [entry for entry in agent.context if entry.recalled]
        assert any("4751400" in entry.segment.text for entry in back)
        part_id = parts[0].segment.id
        assert f"segment {exchange.segment.id} stands for it" in str(agent.memory.why(part_id))
        agent.memory.forget(exchange.segment.id)
        assert archived(agent) == []
        agent.chat("Row 600 holds the value what?")
        assert "4751400" not in agent.window_text()
    with Store.open(tmp_path / "me.db") as store:
        came_to = replay(store.for_user("default"), "default")
        assert came_to.same, came_to.difference
        assert [finding.name for finding in store.check() if finding.status == "fail"] == []
    assert b"4751400" not in (tmp_path / "me.db").read_bytes()


def test_an_exchange_that_has_no_place_in_the_window_is_archived_whole(tmp_path: Path) -> None:
    pad = "so long " * 400
    model = ScriptedModel([ToolCalls.of("rows", pad=pad), "Fine."])
    with make_agent(tmp_path, model, tools=[rows], budget=600) as agent:
        agent.chat("Read the rows")
        assert exchanges(agent) == []
        exchange, *parts = archived(agent)
        assert exchange.state == "archived" and pad in exchange.segment.text
        assert "".join(part.segment.text for part in parts) == LONG


CALLS = st.builds(
    ToolCall,
    st.text(max_size=3),
    st.sampled_from(["look", "count_up", "nosuch"]) | st.text(max_size=4),
    st.sampled_from(["{}", "{", '{"place": "x"}', '{"place": {}}']) | st.text(max_size=6),
)


@settings(
    deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.lists(CALLS, min_size=1, max_size=4), min_size=2, max_size=9))
def test_any_calls_end_in_words_with_pairs_closed_within_the_budget(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[ToolCall]]
) -> None:
    numbered = itertools.count()
    script = [
        ToolCalls(
            tuple(ToolCall(f"{one.id}{next(numbered)}", one.name, one.arguments) for one in calls)
        )
        for calls in rounds
    ]
    folder = tmp_path_factory.mktemp("loop")
    with make_agent(folder, ScriptedModel(script), tools=[look, count_up], budget=500) as agent:
        reply = agent.chat("Go")
        assert reply.text and reply.usage.peak_tokens <= 500
        said = agent.memory.turn_segments(1)
        assert [said[0].segment.text, said[-1].segment.text] == ["Go", reply.text]
        for stored in said[1:-1]:
            calls = [call.id for call in stored.segment.messages[0].tool_calls]
            assert calls == [m.tool_call_id for m in stored.segment.messages[1:]]
            assert json.dumps([m.to_dict() for m in stored.segment.messages])
