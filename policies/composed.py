"""Several scores in one: a weighted sum of ranks.

    score = sum(weight_i * rank_i) / sum(weight_i)

rank_i runs from 0 (what policy i would drop first) to 1 among the movable segments; equal scores
share their mean rank. Ranks and not scores are added because turns, attention and cosine
similarity have no common unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from agentmem.decision import Candidate
from agentmem.errors import InvalidInput
from agentmem.policies.base import ScorerPolicy


@dataclass(frozen=True)
class ComposedPolicy(ScorerPolicy):
    """Keeps what several policies together rank highest.

    Args:
        policies: the policies whose ranks are added.
        weights: one positive weight a policy; all equal where none are given.
    """

    policies: Sequence[ScorerPolicy]
    weights: Sequence[float] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if not self.policies:
            raise InvalidInput("`ComposedPolicy` needs at least one policy: got none.")
        if not self.weights:
            object.__setattr__(self, "weights", (1.0,) * len(self.policies))
        if len(self.weights) != len(self.policies):
            raise InvalidInput(
                f"`weights` must have one number a policy: got {len(self.weights)} for "
                f"{len(self.policies)} policies."
            )
        if min(self.weights) <= 0:
            raise InvalidInput(f"`weights` must be positive: got {min(self.weights)}.")

    @property
    def name(self) -> str:
        """The names of all parts."""
        return "+".join(policy.name for policy in self.policies)

    def score(self, candidate: Candidate, candidates: Sequence[Candidate]) -> float:
        """The weighted mean of this movable segment's ranks, in [0, 1]."""
        return self.scores(candidates)[candidate.id]

    def scores(self, candidates: Sequence[Candidate]) -> dict[int, float]:
        """The weighted mean rank of every movable candidate by its id."""
        total_weight = sum(self.weights)
        scores = {c.id: 0.0 for c in candidates if c.movable}
        for policy, weight in zip(self.policies, self.weights, strict=True):
            for segment_id, rank in _ranks(policy.scores(candidates)).items():
                scores[segment_id] += rank * weight / total_weight
        return scores

    def explain(self, candidate: Candidate, score: float) -> str:
        """Name the mean rank."""
        return f"its mean rank by {self.name} is {score:.3f} (0 goes first)"


def _ranks(scores: dict[int, float]) -> dict[int, float]:
    """Ranks in [0, 1]; equal scores share their mean rank, a lone segment has 0.5."""
    ordered = sorted(scores, key=lambda segment_id: scores[segment_id])
    if len(ordered) == 1:
        return {ordered[0]: 0.5}
    ranks: dict[int, float] = {}
    first = 0
    for _, group in groupby(ordered, key=lambda segment_id: scores[segment_id]):
        tied = list(group)
        shared = (first + (len(tied) - 1) / 2) / (len(ordered) - 1)
        ranks.update(dict.fromkeys(tied, shared))
        first += len(tied)
    return ranks
