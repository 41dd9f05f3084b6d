"""The notice that memory is nearly full: when a model is told, what it costs, what it is not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from agentmem import Agent, Budget, Decided, ScriptedModel, Store, replay
from agentmem.errors import ModelUnavailable
from agentmem.models.scripted import Request, ToolCalls
from agentmem.review.pressure import NOTICE
from tests.agents import make_agent

BUDGET = Budget(8000, warn_at=0.35, free_to=0.15, reserve=400)
"""About 1,000 tokens of it describe the memory tools."""
LONG = "We talked about apples and trains and the weather for a while. " * 60


def opened(folder: Path, model: ScriptedModel | None = None, **options: Any) -> Agent:
    settings = {"budget": BUDGET, "memory_tools": True, "recall": "off", **options}
    return make_agent(folder, model or ScriptedModel(has_kv=True), **settings)


def is_told(request: Request) -> bool:
    return NOTICE in request.prompt


def told_in(agent: Agent, text: str) -> tuple[list[bool], list[Decided]]:
    """Whether each request of a turn had the notice, and what the turn decided."""
    assert isinstance(agent.model, ScriptedModel)
    before = len(agent.model.history)
    made = [event for event in agent.events(text) if isinstance(event, Decided)]
    return [is_told(request) for request in agent.model.history[before:]], made


def talk_until_told(agent: Agent) -> int:
    """Turns of small talk until the model is told; the last of them is that turn."""
    for turn in range(1, 40):
        told, made = told_in(agent, f"{turn}. {LONG}")
        if any(told):
            assert told == [True] and not made
            return turn
        assert not made, "nothing leaves before the model was told"
    raise AssertionError("it was never told")


def test_a_model_is_told_once_a_period_and_reviewed_in_the_turn_after(tmp_path: Path) -> None:
    with opened(tmp_path) as agent:
        periods = []
        for _ in range(3):
            periods.append(talk_until_told(agent))
            told, made = told_in(agent, LONG)
            assert told == [False] and [one.action for one in made][:1] == ["drop"]
            assert agent.context.own_tokens < BUDGET.warn_tokens
        assert min(periods) >= 2, "a period ends only when there is room again"


def test_a_period_goes_on_where_a_review_cannot_reach_its_target(tmp_path: Path) -> None:
    with opened(tmp_path, budget=Budget(8000, warn_at=0.35, free_to=0.13, reserve=400)) as agent:
        agent.memory.blocks.append("human", "Likes apples. " * 30)
        talk_until_told(agent)
        assert not any(any(told_in(agent, LONG)[0]) for _ in range(4))
        assert agent.memory.warned_turn > 0


def test_the_notice_stands_before_the_newest_message_and_names_no_user(tmp_path: Path) -> None:
    with opened(tmp_path) as agent:
        talk_until_told(agent)
        assert isinstance(agent.model, ScriptedModel)
        *_, notice, newest = agent.model.history[-1].prompt
        assert notice == NOTICE and notice.messages[0].role == "system"
        assert newest.messages[0].content.endswith(LONG)


def test_it_is_no_segment_and_takes_nothing_after_its_turn(tmp_path: Path) -> None:
    with opened(tmp_path) as agent:
        talk_until_told(agent)
        words = NOTICE.messages[0].content
        session = agent.memory.archive.session_segments(agent.memory.session.id)
        assert not any(words in stored.segment.text for stored in session)
        assert NOTICE not in agent.context.prompt()
        parts = sum(map(agent.model.count_tokens, agent.context.prompt()))
        assert agent.context.num_tokens == parts + agent.context.fixed_tokens


def test_a_model_without_memory_tools_is_never_told(tmp_path: Path) -> None:
    with opened(tmp_path, memory_tools=False, tools=[]) as agent:
        decided = [bool(told_in(agent, LONG)[1]) for _ in range(8)]
        assert any(decided)
        assert isinstance(agent.model, ScriptedModel)
        assert not any(map(is_told, agent.model.history))


def test_nothing_leaves_while_the_told_model_saves(tmp_path: Path) -> None:
    with opened(tmp_path) as agent:
        talk_until_told(agent)
    again = ScriptedModel(has_kv=True)
    with opened(tmp_path / "new", again) as agent:
        while not any(told_in(agent, LONG)[0]):
            again.enqueue(
                ToolCalls.of("core_memory_append", label="human", text="We talked of apples."),
                ToolCalls.of("archival_memory_insert", text="We talked of trains."),
                "Saved.",
            )
            told, made = told_in(agent, f"{LONG} {len(again.history)}")
            if any(told):
                assert told == [True, True, True] and not made
                break
        assert agent.memory.blocks.get("human").text


def test_a_tool_result_that_crosses_the_line_is_told_in_the_same_turn(tmp_path: Path) -> None:
    def read() -> str:
        """Read."""
        return LONG + LONG

    model = ScriptedModel(has_kv=True, default="Done.")
    with opened(tmp_path, model, tools=[read]) as agent:
        model.enqueue(ToolCalls.of("read"), ToolCalls.of("read"))
        told, made = told_in(agent, "Read on")
        assert told == [False, False, True] and not made


def test_a_message_that_would_not_fit_is_reviewed_at_once_and_not_told(tmp_path: Path) -> None:
    narrow = Budget(8000, warn_at=0.9, free_to=0.3, reserve=800)
    with opened(tmp_path, budget=narrow) as agent:
        decided = []
        for _ in range(12):
            told, made = told_in(agent, LONG)
            assert not any(told)
            decided += made
        assert decided


def test_a_turn_whose_reply_is_given_tells_nobody(tmp_path: Path) -> None:
    with opened(tmp_path) as agent:
        made = []
        for _ in range(12):
            events = agent.events(LONG, reply="I see.")
            made += [event for event in events if isinstance(event, Decided)]
        assert made and isinstance(agent.model, ScriptedModel)
        assert not any(map(is_told, agent.model.history))


def test_it_is_told_once_also_where_every_turn_is_another_process(tmp_path: Path) -> None:
    turns: list[tuple[bool, bool]] = []
    for _ in range(7):
        with opened(tmp_path) as agent:
            told, made = told_in(agent, LONG)
            turns.append((told == [True], bool(made)))
    assert (True, False) in turns
    for (was_told, _), (is_told_again, is_reviewed) in zip(turns, turns[1:], strict=False):
        assert not was_told or (is_reviewed and not is_told_again)


def test_a_turn_that_failed_is_told_again_when_it_is_sent_again(tmp_path: Path) -> None:
    model = ScriptedModel(
        has_kv=True,
        default=lambda prompt, _: ModelUnavailable("down") if NOTICE in prompt else "ok.",
    )
    with opened(tmp_path, model) as agent:
        with pytest.raises(ModelUnavailable):
            for turn in range(12):
                agent.chat(LONG, turn=turn)
        assert agent.context.notice is None
    with opened(tmp_path) as agent:
        list(agent.events(LONG, turn=turn))
        assert isinstance(agent.model, ScriptedModel)
        assert [is_told(request) for request in agent.model.history] == [True]


def test_a_review_waits_for_the_last_message_that_fits_beside_the_notice(tmp_path: Path) -> None:
    with opened(tmp_path) as agent:
        agent.chat(LONG)
        review = agent.session._review
        room = -review.must_free(0) - agent.model.count_tokens(NOTICE)
        assert not review._waits(room + 1) and agent.context.notice is None
        assert review._waits(room) and agent.context.notice == NOTICE
        assert review.must_free(room) == 0
        assert sum(tokens for _, tokens in agent.context.bar()) == BUDGET.max_tokens


def test_every_prompt_with_the_notice_is_within_the_budget(tmp_path: Path) -> None:
    chance = random.Random(1)
    limits = Budget(8000, warn_at=0.7, free_to=0.3, reserve=60)
    longest = "word " * 3000
    model = ScriptedModel(
        has_kv=True,
        default=lambda prompt, options: (
            ToolCalls.of("archival_memory_insert", text=f"Note {chance.random()}")
            if options.tools and chance.random() < 0.4
            else longest
        ),
    )
    with opened(tmp_path, model, budget=limits, recall="kv", max_new_tokens=400) as agent:
        for _ in range(14):
            agent.chat(longest[: chance.randint(10, 6000)])
        assert sum(map(is_told, model.history)) > 0
        for request in model.history:
            tokens = sum(map(model.count_tokens, request.prompt))
            tokens += model.count_tools(request.options.tools)
            assert tokens + limits.reserve * is_told(request) <= limits.max_tokens


def test_a_session_in_which_the_model_was_told_replays_to_the_same_state(tmp_path: Path) -> None:
    with opened(tmp_path) as agent:
        talk_until_told(agent)
    with opened(tmp_path) as agent:
        talk_until_told(agent) if not told_in(agent, LONG)[1] else None
        talk_until_told(agent)
    with Store.open(tmp_path / "me.db") as store:
        came_to = replay(store.for_user("default"))
    assert came_to.same, came_to.difference
