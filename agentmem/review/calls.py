"""Tool calls out of whatever a model wrote, in the shape a review's tools take.

Understood is what can mean one thing only: a list of calls, one object, objects in a row, an object
around them, prose or a code fence around all of it; ids as strings, whole floats, one in place of a
list, a list in place of the arguments, or under another name. What cannot be read is left out, what
cannot be understood goes on as it is, for the tools to refuse. Knows nothing of segments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentmem.segment import ToolCall

_MAX_DEPTH = 3
"""Objects and lists a call may be wrapped in."""
_MAX_FAILURES = 64
"""Openings that begin nothing: behind so many no call is looked for."""


def read_calls(text: str) -> list[ToolCall]:
    """The calls in a text, in order."""
    decoder = json.JSONDecoder()
    found: list[dict[str, Any]] = []
    at = failures = 0
    while at < len(text) and failures < _MAX_FAILURES:
        at = min((i for i in (text.find("{", at), text.find("[", at)) if i >= 0), default=-1)
        if at < 0:
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):  # no JSON, or a number of too many digits
            at += 1
            failures += 1
            continue
        found += _calls_in(value, _MAX_DEPTH)
    return [
        ToolCall(f"call{number}", call["name"], _arguments(call["name"], call.get("arguments", {})))
        for number, call in enumerate(found)
    ]


def _calls_in(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        yield value
    elif isinstance(value, dict | list) and depth:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _calls_in(item, depth - 1)


def _arguments(name: str, given: Any) -> str:
    """The arguments as JSON text, with the ids where the tool of this name looks for them."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return str(given)
    expected = "segment_id" if name == "pin_segment" else "segment_ids"
    listed = given
    if isinstance(given, dict):
        if expected not in given and len(given) != 1:
            return json.dumps(given)
        listed = given[expected] if expected in given else next(iter(given.values()))
    ids = _whole_numbers(listed)
    if ids is None:
        return json.dumps(given if isinstance(given, dict) else {expected: listed})
    made: dict[str, Any] = {expected: ids[0] if name == "pin_segment" and len(ids) == 1 else ids}
    if name == "keep_segments" and isinstance(given, dict) and "precision" in given:
        made["precision"] = given["precision"]
    return json.dumps(made)


def _whole_numbers(value: Any) -> list[int] | None:
    """A number or a list of them as integers; None where one of them is none."""
    numbers = [_whole_number(one) for one in (value if isinstance(value, list) else [value])]
    known = [one for one in numbers if one is not None]
    return known if len(known) == len(numbers) else None


def _whole_number(value: Any) -> int | None:
    if type(value) is int:
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdecimal():
        # Longer ones are no ids, and Python refuses to read very long ones.
        return int(value) if len(value) <= 18 else None
    return None
