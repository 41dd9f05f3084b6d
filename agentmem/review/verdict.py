"""What a review came to: decisions in the order they are to be applied, and what it is filed with.

The record holds ids, numbers and the model's own words, never a segment's text. The ledger files it
with the first decision of the review; the others point to that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentmem.decision import Candidate, Decision
from agentmem.review.tools import Refusal, ReviewTools


@dataclass(slots=True)
class Verdict:
    """Decisions of one review, gathered rung by rung.

    Attributes:
        candidates: what is in the window by itself, with the evidence that was decided on.
        target: tokens the review had to come down to.
        model: who was asked; "" where only a policy was.
        decisions: in the order they are to be applied.
        refusals: calls of the model that did not become decisions.
        calls: answers the model was asked for.
        judged: segments whose worth was read off the model's logits.
        seconds: wall-clock of the whole review.
        raw: what the model answered, verbatim.
        outside: segments outside the window that the model was shown.
        returns: the model's decisions to bring back, which are applied once others have left.
        tokens_returned: of what is brought back.
    """

    candidates: Sequence[Candidate] = ()
    target: int = 0
    model: str = ""
    decisions: list[Decision] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    calls: int = 0
    judged: int = 0
    seconds: float = 0.0
    raw: list[str] = field(default_factory=list)
    outside: Sequence[Candidate] = ()
    returns: list[Decision] = field(default_factory=list)
    tokens_returned: int = 0

    @property
    def inputs(self) -> str:
        """Sixteen hex digits of everything that was decided on: the same inputs have the same."""
        facts = [
            [c.id, c.pinned, c.protected, c.evidence() if c.movable else c.num_tokens]
            for c in self.candidates
        ]
        facts += [[c.id, c.evidence()] for c in self.outside]
        payload = json.dumps([self.target, facts], sort_keys=True)
        return hashlib.sha256(payload.encode()).hexdigest()[:16]

    def take(self, answer: str, tools: ReviewTools) -> None:
        """Add one answer of the model and what came of it."""
        self.calls += 1
        self.raw.append(answer)
        self.decisions += tools.decisions
        self.returns += tools.returns
        self.tokens_returned += tools.tokens_returned
        self.refusals += tools.refusals

    def cost(self) -> dict[str, Any]:
        """For the log of decisions, as plain JSON: what was seen, answered, and came of it."""
        offered = [candidate for candidate in self.candidates if candidate.movable]
        shown = {"outside": [candidate.id for candidate in self.outside]} if self.outside else {}
        return {
            **shown,
            "calls": self.calls,
            "judged": self.judged,
            "seconds": round(self.seconds, 3),
            "raw": tuple(self.raw),
            "inputs": self.inputs,
            "model": self.model,
            "target": self.target,
            "offered": [candidate.id for candidate in offered],
            "evidence": {str(candidate.id): candidate.evidence() for candidate in offered},
            "parsed": self._parsed(),
        }

    def _parsed(self) -> list[dict[str, Any]]:
        """Every call the model made: the segments it was accepted and refused for, and why."""
        calls: dict[str, dict[str, Any]] = {}

        def of(tool_call: Mapping[str, Any]) -> dict[str, Any]:
            call = dict(tool_call)
            empty = {"call": call, "accepted": [], "refused": []}
            return calls.setdefault(json.dumps(call, sort_keys=True, default=str), empty)

        for decision in self.decisions:
            if decision.tool_call is not None:
                of(decision.tool_call)["accepted"] += decision.segment_ids
        for refusal in self.refusals:
            of(refusal.tool_call)["refused"].append([list(refusal.segment_ids), refusal.reason])
        return list(calls.values())
