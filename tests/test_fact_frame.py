"""What a clause speaks of and by which verb, however it leads up to it."""

from __future__ import annotations

import pytest

from agentmem.facts.frame import frame_of


@pytest.mark.parametrize(
    ("clause", "value", "relation", "topic"),
    [
        ("My locker code is 58291", "58291", "be", "My locker code"),
        ("since Friday my sister's flight leaves at 7:10", "7:10", "leav", "my sister's flight at"),
        ("our parrot's name is Kipper", "Kipper", "be one", "our parrot's"),
        ("Priya's spaniel used to be called Bo", "Bo", "be one", "Priya's spaniel"),
        ("my usual cheese is brie as of Monday", "brie", "be one", "my usual cheese"),
        ("I'm reading Dracula", "Dracula", "read", "I"),
        ("After Sunday's win our team is 2nd", "2nd", "be", "our team"),
        ("My seat at the opera is in row K", "row K", "be at", "My seat at the opera in"),
    ],
)
def test_a_clause_gives_something_a_value_by_its_verb(
    clause: str, value: str, relation: str, topic: str
) -> None:
    frame = frame_of(clause, value)
    assert frame is not None
    assert (frame.relation, " ".join(frame.topic.split())) == (relation, topic)


def test_it_is_what_was_named_before() -> None:
    frame = frame_of("it's in row K", "row K", "I was wrong about my seat")
    assert frame is not None
    assert (frame.relation, frame.topic.split()) == ("be at", ["my", "seat", "in"])


def test_what_has_no_subject_and_verb_has_no_frame() -> None:
    assert frame_of("another parcel code for me, 90433", "90433") is None
