"""What the summaries benchmark is asked for, and what it answers for each system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from agentmem.bench.controller_row import interval
from agentmem.bench.generator import TOKENS_PER_TURN
from agentmem.bench.options import PlayOptions
from agentmem.bench.plan import Plan
from agentmem.bench.sizes import Sizes
from agentmem.bench.statements import STATEMENTS_PER_FACT
from agentmem.bench.stretches import STRETCH_TOKENS
from agentmem.bench.summary_systems import SYSTEMS
from agentmem.errors import InvalidInput

MOST_STRETCHES = 60
"""Stretches that are summarized where nobody says how many."""


@dataclass(frozen=True, kw_only=True)
class SummaryOptions(PlayOptions):
    """What to summarize and with what; a script's stretches are taken in place of generated ones.

    Args:
        stretches: how many are summarized, of all conversations together; where None, 60 or as
            many as there are.
        systems: which.
    """

    bench = "summaries"
    choosing = frozenset({"systems", "out"})
    small = MappingProxyType({"turns": 48, "facts": 6, "conversations": 1})

    stretches: int | None = None
    conversations: int = 5
    systems: tuple[str, ...] = SYSTEMS

    def __post_init__(self) -> None:
        for system in self.systems:
            if system not in SYSTEMS:
                raise InvalidInput(f"No system {system!r}: use some of {', '.join(SYSTEMS)}.")
        if not self.systems:
            raise InvalidInput(f"Name at least one system of {', '.join(SYSTEMS)}.")
        if self.script is not None:
            object.__setattr__(self, "conversations", 1)
        if not 1 <= self.conversations <= self._most_stretches:
            raise InvalidInput(
                f"`conversations` must lie in 1..{self._most_stretches}, the stretches: "
                f"got {self.conversations}."
            )

    @classmethod
    def _lower(cls, sizes: Sizes) -> None:
        super()._lower(sizes)
        stretches = sizes.given.get("stretches", MOST_STRETCHES)
        sizes.lower("conversations", stretches, f"for {stretches} stretches")

    def check(self) -> list[Plan]:
        """Refuse also what has surely fewer stretches than are asked for."""
        plans = super().check()
        if not plans:
            return plans
        tokens = TOKENS_PER_TURN * self.turns if self.tokens is None else self.tokens
        name = "turns" if self.tokens is None else "tokens"
        least = 5 if self.tokens is None else 5 * TOKENS_PER_TURN
        if getattr(self, name) < least:
            raise InvalidInput(
                f"`{name}` must be at least {least}, which make one stretch: "
                f"got {getattr(self, name)}."
            )
        # Those that are half as long as they should be, and state one thing each.
        each = min(2 * tokens // STRETCH_TOKENS + 1, STATEMENTS_PER_FACT * self.facts)
        if self.stretches is not None and self.stretches > each * self.conversations:
            raise InvalidInput(
                f"`stretches` must be at most {each * self.conversations}, {each} for a "
                f"conversation of {self.turns} turns: got {self.stretches}."
            )
        return plans

    @property
    def _most_stretches(self) -> int:
        return MOST_STRETCHES if self.stretches is None else self.stretches

    @property
    def shares(self) -> list[int]:
        """How many stretches are taken of each conversation."""
        each, more = divmod(self._most_stretches, self.conversations)
        return [each + (number < more) for number in range(self.conversations)]


@dataclass(frozen=True, kw_only=True)
class SummaryRow:
    """What one system did with the stretches of one conversation. Shares are 0..1.

    Args:
        system: who made the summaries.
        conversation: digest of what the stretches are taken of.
        stretches: how many.
        facts: how many are stated in them.
        tokens, tokens_of_originals: of a summary and of a stretch by the model's own count, means.
        survives: share of facts whose value stands in the summary.
        low, high: 95 % bootstrap interval of that share, over facts.
        survives_each: the same, fact by fact.
        only_named: share of facts whose value stands only among the terms that a summary says to
            search for.
        questions: of how many facts there is a question.
        answered: share of these that the model answers from the summary alone; None for none.
        answered_low, answered_high, answered_each: of that share.
        seconds: per summary, mean.
        written_by: share of summaries that the model wrote.
    """

    system: str
    conversation: str
    stretches: int
    facts: int
    tokens: float
    tokens_of_originals: float
    survives: float
    low: float
    high: float
    survives_each: list[bool]
    only_named: float
    questions: int
    answered: float | None
    answered_low: float | None
    answered_high: float | None
    answered_each: list[bool]
    seconds: float
    written_by: float


def shares(survives: Sequence[bool], answered: Sequence[bool]) -> dict[str, Any]:
    """The fields of a row that follow from each fact, with their intervals."""
    share, low, high = interval([(int(one), 1) for one in survives])
    of_answers = interval([(int(one), 1) for one in answered]) if answered else (None, None, None)
    return {
        "facts": len(survives),
        "survives": share,
        "low": low,
        "high": high,
        "survives_each": list(survives),
        "questions": len(answered),
        "answered": of_answers[0],
        "answered_low": of_answers[1],
        "answered_high": of_answers[2],
        "answered_each": list(answered),
    }


def pooled(rows: Sequence[SummaryRow]) -> list[SummaryRow]:
    """One row a system over all conversations: every stretch and every fact counts the same."""
    systems: dict[str, list[SummaryRow]] = {}
    for row in rows:
        systems.setdefault(row.system, []).append(row)
    return [same[0] if len(same) == 1 else _pool(same) for same in systems.values()]


def _pool(rows: Sequence[SummaryRow]) -> SummaryRow:
    stretches = sum(row.stretches for row in rows)
    facts = sum(row.facts for row in rows)

    def a_stretch(name: str) -> float:
        return float(sum(row.stretches * getattr(row, name) for row in rows)) / stretches

    return replace(
        rows[0],
        conversation=" ".join(row.conversation for row in rows),
        stretches=stretches,
        tokens=a_stretch("tokens"),
        tokens_of_originals=a_stretch("tokens_of_originals"),
        only_named=sum(row.facts * row.only_named for row in rows) / facts,
        seconds=a_stretch("seconds"),
        written_by=a_stretch("written_by"),
        **shares(
            [one for row in rows for one in row.survives_each],
            [one for row in rows for one in row.answered_each],
        ),
    )
