"""Of two findings for one question the newer comes first, though neither says the other is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentmem import Agent, ScriptedModel
from agentmem.facts.rivals import Finding, rivals
from agentmem.models.embed import MiniLMEmbedder


def lifted(
    question: str,
    above: str,
    below: str,
    *,
    said_at: tuple[float, float] = (1.0, 2.0),
    nearness: tuple[float, float] = (0.5, 0.5),
    cosine: float | None = 0.55,
) -> bool:
    best = [Finding(9, above, said_at[0], nearness[0]), Finding(5, below, said_at[1], nearness[1])]
    found = rivals(question, best, lambda pairs: [cosine] * len(pairs))
    assert found in ({}, {9: (5,)})
    return bool(found)


@pytest.mark.parametrize(
    ("question", "older", "newer"),
    [
        ("What is my extension?", "My desk phone is extension 4417.",
         "Got shuffled to another desk, you'll find me on extension 4502."),
        ("Where do Jonas and I live?", "Jonas and I are renting in Leith.",
         "We got the keys! Jonas and I are homeowners in Portobello."),
        ("How much is a day pass?", "A day pass for the hall is 14 euros.",
         "Climbing got pricier. A day pass sets you back 17 euros."),
    ],
)  # fmt: skip
def test_a_newer_answer_stands_above_an_older_one(question: str, older: str, newer: str) -> None:
    assert lifted(question, older, newer)


def test_an_older_finding_is_never_lifted() -> None:
    question, older = "What is my extension?", "My desk phone is extension 4417."
    newer = "Got shuffled to another desk, you'll find me on extension 4502."
    assert lifted(question, older, newer, said_at=(1.0, 2.0))
    assert not lifted(question, newer, older, said_at=(2.0, 1.0))


@pytest.mark.parametrize(
    ("question", "right", "newer"),
    [
        ("What's my code for the locker?", "My code for the locker is 8842.",
         "My sister's code for the locker is 1177."),
        ("What is the router's password?", "The router's password is lapwing.",
         "The printer's password is heron."),
        ("At which hotel do I stay in Prague?", "In Prague I stay at the Josef.",
         "In Vienna I stay at the Sacher."),
        ("What is the clinic's phone number?", "The clinic's phone number is 555-0134.",
         "The pharmacy's phone number is 555-0162."),
    ],
)  # fmt: skip
def test_what_is_about_something_else_stays_below(question: str, right: str, newer: str) -> None:
    assert not lifted(question, right, newer, nearness=(0.8, 0.6), cosine=0.6)


def test_what_came_of_an_event_is_taken_for_newer_sooner() -> None:
    question, older = "What car do I drive?", "I drive a Fiat Panda."
    newer = "I'm getting around in a Dacia."
    assert lifted(question, older, f"The Fiat finally died on me. {newer}", cosine=0.5)
    assert not lifted(question, older, newer, cosine=0.5)


def test_what_hardly_answers_the_question_stays_below() -> None:
    question, older = "Where do Jonas and I live?", "Jonas and I are renting in Leith."
    newer = "We got the keys! Jonas and I are homeowners in Portobello."
    assert lifted(question, older, newer, nearness=(0.6, 0.5))
    assert not lifted(question, older, newer, nearness=(0.9, 0.1), cosine=0.3)


@pytest.mark.parametrize(
    "newer",
    ["My favourite tea mug broke.", "I don't have a new favourite tea, still drinking the same."],
)
def test_what_gives_no_value_answers_nothing(newer: str) -> None:
    older = "My favourite tea is Darjeeling."
    assert not lifted("What's my favourite tea?", older, newer, cosine=0.8)


def test_a_search_puts_the_newer_answer_first_and_closes_nothing(
    tmp_path: Path, minilm_dir: Path
) -> None:
    older = "My desk phone is extension 4417."
    newer = "Got shuffled to another desk, you'll find me on extension 4502."
    said = [older, "I like soup.", "My aunt lives in Rome.", newer, "The weather is fine."]
    embedder = MiniLMEmbedder(minilm_dir)
    with Agent(ScriptedModel(), store=tmp_path / "me.db", embedder=embedder, budget=2000) as agent:
        for text in said:
            agent.chat(text)
        found = [hit.segment.text for hit in agent.memory.search("What is my extension?")]
        assert found[:2] == [newer, older]
        for question in ("Which extension?", "My extension?", "Is it an extension?"):
            agent.chat(question)
        found = [hit.segment.text for hit in agent.memory.search("What is my extension?")]
        assert [text for text in found if text in said][:2] == [newer, older]
        asked = agent.memory.search("What used to be my extension?")
        former = [hit.segment.text for hit in asked if hit.segment.text in said]
        assert former[0] == older
        assert all(fact.valid_to is None for fact in agent.memory.facts())
