"""What a finished reply says: its text, its thought, and the tools it calls."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentmem.models.base import FinishReason, Options
from agentmem.models.decoding import Decoding
from agentmem.models.engine import Engine
from agentmem.models.tool_text import parse_calls
from agentmem.segment import ToolCall

_THOUGHT_FIELDS = ("reasoning_content", "thinking", "thought")


@dataclass(frozen=True, slots=True)
class Reading:
    """A reply as its reader understands it."""

    text: str
    thought: str
    finish_reason: FinishReason
    tool_calls: tuple[ToolCall, ...] = ()


def read_reply(
    engine: Engine, decoding: Decoding, header_ids: Sequence[int], options: Options
) -> Reading:
    """Read a reply: by the tokenizer's response template where it has one, else as plain text.

    Args:
        engine: the model that spoke.
        decoding: the reply; one that did not end by itself calls no tool.
        header_ids: ids that asked for it.
        options: names the tools that may be called.
    """
    plain = Reading(
        decoding.text, decoding.thought.strip(), decoding.finish_reason or "interrupted"
    )
    may_call = bool(options.tools) and options.json_schema is None
    if not may_call or decoding.finish_reason != "stop":
        return plain
    prefix = _call_id_prefix(decoding.token_ids)
    calls = parse_calls(decoding.text, options.tools, prefix)
    if calls:
        return Reading("", plain.thought, "tool_calls", calls)
    parsed = _parse_response(engine, decoding.token_ids, header_ids)
    if parsed is None or not parsed.get("tool_calls"):
        return plain
    thought = next((str(parsed[name]) for name in _THOUGHT_FIELDS if parsed.get(name)), "")
    return Reading(
        str(parsed.get("content") or ""),
        thought.strip() or plain.thought,
        "tool_calls",
        _template_calls(parsed["tool_calls"], prefix),
    )


def _parse_response(
    engine: Engine, token_ids: Sequence[int], header_ids: Sequence[int]
) -> Mapping[str, Any] | None:
    """What the tokenizer's response template finds; None without one, or where it does not fit."""
    tokenizer = engine.loaded.tokenizer
    if getattr(tokenizer, "response_template", None) is None:
        return None
    decode = engine.vocabulary.encoder.decode
    try:
        parsed = tokenizer.parse_response(decode(token_ids), prefix=decode(header_ids))
    except (ValueError, KeyError, TypeError):
        # A small model garbles the form: then what it said is text.
        return None
    return parsed if isinstance(parsed, dict) else None


def _template_calls(calls: Sequence[Any], prefix: str) -> tuple[ToolCall, ...]:
    read = []
    for index, call in enumerate(calls):
        function = call.get("function", call)
        arguments = function.get("arguments", {})
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
        read.append(ToolCall(f"{prefix}{index}", str(function.get("name", "")), arguments))
    return tuple(read)


def _call_id_prefix(token_ids: Sequence[int]) -> str:
    digest = hashlib.sha256(" ".join(map(str, token_ids)).encode()).hexdigest()
    return f"call_{digest[:8]}_"
