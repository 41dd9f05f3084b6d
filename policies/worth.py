"""Drops what the model thinks worth least.

    score = worth - echo_weight * echo

Worth is the log-odds a `Judge` read off the model's logits. An answer has that of the message it
answers, and loses by how much it only repeats it. A segment that was not judged (no logits, no
time) counts as an average one that fades with age:

    worth = mean worth of the judged ones - age_turns / half_life_turns
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentmem.decision import Candidate
from agentmem.errors import InvalidInput
from agentmem.policies.base import ScorerPolicy, mean_known


@dataclass(frozen=True)
class WorthPolicy(ScorerPolicy):
    """Keeps what the model would keep: the score is a log-odds.

    Args:
        half_life_turns: turns after which an unjudged segment has lost one unit of log-odds.
        echo_weight: log-odds that an answer loses which says nothing but what it answers.
    """

    half_life_turns: float = 20.0
    echo_weight: float = field(default=2.0, kw_only=True)

    name = "worth"

    def __post_init__(self) -> None:
        if self.half_life_turns <= 0:
            raise InvalidInput(f"`half_life_turns` must be positive: got {self.half_life_turns}.")
        if self.echo_weight < 0:
            raise InvalidInput(f"`echo_weight` must not be negative: got {self.echo_weight}.")

    def score(self, candidate: Candidate, candidates: Sequence[Candidate]) -> float:
        """The model's worth, or the mean of the known less what age takes; less the echo."""
        worth = candidate.worth
        if worth is None:
            average = mean_known((c.worth for c in candidates), default=0.0)
            worth = average - candidate.age_turns / self.half_life_turns
        return worth - self.echo_weight * max(0.0, candidate.echo or 0.0)

    def explain(self, candidate: Candidate, score: float) -> str:
        """Name the worth, or say that it is unknown, and the echo."""
        if candidate.worth is None:
            worth = "the model was not asked what it is worth"
        else:
            worth = f"the model's log-odds for keeping it are {candidate.worth:.3f}"
        echo = f", {candidate.echo:.0%} of it echoes its question" if candidate.echo else ""
        return f"{worth}{echo}, which scores {score:.3f}"
