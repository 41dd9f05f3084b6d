"""What a model's logits say of each segment, asked once and never in the way."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from agentmem.decision import Candidate
from agentmem.models.base import Capabilities, Part
from agentmem.models.scripted import ScriptedModel
from agentmem.review.judge import ANSWERS, Judge, examples
from agentmem.segment import Message, Role, Segment

LOGITS = Capabilities(has_logits=True)


def said(segment_id: int, role: Role, age: int, *, protected: str = "") -> Candidate:
    segment = Segment((Message(role, f"text {segment_id}"),), id=segment_id)
    return Candidate(segment, 10, age_turns=age, protected=protected)


TALK = [
    said(1, "system", 9, protected="core"),
    said(2, "user", 3),
    said(3, "assistant", 3),
    said(4, "assistant", 2),
    said(5, "user", 1),
    said(6, "user", 0, protected="newest turn"),
]


def model(*weights: float) -> ScriptedModel:
    return ScriptedModel(weights=lambda part: weights or (1, 1, 1), capabilities=LOGITS)


def worths(judged: Sequence[Candidate]) -> dict[int, float | None]:
    return {candidate.id: candidate.worth for candidate in judged}


def test_worth_is_the_log_odds_of_keeping() -> None:
    (found,) = Judge(model(3, 2, 1), 1000).judge([said(2, "user", 3)], deadline=math.inf)
    assert found.worth == pytest.approx(math.log(3 / 3))


def test_everything_but_core_and_newest_is_judged_and_an_answer_counts_as_its_question() -> None:
    asked = model(1, 1, 8)
    judge = Judge(asked, 1000)
    found = worths(judge.judge(TALK, deadline=math.inf))
    assert asked.weighed == [2, 4, 5], "3 answers 2; what 4 answers has left the window"
    assert found[3] == found[2] is not None
    assert found[1] is None and found[6] is None
    assert judge.num_judged == 3


def test_a_segment_is_judged_once() -> None:
    asked = model()
    judge = Judge(asked, 1000)
    first = worths(judge.judge(TALK, deadline=math.inf))
    assert worths(judge.judge(TALK, deadline=math.inf)) == first
    assert asked.weighed == [2, 4, 5]


def test_an_answer_keeps_its_judgement_when_its_question_has_left() -> None:
    judge = Judge(model(5, 1, 1), 1000)
    judge.judge(TALK, deadline=math.inf)
    found = worths(judge.judge([TALK[2]], deadline=math.inf))
    assert found[3] == pytest.approx(math.log(5 / 2))


def test_the_likeliest_answer_is_told() -> None:
    judge = Judge(model(1, 7, 1), 1000)
    judge.judge(TALK, deadline=math.inf)
    answer = judge.answer(2)
    assert answer is not None and answer.answer == "summarize"
    assert judge.answer(1) is None


def test_what_there_is_no_time_for_stays_without_evidence() -> None:
    clock = iter([0.0, 0.0, 9.0, 9.0, 9.0])
    asked = model()
    judge = Judge(asked, 1000, monotonic=lambda: next(clock))
    found = worths(judge.judge(TALK, deadline=5.0))
    assert found[2] is not None and found[5] is None


def test_a_model_without_logits_or_room_judges_nothing() -> None:
    blind = Judge(ScriptedModel(capabilities=Capabilities()), 1000)
    assert set(worths(blind.judge(TALK, deadline=math.inf)).values()) == {None}
    cramped = Judge(model(), 50)
    assert set(worths(cramped.judge(TALK, deadline=math.inf)).values()) == {None}


def test_examples_are_a_prompt_with_right_answers() -> None:
    system, *shown = examples()
    assert system.messages[0].role == "system"
    assert all(part.messages[0].role == "user" for part in shown)
    assert {part.messages[1].content for part in shown} == set(ANSWERS)
    assert len({part.key for part in examples()}) == len(examples())
    assert all(isinstance(part, Part) for part in shown)
