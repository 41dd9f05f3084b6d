"""Drops the longest first: many short segments hold more than a few long ones.

Based on the SIZE policy of web caches (Williams et al., SIGCOMM 1996).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentmem.decision import Candidate
from agentmem.policies.base import ScorerPolicy


@dataclass(frozen=True)
class SizePolicy(ScorerPolicy):
    """Keeps what takes least: the score is minus the tokens."""

    name = "size"

    def score(self, candidate: Candidate, candidates: Sequence[Candidate]) -> float:
        """Minus its tokens."""
        return -float(candidate.num_tokens)

    def explain(self, candidate: Candidate, score: float) -> str:
        """Name the tokens."""
        return f"it takes {candidate.num_tokens} tokens"
