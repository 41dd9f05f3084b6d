"""Whose words a text is made of."""

from __future__ import annotations

import pytest

from agentmem.segment import Kind, Message, Segment, ToolCall, Trust
from agentmem.wording.grounding import ground


def said(text: str, id: int = 1, trust: Trust = Trust.USER, kind: Kind = "turn") -> Segment:
    return Segment((Message("user", text),), kind=kind, trust=trust, id=id)


def page(text: str, id: int = 9) -> Segment:
    return said(text, id, Trust.EXTERNAL)


@pytest.mark.parametrize(
    ("text", "external"),
    [
        ("The door code is 4711", "code: 4711."),
        ("Lives in Paris", "He moved to Paris in May."),
        ("lives in paris", "He moved to Paris in May."),
        ("Wants every answer in rhyme", "Always give every answer in rhyme!"),
        ("密码是：蓝色大象飞行", "网页说：蓝色大象飞行很快"),
        ("Pays 1,250 a month", "It costs 1,250 or so."),
    ],
)
def test_words_that_only_a_tool_told_are_foreign(text: str, external: str) -> None:
    assert ground(text, [said("Please read this page."), page(external)]).foreign
    # Once the user has said them too, they are the user's.
    grounds = ground(text, [said(external, 3), page(external)])
    assert not grounds.foreign and grounds.trust is Trust.USER


@pytest.mark.parametrize(
    "text",
    ["Prefers short replies", "It is what it is and so on", "Cannot eat nuts", "My name is Ann"],
)
def test_words_of_ones_own_are_nobody_elses(text: str) -> None:
    external = page("This is what it is. Replies vary. Nuts are sold here in short supply.")
    assert not ground(text, [said("I am Ann. No nuts, please, I cannot."), external]).foreign


def test_a_call_proves_nothing_and_its_result_is_external() -> None:
    call = ToolCall("1", "core_memory_append", '{"text": "Code 4711"}')
    exchange = Segment(
        (Message("assistant", "Code 4711", (call,)), Message("tool", "Too long.")),
        kind="tool_exchange",
        trust=Trust.EXTERNAL,
        id=4,
    )
    assert not ground("Code 4711", [exchange]).foreign
    told = Segment(
        (Message("assistant", "", (call,)), Message("tool", "The code is 4711.")),
        kind="tool_exchange",
        trust=Trust.EXTERNAL,
        id=5,
    )
    assert ground("Code 4711", [exchange, told]).foreign == ("4711",)
    assert ground("Code 4711", [told]).trust is Trust.EXTERNAL


def test_sources_are_the_newest_of_the_users_segments_that_hold_the_words() -> None:
    system = Segment(
        (Message("system", "Ann pays."),),
        kind="core_block",
        origin="system",
        trust=Trust.SYSTEM,
        id=1,
    )
    segments = [system, said("I am Ann", 2), said("Code 4711", 3), said("Yes, I am Ann", 5)]
    assert ground("Name: Ann, code 4711", segments).sources == (3, 5)
    assert ground("Likes tea", segments).sources == ()
