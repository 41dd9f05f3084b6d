"""Drops what has least to do with the newest message.

    score = similarity - age_weight * (1 - 0.5 ** (age_turns / half_life_turns))

The second term grows from 0 for the newest segment towards `age_weight`: of two segments that are
equally near the newest message the older one goes. An unknown similarity counts as the mean of the
known ones (as 0 where none is known), so that segment is ranked by its age alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentmem.decision import Candidate
from agentmem.errors import InvalidInput
from agentmem.policies.base import ScorerPolicy, mean_known


@dataclass(frozen=True)
class RelevancePolicy(ScorerPolicy):
    """Keeps what is near the newest user message, and among equals the newer.

    Args:
        half_life_turns: turns after which half of the age penalty is reached.
        age_weight: the penalty of an infinitely old segment, in units of cosine similarity.
    """

    half_life_turns: float = 20.0
    age_weight: float = field(default=0.5, kw_only=True)

    name = "relevance"

    def __post_init__(self) -> None:
        if self.half_life_turns <= 0:
            raise InvalidInput(f"`half_life_turns` must be positive: got {self.half_life_turns}.")
        if self.age_weight < 0:
            raise InvalidInput(f"`age_weight` must not be negative: got {self.age_weight}.")

    def score(self, candidate: Candidate, candidates: Sequence[Candidate]) -> float:
        """Similarity less the penalty for age."""
        similarity = candidate.similarity
        if similarity is None:
            similarity = mean_known((c.similarity for c in candidates), default=0.0)
        penalty = 1 - math.exp2(-candidate.age_turns / self.half_life_turns)
        return similarity - self.age_weight * penalty

    def explain(self, candidate: Candidate, score: float) -> str:
        """Name similarity and age."""
        if candidate.similarity is None:
            near = "how near it is to the newest message is unknown"
        else:
            near = f"its similarity to the newest message is {candidate.similarity:.3f}"
        return f"{near} and it was said {candidate.age_turns} turns ago, which scores {score:.3f}"
