"""Documents: a message too long for the window, stored whole."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.documents import split_document
from agentmem.models.base import Part, estimate_tokens
from agentmem.segment import Message, Segment


def count(segment: Segment) -> int:
    return estimate_tokens(Part(0, segment.messages))


@settings(deadline=None, max_examples=60)
@given(st.text(min_size=1, max_size=3000), st.integers(16, 80))
def test_the_parts_joined_are_the_message_and_each_fits(text: str, part_tokens: int) -> None:
    document = split_document(
        Segment((Message("user", text),)), stub_tokens=64, part_tokens=part_tokens, count=count
    )
    assert "".join(part.messages[0].content for part in document.parts) == text
    assert all(count(part) <= part_tokens for part in document.parts)
    assert all(part.kind == "document_part" for part in document.parts)


@pytest.mark.parametrize("text", ["word " * 40_000, "汉" * 100_000, "x" * 100_000, "\n" * 50_000])
def test_a_long_message_becomes_a_stub_with_head_tail_and_pointer(text: str) -> None:
    document = split_document(
        Segment((Message("user", text),)), stub_tokens=100, part_tokens=128, count=count
    )
    stub = document.stub.messages[0].content
    assert count(document.stub) <= 100
    assert f"{len(text):,} characters, stored whole in {len(document.parts)} parts" in stub


def test_parts_end_at_ends_of_sentences_where_there_are_any() -> None:
    text = "This is one sentence of some length. " * 60
    document = split_document(
        Segment((Message("user", text),)), stub_tokens=64, part_tokens=64, count=count
    )
    assert all(part.messages[0].content.endswith(". ") for part in document.parts)
