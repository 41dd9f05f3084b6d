"""Freeing the window: when, by whom, and what happens if it was not enough.

What recall brought back has a share of its own: warning line and target are of the rest, and it
leaves before anything else only where message and reply would not fit (it costs nothing to bring
back). A ladder, each rung of which only adds to the one before: the controller decides, its policy
finishes. What was decided need not be what could be carried out: the policy is asked again for what
is still over the target, then also for what was to be kept for a while, then the oldest go; and
more where message and reply would still not fit. A model that can save what matters is
told first, and given a turn for it where there is room.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agentmem.decision import Candidate, Decision
from agentmem.events import Decided
from agentmem.memory import Memory
from agentmem.policies.base import SegmentPolicy
from agentmem.policies.window import WindowPolicy
from agentmem.recollection import Recollection
from agentmem.review.controller import Controller, decide
from agentmem.review.pressure import Pressure
from agentmem.review.returning import outside_window


@dataclass(frozen=True)
class Review:
    """Keeps a session's window within its budget.

    Args:
        memory: with the window.
        controller: decides, its policy finishes.
        recollection: lets recalled segments go.
        pressure: tells a model with memory tools; None where there is none.
    """

    memory: Memory
    controller: Controller
    recollection: Recollection
    pressure: Pressure | None = None

    def run(
        self,
        incoming: int,
        vector: NDArray[np.float32] | None,
        *,
        text: str = "",
        may_wait: bool = True,
    ) -> Iterator[Decided]:
        """Free the window if it is over the warning line or a message would not fit.

        Args:
            incoming: tokens of the message that is about to enter.
            vector: its embedding, or that of the user's newest message.
            text: that message.
            may_wait: the model can be told first: it is asked in this turn, and can call tools.
        """
        if not self.due(incoming):
            return
        memory = self.memory
        if self.must_free(incoming) > 0:
            self.recollection.make_room(self.must_free(incoming))
        if not self.due(incoming) or (may_wait and self._waits(incoming)):
            return
        if self.pressure is not None:
            self.pressure.withdraw()
        asks_freely = self.controller.model is not None
        verdict = self.controller.review(
            self._candidates(vector),
            fixed_tokens=memory.context.fixed_tokens,
            outside=outside_window(memory, text, vector) if asks_freely else (),
        )
        yield from memory.ledger.apply_all(verdict.decisions, verdict.cost())
        policy = self.controller.policy
        for decides, spare_kept in ((policy, True), (policy, False), (WindowPolicy(), False)):
            yield from memory.ledger.apply_all(self._still_over(decides, vector, spare_kept))
        if self.must_free(incoming) > 0:
            yield from memory.ledger.apply_all(self._last_resort(incoming, vector))
        for refusal in verdict.refusals:
            decision = Decision(
                refusal.action, refusal.segment_ids, "controller", tool_call=refusal.tool_call
            )
            yield memory.ledger.refuse(decision, refusal.reason)
        budget = memory.context.budget
        if self.pressure is not None and memory.context.own_tokens <= budget.target_tokens:
            self.pressure.ended()

    def _waits(self, incoming: int) -> bool:
        """Whether the model is told in this turn, and everything fits until the next."""
        if self.pressure is None or not self.pressure.may_tell:
            return False
        self.pressure.tell()
        if self.must_free(incoming) > 0:
            self.recollection.make_room(self.must_free(incoming))
        if self.must_free(incoming) > 0:
            self.pressure.withdraw()
            return False
        self.pressure.told()
        return True

    def due(self, incoming: int) -> bool:
        """Whether the window must be reviewed before so many tokens enter."""
        context = self.memory.context
        return (
            context.own_tokens + incoming > context.budget.warn_tokens
            or self.must_free(incoming) > 0
        )

    def must_free(self, incoming: int) -> int:
        """Tokens by which message and reply would not fit."""
        context = self.memory.context
        budget = context.budget
        return context.num_tokens + incoming + budget.reserve - budget.max_tokens

    def _candidates(self, vector: NDArray[np.float32] | None) -> list[Candidate]:
        """What is in the window by itself, with its evidence."""
        context = self.memory.context
        return [one for one in self.memory.candidates(vector) if not context[one.id].recalled]

    def _still_over(
        self, policy: SegmentPolicy, vector: NDArray[np.float32] | None, spare_kept: bool
    ) -> list[Decision]:
        """What a policy lets go of a window that is over the target after all."""
        budget, context = self.controller.budget, self.memory.context
        if context.own_tokens <= budget.target_tokens:
            return []
        target = max(0, budget.target_tokens - context.fixed_tokens)
        candidates = self._candidates(vector)
        if not spare_kept:
            candidates = [_kept_no_more(candidate) for candidate in candidates]
        return decide(policy, candidates, budget.freeing_to(target))

    def _last_resort(self, incoming: int, vector: NDArray[np.float32] | None) -> list[Decision]:
        """Drops until message and reply fit, out of all that is not pinned, core or newest."""
        budget = self.controller.budget
        beside = self.memory.context.fixed_tokens + self.memory.context.recalled_tokens
        fits = max(0, budget.max_tokens - budget.reserve - incoming - beside)
        candidates = [_kept_no_more(candidate) for candidate in self._candidates(vector)]
        decisions = decide(self.controller.policy, candidates, budget.freeing_to(fits))
        return decisions or WindowPolicy().decide(candidates, budget.freeing_to(fits))


def _kept_no_more(candidate: Candidate) -> Candidate:
    return replace(candidate, protected="") if candidate.protected == "kept" else candidate
