"""Of two findings for one question the newer comes first, though neither says the other is over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from agentmem import Agent, ScriptedModel
from agentmem.facts.rivals import Finding, rivals
from agentmem.models.embed import MiniLMEmbedder


@pytest.fixture(scope="module")
def embedder(minilm_dir: Path) -> MiniLMEmbedder:
    return MiniLMEmbedder(minilm_dir)


def instead(
    embedder: MiniLMEmbedder, question: str, *told: str, said_at: Sequence[float] = ()
) -> dict[int, tuple[int, ...]]:
    """By place, those that answer instead; told in this order, found in this order."""
    asked, *vectors = embedder.embed([question, *told])
    times = said_at or range(len(told))
    best = [
        Finding(place, text, times[place], float(asked @ vectors[place]))
        for place, text in enumerate(told)
    ]
    return rivals(
        question, best, lambda pairs: [float(vectors[one] @ vectors[two]) for one, two in pairs]
    )


@pytest.mark.parametrize(
    ("question", "older", "newer"),
    [
        ("What is my extension?", "My desk phone is extension 4417.",
         "Got shuffled to another desk, you'll find me on extension 4502."),
        ("Where do Jonas and I live?", "Jonas and I are renting in Leith.",
         "We got the keys! Jonas and I are homeowners in Portobello."),
        ("How much is a day pass?", "A day pass for the hall is 14 euros.",
         "Climbing got pricier. A day pass sets you back 17 euros."),
        ("What car do I drive?", "I drive a Fiat Panda.",
         "The Fiat finally died on me. I'm getting around in a Dacia."),
        ("Which school does my niece go to?", "My niece Ida goes to Elm Park Primary.",
         "Ida changed schools and loves her class at Harbour Primary."),
        ("Who's my manager?", "My manager is Priya Nair.",
         "Marcus Bell is my manager going forward."),
    ],
)  # fmt: skip
def test_a_newer_answer_stands_above_an_older_one(
    question: str, older: str, newer: str, embedder: MiniLMEmbedder
) -> None:
    assert instead(embedder, question, older, newer) == {0: (1,)}


def test_an_older_finding_never_answers_instead(embedder: MiniLMEmbedder) -> None:
    question, older = "What is my extension?", "My desk phone is extension 4417."
    newer = "Got shuffled to another desk, you'll find me on extension 4502."
    assert instead(embedder, question, older, newer, said_at=(1.0, 2.0)) == {0: (1,)}
    assert instead(embedder, question, newer, older, said_at=(2.0, 1.0)) == {1: (0,)}


def test_what_is_over_is_no_newer_answer_but_may_have_one(embedder: MiniLMEmbedder) -> None:
    told = [
        "My desk phone is extension 4417.",
        "My desk phone is extension 4450.",
        "Got shuffled to another desk, you'll find me on extension 4502.",
    ]
    asked, *vectors = embedder.embed(["What is my extension?", *told])
    best = [
        Finding(place, text, place, float(asked @ vectors[place]), is_over=place == 1)
        for place, text in enumerate(told)
    ]
    found = rivals(
        "What is my extension?",
        best,
        lambda pairs: [float(vectors[one] @ vectors[two]) for one, two in pairs],
    )
    assert found == {0: (2,), 1: (2,)}


def test_of_several_newer_answers_each_stands_above_and_the_likest_first(
    embedder: MiniLMEmbedder,
) -> None:
    question, older = "What's the wifi password?", "The wifi password is bluefern."
    first, second = "The wifi password is now copperkite.", "We changed the wifi password: osprey."
    found = instead(embedder, question, older, first, second)
    assert found == {0: (2, 1), 1: (2,)}
    assert instead(embedder, question, older, second, first)[0] == (1, 2)


def least_nearness(question: str, older: str, newer: str) -> float:
    """How near a newer statement has to be to the question, all else being equal."""
    for hundredths in range(100):
        near = hundredths / 100
        best = [Finding(1, older, 1.0, 0.5), Finding(2, newer, 2.0, near)]
        if rivals(question, best, lambda pairs: [0.3] * len(pairs)):
            return near
    return 1.0


def test_what_came_of_an_event_is_taken_for_newer_sooner() -> None:
    question, older = "What car do I drive?", "I drive a Fiat Panda."
    newer = "I'm getting around in a Dacia."
    after_all = least_nearness(question, older, f"The old one finally died on me. {newer}")
    assert after_all < least_nearness(question, older, newer) < 1


def test_what_names_only_some_of_what_was_asked_is_taken_for_newer_later() -> None:
    question, older = "What's the gate code?", "The gate code is 4471."
    whole, some = "The gate code is 9902.", "The code is 9902."
    assert least_nearness(question, older, whole) < least_nearness(question, older, some) < 1


@pytest.mark.parametrize(
    ("question", "right", "newer"),
    [
        ("What's my code for the locker?", "My code for the locker is 8842.",
         "My sister's code for the locker is 1177."),
        ("What is my sister's city?", "My sister lives in Ghent.", "I moved to Bruges."),
        ("What is the router's password?", "The router's password is lapwing.",
         "The printer's password is heron."),
        ("At which hotel do I stay in Prague?", "In Prague I stay at the Josef.",
         "In Vienna I stay at the Sacher."),
        ("What is the clinic's phone number?", "The clinic's phone number is 555-0134.",
         "The pharmacy's phone number is 555-0162."),
        ("What car do I drive?", "I drive a Fiat Panda.", "I love long walks in the rain."),
        ("What's my favourite tea?", "My favourite tea is Darjeeling.",
         "My favourite tea mug broke."),
    ],
)  # fmt: skip
def test_what_is_about_something_else_answers_nothing(
    question: str, right: str, newer: str, embedder: MiniLMEmbedder
) -> None:
    assert instead(embedder, question, right, newer) == {}


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
        hits = agent.memory.search("What is my extension?")
        assert [hit.segment.text for hit in hits][:2] == [newer, older]
        assert (hits[0].instead, hits[0].until) == (None, None)
        assert (hits[1].instead, hits[1].until) == (hits[0].segment.id, hits[0].segment.created)
        for question in ("Which extension?", "My extension?", "Is it an extension?"):
            agent.chat(question)
        found = [hit.segment.text for hit in agent.memory.search("What is my extension?")]
        assert [text for text in found if text in said][:2] == [newer, older]
        asked = agent.memory.search("What used to be my extension?")
        former = [hit.segment.text for hit in asked if hit.segment.text in said]
        assert former[0] == older
        assert all(fact.valid_to is None for fact in agent.memory.facts())
