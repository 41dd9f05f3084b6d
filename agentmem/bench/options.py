"""What every benchmark that plays conversations is asked for: which, with what, and where to."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from agentmem.bench.conversation import load
from agentmem.bench.plan import Plan
from agentmem.bench.sizes import (
    ESTIMATE_MARGIN,
    SMALLEST_BUDGET,
    Sizes,
    estimated_budget,
    least_tokens,
    plan_of,
    turns_for,
    usual_facts,
)
from agentmem.bench.statements import STATEMENTS_PER_FACT
from agentmem.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class PlayOptions:
    """The conversations, the model and the file of a run.

    Args:
        model: as `Agent` takes it.
        turns, facts, tokens, seed: of the generated conversations.
        conversations: how many are generated, with seeds from `seed` on.
        script: a conversation file to play in place of generated ones.
        threads: CPU threads of the local model.
        out: JSON file; rows that are in it already are not measured again. A PNG goes beside it.

    Attributes:
        bench: the benchmark's name.
        choosing: options that only choose rows, and do not change one.
        small: what `quick` sets.
    """

    bench: ClassVar[str]
    choosing: ClassVar[frozenset[str]] = frozenset({"out"})
    small: ClassVar[Mapping[str, Any]]

    model: str = "local"
    turns: int = 300
    facts: int = 40
    tokens: int | None = None
    seed: int = 0
    conversations: int = 1
    script: Path | None = None
    threads: int | None = None
    out: Path | None = None

    @classmethod
    def quick(cls, **changes: Any) -> Self:
        """A small run: minutes on two cores."""
        return cls(**{**cls.small, **changes})

    @classmethod
    def fitted(cls, *, quick: bool = False, **given: Any) -> tuple[Self, list[str]]:
        """Options of which those that are not given are lowered to what is possible.

        Returns:
            The options, and what was lowered, in words.
        """
        usual = {one.name: one.default for one in fields(cls)} | (dict(cls.small) if quick else {})
        sizes = Sizes(usual, given)
        if sizes.chosen["script"] is not None:
            return cls(**sizes.chosen), []
        cls._lower(sizes)
        return cls(**sizes.chosen)._lowered(sizes)

    @classmethod
    def _lower(cls, sizes: Sizes) -> None:
        """Lower what depends on numbers of turns and facts only."""
        turns, usual = sizes.chosen["turns"], sizes.usual["facts"]
        most = usual_facts(turns, sizes.given.get("instructions", 0), usual)
        # Each change needs a fact: where turns hold as many, what was asked for is played.
        changed = min(sizes.given.get("updates", 0), turns // STATEMENTS_PER_FACT)
        sizes.lower("facts", max(most, changed), f"for {turns} turns")

    def _lowered(self, sizes: Sizes) -> tuple[Self, list[str]]:
        """The same with lowered what depends on what is stated when, and all that was lowered."""
        return self, sizes.notes

    def __post_init__(self) -> None:
        if self.conversations < 1:
            raise InvalidInput(f"`conversations` must be positive: got {self.conversations}.")

    def check(self) -> list[Plan]:
        """Refuse what cannot be played, as far as that shows before a model is loaded.

        Returns:
            What each conversation states and asks; nothing for a script.

        Raises:
            InvalidInput: it cannot be played; the message names an option and what it may be.
        """
        if self.script is not None:
            load(self.script)
            return []
        plans = [plan_of(seed, self._sizes) for seed in self._seeds]
        least = max(least_tokens(plan, self.turns) for plan in plans)
        if self.tokens is not None and self.tokens < ESTIMATE_MARGIN * least:
            raise InvalidInput(
                f"`tokens` must be at least about {least} for {self.turns} turns with {self.facts} "
                f"facts: got {self.tokens}."
            )
        return plans

    @property
    def _seeds(self) -> range:
        return range(self.seed, self.seed + self.conversations)

    @property
    def _sizes(self) -> dict[str, int]:
        return {"turns": self.turns, "facts": self.facts, **self.more}

    @property
    def more(self) -> dict[str, Any]:
        """What the generator is told besides."""
        return {}

    @property
    def command(self) -> str:
        """The command that gives the same rows; it leaves out which of them are wanted."""
        words = ["agentmem", "bench", self.bench]
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name not in self.choosing and value != option.default:
                flag = f"--{option.name.replace('_', '-')}"
                words += [flag] if value is True else [flag, str(value)]
        return shlex.join(words)


@dataclass(frozen=True, kw_only=True)
class WindowOptions(PlayOptions):
    """The same, played in a window that must be too small for them.

    Args:
        budget: tokens of the window.
    """

    budget: int = 1024

    def _lowered(self, sizes: Sizes) -> tuple[Self, list[str]]:
        """Let the usual budget be one that the conversations do not fit."""
        most = self._most_budget(super().check())
        safe = int(ESTIMATE_MARGIN * most)
        if "budget" not in sizes.given:
            if safe < SMALLEST_BUDGET:
                raise InvalidInput(self._too_short(safe, sizes))
            sizes.lower("budget", safe, "which the conversation must not fit")
        return replace(self, budget=sizes.chosen["budget"]), sizes.notes

    def check(self) -> list[Plan]:
        """Refuse also what is surely too easy for the budget."""
        plans = super().check()
        if plans and ESTIMATE_MARGIN * self.budget > (most := self._most_budget(plans)):
            raise InvalidInput(
                f"`budget` must be at most about {most}, so that a plain window does not find the "
                f"answers in {self._length}: got {self.budget}. More turns allow for more."
            )
        return plans

    def _most_budget(self, plans: list[Plan]) -> int:
        if any(all(one.turn is not None for one in plan.questions) for plan in plans):
            most = self.more["returning"] - 1
            raise InvalidInput(
                f"`returning` must be at most {most} with {self.facts} facts, since at least one "
                f"is asked for at the end: got {self.more['returning']}."
            )
        return estimated_budget(plans, self.turns, self.tokens)

    @property
    def _length(self) -> str:
        return f"{self.turns} turns" if self.tokens is None else f"{self.tokens} tokens"

    def _too_short(self, safe: int, sizes: Sizes) -> str:
        if self.tokens is None:
            name, got = "turns", self.turns
            at = partial(self._sizes_at, sizes)
            least = turns_for(self._seeds, at, SMALLEST_BUDGET, after=self.turns)
        else:
            name, got = "tokens", self.tokens
            least = -(-self.tokens * SMALLEST_BUDGET // max(1, safe))
        return (
            f"`{name}` must be at least about {least}, so that the smallest window does not hold "
            f"the answers: got {got}."
        )

    @classmethod
    def _sizes_at(cls, sizes: Sizes, turns: int) -> Mapping[str, int]:
        """What the generator is told for so many turns, and otherwise the same."""
        longer = Sizes(sizes.usual, {**sizes.given, "turns": turns})
        cls._lower(longer)
        return cls(**longer.chosen)._sizes
