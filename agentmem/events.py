"""What one turn tells its caller as it happens: each event is one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentmem.decision import Action, Source
from agentmem.models.base import FinishReason

Via = Literal["kv", "text"]
TurnKey = int | str
"""What the caller calls a turn; the turn's number where the caller gave no name."""


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the reply as it streams. Not part of the JSON stream."""

    text: str


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """A session was opened or resumed."""

    session: str
    model: str
    budget: int
    kv: str
    turns: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "type": "session",
            "session": self.session,
            "model": self.model,
            "budget": self.budget,
            "kv": self.kv,
            "turns": self.turns,
        }


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision was applied, or refused (`valid` is False and `reason` says why)."""

    id: int
    turn: TurnKey
    action: Action
    segments: tuple[int, ...]
    source: Source
    reason: str
    valid: bool = True
    tool_call: Mapping[str, Any] | None = None
    tokens_before: int = 0
    tokens_after: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "type": "decision",
            "id": self.id,
            "turn": self.turn,
            "action": self.action,
            "segments": list(self.segments),
            "source": self.source,
            "tool_call": None if self.tool_call is None else dict(self.tool_call),
            "valid": self.valid,
            "reason": self.reason,
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
        }


@dataclass(frozen=True, slots=True)
class RecalledSegment:
    """One segment that recall brought back: from which state, and whether as KV or as text."""

    id: int
    score: float
    origin: str
    via: Via
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Recalled:
    """Recall brought segments back into the window."""

    turn: TurnKey
    query: str
    segments: tuple[RecalledSegment, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "type": "recall",
            "turn": self.turn,
            "query": self.query,
            "segments": [
                {
                    "id": segment.id,
                    "score": round(segment.score, 4),
                    "from": segment.origin,
                    "via": segment.via,
                    "num_tokens": segment.num_tokens,
                }
                for segment in self.segments
            ],
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """What a conversation costs after a turn, and what a dense cache of all of it would hold.

    Args:
        prompt_tokens: tokens the model attended to when the reply began; never above `budget`.
        peak_tokens: most tokens any forward of the turn attended to, reviews included.
        kv_bytes: everything the KV tier holds for tokens in the window.
        kv_bytes_host: of these, those in host memory because the device has no room for them.
        kv_bytes_dense: a dense bf16 cache of the whole conversation so far.
        rss: resident bytes of this process.
        segments: segments of this session per state.
        seconds: wall-clock per stage: recall, controller, prefill, decode.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    peak_tokens: int = 0
    budget: int = 0
    kv_bytes: int = 0
    kv_bytes_host: int = 0
    kv_bytes_dense: int = 0
    kv_bytes_parked_ram: int = 0
    kv_bytes_parked_disk: int = 0
    rss: int = 0
    segments: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "peak_tokens": self.peak_tokens,
            "budget": self.budget,
            "kv_bytes": self.kv_bytes,
            "kv_bytes_host": self.kv_bytes_host,
            "kv_bytes_dense": self.kv_bytes_dense,
            "kv_bytes_parked_ram": self.kv_bytes_parked_ram,
            "kv_bytes_parked_disk": self.kv_bytes_parked_disk,
            "rss": self.rss,
            "segments": dict(self.segments),
            "seconds": {name: round(value, 4) for name, value in self.seconds.items()},
        }


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one turn: sent after everything it changed is committed.

    Args:
        turn: the caller's name for the turn, or its number.
        text: what the model said.
        finish_reason: why it ended.
        usage: what the conversation costs now.
        repeated: the turn had been answered before; this is the stored reply.
    """

    turn: TurnKey
    text: str
    finish_reason: FinishReason
    usage: Usage = field(default_factory=Usage)
    repeated: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "type": "reply",
            "turn": self.turn,
            "text": self.text,
            "finish_reason": self.finish_reason,
            **self.usage.to_dict(),
        }


Event = SessionStarted | Decided | Recalled | Token | Reply
