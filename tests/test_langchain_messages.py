"""Messages reach a provider in an order that no provider refuses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from agentmem.models.langchain_messages import EARLIER, NO_RESULT, to_langchain
from agentmem.segment import Message, ToolCall


def shape(messages: list[BaseMessage]) -> list[tuple[str, str]]:
    return [(message.type, str(message.content)) for message in messages]


def call(id: str = "a", arguments: str = '{"x": 1}') -> ToolCall:
    return ToolCall(id, "search", arguments)


def test_system_messages_at_the_beginning_become_one() -> None:
    messages = [Message("system", "a"), Message("system", "b"), Message("user", "hi")]
    assert shape(to_langchain(messages)) == [("system", "a\n\nb"), ("human", "hi")]


def test_a_later_system_message_is_the_users_word() -> None:
    messages = [Message("user", "hi"), Message("system", "note")]
    assert shape(to_langchain(messages)) == [("human", "hi\n\nnote")]


def test_neighbours_of_one_role_are_joined_only_where_roles_alternate() -> None:
    messages = [Message("user", "a"), Message("user", "b"), Message("assistant", "c")]
    assert shape(to_langchain(messages)) == [("human", "a\n\nb"), ("ai", "c")]
    assert len(to_langchain(messages, alternates_roles=False)) == 3


def test_a_window_that_begins_with_the_assistant_is_given_a_beginning() -> None:
    messages = [Message("system", "s"), Message("assistant", "a")]
    assert shape(to_langchain(messages))[1] == ("human", EARLIER)


def test_a_tool_exchange_keeps_its_ids() -> None:
    messages = [
        Message("user", "look"),
        Message("assistant", "", (call("a"), call("b"))),
        Message("tool", "second", tool_call_id="b"),
        Message("tool", "first", tool_call_id="a"),
    ]
    converted = to_langchain(messages)
    assert isinstance(converted[1], AIMessage)
    assert [one["id"] for one in converted[1].tool_calls] == ["a", "b"]
    results = [(m.tool_call_id, m.content) for m in converted if isinstance(m, ToolMessage)]
    assert results == [("a", "first"), ("b", "second")]


def test_a_call_without_a_result_gets_one_and_a_result_without_a_call_becomes_text() -> None:
    unanswered = to_langchain([Message("user", "u"), Message("assistant", "", (call(),))])
    assert shape(unanswered)[-1] == ("tool", NO_RESULT)
    [orphan] = to_langchain([Message("tool", "found", tool_call_id="z")])
    assert isinstance(orphan, HumanMessage)
    assert "found" in str(orphan.content)


def test_a_second_result_for_one_call_is_not_lost() -> None:
    messages = [
        Message("user", "u"),
        Message("assistant", "", (call("a"),)),
        Message("tool", "first", tool_call_id="a"),
        Message("tool", "second", tool_call_id="a"),
    ]
    assert [kind for kind, _ in shape(to_langchain(messages))] == ["human", "ai", "tool", "human"]
    assert "second" in shape(to_langchain(messages))[-1][1]


def test_results_without_ids_answer_the_calls_in_their_places() -> None:
    messages = [
        Message("user", "u"),
        Message("assistant", "", (call(""), call(""))),
        Message("tool", "one"),
        Message("tool", "two"),
    ]
    results = [m for m in to_langchain(messages) if isinstance(m, ToolMessage)]
    assert [result.content for result in results] == ["one", "two"]
    assert results[0].tool_call_id != results[1].tool_call_id


def test_arguments_that_are_no_object_are_passed_on_as_text() -> None:
    broken = [Message("user", "u"), Message("assistant", "", (call(arguments="[1"),))]
    message = to_langchain(broken)[1]
    assert isinstance(message, AIMessage)
    assert message.tool_calls[0]["args"] == {"arguments": "[1"}


def test_an_empty_message_is_not_sent() -> None:
    messages = [Message("user", "u"), Message("assistant", ""), Message("user", "v")]
    assert shape(to_langchain(messages)) == [("human", "u\n\nv")]


texts = st.text("ab ", max_size=3)
ids = st.sampled_from(["", "a", "b", "c"])
any_message = st.one_of(
    st.builds(Message, st.sampled_from(["system", "user", "assistant"]), texts),
    st.builds(
        lambda text, calls: Message("assistant", text, tuple(map(call, calls))),
        texts,
        st.lists(ids, max_size=2, unique=True),
    ),
    st.builds(lambda text, id: Message("tool", text, tool_call_id=id), texts, ids),
)


@given(st.lists(any_message, max_size=8))
@settings(deadline=None, max_examples=400)
def test_whatever_the_messages_roles_alternate_and_every_call_has_its_result(
    messages: list[Message],
) -> None:
    converted = to_langchain(messages)
    body = [one for one in converted if not isinstance(one, SystemMessage)]
    assert converted[len(converted) - len(body) :] == body, "system comes first"
    assert not body or isinstance(body[0], HumanMessage)
    open_ids: list[str | None] = []
    last = ""
    for message in body:
        if isinstance(message, ToolMessage):
            assert message.tool_call_id == open_ids.pop(0)
        else:
            assert not open_ids, "a result is missing"
            if message.type == last == "human":
                raise AssertionError("two user messages in a row")
            if isinstance(message, AIMessage):
                open_ids = [one["id"] for one in message.tool_calls]
        last = message.type
    assert not open_ids
    said = " ".join(str(message.content) for message in converted)
    assert all(message.content in said for message in messages)


@pytest.mark.parametrize(
    ("name", "sent"), [("rm -rf /", "rm_-rf__"), ("", "_"), ("x" * 99, "x" * 64), ("löse", "l_se")]
)
def test_a_name_that_no_tool_can_have_is_sent_as_one_it_can(name: str, sent: str) -> None:
    call = Message("assistant", "", (ToolCall("a", name),))
    [_, message, _] = to_langchain([Message("user", "x"), call])
    assert isinstance(message, AIMessage) and message.tool_calls[0]["name"] == sent


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"q": "\\ud83d"}', {"q": "\ufffd"}),
        ('{"q": NaN}', {"arguments": '{"q": NaN}'}),
        ("[" * 100_000, {"arguments": "[" * 100_000}),
        ("[1]", {"arguments": "[1]"}),
    ],
)
def test_arguments_that_cannot_be_sent_are_sent_as_text(arguments: str, sent: object) -> None:
    call = Message("assistant", "", (ToolCall("a", "look", arguments),))
    [_, message, _] = to_langchain([Message("user", "x"), call])
    assert isinstance(message, AIMessage) and message.tool_calls[0]["args"] == sent
