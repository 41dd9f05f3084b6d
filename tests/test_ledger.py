"""The ledger: what may be decided of a window, and what is on record of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentmem import Agent, ScriptedModel, Store, replay
from agentmem.budget import TWO_TURNS_TOKENS
from agentmem.errors import BudgetTooSmall, InvalidInput
from tests.agents import make_agent, talk

LONG = "You are very helpful indeed. "
LONG_MESSAGE = "hello there " * 300


def wordy(folder: Path, times: int, budget: int = 1024) -> Agent:
    """An agent whose system prompt takes a good part of its budget."""
    return make_agent(folder, ScriptedModel(), budget=budget, system_prompt=LONG * times)


def pin_all(agent: Agent, turns: int) -> int:
    """Pin every message of some turns, as far as it may be; how many were."""
    pinned = 0
    for i in range(turns):
        agent.chat(f"fact {i}: " + "word " * 50)
        try:
            agent.memory.pin(agent.turn_segments(agent.memory.turn)[0])
        except InvalidInput:
            continue
        pinned += 1
    return pinned


@pytest.mark.parametrize("times", [20, 60, 80, 118])
def test_whatever_may_be_pinned_the_longest_message_is_answered(tmp_path: Path, times: int) -> None:
    with wordy(tmp_path, times) as agent:
        pinned = pin_all(agent, 6)
        assert (pinned > 0) == (times < 118)
        for label in ("human", "persona", "instructions"):
            try:
                agent.memory.blocks.append(label, "kind and brief " * 20)
            except InvalidInput:
                continue
        assert agent.context.longest_message >= TWO_TURNS_TOKENS
        assert agent.chat(LONG_MESSAGE).text == "ok."


def test_a_refused_pin_of_what_is_in_the_window_says_how_much_may_be_pinned(tmp_path: Path) -> None:
    with wordy(tmp_path, 118) as agent:
        agent.chat("My locker code is 58291.")
        with pytest.raises(InvalidInput, match=r"at most 0 may be pinned in a budget of 1024"):
            agent.memory.pin(2)


def test_a_budget_that_cannot_hold_the_pins_is_refused_with_the_sum(tmp_path: Path) -> None:
    with wordy(tmp_path, 90, budget=4096) as agent:
        assert pin_all(agent, 6) == 6
    with pytest.raises(BudgetTooSmall, match=r"\+ pinned \d+ \+ .* or unpin some"):
        wordy(tmp_path, 90)


def test_pinning_in_a_window_that_is_full_takes_no_room(tmp_path: Path) -> None:
    with make_agent(tmp_path, controller="off") as agent:
        talk(agent, 30)
        budget = agent.context.budget
        assert agent.context.num_tokens + budget.reserve > budget.max_tokens - 40
        agent.memory.pin(agent.turn_segments(agent.memory.turn)[0])


def test_unpinning_is_a_decision_that_is_explained_and_undone(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 2)
        agent.memory.pin(2)
        decided = agent.memory.unpin(2)
        assert decided.valid and decided.action == "unpin" and not agent.context[2].pinned
        assert "unpinned by user" in agent.memory.why(2).text
        agent.memory.undo(decided.id)
        assert agent.context[2].pinned and agent.memory.segment(2).pinned


def test_a_pin_can_be_taken_off_a_segment_that_stands_in_another_sessions_window(
    tmp_path: Path,
) -> None:
    with make_agent(tmp_path, session="a") as mine, make_agent(tmp_path, session="b") as other:
        talk(mine, 1)
        one = mine.turn_segments(1)[0]
        mine.memory.pin(one)
        other.memory.unpin(one)
        assert not mine.memory.segment(one).pinned and one not in other.context


@pytest.mark.parametrize("verb", ["drop", "summarize"])
def test_what_the_user_takes_out_of_the_window_is_pinned_no_more_until_that_is_undone(
    tmp_path: Path, verb: str
) -> None:
    with make_agent(tmp_path, ScriptedModel(asides=["They talked."])) as agent:
        agent.chat("My locker code is 58291 and the door is green. " * 3)
        agent.memory.pin(2)
        decided = getattr(agent.memory, verb)(2)
        assert not agent.memory.segment(2).pinned
        agent.memory.undo(decided.id)
        assert agent.memory.segment(2).pinned and agent.context[2].pinned


def window_finding(folder: Path) -> str:
    with Store.open(folder / "me.db") as store:
        return next(one.status for one in store.check() if one.name == "windows")


@pytest.mark.parametrize("verb", ["drop", "summarize", "undo"])
def test_what_one_session_lets_go_stays_live_in_anothers_window(tmp_path: Path, verb: str) -> None:
    told = ScriptedModel(asides=["The locker code is 58291."], default="Fine.")
    with make_agent(tmp_path, session="a") as mine:
        mine.chat("My locker code is 58291 and the door is green. " * 3)
        (one, _) = mine.turn_segments(1)
        with make_agent(tmp_path, told, session="b") as other:
            other.chat("Hello.")
            other.memory.restore(one)
            if verb == "undo":
                other.memory.undo()
            else:
                getattr(other.memory, verb)(one)
            assert one not in other.context
        assert mine.memory.segment(one).state == "live"
        assert window_finding(tmp_path) == "ok"
        mine.memory.drop(one)
        assert mine.memory.segment(one).state == "archived"
        for name in ("a", "b"):
            played = replay(mine.memory.archive, name)
            assert played.same, played.difference


def test_a_log_knows_what_stands_in_anothers_window(tmp_path: Path) -> None:
    with make_agent(tmp_path, session="a") as mine:
        mine.chat("My locker code is 58291.")
        (one, _) = mine.turn_segments(1)
        with make_agent(tmp_path, session="b") as other:
            other.chat("Hello.")
            other.memory.restore(one)
            mine.memory.drop(one)
            assert mine.memory.segment(one).state == "live"
            played = replay(mine.memory.archive, "a")
            assert played.same, played.difference
        mine.memory.archive.remove_session("b")
        assert mine.memory.segment(one).state == "archived"
        mine.memory.restore(one)
        mine.memory.drop(one)
        played = replay(mine.memory.archive, "a")
        assert played.same, played.difference


def test_check_warns_of_a_segment_that_stands_in_a_window_and_is_not_live(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        agent.chat("My locker code is 58291.")
        with agent.memory.archive.write() as transaction:
            transaction.set_state([2], "archived")
        assert window_finding(tmp_path) == "warn"
