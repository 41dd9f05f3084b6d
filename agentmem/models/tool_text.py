"""Tool calls and results as plain text, for templates that have no place for them.

A call is one line of JSON, `{"name": ..., "arguments": {...}}`, as the assistant's words; a result
is a user message that says whose result it is. Knows nothing of any template.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from agentmem.models.base import Part, Tool
from agentmem.segment import Message, ToolCall

TOOLS_KEY = "~tools:"


def call_text(call: ToolCall) -> str:
    """One line of JSON for one call, as the grammar would have written it."""
    try:
        arguments = call.parsed()
    except ValueError:
        # What a model really wrote is kept, also where it is not JSON.
        arguments = {"text": call.arguments}
    return _compact({"name": call.name, "arguments": arguments})


def plain_message(message: Message) -> tuple[str, str]:
    """The role and text of a message in a template that knows system, user and assistant only."""
    if message.role == "tool":
        name = f" of {message.tool_call_id}" if message.tool_call_id else ""
        return "user", f"Tool result{name}: {message.content}"
    lines = [message.content] if message.content or not message.tool_calls else []
    lines += [call_text(call) for call in message.tool_calls]
    return message.role, "\n".join(lines)


def tools_text(tools: Sequence[Tool]) -> str:
    """What a model must know to call the tools: one signature a line, a fifth of their schemas.

    Types of strings and of what may be left out (`?`) are not named: the grammar holds a call to
    them.
    """
    lines = ['To call a tool, reply with nothing but {"name": ..., "arguments": {...}}. Tools:']
    lines += [f"{_signature(tool)}: {tool.description}" for tool in tools]
    return "\n".join(lines)


def tools_part(tools: Sequence[Tool]) -> Part:
    """The tools' signatures as a part of a prompt."""
    text = tools_text(tools)
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
    return Part(f"{TOOLS_KEY}{digest}", (Message("system", text),))


def with_tools(prompt: Sequence[Part], tools: Sequence[Tool]) -> list[Part]:
    """The prompt with the tools' signatures behind its system prompt."""
    part = tools_part(tools)
    has_system = bool(prompt) and prompt[0].messages[:1] and prompt[0].messages[0].role == "system"
    place = 1 if has_system else 0
    return [*prompt[:place], part, *prompt[place:]]


def call_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    """The JSON Schema of one call of one of the tools."""
    variants: list[dict[str, Any]] = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, "arguments": dict(tool.parameters)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return variants[0] if len(variants) == 1 else {"anyOf": variants}


def parse_calls(text: str, tools: Sequence[Tool], prefix: str) -> tuple[ToolCall, ...]:
    """The calls a reply makes: every line must be one; otherwise there are none.

    Args:
        text: the reply.
        tools: what may be called.
        prefix: of the ids given to the calls.
    """
    names = {tool.name for tool in tools}
    calls = []
    for index, line in enumerate(text.strip().splitlines()):
        try:
            value = json.loads(line)
        except ValueError:
            return ()
        if not isinstance(value, dict) or value.get("name") not in names:
            return ()
        arguments = value.get("arguments", {})
        if not isinstance(arguments, dict):
            return ()
        calls.append(ToolCall(f"{prefix}{index}", value["name"], _compact(arguments)))
    return tuple(calls)


def _signature(tool: Tool) -> str:
    properties = tool.parameters.get("properties", {})
    required = set(tool.parameters.get("required", ()))
    fields = []
    for name, schema in properties.items():
        if name in required:
            kind = _type_name(schema)
            fields.append(name if kind == "string" else f"{name}: {kind}")
        else:
            fields.append(f"{name}?")
    return f"{tool.name}({', '.join(fields)})"


def _type_name(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "any"
    if "enum" in schema:
        return "|".join(value if isinstance(value, str) else _compact(value)
                        for value in schema["enum"])  # fmt: skip
    if "anyOf" in schema:
        kinds = [_type_name(one) for one in schema["anyOf"] if one != {"type": "null"}]
        return "|".join(dict.fromkeys(kinds))
    if schema.get("type") == "array":
        return f"[{_type_name(schema.get('items', {}))}]"
    kind = schema.get("type", "any")
    return "|".join(kind) if isinstance(kind, list) else str(kind)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
