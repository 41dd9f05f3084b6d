"""Segment: a frozen value whose hash is what it says."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.segment import Message, Segment, ToolCall, Trust

messages = st.builds(
    Message,
    st.sampled_from(("user", "assistant", "tool")),
    st.text(max_size=40),
    st.lists(st.builds(ToolCall, st.text(max_size=4), st.text(max_size=4)), max_size=2).map(tuple),
    st.none() | st.text(max_size=4),
)


@given(messages)
def test_a_message_survives_its_json_form(message: Message) -> None:
    assert Message.from_dict(message.to_dict()) == message


@given(messages, messages)
def test_segments_that_say_the_same_have_the_same_hash_and_no_others(
    one: Message, other: Message
) -> None:
    same = Segment((one,)).content_hash == Segment((other,)).content_hash
    assert same == (one.to_dict() == other.to_dict())


def test_a_hash_does_not_depend_on_id_time_or_trust() -> None:
    segment = Segment((Message("user", "hi"),))
    moved = dataclasses.replace(segment, id=7, created=9.0, trust=Trust.EXTERNAL)
    assert moved.content_hash == segment.content_hash


def test_a_summary_stands_where_its_first_original_stood() -> None:
    summary = Segment((Message("user", "s"),), kind="summary", parents=(9, 4, 6), id=30)
    assert summary.place == 4
    assert Segment((Message("user", "x"),), id=30).place == 30


def test_a_segment_without_messages_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one message"):
        Segment(())


@pytest.mark.parametrize("arguments", ["[1]", "3", '"x"', "{"])
def test_tool_arguments_must_be_one_object(arguments: str) -> None:
    with pytest.raises(ValueError):
        ToolCall("1", "f", arguments).parsed()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("[" * 100_000, "nested too deep"),
        ('{"x": ' + "[" * 5000 + "]" * 5000 + "}", "nested too deep"),
        ('{"x": NaN}', "NaN is no JSON"),
        ('{"x": -Infinity}', "-Infinity is no JSON"),
        ('{"x": ' + "9" * 5000 + "}", "integer string conversion"),
        ("[1]", "must be a JSON object"),
        ("", "Expecting value"),
    ],
)
def test_arguments_that_are_no_json_object_are_a_value_error(arguments: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ToolCall("a", "look", arguments).parsed()
