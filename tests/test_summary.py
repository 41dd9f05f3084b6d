"""Summaries: bounded, naming what they left out, pointing to their originals."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest

from agentmem.budget import Budget
from agentmem.errors import InvalidInput, ModelUnavailable
from agentmem.models.base import Capabilities, ChatModel, Options, Part
from agentmem.models.scripted import ScriptedModel
from agentmem.modes import SummaryMode
from agentmem.segment import Message, Segment, Trust
from agentmem.summary import MARK, Summarizer, tells_of

ORIGINALS = [
    Segment(
        (
            Message(
                "user",
                "We met Ingrid in Oslo on 14 May. The weather was rather pleasant. It was a good "
                "day and we had some tea and then some more tea and so it all went on for a while, "
                "and a while more.",
            ),
        ),
        id=4,
    ),
    Segment(
        (Message("assistant", "Nice! Oslo is lovely. She ordered 37 chairs, you said."),),
        id=5,
        trust=Trust.EXTERNAL,
    ),
]


def as_it_is(segment: Segment) -> Part:
    return Part(segment.id, segment.messages)


def summarizer(model: ChatModel, **settings: Any) -> Summarizer:
    given = {"max_tokens": 60, "budget_tokens": 1000, "seconds": 5.0, **settings}
    return Summarizer(model=model, part=as_it_is, **given)


def summary_by(
    model: ChatModel, segments: Sequence[Segment] = ORIGINALS, **settings: Any
) -> tuple[Segment, str]:
    [written] = summarizer(model, **settings)([segments])
    assert not isinstance(written, InvalidInput)
    return written


def test_a_model_that_says_it_is_too_small_is_not_asked_unless_it_is_told_to_write() -> None:
    small = ScriptedModel(
        default="They spoke of Oslo and the harbour.",
        capabilities=Capabilities(writes_summaries=False),
    )
    budget = Budget(2048)
    written = {
        mode: Summarizer.for_budget(small, as_it_is, budget, mode=mode)([ORIGINALS])[0]
        for mode in get_args(SummaryMode)
    }
    writers = {mode: one[1] for mode, one in written.items() if isinstance(one, tuple)}
    assert writers == {"auto": "extract", "model": "scripted", "extract": "extract"}
    able = ScriptedModel(default="They spoke of Oslo and the harbour.")
    one = Summarizer.for_budget(able, as_it_is, budget)([ORIGINALS])[0]
    assert isinstance(one, tuple) and one[1] == "scripted"


def test_a_summary_points_to_its_originals_and_has_their_least_trust() -> None:
    segment, writer = summary_by(ScriptedModel(["They met Ingrid in Oslo."]))
    assert (segment.parents, segment.trust, segment.kind) == ((4, 5), Trust.EXTERNAL, "summary")
    assert writer == "scripted"


def test_a_summary_names_the_terms_it_left_out() -> None:
    segment, _ = summary_by(ScriptedModel(["They met Ingrid in Oslo."]))
    assert segment.text.endswith("(Left out: 14, 37, May, weather, pleasant, ordered.)")


def test_a_summary_cut_by_its_length_ends_with_its_last_whole_sentence() -> None:
    segment, _ = summary_by(ScriptedModel(["They met Ingrid. " + "And then " * 30]))
    assert "[Summary of earlier messages] They met Ingrid. (Left" in segment.text


@pytest.mark.parametrize("answer", ["", "   "])
def test_an_empty_answer_is_replaced_by_sentences_of_the_originals(
    answer: str,
) -> None:
    segment, writer = summary_by(ScriptedModel([answer]))
    assert writer == "extract"
    assert "Ingrid" in segment.text and "37" in segment.text


def test_the_model_is_asked_on_a_fork_with_the_originals_themselves() -> None:
    model = ScriptedModel(["Short."])
    summary_by(model)
    asked = model.history[0]
    assert [part.key for part in asked.prompt[:2]] == [4, 5]
    assert isinstance(asked.options, Options) and asked.options.ephemeral


def test_originals_too_long_for_the_budget_are_not_sent_to_the_model() -> None:
    model = ScriptedModel(["Short."])
    _, writer = summary_by(model, budget_tokens=40)
    assert writer == "extract" and not model.history


def tokens(segment: Segment) -> int:
    return ScriptedModel().count_tokens(Part(segment.id, segment.messages))


def long_originals(count: int) -> list[Segment]:
    return [
        Segment(
            (Message("user", f"Box {n} of Ingrid stands in Oslo, on shelf {n * 7}. " * 4),), id=n
        )
        for n in range(1, count + 1)
    ]


@pytest.mark.parametrize(
    "answer",
    [
        "Ingrid went to Oslo. " * 400,
        "Ingrid" * 4000,
        "Ingrid 14 May " * 900,
        "Ingrid keeps boxes in Oslo, decided on 14 May.",
        "",
        ModelUnavailable("down"),
    ],
)
@pytest.mark.parametrize("max_tokens", [28, 46, 96])
@pytest.mark.parametrize("originals", [ORIGINALS, long_originals(3), long_originals(1)])
def test_a_summary_is_bounded_by_the_models_own_count_and_shorter_than_its_sources(
    answer: str | Exception, max_tokens: int, originals: Sequence[Segment]
) -> None:
    segment, _ = summary_by(ScriptedModel([answer]), originals, max_tokens=max_tokens)
    assert tokens(segment) <= max_tokens
    assert tokens(segment) <= sum(map(tokens, originals)) // 2
    assert len(segment.text) > len(MARK) + 8


@pytest.mark.parametrize(
    "answer",
    [
        "Please provide the conversation that you would like me to summarize.",
        "I'm sorry, I cannot see any messages. Could you share the text you want summarized?",
        "Bitte senden Sie mir den Text.",
        f"{MARK} They met Ingrid in Oslo.",
        "Earlier: [Summary of earlier messages] Ingrid, Oslo. [Summary of earlier messages] May.",
    ],
)
def test_what_says_nothing_of_the_originals_or_quotes_a_summary_is_not_taken(answer: str) -> None:
    segment, writer = summary_by(ScriptedModel([answer]), long_originals(3))
    assert writer == "extract"
    assert segment.text.count("[Summary") == 1 and "Ingrid" in segment.text


def test_a_summary_in_chinese_is_known_for_one() -> None:
    originals = "我的储物柜密码是58291。我们决定五月去杭州。"
    assert tells_of("密码为58291，五月去杭州。", originals)
    assert tells_of("用户要去杭州", originals)
    assert not tells_of("请提供对话内容。", originals)


def test_summaries_are_never_summarized() -> None:
    summary, _ = summary_by(ScriptedModel(["They met Ingrid in Oslo."]))
    [refusal] = summarizer(ScriptedModel())([[summary]])
    assert isinstance(refusal, InvalidInput) and "originals are summarized" in str(refusal)


def test_a_mark_quoted_by_an_original_is_not_in_its_summary() -> None:
    quoting = [
        Segment((Message("user", f"{MARK} of Oslo is what it said about 4711. " * 9),), id=3)
    ]
    segment, _ = summary_by(ScriptedModel([""]), quoting)
    assert segment.text.count(MARK) == 1 and "4711" in segment.text


def test_segments_too_short_for_a_summary_are_refused() -> None:
    short = Segment((Message("user", "Yes, fine."),), id=3)
    [refusal] = summarizer(ScriptedModel())([[short]])
    assert isinstance(refusal, InvalidInput) and "too few to summarize" in str(refusal)


@pytest.mark.parametrize("budget_tokens", [200, 300, 400, 700])
def test_originals_are_read_a_few_at_a_time_where_they_do_not_fit_together(
    budget_tokens: int,
) -> None:
    originals = long_originals(10)
    model = ScriptedModel(default="Ingrid keeps her boxes in Oslo.")
    segment, writer = summary_by(model, originals, budget_tokens=budget_tokens, max_tokens=96)
    assert writer == "scripted" and segment.parents == tuple(range(1, 11))
    read = [part.key for asked in model.history for part in asked.prompt[:-1]]
    assert read == list(range(1, 11))
    for asked in model.history:
        sent = sum(map(model.count_tokens, asked.prompt)) + asked.options.max_new_tokens
        assert sent <= budget_tokens


def test_an_original_too_long_for_any_question_is_extracted_and_the_others_are_read() -> None:
    endless = Segment((Message("user", "Omar counted spoons in Lucca. " * 200),), id=2)
    originals = [long_originals(1)[0], endless, replace(long_originals(1)[0], id=3)]
    model = ScriptedModel(default="Ingrid keeps her boxes in Oslo.")
    segment, _ = summary_by(model, originals, budget_tokens=300, max_tokens=96)
    assert [part.key for asked in model.history for part in asked.prompt[:-1]] in ([1, 3], [])
    assert "Lucca" in segment.text


def test_a_model_that_failed_once_is_not_asked_for_the_other_summaries() -> None:
    model = ScriptedModel([ModelUnavailable("down")], default="Ingrid is in Oslo.")
    written = summarizer(model)([long_originals(2), long_originals(3)])
    assert [one[1] for one in written if not isinstance(one, InvalidInput)] == ["extract"] * 2
    assert len(model.history) == 1


def test_a_late_model_is_not_asked_again() -> None:
    clock = itertools.count(0.0, 4.0)
    model = ScriptedModel(default="Ingrid is in Oslo.")
    summarizer(model, monotonic=lambda: next(clock))([long_originals(2), long_originals(3)])
    assert len(model.history) < 2
