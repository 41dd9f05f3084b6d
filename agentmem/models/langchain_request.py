"""One request to a LangChain chat model: messages, tools and parameters, and what they take.

Tokens are counted of what is sent, not of what it is made from: an order that every provider takes
costs a few more. Knows nothing of answers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage

from agentmem.errors import BudgetExceeded
from agentmem.models.base import Capabilities, Options, Tool, tools_part
from agentmem.models.json_answer import ANSWER_TOOL, answer_tool, instruction
from agentmem.models.langchain_messages import to_langchain
from agentmem.segment import Message

_MESSAGE_TOKENS = 6
"""What a message's header takes."""
_CALL_BYTES = 8
"""What a call takes besides its name and arguments."""


@dataclass(frozen=True)
class Request:
    """What is sent.

    Args:
        messages: the prompt.
        tools: what the model may call, in OpenAI's form.
        tool_choice: the tool it must call; "" leaves it free.
        arguments: the provider's parameters.
        options: what was asked for, the reply as long as the budget leaves it.
        num_tokens: of messages and tools, by the model's own count.
    """

    messages: Sequence[BaseMessage]
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str
    arguments: Mapping[str, Any]
    options: Options
    num_tokens: int

    def open(self, chat_model: BaseChatModel) -> Iterator[AIMessage]:
        """Send it; the answer as it streams."""
        if not self.tools:
            return chat_model.stream(list(self.messages), **self.arguments)
        choice = {"tool_choice": self.tool_choice} if self.tool_choice else {}
        bound = chat_model.bind_tools([dict(tool) for tool in self.tools], **choice)
        return bound.stream(list(self.messages), **self.arguments)


@dataclass(frozen=True)
class Counter:
    """Tokens by bytes: providers tell their own count only afterwards.

    Args:
        bytes_per_token: of UTF-8 text; low counts high.
    """

    bytes_per_token: float

    def count(self, messages: Sequence[BaseMessage]) -> int:
        """Tokens of messages as they are sent."""
        nbytes = sum(map(_num_bytes, messages))
        return -int(-nbytes // self.bytes_per_token) + _MESSAGE_TOKENS * len(messages)

    def count_tools(self, tools: Sequence[Tool]) -> int:
        """Tokens of the descriptions of tools."""
        return self.count(to_langchain(tools_part(tools).messages)) if tools else 0


def make_request(
    messages: Sequence[Message],
    options: Options,
    *,
    capabilities: Capabilities,
    counter: Counter,
    arguments: Mapping[str, Any],
    refused: Collection[str],
) -> Request:
    """The request for a prompt, within the budget.

    Args:
        messages: the prompt's.
        options: how to answer.
        capabilities: of the model.
        counter: of its tokens.
        arguments: passed with every call.
        refused: parameters the provider does not take.

    Raises:
        BudgetExceeded: messages and tools leave no token for the reply.
    """
    tools, choice = options.tools if capabilities.calls_tools else (), ""
    if options.json_schema is not None and capabilities.calls_tools:
        tools = (answer_tool(options.json_schema),)
        choice = "" if "tool_choice" in refused else ANSWER_TOOL
    elif options.json_schema is not None:
        messages = [*messages, Message("user", instruction(options.json_schema))]
    sent = to_langchain(messages, alternates_roles=capabilities.alternates_roles)
    num_tokens = counter.count(sent) + counter.count_tools(tools)
    options = within_budget(options, num_tokens)
    parameters = {**arguments, **_sampling(options)}
    return Request(
        sent,
        [_schema_of(tool) for tool in tools],
        choice,
        {name: value for name, value in parameters.items() if name not in refused},
        options,
        num_tokens,
    )


def within_budget(options: Options, num_tokens: int) -> Options:
    """The options with a reply no longer than the budget leaves to it.

    Raises:
        BudgetExceeded: it leaves nothing.
    """
    if not options.max_tokens:
        return options
    room = options.max_tokens - num_tokens
    if room < min(1, options.max_new_tokens):
        raise BudgetExceeded(
            f"The prompt has {num_tokens} tokens: at most {options.max_tokens} are allowed, the "
            "reply included."
        )
    return replace(options, max_new_tokens=min(options.max_new_tokens, room))


def _num_bytes(message: BaseMessage) -> int:
    """Bytes of a message as it is sent: its text, and its calls with their arguments."""
    nbytes = len(str(message.content).encode("utf-8", "replace"))
    for call in getattr(message, "tool_calls", ()):
        arguments = json.dumps(call["args"], ensure_ascii=False)
        nbytes += len((call["name"] + arguments).encode("utf-8", "replace")) + _CALL_BYTES
    return nbytes


def _sampling(options: Options) -> dict[str, Any]:
    """The parameters most providers call by these names; what is at its default is not sent."""
    sent: dict[str, Any] = {
        "temperature": options.temperature,
        "max_tokens": options.max_new_tokens,
    }
    if options.top_p < 1:
        sent["top_p"] = options.top_p
    if options.temperature > 0:
        sent["seed"] = options.seed
    if options.stop:
        sent["stop"] = list(options.stop)
    return sent


def _schema_of(tool: Tool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}
