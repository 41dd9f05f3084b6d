"""Messages to LangChain's and back, in an order that every provider takes.

Providers differ in what they refuse: a system message in the middle, two messages of one role in a
row, a tool result without its call. What is made here has none of these.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.tool import tool_call

from agentmem.segment import Message, ToolCall

NO_RESULT = "(no result)"
_MAX_NAME = 64
_MAX_ID = 256
_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_SURROGATE = re.compile("[\ud800-\udfff]")
EARLIER = "(Earlier messages are not shown.)"


def to_langchain(
    messages: Iterable[Message], *, alternates_roles: bool = True
) -> list[BaseMessage]:
    """Messages as LangChain's.

    System messages at the beginning become one; later ones are the user's words. Every tool call
    is followed by one result; a result without a call is told as text.

    Args:
        alternates_roles: user and assistant take turns, the user first: neighbours are joined.
    """
    messages = list(messages)
    system: list[str] = []
    while messages and messages[0].role == "system":
        system.append(messages.pop(0).content)
    converted: list[BaseMessage] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        if message.role == "assistant":
            results: list[Message] = []
            while message.tool_calls and index < len(messages) and messages[index].role == "tool":
                results.append(messages[index])
                index += 1
            converted += _exchange(message, results)
        elif message.role == "tool":
            converted.append(_orphan(message))
        elif message.content:
            converted.append(HumanMessage(message.content))
    if alternates_roles:
        converted = _alternating(converted)
    return [SystemMessage("\n\n".join(filter(None, system))), *converted] if system else converted


def _exchange(message: Message, results: Sequence[Message]) -> list[BaseMessage]:
    """An assistant's message, the results of its calls in their order, and results of none."""
    if not message.tool_calls:
        return [AIMessage(message.content)] if message.content else []
    calls = [
        call if call.id else ToolCall(f"call_{number}", call.name, call.arguments)
        for number, call in enumerate(message.tool_calls)
    ]
    by_id: dict[str, Message] = {}
    others: list[Message] = []
    for place, result in enumerate(results):
        # A result without an id answers the call in its place.
        id = result.tool_call_id or (calls[place].id if place < len(calls) else "")
        if any(call.id == id for call in calls) and id not in by_id:
            by_id[id] = result
        else:
            others.append(result)
    answers: list[BaseMessage] = []
    for call in calls:
        content = by_id[call.id].content if call.id in by_id else ""
        answers.append(ToolMessage(content or NO_RESULT, tool_call_id=call.id, name=call.name))
    orphans = list(map(_orphan, others))
    return [
        AIMessage(message.content, tool_calls=[_call(one) for one in calls]),
        *answers,
        *orphans,
    ]


def _call(call: ToolCall) -> dict[str, object]:
    try:
        arguments = call.parsed()
        if _SURROGATE.search(as_text := json.dumps(arguments, ensure_ascii=False)):
            # An escape of half a character is JSON, but it cannot be sent.
            arguments = json.loads(_SURROGATE.sub("\ufffd", as_text))
    except ValueError:
        # The provider takes objects only; the model shall still see what it wrote.
        arguments = {"arguments": call.arguments}
    # A name that no tool can have is refused by providers, with all that comes after it.
    name = _NO_NAME.sub("_", call.name)[:_MAX_NAME] or "_"
    return dict(tool_call(name=name, args=arguments, id=call.id))


def _orphan(message: Message) -> BaseMessage:
    return HumanMessage(f"[Result of a tool call]\n{message.content or NO_RESULT}")


def _alternating(messages: list[BaseMessage]) -> list[BaseMessage]:
    joined: list[BaseMessage] = []
    for message in messages:
        before = joined[-1] if joined else None
        if before is not None and _can_join(before, message):
            joined[-1] = type(before)(f"{before.content}\n\n{message.content}")
        else:
            joined.append(message)
    if joined and not isinstance(joined[0], HumanMessage):
        joined.insert(0, HumanMessage(EARLIER))
    return joined


def _can_join(first: BaseMessage, second: BaseMessage) -> bool:
    if isinstance(first, AIMessage) and isinstance(second, AIMessage):
        return not first.tool_calls and not second.tool_calls
    return isinstance(first, HumanMessage) and isinstance(second, HumanMessage)


def tool_calls_of(message: AIMessage, *, is_cut: bool = False) -> tuple[ToolCall, ...]:
    """The calls of a reply, arguments as the model wrote them: cut short, they stay cut short.

    (LangChain completes a JSON text that was cut off, which turns `[12` into `[1]`.)

    Args:
        is_cut: the reply reached its length, so that a call without arguments has lost them.
    """
    if isinstance(message, AIMessageChunk) and message.tool_call_chunks:
        calls = [
            (chunk.get("id"), chunk.get("name"), chunk.get("args"))
            for chunk in message.tool_call_chunks
        ]
    else:
        calls = [
            (call["id"], call["name"], json.dumps(call["args"], ensure_ascii=False))
            for call in message.tool_calls
        ]
        calls += [(call["id"], call["name"], call["args"]) for call in message.invalid_tool_calls]
    none = "" if is_cut else "{}"
    made: dict[str, ToolCall] = {}
    for number, (id, name, arguments) in enumerate(calls):
        # A result is found by its call's id: two calls cannot share one.
        own = clean_text(id or "")[:_MAX_ID]
        if not own or own in made:
            own = next(one for n in itertools.count(number) if (one := f"call_{n}") not in made)
        made[own] = ToolCall(own, clean_text(name or ""), clean_text(arguments or none))
    return tuple(made.values())


def clean_text(text: str) -> str:
    """The text with what is no character replaced: halves of one, and NUL."""
    return _SURROGATE.sub("\ufffd", text).replace("\0", "\u2400")


def thought_of(message: AIMessage) -> str:
    """What the model thought before it answered, where the provider tells."""
    thoughts = [str(message.additional_kwargs.get("reasoning_content") or "")]
    if isinstance(message.content, list):
        for block in message.content:
            if isinstance(block, dict) and block.get("type") in ("thinking", "reasoning"):
                thoughts.append(str(block.get("thinking") or block.get("reasoning") or ""))
    return "".join(thoughts)
