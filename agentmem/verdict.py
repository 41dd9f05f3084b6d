"""What a review came to: decisions in the order they are to be applied, and its cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentmem.decision import Decision
from agentmem.tools import Refusal, ReviewTools


@dataclass(slots=True)
class Verdict:
    """Decisions of one review, gathered rung by rung.

    Attributes:
        decisions: in the order they are to be applied.
        refusals: calls of the model that did not become decisions.
        calls: answers the model was asked for.
        judged: segments whose worth was read off the model's logits.
        seconds: wall-clock of the whole review.
        raw: what the model answered, verbatim.
        inputs: what it was decided on, by its hash.
    """

    decisions: list[Decision] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    calls: int = 0
    judged: int = 0
    seconds: float = 0.0
    raw: list[str] = field(default_factory=list)
    inputs: str = ""

    def take(self, answer: str, tools: ReviewTools) -> None:
        """Add one answer of the model and what came of it."""
        self.calls += 1
        self.raw.append(answer)
        self.decisions += tools.decisions
        self.refusals += tools.refusals

    def cost(self) -> dict[str, Any]:
        """For the log of decisions, as plain JSON."""
        return {
            "calls": self.calls,
            "judged": self.judged,
            "seconds": round(self.seconds, 3),
            "raw": tuple(self.raw),
            "inputs": self.inputs,
        }
