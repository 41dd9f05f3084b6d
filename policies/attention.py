"""Drops what the model looked at least.

Based on H2O, arXiv 2306.14048, for whole segments instead of tokens: the score is the attention
mass a segment received per token from the queries of the last turns.

Where that is unknown (a model without KV, a segment that has not been attended to yet) the segment
counts as an average one that fades with age:

    score = mean attention of the known ones * 0.5 ** (age_turns / half_life_turns)

With no attention known at all this is the order of `WindowPolicy`, and the reason says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentmem.decision import Candidate
from agentmem.errors import InvalidInput
from agentmem.policies.base import ScorerPolicy, mean_known


@dataclass(frozen=True)
class AttentionPolicy(ScorerPolicy):
    """Keeps what the model attended to, per token.

    Args:
        half_life_turns: turns after which a segment of unknown attention counts half of the mean.
    """

    half_life_turns: float = 20.0

    name = "attention"

    def __post_init__(self) -> None:
        if self.half_life_turns <= 0:
            raise InvalidInput(f"`half_life_turns` must be positive: got {self.half_life_turns}.")

    def score(self, candidate: Candidate, candidates: Sequence[Candidate]) -> float:
        """Attention mass per token; for an unknown one the mean of the others, fading with age."""
        if candidate.attention is not None:
            return candidate.attention
        mean = mean_known((c.attention for c in candidates if c.movable), default=1.0)
        return mean * math.exp2(-candidate.age_turns / self.half_life_turns)

    def explain(self, candidate: Candidate, score: float) -> str:
        """Name the attention, or say that age stood in for it."""
        if candidate.attention is None:
            return (
                f"its attention is unknown, so its age of {candidate.age_turns} turns decided "
                f"(score {score:.3g})"
            )
        return f"it received {score:.3g} of the attention per token"
