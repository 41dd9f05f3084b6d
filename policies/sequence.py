"""Several policies one after the other, each finishing what the ones before could not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentmem.budget import Budget
from agentmem.decision import Candidate, Decision
from agentmem.errors import InvalidInput
from agentmem.policies.base import SegmentPolicy


@dataclass(frozen=True)
class SequencePolicy(SegmentPolicy):
    """Asks the next policy only where the former ones did not reach the target.

    `SequencePolicy([PinnedPolicy(WindowPolicy(), predicate=precious), WindowPolicy()])` lets
    precious segments go only when nothing else is left.

    Args:
        policies: in the order they are asked.
    """

    policies: Sequence[SegmentPolicy]

    def __post_init__(self) -> None:
        if not self.policies:
            raise InvalidInput("`SequencePolicy` needs at least one policy: got none.")

    @property
    def name(self) -> str:
        """The names of all parts in order."""
        return ">".join(policy.name for policy in self.policies)

    def decide(self, candidates: Sequence[Candidate], budget: Budget) -> list[Decision]:
        """The decisions of each policy about what the ones before left in the window."""
        decisions: list[Decision] = []
        remaining = list(candidates)
        for policy in self.policies:
            made = policy.decide(remaining, budget)
            gone = {segment_id for decision in made for segment_id in decision.segment_ids}
            remaining = [c for c in remaining if c.id not in gone]
            decisions += made
        return decisions
