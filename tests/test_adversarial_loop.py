"""The tool loop of a turn ends: whatever the model calls, however often, with an answer."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.adversarial_scripts import looking_for, numbered, once
from tests.adversary import ANSWER, Looking, Outcome, Script, answered, play
from tests.fake_openai import Behaviour, Handler, tool_call, tool_calls

MOST_CALLS = 32
MOST_ALIKE = 3
"""So many times the same call is taken seriously, valid or not."""


def while_offered(calls: Behaviour) -> Behaviour:
    """Calls for as long as tools are offered, then the reply."""

    def behave(handler: Handler) -> None:
        (calls if handler.asked.get("tools") else answered)(handler)

    return behave


def looped(folder: Path, calls: Behaviour, looking: Looking | None = None) -> Outcome:
    """One turn of a model that calls while it may."""
    script = Script(name="loop", turn=while_offered(calls), turns=1)
    return play(script, folder, looking=looking)


def spellings() -> Behaviour:
    """The same call, spelled in another way each time."""
    spaces = itertools.count()
    return lambda handler: tool_call("look_up", '{"query":' + " " * next(spaces) + '"box"}')(
        handler
    )


def alternating() -> Behaviour:
    """One call, another one, the first one again."""
    numbers = itertools.count()
    return lambda handler: tool_call("look_up", looking_for(f"box {next(numbers) % 2}"))(handler)


def test_calls_that_differ_are_run_up_to_the_last_round(tmp_path: Path) -> None:
    outcome = looped(tmp_path, numbered(lambda n: looking_for(f"box {n}")))
    assert [reply.text for reply in outcome.replies] == [ANSWER]
    assert outcome.looked_up == [f"box {n}" for n in range(7)]
    assert len(outcome.asked("turn")) == 8


@pytest.mark.parametrize(
    "calls",
    [
        tool_call("look_up", looking_for("box")),
        spellings(),
        tool_call("look_up", looking_for("box"), id=""),
    ],
    ids=["the-same", "spelled-differently", "without-an-id"],
)
def test_the_same_successful_call_is_not_repeated_for_ever(
    tmp_path: Path, calls: Behaviour
) -> None:
    outcome = looped(tmp_path, calls)
    assert [reply.text for reply in outcome.replies] == [ANSWER]
    assert len(outcome.looked_up) <= MOST_ALIKE
    assert len(outcome.asked("turn")) <= MOST_ALIKE + 1


def test_two_calls_in_turn_are_not_repeated_for_ever(tmp_path: Path) -> None:
    outcome = looped(tmp_path, alternating())
    assert [reply.text for reply in outcome.replies] == [ANSWER]
    assert len(outcome.looked_up) <= 2 * MOST_ALIKE


@pytest.mark.parametrize(
    "calls",
    [
        numbered(lambda n: '{"query": ' + "x" * n),
        numbered(lambda n: json.dumps({"wrong": n})),
        lambda handler: tool_call("no_such_tool", "{}")(handler),
    ],
    ids=["no-JSON", "wrong-arguments", "unknown-tool"],
)
def test_calls_that_only_fail_are_given_up(tmp_path: Path, calls: Behaviour) -> None:
    outcome = looped(tmp_path, calls)
    assert [reply.text for reply in outcome.replies] == [ANSWER]
    assert outcome.looked_up == []
    assert len(outcome.asked("turn")) <= MOST_ALIKE + 1


def test_calls_of_all_rounds_together_are_bounded(tmp_path: Path) -> None:
    rounds = itertools.count()

    def many(handler: Handler) -> None:
        at = next(rounds)
        tool_calls(*[(f"{at}-{n}", "look_up", looking_for(f"{at} {n}")) for n in range(20)])(
            handler
        )

    outcome = looped(tmp_path, many)
    assert [reply.text for reply in outcome.replies] == [ANSWER]
    assert len(outcome.looked_up) <= MOST_CALLS


def test_results_that_grow_are_cut_to_what_the_window_holds(tmp_path: Path) -> None:
    looking = Looking(grows=True)
    outcome = looped(tmp_path, numbered(lambda n: looking_for(f"box {n}")), looking)
    assert [reply.text for reply in outcome.replies] == [ANSWER]


def test_every_call_that_is_sent_has_its_result(tmp_path: Path) -> None:
    calls = tool_calls(
        ("a", "look_up", looking_for("x")), ("a", "no_such", "{}"), ("", "look_up", "{")
    )
    outcome = play(Script(name="pairs", turn=once(calls), turns=1), tmp_path)
    messages = outcome.asked("turn")[-1]["messages"]
    called = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    results = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert called == results and len(set(called)) == 3


def test_a_model_that_calls_where_no_tool_is_offered_has_not_answered(tmp_path: Path) -> None:
    script = Script(
        name="no tools",
        turn=numbered(lambda n: looking_for(f"box {n}")),
        turns=1,
        fails=True,
        says="empty answer",
    )
    outcome = play(script, tmp_path)
    assert len(outcome.errors) == 1 and len(outcome.asked("turn")) <= 8
