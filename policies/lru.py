"""Drops what was idle longest: least recently used, as in a page cache.

Used means said, recalled or brought back, so a segment that keeps being needed stays however old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentmem.decision import Candidate
from agentmem.policies.base import ScorerPolicy


@dataclass(frozen=True)
class LRUPolicy(ScorerPolicy):
    """Keeps what was used last: the score is minus the idle turns."""

    name = "lru"

    def score(self, candidate: Candidate, candidates: Sequence[Candidate]) -> float:
        """Minus the turns since it was last used."""
        return -float(candidate.idle_turns)

    def explain(self, candidate: Candidate, score: float) -> str:
        """Name the idle time."""
        return f"it was last used {candidate.idle_turns} turns ago"
