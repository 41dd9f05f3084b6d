"""Controller: the model decides through tools, and the policy finishes."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from agentmem.budget import Budget
from agentmem.decision import Candidate
from agentmem.errors import ModelUnavailable
from agentmem.models.base import Capabilities, Options, Part
from agentmem.models.scripted import ScriptedModel
from agentmem.policies import MixturePolicy, ScorerPolicy, make_policy
from agentmem.review.calls import read_calls
from agentmem.review.controller import Controller, rank
from agentmem.review.judge import Judge
from agentmem.segment import Message, Segment

BUDGET = Budget(1000, free_to=0.1, warn_at=0.3)


@dataclass(frozen=True)
class Broken(ScorerPolicy):
    """A policy that others wrote, and wrote wrong."""

    name = "broken"

    def score(self, candidate: Candidate, candidates: Sequence[Candidate]) -> float:
        return math.nan


def candidates(count: int = 10, num_tokens: int = 20) -> list[Candidate]:
    return [
        Candidate(
            Segment((Message("user", f"text {i}"),), id=i), num_tokens, age_turns=count + 1 - i
        )
        for i in range(1, count + 1)
    ]


def controller(model: ScriptedModel | None, budget: Budget = BUDGET) -> Controller:
    return Controller(policy=make_policy("window"), budget=budget, model=model)


def grammar_model(*answers: str | Exception) -> ScriptedModel:
    return ScriptedModel(answers, capabilities=Capabilities(has_logits=True))


def calls(*named: tuple[str, list[int]]) -> str:
    return json.dumps([{"name": n, "arguments": {"segment_ids": ids}} for n, ids in named])


def review(model: ScriptedModel | None, budget: Budget = BUDGET) -> list[tuple[str, str, int]]:
    """(source, action, first id) of every decision about ten segments of 20 tokens."""
    offered = candidates()
    verdict = controller(model, budget).review(offered)
    return [(d.source, d.action, d.segment_ids[0]) for d in verdict.decisions]


def test_the_models_calls_become_decisions() -> None:
    model = grammar_model(calls(("drop_segments", [1, 2, 3, 4, 5])))
    assert review(model) == [("controller", "drop", i) for i in range(1, 6)]


def test_a_model_that_frees_too_little_is_asked_again_for_the_rest() -> None:
    model = grammar_model(
        calls(("keep_segments", [1, 2]), ("drop_segments", [3])),
        calls(("drop_segments", [4, 5, 6, 7])),
    )
    decided = review(model)
    assert decided[:3] == [
        ("controller", "keep", 1), ("controller", "keep", 2), ("controller", "drop", 3),
    ]  # fmt: skip
    assert [one for _, action, one in decided if action == "drop"] == [3, 4, 5, 6, 7]
    again = model.history[1].options.json_schema
    assert again is not None and "keep_segments" not in json.dumps(again)
    assert "keep_segments" not in model.history[1].options.grammar


def test_the_policy_finishes_what_the_model_left() -> None:
    model = grammar_model(calls(("drop_segments", [9])), "[]", "[]")
    decided = review(model)
    assert decided[0] == ("controller", "drop", 9)
    assert [d for d in decided if d[0] == "policy"] == [("policy", "drop", i) for i in (1, 2, 3, 4)]


def test_the_policy_does_not_drop_what_the_model_kept() -> None:
    model = grammar_model(calls(("keep_segments", [1, 2])), "[]", "[]")
    assert not {1, 2} & {one for source, _, one in review(model) if source == "policy"}


@pytest.mark.parametrize(
    "answer",
    ["", "I would rather not.", "{", "[[[[", '{"name": 3}', '[{"name":"rm","arguments":{}}]'],
)
def test_nonsense_leaves_everything_to_the_policy(answer: str) -> None:
    model = ScriptedModel([answer], default=answer, capabilities=Capabilities(calls_tools=True))
    assert review(model) == [("policy", "drop", i) for i in range(1, 6)]


def test_a_model_that_fails_leaves_everything_to_the_policy() -> None:
    assert review(grammar_model(ModelUnavailable("down"))) == [
        ("policy", "drop", i) for i in range(1, 6)
    ]


def test_without_a_model_the_policy_decides() -> None:
    assert review(None) == [("policy", "drop", i) for i in range(1, 6)]


def test_a_late_model_is_not_asked_again() -> None:
    clock = iter([0.0, 0.0, 1.0, 99.0, 99.0, 99.0])
    model = grammar_model(calls(("drop_segments", [1])), calls(("drop_segments", [2])))
    late = Controller(
        policy=make_policy("window"), budget=BUDGET, model=model, monotonic=lambda: next(clock)
    )
    offered = candidates()
    late.review(offered)
    assert len(model.history) == 1


def test_a_budget_that_leaves_no_room_for_the_question_is_left_to_the_policy() -> None:
    model = grammar_model(calls(("drop_segments", [1])))
    decided = review(model, Budget(160, free_to=0.1))
    assert not model.history
    assert {source for source, _, _ in decided} == {"policy"}


def test_a_model_with_a_cache_sees_the_segments_whole_before_the_question() -> None:
    answer = calls(("drop_segments", [1, 2, 3, 4, 5]))
    model = ScriptedModel([answer], capabilities=Capabilities(has_kv=True, has_logits=True))
    review(model)
    asked = model.history[0]
    assert asked.options.ephemeral and asked.options.max_tokens == BUDGET.max_tokens
    assert [part.key for part in asked.prompt[:-1]] == list(range(1, 11))
    question = asked.prompt[-1].messages[0].content
    assert "Free at least 100 tokens" in question and '3|20|8|?|user: "text 3"' in question


def test_a_model_without_one_sees_rows_only() -> None:
    model = grammar_model(calls(("drop_segments", [1, 2, 3, 4, 5])))
    review(model)
    assert [part.key for part in model.history[0].prompt] == ["review:0"]


def test_at_most_twelve_segments_are_offered() -> None:
    offered = candidates(40)
    model = grammar_model(calls(("drop_segments", [1])))
    controller(model).review(offered)
    assert model.history[0].prompt[-1].messages[0].content.count("|user: ") == 12


def test_a_provider_model_is_asked_through_its_own_tools() -> None:
    seen: list[tuple[str, ...]] = []

    def answer(prompt: Sequence[Part], options: Options) -> str:
        seen.append(tuple(tool.name for tool in options.tools))
        return calls(("drop_segments", [1, 2, 3, 4, 5]))

    scripted: Callable[[Sequence[Part], Options], str] = answer
    model = ScriptedModel([scripted], capabilities=Capabilities(calls_tools=True))
    assert review(model)[0] == ("controller", "drop", 1)
    assert seen == [("drop_segments", "summarize_segments", "keep_segments", "pin_segment")]


def test_a_useless_answer_comes_back_to_the_model_once_with_what_was_wrong() -> None:
    model = grammar_model(calls(("drop_segments", [99])), calls(("drop_segments", [1, 2, 3, 4, 5])))
    assert review(model) == [("controller", "drop", i) for i in range(1, 6)]
    again = model.history[1].prompt[-1].messages[0].content
    assert again.startswith("Your last answer changed nothing: Error: not on offer: [99]")
    hopeless = grammar_model("[]", "no", "[]", "no")
    assert {source for source, _, _ in review(hopeless)} == {"policy"}
    assert len(hopeless.history) == 2


def test_a_policy_that_fails_leaves_the_review_without_decisions() -> None:
    broken = Controller(policy=MixturePolicy({Broken(): 1.0}), budget=BUDGET)
    assert broken.review(candidates()).decisions == []


def test_a_judged_review_is_the_models_and_carries_its_odds() -> None:
    model = ScriptedModel(
        weights=lambda part: (9.0, 1.0, 1.0) if part.key in (1, 2) else (1.0, 1.0, 9.0),
        capabilities=Capabilities(has_logits=True),
    )
    judged = Controller(
        policy=make_policy("worth"), budget=BUDGET, judge=Judge(model, BUDGET.max_tokens)
    )
    verdict = judged.review(candidates())
    assert [d.segment_ids[0] for d in verdict.decisions] == [3, 4, 5, 6, 7]
    assert {(d.source, d.action) for d in verdict.decisions} == {("controller", "drop")}
    assert verdict.judged == 10 and verdict.decisions[0].maker == "scripted, worth"
    evidence = verdict.decisions[0].evidence[3]
    assert evidence["worth"] == pytest.approx(math.log(1 / 10))


def test_the_same_inputs_have_the_same_hash() -> None:
    first, again = (controller(None).review(candidates()).inputs for _ in range(2))
    other = controller(None).review(candidates(9)).inputs
    assert first == again != other and len(first) == 16


def test_candidates_are_ranked_as_the_policy_would_let_them_go() -> None:
    ranked = rank(make_policy("window"), candidates(4), BUDGET)
    assert [candidate.id for candidate, _ in ranked] == [1, 2, 3, 4]
    assert ranked[0][1].startswith("window would drop it")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('[{"name":"a","arguments":{}},{"name":"b"}]', ["a", "b"]),
        ('Sure! {"name":"a","arguments":{"x":1}} {"name":"b","arguments":"{}"} done', ["a", "b"]),
        ('[{"name":"a","arguments":{}},{"name":"b","argu', ["a"]),
        ("[" * 5000, []),
        ('{"arguments":{}}', []),
    ],
)
def test_calls_are_read_out_of_whatever_the_model_wrote(text: str, names: list[str]) -> None:
    assert [call.name for call in read_calls(text)] == names


def test_a_number_of_thousands_of_digits_is_no_call_and_no_error() -> None:
    said = "[" + "1" * 5000 + '] {"name": "drop_segments", "arguments": {"segment_ids": [4]}}'
    assert [call.name for call in read_calls(said)] == ["drop_segments"]
