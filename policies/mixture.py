"""What the model thinks, what a segment takes and how near it is, in one score.

    score = sum(weight_i * z_i)

z_i is what policy i says, in standard deviations from its mean over the movable segments. The
default weights were chosen on generated conversations that no published figure is measured on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentmem.decision import Candidate
from agentmem.errors import InvalidInput
from agentmem.policies.base import ScorerPolicy
from agentmem.policies.relevance import RelevancePolicy
from agentmem.policies.size import SizePolicy
from agentmem.policies.worth import WorthPolicy


def _weights() -> dict[ScorerPolicy, float]:
    return {
        WorthPolicy(): 1.0,
        SizePolicy(): 0.5,
        RelevancePolicy(): 0.25,
    }


@dataclass(frozen=True)
class MixturePolicy(ScorerPolicy):
    """Keeps what the model would keep, where the rest of the evidence does not say otherwise.

    Args:
        weights: a positive weight a policy.
    """

    weights: Mapping[ScorerPolicy, float] = field(default_factory=_weights)

    name = "mixture"

    def __post_init__(self) -> None:
        if not self.weights:
            raise InvalidInput("`MixturePolicy` needs at least one policy: got none.")
        if min(self.weights.values()) <= 0:
            raise InvalidInput(f"`weights` must be positive: got {min(self.weights.values())}.")

    def score(self, candidate: Candidate, candidates: Sequence[Candidate]) -> float:
        """The weighted sum of this movable segment's standard scores."""
        return self.scores(candidates)[candidate.id]

    def scores(self, candidates: Sequence[Candidate]) -> dict[int, float]:
        """The weighted sum of standard scores of every movable candidate, by its id."""
        scores = {c.id: 0.0 for c in candidates if c.movable}
        for policy, weight in self.weights.items():
            for segment_id, z in _standard(policy.scores(candidates)).items():
                scores[segment_id] += weight * z
        return scores

    def explain(self, candidate: Candidate, score: float) -> str:
        """Name the model's worth beside the score of everything."""
        if candidate.worth is None:
            return f"all evidence together scores it {score:.3f}, the model was not asked"
        return (
            f"all evidence together scores it {score:.3f}, the model's log-odds for keeping it are "
            f"{candidate.worth:.3f}"
        )


def _standard(scores: Mapping[int, float]) -> dict[int, float]:
    """Scores in standard deviations from their mean; all 0 where they do not differ."""
    if not scores:
        return {}
    # Exact sums: the order of the candidates must not matter.
    mean = math.fsum(scores.values()) / len(scores)
    deviation = math.sqrt(math.fsum((s - mean) ** 2 for s in scores.values()) / len(scores))
    if deviation < 1e-12:
        return dict.fromkeys(scores, 0.0)
    return {segment_id: (score - mean) / deviation for segment_id, score in scores.items()}
