"""How large a benchmark's conversations may be, as far as that is known before a model is loaded.

What was asked for is taken or refused, never changed; only what nobody asked for is lowered until
it fits, and each time that is said. Tokens are estimated: every tokenizer counts its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from agentmem.bench.generator import TOKENS_PER_TURN
from agentmem.bench.plan import Plan, make_plan
from agentmem.bench.scoring import most_budget
from agentmem.bench.statements import STATEMENTS_PER_FACT

ESTIMATE_MARGIN = 0.85
"""The share of an estimate of tokens that every tokenizer comes to."""
SMALLEST_BUDGET = 200
"""About what system prompt, reply and two turns take."""
_LEAST_TALK_TOKENS = 20
"""About what the shortest turn of small talk takes."""


@dataclass
class Sizes:
    """The options of a run: those that were given, and the usual ones, lowered where they must be.

    Args:
        usual: what every option is where nobody says.
        given: what somebody said.
        notes: what was lowered, in words.
    """

    usual: Mapping[str, Any]
    given: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)
    chosen: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chosen = {**self.usual, **self.given}

    def lower(self, name: str, most: int, why: str) -> None:
        """Let a usual value be no more than this."""
        if name not in self.given and self.chosen[name] > most:
            self.notes.append(f"{name}: {most}, not the usual {self.chosen[name]}, {why}")
            self.chosen[name] = most


def usual_facts(turns: int, instructions: int, usual: int) -> int:
    """As many facts as usual where the turns have room, else what half of them state."""
    if STATEMENTS_PER_FACT * usual + 2 * instructions <= turns:
        return usual
    return min(usual, max(1, turns // (2 * STATEMENTS_PER_FACT)))


def plan_of(seed: int, sizes: Mapping[str, int]) -> Plan:
    """What the conversation of a seed states and asks; `sizes` as `make_plan` takes them."""
    return make_plan(random.Random(seed), seed, **sizes)


def least_tokens(plan: Plan, turns: int) -> int:
    """About what a conversation takes whose small talk is as short as can be."""
    return sum(_planned(plan).values()) + _LEAST_TALK_TOKENS * (turns - len(plan.turns))


def estimated_budget(plans: Sequence[Plan], turns: int, tokens: int | None) -> int:
    """About the largest budget with which none of the conversations is too easy."""
    total = TOKENS_PER_TURN * turns if tokens is None else tokens
    return min(_estimated_budget(plan, turns, total) for plan in plans)


def _estimated_budget(plan: Plan, turns: int, total: int) -> int:
    planned = _planned(plan)
    talk = max(0, total - sum(planned.values())) / max(1, turns - len(planned))
    turn_of = {fact.id: fact.turn for fact in plan.facts}
    asked = [turn_of[question.fact] for question in plan.questions if question.turn is None]
    return most_budget(asked, [planned.get(n, talk) for n in range(1, turns + 1)])


def _planned(plan: Plan) -> dict[int, int]:
    """About what each turn takes that states or asks something."""
    return {n: _rough(turn.user) + _rough(turn.reply or "") for n, turn in plan.turns.items()}


def turns_for(
    seeds: Sequence[int],
    sizes_at: Callable[[int], Mapping[str, int]],
    budget: int,
    *,
    after: int,
) -> int:
    """About how many turns, of more than these, are too long for a budget.

    Args:
        seeds: of the conversations.
        sizes_at: what `make_plan` is told for a number of turns.
    """
    for turns in count(after + 1):
        plans = [plan_of(seed, sizes_at(turns)) for seed in seeds]
        if ESTIMATE_MARGIN * estimated_budget(plans, turns, None) >= budget:
            break
    return turns


def _rough(text: str) -> int:
    """About what a message takes with its header."""
    return len(text) // 5 + 6 if text else 0
