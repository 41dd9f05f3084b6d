"""Who a question is about, and whether a text can be about them."""

from __future__ import annotations

import pytest

from agentmem.facts.owner import People


def may(question: str, text: str, *others: str) -> bool:
    return People.named_in([question, text, *others]).may_answer(question, [text], text)


@pytest.mark.parametrize(
    ("question", "text", "told"),
    [
        ("Which school is my niece at?", "Ida started at Elm Park.", "My niece Ida reads a lot."),
        ("How much does Breda take?", "My mother-in-law takes 2 mg.", "Breda, my mother-in-law."),
        ("Where does Mam live?", "My mother moved to Cork.", ""),
        ("Where does my brother live?", "He moved to Cork.", ""),
        ("Who is my boss?", "Marcus is my boss.", ""),
        ("Who's managing me at work?", "Marcus is my boss going forward.", ""),
        ("When is our standup?", "We moved the standup to 10:30 because of the Denver folks.", ""),
        ("Which phone have I got?", "The kids talked me into a Pixel 8.", ""),
        ("What's my cousin's sport?", "My cousin switched to judo.", ""),
        ("What's the gate code?", "The gate opens with 4471.", ""),
    ],
)  # fmt: skip
def test_a_text_may_answer_about_the_same_people(question: str, text: str, told: str) -> None:
    assert may(question, text, told)


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("What's my code?", "My sister's code is 1177."),
        ("What's my sister's code?", "My code is 1177."),
        ("What's my sister's code?", "I changed it on my phone to 1177."),
        ("What's my sister's code?", "My brother's code is 1177."),
        ("Where does Anna work?", "Ben's office moved to Lyon."),
        ("What's my cousin's sport?", "My aunt switched to judo."),
        ("What's the clinic's number?", "The pharmacy's number is 12."),
    ],
)
def test_a_text_about_others_may_not(question: str, text: str) -> None:
    assert not may(question, text)
