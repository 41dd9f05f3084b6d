"""Drops the oldest first: a sliding window over whole segments.

Based on StreamingLLM, arXiv 2309.17453. Its attention sinks are the system prompt and core blocks,
which are protected and so always stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentmem.decision import Candidate
from agentmem.policies.base import ScorerPolicy


@dataclass(frozen=True)
class WindowPolicy(ScorerPolicy):
    """Keeps the newest segments: the score is minus the age in turns."""

    name = "window"

    def score(self, candidate: Candidate, candidates: Sequence[Candidate]) -> float:
        """Minus the turns since it was said."""
        return -float(candidate.age_turns)

    def explain(self, candidate: Candidate, score: float) -> str:
        """Name the age."""
        return f"it was said {candidate.age_turns} turns ago"
