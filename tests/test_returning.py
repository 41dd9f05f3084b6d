"""Bringing segments back in a review: what is shown, what is taken, what would break the target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from agentmem import Agent, Budget, Decided, ScriptedModel, Store, replay
from agentmem.budget import Budget as Limits
from agentmem.decision import Candidate
from agentmem.models.base import Capabilities, Options, Part
from agentmem.models.scripted import Line
from agentmem.policies import make_policy
from agentmem.review.controller import Controller
from agentmem.review.returning import MAX_RETURNABLE, returnable
from agentmem.review.tools import BRING_BACK, REVIEW_TOOLS, ReviewTools
from agentmem.review.verdict import Verdict
from agentmem.segment import Message, Segment, Trust
from tests.agents import TALK, make_agent
from tests.test_review_tools import accepted

LOGITS = Capabilities(has_logits=True)
FACT = "The code of my locker in the swimming hall is 58291."
QUESTION = "What is the code of my locker in the swimming hall?"


def segment(number: int, num_tokens: int = 20, **options: Any) -> Candidate:
    return Candidate(
        Segment((Message("user", f"text {number}"),), id=number), num_tokens, **options
    )


def call(name: str, *ids: int) -> dict[str, Any]:
    return {"name": name, "arguments": {"segment_ids": ids}}


def review(
    outside: Sequence[Candidate], *answer: dict[str, Any], window: Sequence[Candidate] = ()
) -> tuple[Verdict, ScriptedModel]:
    """A review of ten segments of 20 tokens that must come down to 100."""
    model = ScriptedModel([json.dumps(answer)], capabilities=LOGITS)
    decider = Controller(
        policy=make_policy("window"), budget=Limits(1000, free_to=0.1, warn_at=0.3), model=model
    )
    return decider.review(window or [segment(i) for i in range(1, 11)], outside=outside), model


def rows_shown(question: str) -> tuple[list[int], list[int]]:
    """Ids of the rows of a question: in the window, and outside."""
    inside, _, outside = question.partition("Out of view")
    ids, away = ([int(line.split("|")[0]) for line in text.splitlines()
                  if line.split("|")[0].isdigit()] for text in (inside, outside))  # fmt: skip
    return ids, away


def tokens_after(verdict: Verdict) -> int:
    gone = {one for made in verdict.decisions if made.action == "drop" for one in made.segment_ids}
    left = sum(one.num_tokens for one in verdict.candidates if one.id not in gone)
    return left + verdict.tokens_returned


# The controller


def test_what_comes_back_comes_last_and_others_leave_for_it() -> None:
    outside = [segment(50, 30), segment(51, 20)]
    verdict, _ = review(outside, call("drop_segments", 1, 2), call(BRING_BACK, 50))
    made = [(one.action, one.segment_ids[0], one.source) for one in verdict.decisions]
    assert made[-1] == ("bring_back", 50, "controller")
    assert all(action == "drop" for action, _, _ in made[:-1])
    assert tokens_after(verdict) <= verdict.target == 100
    assert 100 - 20 < tokens_after(verdict), "no more leaves than must"


def test_the_model_is_asked_for_the_room_of_what_it_brought_back() -> None:
    verdict, model = review([segment(50, 40)], call("drop_segments", 1, 2, 3, 4, 5),
                            call(BRING_BACK, 50))  # fmt: skip
    assert verdict.tokens_returned == 40 and len(model.history) >= 2
    assert "Free at least 40 more tokens" in model.history[1].messages[-1].content
    assert BRING_BACK not in json.dumps(model.history[1].options.json_schema)


def test_bringing_back_that_would_break_the_target_is_refused_with_the_numbers() -> None:
    window = [segment(i, 20, pinned=i <= 3) for i in range(1, 11)]
    outside = [segment(50, 40), segment(51, 30), segment(52, 10)]
    verdict, _ = review(outside, call(BRING_BACK, 51, 52, 50), window=window)
    brought = [made.segment_ids for made in verdict.decisions if made.action == "bring_back"]
    assert brought == [(51,), (52,)]
    (refusal,) = verdict.refusals
    assert (refusal.action, refusal.segment_ids) == ("bring_back", (50,))
    assert refusal.reason == "its 40 tokens do not fit: 0 may still come back"
    assert tokens_after(verdict) <= verdict.target


def test_what_was_never_shown_is_not_on_offer() -> None:
    verdict, _ = review([segment(50)], call(BRING_BACK, 50, 3, 99))
    assert [one.segment_ids for one in verdict.returns] == [(50,)]
    assert [(one.segment_ids, one.reason) for one in verdict.refusals] == [
        ((3, 99), "not on offer")
    ]


def test_what_can_never_fit_is_not_shown() -> None:
    window = [segment(1, 60, protected="core"), segment(2, 30, protected="newest turn")]
    budget = Limits(1000, free_to=0.1, warn_at=0.3)
    shown = returnable([segment(50, 11), segment(51, 10)], window, 100, budget)
    assert [one.id for one in shown.candidates] == [51] and shown.max_tokens == 10
    assert returnable([segment(50, 1)], window, 80, budget).max_tokens == 0
    none = returnable([segment(50, 200)], [], 999, Limits(1000, recall_share=0.1))
    assert none.candidates == () and none.max_tokens == 100


def test_the_record_says_what_was_shown_and_refused() -> None:
    verdict, _ = review([segment(50)], call("drop_segments", 1), call(BRING_BACK, 50))
    cost = verdict.cost()
    assert cost["outside"] == [50]
    assert [one["accepted"] for one in cost["parsed"] if one["call"]["name"] == BRING_BACK] == [
        [50]
    ]
    assert "outside" not in review([], call("drop_segments", 1))[0].cost()


@pytest.mark.parametrize("tokens_above_line", [180, 250, 330, 400, 500])
def test_what_is_outside_is_shown_where_the_question_fits_above_the_warning_line(
    tokens_above_line: int,
) -> None:
    outside = [segment(50 + i, 5) for i in range(MAX_RETURNABLE)]
    budget = Limits(1000, free_to=0.1, warn_at=1 - tokens_above_line / 1000)
    model = ScriptedModel(["[]", "[]"], capabilities=LOGITS)
    decider = Controller(policy=make_policy("window"), budget=budget, model=model)
    verdict = decider.review([segment(i) for i in range(1, 11)], outside=outside)
    asked = model.history[0]
    tokens = sum(map(model.count_tokens, asked.prompt)) + asked.options.max_new_tokens
    shown = len(verdict.outside)
    assert shown == {180: 0, 250: 1, 330: 2, 400: 4, 500: MAX_RETURNABLE}[tokens_above_line]
    assert not shown or tokens <= tokens_above_line
    # Where nothing of it fits, the window's rows have all the room.
    inside, away = rows_shown(asked.messages[-1].content)
    assert len(away) == shown and (
        len(inside) == 10 if not shown else len(inside) >= min(10, 3 * shown)
    )
    assert ("Out of view" in asked.messages[-1].content) == bool(verdict.outside)


class Spelled(ScriptedModel):
    """Counts tokens as the tokenizer of the embedded model does; it has a cache."""

    def __init__(self, folder: Path) -> None:
        super().__init__(["[]", "[]"], has_kv=True,
                         capabilities=Capabilities(has_logits=True, has_kv=True))  # fmt: skip
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def count_tokens(self, part: Part) -> int:
        """Tokens of the part, with five for the header of each message."""
        said = (message.content for message in part.messages)
        return sum(5 + len(self._tokenizer.encode(text).ids) for text in said)


@pytest.mark.parametrize("spelled", [False, True], ids=["scripted", "smollm2"])
@pytest.mark.parametrize("trust", [Trust.USER, Trust.EXTERNAL])
def test_the_smallest_usual_budget_has_room_to_look_outside(
    spelled: bool, trust: Trust, smollm2_dir: Path
) -> None:
    has_kv = Capabilities(has_logits=True, has_kv=True)
    model = (Spelled(smollm2_dir) if spelled
             else ScriptedModel(["[]", "[]"], has_kv=True, capabilities=has_kv))  # fmt: skip

    def said(number: int) -> Candidate:
        text = f"{TALK[number % len(TALK)]} And {FACT}"
        one = Segment((Message("user", text),), id=2300 + number, trust=trust)
        count = model.count_tokens(Part("one", one.messages))
        return Candidate(one, count, age_turns=123, attention=0.00345)

    decider = Controller(policy=make_policy("window"), budget=Limits(1024), model=model)
    verdict = decider.review(
        [said(number) for number in range(40)], outside=[said(number) for number in range(50, 54)]
    )
    asked = model.history[0].prompt[-1].messages[0].content
    inside, away = rows_shown(asked)
    assert len(inside) >= 3 and away == [one.id for one in verdict.outside][: len(away)] != []
    answer = [call("drop_segments", *inside), call(BRING_BACK, *away)]
    wanted = Part("answer", (Message("assistant", json.dumps(answer, separators=(",", ":"))),))
    assert model.count_tokens(wanted) <= model.history[0].options.max_new_tokens


def test_the_grammar_lets_it_name_only_what_is_outside() -> None:
    tools = ReviewTools(
        [segment(1), segment(2)], alternatives={}, maker="", max_tokens_freed=9,
        outside=[segment(50), segment(51)], max_tokens_returned=99,
    )  # fmt: skip
    grammar = tools.grammar([*REVIEW_TOOLS, BRING_BACK])

    def says(*calls: dict[str, Any]) -> bool:
        return accepted(grammar, json.dumps(calls, separators=(",", ":")))

    assert says(call(BRING_BACK, 50, 51)) and says(call("drop_segments", 1), call(BRING_BACK, 51))
    assert not says(call(BRING_BACK, 1)) and not says(call("drop_segments", 50))
    assert BRING_BACK not in tools.grammar(REVIEW_TOOLS)


# A session


def brings_back(prompt: Sequence[Part], options: Options) -> Line:
    """Answers a review: what is out of view comes back, the first rows leave."""
    if options.json_schema is None:
        return "They talked."
    ids = rows_shown(prompt[-1].messages[0].content)
    calls = [call("drop_segments", *ids[0][:3])] + ([call(BRING_BACK, *ids[1])] if ids[1] else [])
    return json.dumps(calls)


def forgetful(folder: Path, **options: Any) -> Agent:
    """An agent that told a fact, and has it no more in its window."""
    model = ScriptedModel(
        asides=[brings_back] * 99, has_kv=True,
        capabilities=Capabilities(has_logits=True, has_kv=True),
    )  # fmt: skip
    settings = {
        "controller": "tools",
        "recall": "off",
        "budget": Budget(1200, warn_at=0.4, free_to=0.25),
        "pin_instructions": False,
        **options,
    }
    agent = make_agent(folder, model, **settings)
    agent.chat(FACT)
    agent.memory.drop(agent.turn_segments(1)[0])
    return agent


def ask_until_reviewed(agent: Agent) -> list[Decided]:
    """Small talk up to the warning line, then the question that the fact answers."""
    for number in range(99):
        if agent.context.own_tokens > agent.context.budget.warn_tokens - 20:
            break
        agent.chat(f"{TALK[number % len(TALK)]} ({number})")
    return [one for one in agent.events(f"{QUESTION} {TALK[0]}") if isinstance(one, Decided)]


def test_a_model_fetches_what_the_newest_message_asks_for(tmp_path: Path) -> None:
    with forgetful(tmp_path) as agent:
        made = ask_until_reviewed(agent)
        brought = [one for one in made if one.action == "bring_back"]
        assert [one.segments for one in brought if one.valid] == [(2,)]
        entry = agent.context[2]
        assert entry.until_turn is None and entry.state == "live"
        assert entry.stored.kept_until > agent.memory.turn
        assert brought[0].tokens_after <= agent.context.budget.target_tokens
        assert "brought back by controller scripted" in str(agent.memory.why(2))
        agent.memory.undo(brought[0].id)
        assert 2 not in agent.context and agent.memory.segment(2).kept_until == 0
    with Store.open(tmp_path / "me.db") as store:
        came_to = replay(store.for_user("default"))
    assert came_to.same, came_to.difference


def test_the_message_itself_and_other_sessions_are_never_shown(tmp_path: Path) -> None:
    with forgetful(tmp_path, session="other") as agent:
        agent.chat(QUESTION)
    with forgetful(tmp_path) as agent:
        here = {one.segment.id for one in agent.memory.archive.session_segments(2)}
        ask_until_reviewed(agent)
        (row, *_) = [
            one
            for one in agent.memory.archive.decisions(session_id=2, limit=99)
            if "outside" in one.cost
        ]
        shown = set(row.cost["outside"])
        newest = {one.segment.id for one in agent.memory.turn_segments(agent.memory.turn)}
        assert shown and shown <= here and not shown & newest


@pytest.mark.parametrize("mode", ["scored", "policy", "off"])
def test_only_free_calls_are_shown_what_is_outside(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with forgetful(tmp_path, controller=mode) as agent:
        # Where nobody is shown it, nothing is looked for.
        monkeypatch.setattr(agent.memory.finder, "rank", None)
        assert not [one for one in ask_until_reviewed(agent) if one.action == "bring_back"]
        assert isinstance(agent.model, ScriptedModel)
        for request in agent.model.history:
            assert not any("Out of view" in message.content for message in request.messages)


def test_small_talk_fetches_nothing(tmp_path: Path) -> None:
    with forgetful(tmp_path) as agent:
        for number in range(30):
            agent.chat(f"Zebras graze quietly, number {number}, near some rivers tonight.")
        assert 2 not in agent.context
