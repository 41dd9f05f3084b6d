"""Values as JSON text in a column: strict both ways, no NaN, no pickles, no types but JSON's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from agentmem.decision import Decision
from agentmem.errors import InvalidInput, StoreCorrupt
from agentmem.segment import State, ToolCall
from agentmem.storage.rows import WindowEntry
from agentmem.storage.text import check_text


def dump(value: object, what: str) -> str:
    """The value as JSON text.

    Raises:
        InvalidInput: it is not JSON (NaN, a lone surrogate, an object of a class); `what` names it.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=_as_dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{what} must be plain JSON: {error}.") from error
    return check_text(text, what)


def _as_dict(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"got a {type(value).__name__}")


def load(text: str, what: str) -> Any:
    """Read what `dump` wrote.

    Raises:
        StoreCorrupt: it is not JSON; `what` names it.
    """
    with _of_shape(what):
        return json.loads(text)


def load_object(text: str, what: str) -> dict[str, Any]:
    """Read an object that `dump` wrote.

    Raises:
        StoreCorrupt: it is none; `what` names it.
    """
    value = load(text, what)
    with _of_shape(what):
        if not isinstance(value, dict):
            raise TypeError(f"a {type(value).__name__} where an object belongs")
    return value


@contextmanager
def _of_shape(what: str) -> Iterator[None]:
    """What is read from a column may be anything once the column is damaged."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise StoreCorrupt(
            f"{what} in the store is damaged: {error}. Restore the store from a backup."
        ) from error


def tool_calls_from_json(text: str, what: str) -> tuple[ToolCall, ...]:
    """Read the calls of a message.

    Raises:
        StoreCorrupt: they are none; `what` names them.
    """
    calls = load(text, what)
    with _of_shape(what):
        return tuple(ToolCall(call["id"], call["name"], call["arguments"]) for call in calls)


def decision_to_json(decision: Decision) -> str:
    """A decision as JSON text."""
    return dump(
        {
            "action": decision.action,
            "segment_ids": [int(segment_id) for segment_id in decision.segment_ids],
            "source": decision.source,
            "reason": decision.reason,
            "maker": decision.maker,
            "evidence": {str(key): dict(value) for key, value in decision.evidence.items()},
            "alternative": decision.alternative,
            "tool_call": decision.tool_call,
            "precision": decision.precision,
        },
        "A decision",
    )


def decision_from_json(text: str) -> Decision:
    """Read what `decision_to_json` wrote."""
    data = load(text, "A decision")
    with _of_shape("A decision"):
        return Decision(
            action=data["action"],
            segment_ids=tuple(data["segment_ids"]),
            source=data["source"],
            reason=data["reason"],
            maker=data["maker"],
            evidence={int(key): value for key, value in data["evidence"].items()},
            alternative=data["alternative"],
            tool_call=data["tool_call"],
            # Stores of older agentmem have none.
            precision=data.get("precision"),
        )


def window_to_json(window: Iterable[WindowEntry]) -> str:
    """A window as JSON text."""
    return dump([[e.segment_id, e.place, e.via, e.until_turn] for e in window], "A window")


def window_from_json(text: str) -> tuple[WindowEntry, ...]:
    """Read what `window_to_json` wrote."""
    rows = load(text, "A window")
    with _of_shape("A window"):
        return tuple(WindowEntry(*row) for row in rows)


def states_to_json(states: Mapping[int, tuple[State, bool]]) -> str:
    """States and pins per segment id, as JSON text."""
    rows = {str(key): [state, bool(pinned)] for key, (state, pinned) in states.items()}
    return dump(rows, "States")


def states_from_json(text: str) -> dict[int, tuple[State, bool]]:
    """Read what `states_to_json` wrote."""
    rows = load(text, "States")
    with _of_shape("States"):
        return {int(key): (cast(State, state), pinned) for key, (state, pinned) in rows.items()}


def without_text(value: Any) -> Any:
    """JSON with each string value replaced by an empty one."""
    if isinstance(value, str):
        return ""
    if isinstance(value, Mapping):
        return {key: without_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_text(item) for item in value]
    return value
