"""One turn while it is answered: what was said, what was spent, and how its reply is generated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentmem.events import TurnKey
from agentmem.models.base import Completion, Options, Tool
from agentmem.storage.rows import StoredSegment, TurnRow


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How replies are generated: sampling and length."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    def options(
        self, *, max_tokens: int, tools: tuple[Tool, ...], cancelled: Callable[[], bool]
    ) -> Options:
        """The options of one reply within a budget of so many tokens."""
        return Options(
            max_new_tokens=self.max_new_tokens,
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
            stop=self.stop,
            tools=tools,
            cancelled=cancelled,
        )


@dataclass(slots=True)
class Turn:
    """What is known of the turn being answered.

    Args:
        row: the turn as it is stored.
        key: what the caller calls it.
        user: the user's message.
        vector: its embedding, once there is one.
        given: its reply is known already: nothing is asked of the model.
        pieces: what was said so far of the reply.
        peak_tokens: most tokens any generation attended to.
        seconds: wall-clock per stage.
    """

    row: TurnRow
    key: TurnKey
    user: StoredSegment
    vector: NDArray[np.float32] | None = None
    given: bool = False
    pieces: list[str] = field(default_factory=list)
    peak_tokens: int = 0
    seconds: dict[str, float] = field(
        default_factory=lambda: {"recall": 0.0, "controller": 0.0, "prefill": 0.0, "decode": 0.0}
    )

    def spent(self, completion: Completion) -> None:
        """Count one generation."""
        self.seconds["prefill"] += completion.prefill_seconds
        self.seconds["decode"] += completion.decode_seconds
        self.peak_tokens = max(
            self.peak_tokens, completion.prompt_tokens + completion.completion_tokens
        )
