"""What every benchmark that plays conversations is asked for: which, with what, and where to."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

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

    def __post_init__(self) -> None:
        if self.conversations < 1:
            raise InvalidInput(f"`conversations` must be positive: got {self.conversations}.")

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
