"""Shields chosen segments from another policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from agentmem.budget import Budget
from agentmem.decision import Candidate, Decision
from agentmem.errors import InvalidInput
from agentmem.policies.base import SegmentPolicy


@dataclass(frozen=True)
class PinnedPolicy(SegmentPolicy):
    """Never lets some segments go, whatever the inner policy thinks of them.

    Args:
        inner: decides about the others.
        ids: segments that stay.
        predicate: candidates for which it is true stay too.
    """

    inner: SegmentPolicy
    ids: Collection[int] = field(default=(), kw_only=True)
    predicate: Callable[[Candidate], bool] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not self.ids and self.predicate is None:
            raise InvalidInput("`PinnedPolicy` needs `ids` or a `predicate`: got neither.")

    @property
    def name(self) -> str:
        """The inner policy's name, marked."""
        return f"pinned({self.inner.name})"

    def pins(self, candidate: Candidate) -> bool:
        """Whether this candidate stays."""
        return candidate.id in self.ids or (
            self.predicate is not None and self.predicate(candidate)
        )

    def decide(self, candidates: Sequence[Candidate], budget: Budget) -> list[Decision]:
        """What the inner policy decides when these segments are pinned."""
        shielded = [replace(c, pinned=True) if self.pins(c) else c for c in candidates]
        pinned_ids = {c.id for c in shielded if c.pinned}
        # An inner policy that others wrote may overlook `movable`; the promise here still holds.
        return [
            decision
            for decision in self.inner.decide(shielded, budget)
            if pinned_ids.isdisjoint(decision.segment_ids)
        ]
