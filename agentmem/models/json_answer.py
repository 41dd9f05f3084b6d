"""An answer that is one JSON value, from a model whose tokens cannot be held to a grammar.

It is asked for as the arguments of one tool, or in words; and found in what came back.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentmem.models.base import Completion, Tool

logger = logging.getLogger(__name__)

ANSWER_TOOL = "answer"
_PROMPT = Path(__file__).parents[1] / "prompts" / "answer_json.md"
MAX_OPENINGS = 256
"""So many braces that open no value, and the search ends: each may cost the whole text."""
_DECODER = json.JSONDecoder()


def find_json(text: str) -> str | None:
    """The longest JSON object or array in a text, as it stands there; None if there is none.

    Code fences, a sentence before and one after do not matter. Nothing is repaired: a value cut
    short is not one.
    """
    best = ""
    at = openings = 0
    while openings < MAX_OPENINGS and (at := _next_opening(text, at)) >= 0:
        try:
            _, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            openings += 1
            continue
        if end - at > len(best):
            best = text[at:end]
        at = end
    return best or None


def _next_opening(text: str, start: int) -> int:
    found = [at for at in (text.find("{", start), text.find("[", start)) if at >= 0]
    return min(found, default=-1)


def answer_tool(schema: Mapping[str, Any]) -> Tool:
    """The tool whose arguments are the answer; what is no object becomes its `value`."""
    if schema.get("type") != "object":
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        schema = {
            "type": "object",
            "properties": {"value": {k: v for k, v in schema.items() if k not in shared}},
            "required": ["value"],
            **shared,
        }
    return Tool(ANSWER_TOOL, "Give the answer.", schema)


def instruction(schema: Mapping[str, Any]) -> str:
    """The words that ask for it."""
    text = json.dumps(schema, ensure_ascii=False)
    return _PROMPT.read_text("utf-8").replace("{schema}", text)


def as_json(completion: Completion, schema: Mapping[str, Any]) -> Completion:
    """The completion with the JSON value as its text: a call's arguments, or found in the text."""
    answers = [call for call in completion.tool_calls if call.name == ANSWER_TOOL]
    text = find_json(completion.text) or completion.text.strip()
    if answers:
        text = answers[0].arguments
        if schema.get("type") != "object":
            try:
                text = json.dumps(answers[0].parsed()["value"], ensure_ascii=False)
            except (ValueError, KeyError):
                logger.info("The answer lacks its value: passed on as it is.")
    reason = "stop" if completion.finish_reason == "tool_calls" else completion.finish_reason
    return replace(completion, text=text, tool_calls=(), finish_reason=reason)
