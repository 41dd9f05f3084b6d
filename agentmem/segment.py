"""The unit of memory: a message or a tool exchange, as a frozen value.

A segment is what it says, where it came from and what it was made of. Where it lives (`State`),
whether it is pinned, how many tokens it takes and its KV are facts of a window, a tokenizer or a
tier: they are not in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Literal, get_args

Role = Literal["system", "user", "assistant", "tool"]
Kind = Literal[
    "turn",
    "tool_exchange",
    "thought",
    "summary",
    "document_part",
    "instruction",
    "core_block",
    "passage",
]
State = Literal["live", "compressed", "parked", "archived", "summarized", "forgotten"]
Origin = Literal["system", "user", "assistant", "tool", "import", "summary"]
Precision = Literal["dense", "q8", "fp8", "q4", "binary"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
"""Formats that a segment's keys and values may be stored in, whatever the others have: those that
need no calibration."""


class Trust(IntEnum):
    """How far a text may be believed. A summary has the least trust of its sources."""

    EXTERNAL = 1
    """Tool results, imports, pages: data, never instructions."""
    USER = 2
    """What the user said, and what the assistant answered."""
    SYSTEM = 3
    """What the application itself wrote."""


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON: use a number, or null.")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call a model made: `arguments` is the JSON object as text."""

    id: str
    name: str
    arguments: str = "{}"

    def parsed(self) -> dict[str, Any]:
        """The arguments as a dict.

        Raises:
            ValueError: they are not one JSON object.
        """
        try:
            value = json.loads(self.arguments, parse_constant=_refuse_constant)
        except RecursionError as error:
            raise ValueError("Tool arguments are nested too deep: use a flat object.") from error
        if not isinstance(value, dict):
            raise ValueError(f"Tool arguments must be a JSON object: got {self.arguments[:80]!r}.")
        return value


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, as LangChain's: role, text, tool calls."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able form; `from_dict` reads it back."""
        data: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            data["tool_calls"] = [
                {"id": call.id, "name": call.name, "arguments": call.arguments}
                for call in self.tool_calls
            ]
        if self.tool_call_id is not None:
            data["tool_call_id"] = self.tool_call_id
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Message:
        """Read what `to_dict` wrote."""
        return cls(
            role=data["role"],
            content=data["content"],
            tool_calls=tuple(
                ToolCall(call["id"], call["name"], call["arguments"])
                for call in data.get("tool_calls", ())
            ),
            tool_call_id=data.get("tool_call_id"),
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """The unit of memory.

    Args:
        messages: one message, or an assistant's tool calls and all their results.
        kind: what it is.
        origin: who wrote it.
        trust: how far it may be believed.
        created: seconds since the epoch.
        parents: ids of the segments it was made from (a summary's originals, a part's stub,
            an instruction's message).
        id: given by the archive, the same in every tier; 0 until then.
        source: of what was imported: the file's SHA-256 in hex, a space, its name.
    """

    messages: tuple[Message, ...]
    kind: Kind = "turn"
    origin: Origin = "user"
    trust: Trust = Trust.USER
    created: float = 0.0
    parents: tuple[int, ...] = ()
    id: int = 0
    source: str = ""
    content_hash: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.messages:
            raise ValueError("A segment needs at least one message: got none.")
        payload = json.dumps(
            [message.to_dict() for message in self.messages], ensure_ascii=False, sort_keys=True
        )
        digest = hashlib.sha256(payload.encode("utf-8", "surrogatepass")).hexdigest()
        object.__setattr__(self, "content_hash", digest)

    @property
    def text(self) -> str:
        """What was said, one message a line: what is embedded, searched and shown."""
        lines = []
        for message in self.messages:
            if message.content:
                lines.append(message.content)
            lines += [f"{call.name}({call.arguments})" for call in message.tool_calls]
        return "\n".join(lines)

    @property
    def role(self) -> Role:
        """The role of the first message."""
        return self.messages[0].role

    @property
    def is_system_prompt(self) -> bool:
        """Whether it is what the application told the model, not core memory."""
        return self.kind == "core_block" and self.origin == "system"

    @property
    def place(self) -> int:
        """Where it stands in time order: its own id, or that of its first original."""
        return min(self.parents) if self.kind == "summary" and self.parents else self.id

    @property
    def tools(self) -> tuple[str, ...]:
        """Names of the tools it calls, each once, in the order of the calls."""
        names = [call.name for message in self.messages for call in message.tool_calls]
        return tuple(dict.fromkeys(names))


MOST_TRUST: Mapping[Origin, Trust] = MappingProxyType(
    {
        "system": Trust.SYSTEM,
        "user": Trust.USER,
        "assistant": Trust.USER,
        "tool": Trust.EXTERNAL,
        "import": Trust.EXTERNAL,
        "summary": Trust.SYSTEM,
    }
)
"""The most that may be had by origin; a summary is bounded by what it was made of."""


def refined(state: State, in_kv: State | None) -> State:
    """The archive's state as the KV tier refines it: a derived tier adds, it never contradicts.

    Args:
        state: where the archive says a segment lives.
        in_kv: where the tier holds it; None where it does not.
    """
    if state == "live" and in_kv == "compressed":
        return "compressed"
    if state in ("archived", "summarized") and in_kv == "parked":
        return "parked"
    return state


def lowest_trust(segments: Iterable[Segment]) -> Trust:
    """The most trust that anything made of these segments may have; SYSTEM for none."""
    return min((segment.trust for segment in segments), default=Trust.SYSTEM)
