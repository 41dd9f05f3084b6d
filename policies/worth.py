"""Drops what the model thinks worth least.

The score is the worth a `Judge` read off the model's logits. A segment that was not judged (no
logits, no time) counts as an average one that fades with age:

    score = mean worth of the judged ones - age_turns / half_life_turns
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentmem.decision import Candidate
from agentmem.errors import InvalidInput
from agentmem.policies.base import ScorerPolicy, mean_known


@dataclass(frozen=True)
class WorthPolicy(ScorerPolicy):
    """Keeps what the model would keep: the score is a log-odds.

    Args:
        half_life_turns: turns after which an unjudged segment has lost one unit of log-odds.
    """

    half_life_turns: float = 20.0

    name = "worth"

    def __post_init__(self) -> None:
        if self.half_life_turns <= 0:
            raise InvalidInput(f"`half_life_turns` must be positive: got {self.half_life_turns}.")

    def score(self, candidate: Candidate, candidates: Sequence[Candidate]) -> float:
        """The model's worth, or the mean of the known less what age takes."""
        if candidate.worth is not None:
            return candidate.worth
        average = mean_known((c.worth for c in candidates), default=0.0)
        return average - candidate.age_turns / self.half_life_turns

    def explain(self, candidate: Candidate, score: float) -> str:
        """Name the worth, or say that it is unknown."""
        if candidate.worth is None:
            return f"the model was not asked what it is worth, which counts as {score:.3f}"
        return f"the model's log-odds for keeping it are {score:.3f}"
