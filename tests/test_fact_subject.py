"""Whether two statements are about one thing: whose it is decides before any likeness does."""

from __future__ import annotations

import pytest

from agentmem.facts.reading import read
from agentmem.facts.subject import likeness
from agentmem.facts.values import value_of


def like(older: str, newer: str, cosine: float = 0.8) -> float:
    values = [value_of(text) for text in (older, newer)]
    first, second = (
        read(text, None if value is None else value.text)
        for text, value in zip((older, newer), values, strict=True)
    )
    return likeness(first, second, cosine)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("My sister's locker code is 31077.", "Scratch that, my locker code is 77310 now."),
        ("My locker code is 77310.", "Scratch that, my sister's locker code is 31077 now."),
        ("The PIN of Tom's gate is 9035.", "Scratch that, the gate PIN's 4471 these days."),
        ("Priya lives in Nantes.", "I live in Marseille now."),
        ("我妹妹的办公室在五楼。", "我的办公室现在搬到七楼了。"),
        ("My doctor's code is 31079.", "My code is 75161."),
        ("The kids' code is 31079.", "My code is 75161 now."),
    ],
)
def test_what_is_somebody_elses_is_never_meant(older: str, newer: str) -> None:
    assert like(older, newer, cosine=1.0) < 0


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("The PIN for the gate is 8812.", "Scratch that, the gate PIN's 4471 these days."),
        ("I work at Siemens.", "I left Siemens; Bosch pays my salary now."),
        ("Our dentist is Dr. Varga.", "We've switched the dentist to Dr. Osei."),
        ("My grandmother lives in Pecs.", "Grandma moved to Maribor."),
    ],
)
def test_a_change_is_known_in_other_words(older: str, newer: str) -> None:
    assert like(older, newer) > 0
