"""Benchmarks of odd sizes: what nobody asked for is lowered and said, the rest taken or refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from agentmem.bench.controller import ControllerOptions, run_controller
from agentmem.bench.generator import generate
from agentmem.bench.options import PlayOptions, WindowOptions
from agentmem.bench.recall import RecallOptions, run_recall
from agentmem.bench.scoring import MAX_WINDOW_SHARE, check_difficulty, most_budget, window_share
from agentmem.bench.summaries import SummaryOptions, run_summaries
from agentmem.errors import InvalidInput
from tests.cli_run import run_cli

KINDS: dict[str, type[PlayOptions]] = {
    "recall": RecallOptions,
    "controller": ControllerOptions,
    "summaries": SummaryOptions,
}


def count_tokens(text: str) -> int:
    """About what a tokenizer counts, a header of five included."""
    return len(text) // 4 + 5 if text else 0


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize("quick", [False, True])
def test_usual_sizes_are_never_lowered(kind: type[PlayOptions], quick: bool) -> None:
    usual = kind.quick(model="scripted") if quick else kind(model="scripted")
    assert kind.fitted(quick=quick, model="scripted") == (usual, [])


def test_only_what_was_not_given_is_lowered_and_each_time_it_is_said() -> None:
    options, notes = RecallOptions.fitted(turns=48)
    assert (options.turns, options.facts, options.instructions) == (48, 6, 5)
    assert 200 <= options.budget < 1024 and len(options.check()) == 1
    assert notes == [
        "facts: 6, not the usual 40, for 48 turns",
        f"budget: {options.budget}, not the usual 1024, which the conversation must not fit",
    ]
    options, notes = RecallOptions.fitted(turns=40, facts=9)
    assert (options.facts, options.instructions) == (9, 2)
    assert notes[0] == "instructions: 2, not the usual 5, for 40 turns with 9 facts"
    options, notes = RecallOptions.fitted(turns=160, instructions=5)
    assert options.facts == 20 and notes == ["facts: 20, not the usual 40, for 160 turns"]
    few, notes = SummaryOptions.fitted(stretches=1)
    assert few.conversations == 1 and len(notes) == 1
    assert "--facts 6" in RecallOptions.fitted(turns=48)[0].command


@pytest.mark.parametrize("kind", [RecallOptions, ControllerOptions])
@pytest.mark.parametrize("turns", [32, 47, 60, 101])
def test_a_lowered_budget_makes_a_conversation_that_can_be_played(
    kind: type[WindowOptions], turns: int
) -> None:
    options, _ = kind.fitted(turns=turns, conversations=2)
    for seed in (0, 1):
        made = generate(
            seed, count_tokens=count_tokens, turns=turns, facts=options.facts, **options.more
        )
        assert check_difficulty(made, options.budget, count_tokens) <= MAX_WINDOW_SHARE


REFUSED = [
    ("recall", {"turns": 3}, "`turns` must be at least 4, .*: got 3"),
    ("recall", {"turns": 5, "facts": 1}, r"`turns` must be at least about \d+, .* got 5"),
    ("recall", {"turns": 30, "facts": 40}, r"`facts` must lie in 1\.\.7 for 30 turns, .* got 40"),
    ("recall", {"facts": 100, "turns": 900}, "`facts` must be at most 80 for seed 0, .* got 100"),
    ("recall", {"turns": 60, "facts": 4, "returning": 3}, r"`returning` must lie in 0\.\.0, .* 3"),
    ("recall", {"turns": 900, "facts": 4, "returning": 4}, r"`returning` must lie in 0\.\.2, .* 4"),
    ("recall", {"turns": 9000, "facts": 4, "returning": 4},
     "`returning` must be at most 3 with 4 facts, .* got 4"),
    ("recall", {"turns": 60, "facts": 6, "budget": 9999},
     r"`budget` must be at most about \d{3}, .* in 60 turns: got 9999"),
    ("recall", {"turns": 40, "facts": 4, "instructions": 99},
     r"`instructions` must lie in 0\.\.10 for 40 turns with 4 facts: got 99"),
    ("recall", {"turns": 40, "facts": 4, "updates": 5}, r"`updates` must lie in 0\.\.4, .* got 5"),
    ("recall", {"turns": 40, "facts": 4, "tokens": 10},
     r"`tokens` must be at least about \d+ for 40 turns with 4 facts: got 10"),
    ("controller", {"turns": 10}, r"`turns` must be at least about \d\d, .* got 10"),
    ("controller", {"turns": 10, "facts": 3}, r"`facts` must lie in 1\.\.2 for 10 turns, .* got 3"),
    ("summaries", {"turns": 4}, "`turns` must be at least 5, which make one stretch: got 4"),
    ("summaries", {"stretches": 500, "turns": 48},
     "`stretches` must be at most 65, 13 for a conversation of 48 turns: got 500"),
    ("summaries", {"stretches": 2, "conversations": 3}, r"`conversations` must lie in 1\.\.2, .*3"),
]  # fmt: skip


@pytest.mark.parametrize(("bench", "given", "message"), REFUSED)
def test_what_cannot_be_is_refused_by_name_and_bound_before_a_model_is_loaded(
    bench: str, given: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentmem.Agent.__init__", None)
    runs = {"recall": run_recall, "controller": run_controller, "summaries": run_summaries}
    with pytest.raises(InvalidInput, match=message):
        options, _ = KINDS[bench].fitted(model="scripted", **given)
        runs[bench](options)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("kind", "turns"), [(RecallOptions, 30), (ControllerOptions, 10), (ControllerOptions, 15)]
)
def test_the_turns_that_an_error_names_are_enough(kind: type[PlayOptions], turns: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        kind.fitted(turns=turns)
    named = re.search(r"at least about (\d+)", str(refused.value))
    assert named is not None
    kind.fitted(turns=int(named[1]))[0].check()


def test_as_many_changes_as_were_asked_for_are_played_where_the_turns_hold_them() -> None:
    options, _ = RecallOptions.fitted(turns=72, updates=12)
    assert (options.facts, options.updates) == (12, 12)
    options.check()


def test_what_is_said_to_be_possible_is() -> None:
    RecallOptions.fitted(turns=13, facts=1)[0].check()
    RecallOptions.fitted(turns=900, facts=80)[0].check()
    RecallOptions.fitted(turns=900, facts=4, returning=1)[0].check()
    RecallOptions.fitted(turns=9000, facts=4, returning=3)[0].check()


def test_the_largest_budget_is_the_last_that_is_not_too_easy() -> None:
    for seed in range(3):
        made = generate(seed, count_tokens=count_tokens, turns=60, facts=7)
        asked = [made.fact(question.fact).turn for question in made.last_questions]
        tokens = [count_tokens(t.user) + count_tokens(t.reply or "") for t in made.turns]
        most = most_budget(asked, tokens)
        assert window_share(made, most, count_tokens) <= MAX_WINDOW_SHARE
        assert window_share(made, most + 1, count_tokens) > MAX_WINDOW_SHARE
        check_difficulty(made, most, count_tokens)
        with pytest.raises(
            InvalidInput, match=f"`budget` must be at most {most} .* got {most + 1}"
        ):
            check_difficulty(made, most + 1, count_tokens)


def test_no_talk_that_is_too_short_is_refused_where_nobody_asked_for_tokens() -> None:
    assert len(generate(0, count_tokens=count_tokens, turns=4, facts=1).turns) == 4


def test_stretches_that_are_not_there_are_refused_or_told() -> None:
    told: list[str] = []
    quick = SummaryOptions.quick(model="scripted", systems=("whole",), turns=20, facts=2)
    (row,) = run_summaries(quick, progress=told.append)
    assert told[0] == f"stretches: {row.stretches}, as many as there are"
    run_summaries(replace(quick, stretches=row.stretches))
    message = f"`stretches` must be at most {row.stretches} .* got {row.stretches + 1}"
    with pytest.raises(InvalidInput, match=message):
        run_summaries(replace(quick, stretches=row.stretches + 1))


def test_a_small_benchmark_says_on_stderr_what_it_lowered() -> None:
    ran = run_cli("bench", "recall", "--model", "scripted", "--turns", "40", "--system", "window",
                  "--json")  # fmt: skip
    (row,) = ran.events
    assert ran.code == 0 and (row["turns"], row["facts"]) == (40, 5)
    assert "facts: 5, not the usual 40, for 40 turns" in ran.stderr.splitlines()
    refused = run_cli("bench", "controller", "--model", "scripted", "--turns", "10")
    assert refused.code == 2 and "`turns` must be at least about" in refused.stderr
