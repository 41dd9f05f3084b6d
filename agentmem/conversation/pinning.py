"""Pinning what the user wants to hold from now on, by itself, within a share of the window.

Each pin is a decision, so that `why` explains it and `undo` takes it back; so is each unpinning: of
an instruction that a newer one replaces, and where all together would take too much: of facts that
were only to be remembered first, which recall finds, then of what stands least surely, then of the
oldest. No such fact drives an instruction out. A sentence stands by its form, or by its words and
meaning together where the embedder is the one whose space the weights belong to.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentmem.decision import Action, Decision
from agentmem.events import Decided
from agentmem.memory import Memory
from agentmem.segment import Message, Segment, Trust
from agentmem.storage.rows import StoredSegment
from agentmem.wording.standing import (
    is_note,
    may_stand,
    standing_instructions,
    takes_the_place,
)
from agentmem.wording.standing_odds import ENOUGH, standing_odds

MAKER = "standing"
SHARE = 5
"""All standing instructions together take at most this part of the budget: a fifth."""
_MOST_CHARS = 20_000
_MOST_SENTENCES = 16
"""Sentences of a message whose meaning is looked at, those surest by their words."""
_QUOTE_CHARS = 80


@dataclass(frozen=True)
class StandingPins:
    """Keeps standing instructions of one session pinned.

    Args:
        memory: with the window.
    """

    memory: Memory

    def notice(
        self, user: StoredSegment, text: str, vector: NDArray[np.float32] | None = None
    ) -> list[Decided]:
        """Pin what a message wants to hold from now on; what that decided.

        Args:
            user: the message's segment, answered and in the window.
            text: the message, whole.
            vector: (dim,), its own, where it is known.
        """
        if user.segment.origin != "user" or user.segment.trust < Trust.USER:
            return []
        said = self._said(text[:_MOST_CHARS], vector)
        if not said:
            return []
        memory, limit = self.memory, self.memory.context.budget.max_tokens // SHARE
        quote = " ".join(said)
        pinned = self._pinned()
        replaced = [one for one in pinned if _is_replaced(_instructions(one), said)]
        decisions = [
            self._decision("unpin", one, f"A newer instruction replaces it: “{_short(quote)}”")
            for one in replaced
        ]
        segment = self._what_to_pin(user, quote, limit)
        reason = f"The user wants this from now on: “{_short(quote)}”"
        pin = self._decision("pin", segment.id, reason)
        tokens = memory.context.count(segment)
        if tokens > limit:
            why = f"It takes {tokens} tokens; standing instructions may take {limit} together."
            return [memory.ledger.refuse(pin, why)]
        left = [one for one in pinned if one not in replaced and one.segment.id != segment.id]
        taken = tokens + sum(memory.context.count(one.segment) for one in left)
        # Notes go before instructions, and what stands least surely first.
        left.sort(key=lambda one: (not _is_note(_instructions(one)), _surety(one), one.segment.id))
        while taken > limit:
            first = left.pop(0)
            if _is_note(said) and not _is_note(_instructions(first)):
                why = f"Standing instructions take the {limit} tokens there are for pins."
                return [memory.ledger.refuse(pin, why)]
            taken -= memory.context.count(first.segment)
            full = f"Standing instructions would take more than {limit} tokens; it goes first."
            decisions.append(self._decision("unpin", first, full))
        return memory.ledger.apply_all([*decisions, pin])

    def _said(self, text: str, vector: NDArray[np.float32] | None) -> list[str]:
        """The sentences of a message that are to hold from now on, by form or meaning."""
        by_form = standing_instructions(text)
        others = [one for one in may_stand(text) if one not in by_form]
        meant = self.memory.outside.standing(lambda: self._meant(others, text, vector))
        return [*by_form, *(one for one in meant if one not in by_form)]

    def _meant(
        self, sentences: list[str], text: str, vector: NDArray[np.float32] | None
    ) -> list[str]:
        """Those of the sentences whose words and meaning together say that they stand."""
        odds, finder = standing_odds(), self.memory.finder
        if finder.space != odds.space:
            return []
        least = ENOUGH - odds.most_by_meaning
        surest = heapq.nlargest(_MOST_SENTENCES, sentences, key=odds.by_words)
        likely = [one for one in sentences if one in surest and odds.by_words(one) >= least]
        if not likely:
            return []
        if likely == [text] and vector is not None:
            vectors = vector[None, :]
        else:
            vectors = finder.embed_apart(likely)
        return [
            one
            for one, meaning in zip(likely, vectors.tolist(), strict=True)
            if odds.by_both(one, meaning) >= ENOUGH
        ]

    def _pinned(self) -> list[StoredSegment]:
        """What is pinned by a decision of this kind that stands, the oldest first."""
        pinned = {entry.id: entry.stored for entry in self.memory.context if entry.pinned}
        makers = self.memory.archive.pinned_by(pinned)
        return [pinned[one] for one in sorted(pinned) if makers.get(one) == MAKER]

    def _what_to_pin(self, user: StoredSegment, quote: str, limit: int) -> Segment:
        """The message; of a long one only the sentences, as a segment made of it."""
        context = self.memory.context
        said = Segment(
            (Message("user", quote),),
            kind="instruction",
            created=user.segment.created,
            parents=(user.segment.id,),
            trust=user.segment.trust,
        )
        if context.count(user.segment) <= min(limit, 2 * context.count(said)):
            return user.segment
        with self.memory.archive.write() as transaction:
            # Whoever searches finds the message.
            return transaction.add_segment(
                self.memory.session.id, user.turn, said, searchable=False, state="archived"
            )

    def _decision(self, action: Action, segment: StoredSegment | int, reason: str) -> Decision:
        one = segment if isinstance(segment, int) else segment.segment.id
        return Decision(action, (one,), "policy", reason=reason, maker=MAKER)


def _instructions(stored: StoredSegment) -> list[str]:
    text = stored.segment.text
    return standing_instructions(text[:_MOST_CHARS]) or [text]


def _surety(stored: StoredSegment) -> float:
    """How surely a pinned segment is an instruction; what has the form of one is."""
    text = stored.segment.text[:_MOST_CHARS]
    if standing_instructions(text):
        return math.inf
    return max(map(standing_odds().by_words, may_stand(text)), default=-math.inf)


def _is_note(said: list[str]) -> bool:
    return all(map(is_note, said))


def _is_replaced(older: list[str], newer: list[str]) -> bool:
    return all(any(takes_the_place(one, other) for one in newer) for other in older)


def _short(text: str) -> str:
    return text if len(text) <= _QUOTE_CHARS else text[: _QUOTE_CHARS - 1].rstrip() + "…"
