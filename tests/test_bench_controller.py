"""The controller benchmark end to end without a real model."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from agentmem.bench.controller import ControllerOptions, against, render, run_controller
from agentmem.bench.controller_row import pooled
from agentmem.bench.conversation import Conversation, Fact, Question, Turn
from agentmem.bench.deciders import OraclePolicy, RandomPolicy, decider
from agentmem.budget import Budget
from agentmem.decision import Candidate
from agentmem.errors import InvalidInput
from agentmem.segment import Message, Segment

QUICK = ControllerOptions.quick(model="scripted", deciders=("oracle", "random", "window"))


def test_every_decider_plays_the_same_and_the_oracle_keeps_most(
    embedded_models: Path, tmp_path: Path
) -> None:
    options = replace(QUICK, out=tmp_path / "c.json")
    rows = {row.decider: row for row in run_controller(options)}
    assert set(rows) == {"oracle", "random", "window"}
    oracle, chance = rows["oracle"], rows["random"]
    assert oracle.needed_in_window > 0.9
    assert oracle.needed_in_window > chance.needed_in_window + 0.2
    assert oracle.needed_at_end > rows["window"].needed_at_end
    for row in rows.values():
        assert row.low <= row.needed_in_window <= row.high
        assert row.facts == len(row.needed_each) == 8
        assert 0 < row.peak_tokens <= row.budget and row.tokens < row.budget
        assert row.freed_by_llm == 0 and row.calls == 0 and row.valid is None
        assert 0 <= row.review_share < 1
    assert len({row.conversation for row in rows.values()}) == 1
    # What was measured is not measured again.
    told: list[str] = []
    assert run_controller(options, progress=told.append) == list(rows.values())
    assert not told
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert len(json.loads((tmp_path / "c.json").read_text())["rows"]) == 3
    assert render(list(rows.values())).row_count == 3


def test_two_conversations_are_pooled_fact_by_fact(embedded_models: Path) -> None:
    options = replace(QUICK, turns=64, deciders=("random", "window"), conversations=2)
    rows = run_controller(options)
    assert len(rows) == 4
    both = {row.decider: row for row in pooled(rows)}
    assert len(both["window"].needed_each) == 16
    difference = against(rows, "window", "random")
    assert difference is not None and difference.pairs == 16
    assert against(rows, "window", "oracle") is None
    there = sum(there for row in rows[2:] for there, _ in row.needed_each)
    turns = sum(turns for row in rows[2:] for _, turns in row.needed_each)
    assert both["window"].needed_in_window == pytest.approx(there / turns)
    assert difference.mean == pytest.approx(
        both["window"].needed_in_window - both["random"].needed_in_window
    )


def candidate(segment_id: int, text: str, age: int = 1) -> Candidate:
    return Candidate(Segment((Message("user", text),), id=segment_id), 10, age_turns=age)


def test_chance_is_seeded_and_drawn_anew_in_every_review() -> None:
    window = [candidate(i, "x") for i in range(1, 40)]
    later = [replace(one, age_turns=2) for one in window]

    def order(policy: RandomPolicy, candidates: list[Candidate]) -> list[int]:
        decisions = policy.decide(candidates, Budget(1000).freeing_to(200))
        return [decision.segment_ids[0] for decision in decisions]

    assert order(RandomPolicy(1), window) == order(RandomPolicy(1), window)
    assert order(RandomPolicy(1), window) != order(RandomPolicy(2), window)
    assert order(RandomPolicy(1), window) != order(RandomPolicy(1), later)


def test_the_oracle_drops_the_oldest_of_what_nobody_will_ask_for() -> None:
    window = [candidate(1, "old", 9), candidate(2, "the code is 4471", 90), candidate(3, "new")]
    decisions = OraclePolicy(("4471",)).decide(window, Budget(1000).freeing_to(10))
    assert [decision.segment_ids[0] for decision in decisions] == [1, 3]


def test_a_decider_is_a_mode_and_a_policy() -> None:
    fact = Fact("f1", 1, "my", "code", "4471", "My code is 4471.")
    asked = Question("What is my code?", "4471", "f1")
    one = Conversation((Turn("My code is 4471."),), (fact,), (asked,))
    assert decider("oracle", one, 0)[1] == OraclePolicy(("4471",))
    assert decider("llm-scored", one, 0)[0] == "scored"
    assert decider("llm-free", one, 3) == ("tools", RandomPolicy(3))
    assert decider("lru", one, 0) == ("policy", "lru")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"recalls": ("maybe",)}, "off or on: got 'maybe'"),
        ({"deciders": ()}, "at least one decider"),
        ({"conversations": 0}, "positive: got 0"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ControllerOptions(**{**asdict(QUICK), **wrong})


def test_the_command_leaves_out_what_only_chooses_rows() -> None:
    options = ControllerOptions(budget=512, deciders=("lru",), recalls=("off",))
    assert options.command == "agentmem bench controller --budget 512"
