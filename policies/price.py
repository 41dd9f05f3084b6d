"""Drops what costs most for what it is used.

    score = (1 + recalls) * 0.5 ** (idle_turns / half_life_turns) / num_tokens

Based on GreedyDual-Size-Frequency (Cherkasova, HPL-98-69R1) for segments: bringing any of them back
costs one recall, so a use is worth the same, and a token in the window is what it pays for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentmem.decision import Candidate
from agentmem.errors import InvalidInput
from agentmem.policies.base import ScorerPolicy


@dataclass(frozen=True)
class PricePolicy(ScorerPolicy):
    """Keeps what is used most for its tokens.

    Args:
        half_life_turns: idle turns after which a use counts half.
    """

    half_life_turns: float = 20.0

    name = "price"

    def __post_init__(self) -> None:
        if self.half_life_turns <= 0:
            raise InvalidInput(f"`half_life_turns` must be positive: got {self.half_life_turns}.")

    def score(self, candidate: Candidate, candidates: Sequence[Candidate]) -> float:
        """Uses per token, fading while idle."""
        uses = (1 + candidate.recalls) * math.exp2(-candidate.idle_turns / self.half_life_turns)
        return uses / max(1, candidate.num_tokens)

    def explain(self, candidate: Candidate, score: float) -> str:
        """Name size, use and idle time."""
        return (
            f"it takes {candidate.num_tokens} tokens, was recalled {candidate.recalls} times and "
            f"last used {candidate.idle_turns} turns ago, which scores {score:.4f}"
        )
