"""What happens to segments, who decided it, and on what evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from agentmem.segment import Precision, Segment, State

Action = Literal[
    "keep", "unkeep", "summarize", "drop", "pin", "unpin", "bring_back", "forget"
]  # fmt: skip
Source = Literal["controller", "policy", "user"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A segment in the window with its evidence at this turn.

    Args:
        segment: what it is.
        num_tokens: what it takes in the window, by the model's own tokenizer.
        age_turns: turns since it was said.
        idle_turns: turns since it was said, recalled or brought back.
        attention: attention mass it received per token, from the queries of the last turns;
            None where unknown, never 0 for that.
        recalls: how often it was found again.
        similarity: cosine similarity to the newest user message, in [-1, 1]; None where unknown.
        echo: of an answer, its cosine similarity to the message it answers where that is in the
            window too: how much it only repeats; None of anything else, and where unknown.
        worth: what the model thinks it is worth, as log-odds of keeping it; None where
            it was not asked.
        state: where it lives.
        pinned: whether it may not be dropped or summarized.
        protected: why it may not be touched now ("core", "newest turn", "kept", "recalled"), or "".
    """

    segment: Segment
    num_tokens: int
    age_turns: int = 0
    idle_turns: int = 0
    attention: float | None = None
    recalls: int = 0
    similarity: float | None = None
    echo: float | None = None
    worth: float | None = None
    state: State = "live"
    pinned: bool = False
    protected: str = ""

    @property
    def id(self) -> int:
        """The segment's id."""
        return self.segment.id

    @property
    def movable(self) -> bool:
        """Whether a decision may take it out of the window."""
        return not self.pinned and not self.protected

    def evidence(self) -> dict[str, Any]:
        """The evidence as plain numbers, for the log, `why` and the controller."""
        return {
            "num_tokens": self.num_tokens,
            "age_turns": self.age_turns,
            "idle_turns": self.idle_turns,
            "attention": self.attention,
            "recalls": self.recalls,
            "similarity": self.similarity,
            "echo": self.echo,
            "worth": self.worth,
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about one or more segments.

    Args:
        action: what is to happen.
        segment_ids: to which segments; a summary is made of all of them together.
        source: who decided.
        reason: why, in one sentence for people.
        maker: the policy's or model's name.
        evidence: per segment id, the evidence it was decided on.
        alternative: the runner-up: the next-best action or segment and its score, in words.
        tool_call: the call that asked for it, as the model made it; None where no model did.
        precision: what kept segments' keys and values are to be stored at; None changes nothing.
    """

    action: Action
    segment_ids: tuple[int, ...]
    source: Source
    reason: str = ""
    maker: str = ""
    evidence: Mapping[int, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    alternative: str = ""
    tool_call: Mapping[str, Any] | None = None
    precision: Precision | None = None

    def __post_init__(self) -> None:
        if not self.segment_ids:
            raise ValueError(f"A {self.action} decision needs at least one segment: got none.")
