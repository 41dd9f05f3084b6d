"""Spares what has just come back, so that nothing goes in and out turn after turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentmem.budget import Budget
from agentmem.decision import Candidate, Decision
from agentmem.errors import InvalidInput
from agentmem.policies.base import SegmentPolicy
from agentmem.policies.pinned import PinnedPolicy
from agentmem.policies.sequence import SequencePolicy


@dataclass(frozen=True)
class HysteresisPolicy(SegmentPolicy):
    """Lets a segment that was used again lately go only when nothing else is left.

    Args:
        inner: decides.
        turns: how long ago a use still counts as lately.
    """

    inner: SegmentPolicy
    turns: int = field(default=4, kw_only=True)

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise InvalidInput(f"`turns` must be positive: got {self.turns}.")

    @property
    def name(self) -> str:
        """The inner policy's name, marked."""
        return f"hysteresis({self.inner.name})"

    def came_back(self, candidate: Candidate) -> bool:
        """Whether it was used again, after it was said, in the last turns."""
        return candidate.idle_turns < min(self.turns, candidate.age_turns)

    def decide(self, candidates: Sequence[Candidate], budget: Budget) -> list[Decision]:
        """What the inner policy decides about the others, then about these."""
        spared = PinnedPolicy(self.inner, predicate=self.came_back)
        return SequencePolicy([spared, self.inner]).decide(candidates, budget)
