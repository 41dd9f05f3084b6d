"""Who decides what leaves the window: a model where there is one, and a policy that never fails.

A ladder of rungs, each of which only adds to the one before: the model, asked through tools or
judged by its logits; the policy, for what is still over the target, and for everything where the
model fails, is late or answers nonsense. The controller knows candidates, budgets and a model;
applying decisions is not its business.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agentmem.budget import Budget
from agentmem.decision import Candidate, Decision
from agentmem.errors import AgentmemError
from agentmem.models.base import ChatModel
from agentmem.policies.base import SegmentPolicy
from agentmem.review.free_calls import FreeCalls, Offer
from agentmem.review.judge import Judge
from agentmem.review.returning import returnable
from agentmem.review.tools import MIN_SUMMARY_TOKENS
from agentmem.review.verdict import Verdict

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Controller:
    """Decides by asking a model, then a policy.

    Args:
        policy: ranks the candidates, and finishes.
        budget: ceilings of the window and of the review itself.
        model: asked through tools; None leaves everything to judge and policy.
        judge: says what each segment is worth, as evidence for the policy; None says nothing.
        monotonic: seconds, for the deadline.
    """

    policy: SegmentPolicy
    budget: Budget
    model: ChatModel | None = None
    judge: Judge | None = None
    monotonic: Callable[[], float] = time.monotonic

    def begin_anew(self) -> None:
        """Think nothing of any segment yet."""
        if self.judge is not None:
            self.judge.begin_anew()

    def review(
        self,
        candidates: Sequence[Candidate],
        *,
        fixed_tokens: int = 0,
        outside: Sequence[Candidate] = (),
    ) -> Verdict:
        """Decide until `budget.target_tokens` is reached or nothing movable is left.

        Args:
            candidates: what is in the window by itself, in order, with its evidence.
            fixed_tokens: of what is in every prompt besides segments.
            outside: segments that a model asked through tools may bring back, the nearest first.
        """
        started = self.monotonic()
        deadline = started + self.budget.seconds
        target = max(0, self.budget.target_tokens - fixed_tokens)
        over = sum(candidate.num_tokens for candidate in candidates) - target
        verdict = Verdict(target=target, model=self._asked_name)
        if over > 0 and self.judge is not None:
            judged_before = self.judge.num_judged
            candidates = self.judge.judge(candidates, deadline)
            verdict.judged = self.judge.num_judged - judged_before
        verdict.candidates = candidates
        if over > 0 and self.model is not None:
            offers = rank(self.policy, candidates, self.budget)
            free_calls = FreeCalls(model=self.model, budget=self.budget, monotonic=self.monotonic)
            back = returnable(outside, candidates, target, self.budget)
            free_calls.ask(verdict, offers, over, deadline, back)
        # What is brought back takes its room from the others; it comes when they have left.
        left_for_others = target - verdict.tokens_returned
        verdict.decisions += self._finish(candidates, verdict.decisions, left_for_others)
        verdict.decisions += verdict.returns
        verdict.seconds = self.monotonic() - started
        return verdict

    @property
    def _asked_name(self) -> str:
        asked = self.model or (self.judge.model if self.judge is not None else None)
        return "" if asked is None else asked.name

    def _finish(
        self, candidates: Sequence[Candidate], decided: Sequence[Decision], target: int
    ) -> list[Decision]:
        """What the policy adds so that the target is reached."""
        left = _undecided(candidates, decided)
        if sum(candidate.num_tokens for candidate in left) <= target:
            return []
        decisions = decide(self.policy, left, self.budget.freeing_to(target))
        return [self._signed(decision) for decision in decisions]

    def _signed(self, decision: Decision) -> Decision:
        """A policy's decision in the name of the model, where its judgement was in it."""
        if self.judge is None or len(decision.segment_ids) != 1:
            return decision
        judgement = self.judge.answer(decision.segment_ids[0])
        if judgement is None:
            return decision
        num_tokens = decision.evidence.get(decision.segment_ids[0], {}).get("num_tokens", 0)
        gist = judgement.answer == "summarize" and num_tokens >= 2 * MIN_SUMMARY_TOKENS
        return replace(
            decision,
            action="summarize" if gist else decision.action,
            source="controller",
            maker=f"{self.judge.model.name}, {decision.maker}",
        )


def decide(
    policy: SegmentPolicy, candidates: Sequence[Candidate], budget: Budget
) -> list[Decision]:
    """What a policy decides; nothing where it fails, which is logged."""
    try:
        return policy.decide(candidates, budget)
    except AgentmemError as error:
        logger.warning("The policy %s failed: %s", policy.name, error)
        return []


def rank(policy: SegmentPolicy, candidates: Sequence[Candidate], budget: Budget) -> list[Offer]:
    """Movable candidates in the order the policy would let them go, and what it says of each."""
    everything = budget.freeing_to(0)
    by_id = {candidate.id: candidate for candidate in candidates}
    return [
        (by_id[one], f"{policy.name} would drop it: {decision.reason}")
        for decision in decide(policy, candidates, everything)
        for one in decision.segment_ids
    ]


def _undecided(candidates: Sequence[Candidate], decided: Sequence[Decision]) -> list[Candidate]:
    """What stays after some decisions, what is to be kept protected."""
    gone: set[int] = set()
    kept: set[int] = set()
    for decision in decided:
        ids = gone if decision.action in ("drop", "summarize") else kept
        ids.update(decision.segment_ids)
    return [
        replace(candidate, protected=candidate.protected or "kept")
        if candidate.id in kept
        else candidate
        for candidate in candidates
        if candidate.id not in gone
    ]
