"""The ceilings one conversation lives under, in tokens, bytes, calls and seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from agentmem.errors import BudgetTooSmall, InvalidInput

DEFAULT_BUDGET_TOKENS = 2048
TWO_TURNS_TOKENS = 2 * 64
"""What two short user messages and their replies take: they must always fit."""


@dataclass(frozen=True)
class Budget:
    """Hard ceilings: none of them is ever exceeded.

    Args:
        max_tokens: tokens of the window, reply included, for every forward of the model.
        warn_at: share of `max_tokens` above which the window is reviewed. A model with memory tools
            is told first, and its window reviewed from the next turn on, or where it would not fit.
        free_to: share of `max_tokens` a review must reach.
        reserve: tokens kept free for the reply; 0 means an eighth of `max_tokens`.
        recall_share: share of `max_tokens` that recalled segments may take.
        controller_calls: calls of the model a review may make.
        seconds: wall-clock seconds a review may take before the policy finishes it.
        kv_bytes: bytes of KV for tokens in the window, on the model's device; what exceeds them
            is read from host memory, which is slower. 0 means no ceiling but the tokens.
        parked_ram_bytes: bytes of KV parked in memory; without a KV tier, of copies of a state.
            None means a sixteenth of what the model's weights take, at least 32 MiB.
        parked_disk_bytes: bytes of KV parked on disk.
    """

    max_tokens: int = DEFAULT_BUDGET_TOKENS
    warn_at: float = 0.7
    free_to: float = 0.5
    reserve: int = 0
    recall_share: float = 0.25
    controller_calls: int = 4
    seconds: float = 60.0
    kv_bytes: int = 0
    parked_ram_bytes: int | None = None
    parked_disk_bytes: int = 2 * 2**30

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InvalidInput(f"`max_tokens` must be positive: got {self.max_tokens}.")
        if not 0 < self.free_to < self.warn_at <= 1:
            raise InvalidInput(
                "`free_to` must lie below `warn_at`, both in (0, 1]: "
                f"got free_to={self.free_to}, warn_at={self.warn_at}."
            )
        if not 0 <= self.recall_share < 1:
            raise InvalidInput(f"`recall_share` must lie in [0, 1): got {self.recall_share}.")
        for name in ("reserve", "controller_calls", "seconds", "kv_bytes", "parked_ram_bytes",
                     "parked_disk_bytes"):  # fmt: skip
            value = getattr(self, name)
            if value is None and name == "parked_ram_bytes":
                continue
            if value < 0:
                raise InvalidInput(f"`{name}` must not be negative: got {getattr(self, name)}.")
        if not self.reserve:
            object.__setattr__(self, "reserve", max(1, self.max_tokens // 8))

    @classmethod
    def recorded(cls, values: Mapping[str, Any]) -> Budget:
        """The budget of a log's opening; what was a ceiling once and is none now is left out."""
        names = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names})

    @property
    def warn_tokens(self) -> int:
        """Tokens above which the window is reviewed."""
        return int(self.max_tokens * self.warn_at)

    @property
    def target_tokens(self) -> int:
        """Tokens a review must reach."""
        return int(self.max_tokens * self.free_to)

    @property
    def recall_tokens(self) -> int:
        """Tokens recalled segments may take."""
        return int(self.max_tokens * self.recall_share)

    @property
    def block_tokens(self) -> int:
        """Tokens that all blocks of core memory may take together."""
        return self.max_tokens // 5

    @property
    def message_tokens(self) -> int:
        """The longest message that enters the window whole; a longer one becomes a document."""
        return self.max_tokens // 4

    @property
    def stub_tokens(self) -> int:
        """What stands in the window for a document: at most 256 tokens."""
        return min(256, self.message_tokens)

    @property
    def part_tokens(self) -> int:
        """What a part of a document takes at most: two can be recalled together."""
        return max(16, self.recall_tokens // 2)

    def freeing_to(self, tokens: int) -> Budget:
        """The same ceilings, with a review that must reach so many tokens."""
        share = (tokens + 0.5) / self.max_tokens
        return replace(self, free_to=min(max(share, 1e-9), 0.999), warn_at=1.0)

    def check(self, *, system_tokens: int, tools_tokens: int = 0, pinned_tokens: int = 0) -> None:
        """Refuse a budget that cannot hold what must always be in the window.

        Raises:
            BudgetTooSmall: with the sum shown.
        """
        needed = system_tokens + tools_tokens + pinned_tokens + self.reserve + TWO_TURNS_TOKENS
        if needed > self.max_tokens:
            pinned = f"pinned {pinned_tokens} + " if pinned_tokens else ""
            unpin = ", or unpin some" if pinned_tokens else ""
            raise BudgetTooSmall(
                f"A budget of {self.max_tokens} tokens is too small: system prompt {system_tokens} "
                f"(with core memory) + tools {tools_tokens} + {pinned}reserve for the reply "
                f"{self.reserve} + two turns {TWO_TURNS_TOKENS} = {needed}. "
                f"Use `budget={needed}` or more, or a shorter system prompt{unpin}."
            )
