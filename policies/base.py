"""What decides, without a model, which segments leave the window.

A policy is pure: the same candidates and budget give the same decisions. It knows nothing of
tokenizers, KV or storage, reads no clock and does no I/O.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from agentmem.budget import Budget
from agentmem.decision import Candidate, Decision
from agentmem.errors import InvalidInput


class SegmentPolicy(ABC):
    """Decides which segments go when the window is too full."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What decisions are signed with, and what settings call it."""

    @abstractmethod
    def decide(self, candidates: Sequence[Candidate], budget: Budget) -> list[Decision]:
        """Choose what leaves the window.

        Args:
            candidates: every segment in the window, in any order. Those that are not `movable`
                count towards the total and are never chosen.
            budget: the window must come down to `budget.target_tokens`.

        Returns:
            One decision per segment, so that each can be undone alone. Applied together they reach
            the target wherever the movable segments allow it; where they do not, all of them go.
        """


class ScorerPolicy(SegmentPolicy):
    """Drops the lowest score first, and stops as soon as the target is reached."""

    @abstractmethod
    def score(self, candidate: Candidate, candidates: Sequence[Candidate]) -> float:
        """How much this segment is worth keeping: higher is kept longer. Finite.

        Args:
            candidate: one of `candidates`.
            candidates: every segment in the window, for scores that compare.
        """

    def scores(self, candidates: Sequence[Candidate]) -> dict[int, float]:
        """The score of every movable candidate by its id."""
        return {c.id: self.score(c, candidates) for c in candidates if c.movable}

    def explain(self, candidate: Candidate, score: float) -> str:
        """Why this score, in words and numbers, for people."""
        return f"it scores {score:.4g}"

    def decide(self, candidates: Sequence[Candidate], budget: Budget) -> list[Decision]:
        """Drop the movable segments with the lowest scores; equal scores go by id, oldest first.

        What is kept is what scored highest: a segment is never spared because it happens to fit.

        Raises:
            InvalidInput: a score is not a finite number, or two candidates have the same id.
        """
        if len({c.id for c in candidates}) != len(candidates):
            raise InvalidInput("Candidates must have distinct segment ids: got one id twice.")
        total = sum(c.num_tokens for c in candidates)
        if total <= budget.target_tokens:
            return []
        scores = self.scores(candidates)
        for segment_id, score in scores.items():
            if not math.isfinite(score):
                raise InvalidInput(
                    f"`{self.name}` must give finite scores: got {score} for segment {segment_id}."
                )
        # A segment of no tokens frees nothing, so it would be dropped in vain.
        ranking = sorted(
            (c for c in candidates if c.movable and c.num_tokens > 0),
            key=lambda c: (scores[c.id], c.id),
        )
        num_dropped = 0
        remaining = total
        while remaining > budget.target_tokens and num_dropped < len(ranking):
            remaining -= ranking[num_dropped].num_tokens
            num_dropped += 1
        runner_up = ranking[num_dropped] if num_dropped < len(ranking) else None
        goal = f"the window holds {total} tokens and must reach {budget.target_tokens}"
        return [
            Decision(
                action="drop",
                segment_ids=(c.id,),
                source="policy",
                maker=self.name,
                reason=(
                    f"{self.explain(c, scores[c.id])}: rank {rank} from the bottom of "
                    f"{len(ranking)} that may go; {goal}; this frees {c.num_tokens}."
                ),
                evidence={c.id: {**c.evidence(), "score": scores[c.id]}},
                alternative=_alternative(scores, scores[c.id], runner_up),
            )
            for rank, c in enumerate(ranking[:num_dropped], start=1)
        ]


def _alternative(scores: dict[int, float], score: float, runner_up: Candidate | None) -> str:
    if runner_up is None:
        return "None: every other segment is pinned, protected or empty, or goes too."
    next_score = scores[runner_up.id]
    if next_score == score:
        missed = "lost the tie by its lower id"
    else:
        missed = f"missed being kept by {next_score - score:.4g}"
    return (
        f"Segment {runner_up.id} (score {next_score:.4g}) would have gone next; "
        f"this one's score {score:.4g} {missed}."
    )


def mean_known(values: Iterable[float | None], *, default: float) -> float:
    """The mean of the values that are known; `default` where none is.

    Stands in for unknown evidence: a segment nobody measured is neither the best nor the worst.
    """
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else default
