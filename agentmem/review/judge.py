"""What a model thinks each segment is worth: likelihoods of keep, summarize and drop, unspoken.

The model is shown examples, then one segment, and the probabilities of the three answers are read
off its logits:

    worth = log P(keep) - log P(summarize or drop)

Every segment is judged alone behind the same examples, so neither its place nor its neighbours
sway it, and once. What the assistant answered is worth what it was an answer to. A judge decides
nothing: policies do, with the worth as one more piece of evidence.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from agentmem.decision import Candidate
from agentmem.errors import BudgetExceeded, ModelError
from agentmem.models.base import ChatModel, Options, Part
from agentmem.prompts import prompt
from agentmem.segment import Message

logger = logging.getLogger(__name__)

ANSWERS = ("keep", "summarize", "drop")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a model thinks of one segment.

    Args:
        worth: log-odds of keep: higher is kept longer.
        answer: the likeliest of `ANSWERS`.
        log_probabilities: of `ANSWERS`, as they were read.
    """

    worth: float
    answer: str
    log_probabilities: tuple[float, ...]


@dataclass
class Judge:
    """Judges the candidates of one session's reviews.

    Args:
        model: its logits are read.
        max_tokens: of any forward.
        monotonic: seconds, for the deadline.

    Attributes:
        num_judged: segments judged so far.
    """

    model: ChatModel
    max_tokens: int
    monotonic: Callable[[], float] = time.monotonic
    num_judged: int = 0
    _judgements: dict[int, Judgement] = field(default_factory=dict)

    def judge(self, candidates: Sequence[Candidate], deadline: float) -> list[Candidate]:
        """The candidates with the model's judgement as evidence, where there was time for it.

        A failure leaves what is unjudged without evidence; it is logged and nothing else.

        Args:
            candidates: what is in the window by itself, in order.
            deadline: on the monotonic clock.
        """
        asked = _asked(candidates)
        new = [c for c in candidates if asked.get(c.id) == c.id and c.id not in self._judgements]
        try:
            self._ask(new, deadline)
        except (ModelError, BudgetExceeded) as error:
            logger.warning("The controller judges no further: %s", error)
        for reply, question in asked.items():
            if reply not in self._judgements and question in self._judgements:
                self._judgements[reply] = self._judgements[question]
        here = {candidate.id for candidate in candidates}
        self._judgements = {one: j for one, j in self._judgements.items() if one in here}
        return [self._with_judgement(candidate) for candidate in candidates]

    def begin_anew(self) -> None:
        """Forget all judgements: what is in the window is judged again."""
        self._judgements.clear()

    def answer(self, segment_id: int) -> Judgement | None:
        """What was judged of a segment of the last review; None where nothing was."""
        return self._judgements.get(segment_id)

    def _with_judgement(self, candidate: Candidate) -> Candidate:
        judgement = self._judgements.get(candidate.id)
        return candidate if judgement is None else replace(candidate, worth=judgement.worth)

    def _ask(self, new: Sequence[Candidate], deadline: float) -> None:
        parts = [Part(candidate.id, candidate.segment.messages) for candidate in new]
        options = Options(max_tokens=self.max_tokens, cancelled=lambda: self.monotonic() > deadline)
        weighed = self.model.weigh(examples(), parts, ANSWERS, options)
        for candidate, logs in zip(new, weighed, strict=False):
            answer = ANSWERS[int(np.argmax(logs))]
            self._judgements[candidate.id] = Judgement(_log_odds(logs), answer, logs)
            self.num_judged += 1


@cache
def examples() -> tuple[Part, ...]:
    """What the model is shown first: what is asked, and messages with the right answers."""
    instruction, _, shown = prompt("judge").partition("\n\n")
    parts = [Part("judge:system", (Message("system", instruction),))]
    for number, line in enumerate(shown.splitlines()):
        answer, _, text = line.partition(": ")
        messages = (Message("user", text), Message("assistant", answer))
        parts.append(Part(f"judge:{number}", messages))
    return tuple(parts)


def _asked(candidates: Sequence[Candidate]) -> dict[int, int]:
    """For each candidate that can be judged, the segment whose judgement is its own."""
    asked: dict[int, int] = {}
    last_said: Candidate | None = None
    for candidate in candidates:
        if candidate.protected in ("core", "newest turn"):
            continue
        segment = candidate.segment
        is_answer = segment.kind == "turn" and segment.role == "assistant"
        if not is_answer:
            last_said = candidate
            asked[candidate.id] = candidate.id
        elif last_said is not None and last_said.age_turns == candidate.age_turns:
            asked[candidate.id] = last_said.id
        else:
            asked[candidate.id] = candidate.id
    return asked


def _log_odds(logs: Sequence[float]) -> float:
    """Log-odds of keep among the answers."""
    return float(logs[0] - np.logaddexp.reduce(np.asarray(logs[1:])))
