"""Summaries: bounded, naming what they left out, pointing to their originals."""

import pytest

from agentmem.models.base import Options, Part
from agentmem.models.scripted import ScriptedModel
from agentmem.segment import Message, Segment, Trust
from agentmem.summary import extract, left_out_terms, summarize

ORIGINALS = [
    Segment(
        (Message("user", "We met Ingrid in Oslo on 14 May. The weather was rather pleasant."),),
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


def summary_by(model: ScriptedModel) -> tuple[Segment, str]:
    return summarize(
        ORIGINALS, model, part=as_it_is, max_tokens=24, budget_tokens=1000, created=1.0
    )


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
    _, writer = summarize(
        ORIGINALS, model, part=as_it_is, max_tokens=24, budget_tokens=40, created=1.0
    )
    assert writer == "extract" and not model.history


def test_an_extract_takes_sentences_with_numbers_and_names_first() -> None:
    text = "It was fine. The code is 58291. We then had some more tea. Ask Mr Bell."
    assert extract(text, max_chars=20) == "The code is 58291."


def test_an_extract_of_one_endless_sentence_is_cut() -> None:
    assert len(extract("word " * 100, max_chars=30)) <= 30


def test_common_words_are_never_named_as_left_out() -> None:
    assert left_out_terms("You and I were there with them", "nothing") == []
