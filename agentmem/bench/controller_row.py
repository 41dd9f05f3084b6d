"""What the controller benchmark is asked for, and what it answers for each decider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from types import MappingProxyType
from typing import Any

import numpy as np

from agentmem.bench.deciders import DECIDERS
from agentmem.bench.options import WindowOptions
from agentmem.errors import InvalidInput

RECALLS = ("off", "on")
_RESAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class ControllerOptions(WindowOptions):
    """What to play and with what.

    Args:
        deciders: which.
        recalls: "off", "on" or both.
        kv: format of KV in the window.
    """

    bench = "controller"
    choosing = frozenset({"deciders", "recalls", "conversations", "out"})
    small = MappingProxyType(
        {"budget": 512, "turns": 48, "facts": 8, "conversations": 1, "recalls": ("off",)}
    )

    conversations: int = 5
    deciders: tuple[str, ...] = DECIDERS
    recalls: tuple[str, ...] = RECALLS
    kv: str = "q8"

    def __post_init__(self) -> None:
        super().__post_init__()
        for recall in self.recalls:
            if recall not in RECALLS:
                raise InvalidInput(f"`recall` must be off or on: got {recall!r}.")
        if not self.recalls or not self.deciders:
            raise InvalidInput("Name at least one decider, and recall off or on.")
        if self.script is not None:
            object.__setattr__(self, "conversations", 1)


@dataclass(frozen=True, kw_only=True)
class ControllerRow:
    """What one decider did with one conversation. Shares are 0..1, seconds are means.

    Args:
        decider, recall: who decided, and whether recall brought segments back.
        conversation: digest of what was played.
        turns, facts, budget: of it.
        needed_in_window: share of turns, of all from a statement on, after which a fact that will
            be asked for stood in the window: how often a need at any later time would be met.
        low, high: 95 % bootstrap interval of it, over facts.
        needed_each: fact by fact, after how many turns it stood in the window, and of how many.
        needed_at_end: share of these facts in the window at the end.
        tokens: mean tokens of the window after a turn.
        peak_tokens: most tokens any forward attended to.
        freed_by_llm: share of the freed tokens that the model's own decisions freed.
        decisions, calls: decisions carried out, and answers or judgements asked of the model.
        valid: share of the model's decisions that could be carried out; None where it made none.
        seconds_per_turn: all stages.
        review_share: of these seconds, what reviews took.
    """

    decider: str
    recall: str
    conversation: str
    turns: int
    facts: int
    budget: int
    needed_in_window: float
    low: float
    high: float
    needed_each: list[tuple[int, int]]
    needed_at_end: float
    tokens: float
    peak_tokens: int
    freed_by_llm: float
    decisions: int
    calls: int
    valid: float | None
    seconds_per_turn: float
    review_share: float


def row_of(data: Mapping[str, Any]) -> ControllerRow:
    """The row of its JSON form."""
    return ControllerRow(**{**data, "needed_each": [tuple(one) for one in data["needed_each"]]})


def pooled(rows: Sequence[ControllerRow]) -> list[ControllerRow]:
    """One row a decider over all its conversations."""
    groups: dict[tuple[str, str], list[ControllerRow]] = {}
    for row in rows:
        groups.setdefault((row.decider, row.recall), []).append(row)
    return [same[0] if len(same) == 1 else _pool(same) for same in groups.values()]


def interval(each: Sequence[tuple[int, int]], *, seed: int = 0) -> tuple[float, float, float]:
    """Share of turns over all facts, and its 95 % bootstrap interval over facts.

    Args:
        each: fact by fact, after how many turns it stood in the window, and of how many.
        seed: of the resampling.
    """
    counts = np.asarray(each, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(counts), (_RESAMPLES, len(counts)))
    sums = counts[drawn].sum(1)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], (0.025, 0.975))
    return float(counts[:, 0].sum() / counts[:, 1].sum()), float(low), float(high)


def _pool(rows: Sequence[ControllerRow]) -> ControllerRow:
    def mean(name: str) -> float:
        return fmean(getattr(row, name) for row in rows)

    each = [counts for row in rows for counts in row.needed_each]
    needed, low, high = interval(each)
    valid = [row.valid for row in rows if row.valid is not None]
    return replace(
        rows[0],
        conversation=" ".join(row.conversation for row in rows),
        needed_in_window=needed,
        low=low,
        high=high,
        needed_each=each,
        needed_at_end=mean("needed_at_end"),
        tokens=mean("tokens"),
        peak_tokens=max(row.peak_tokens for row in rows),
        freed_by_llm=mean("freed_by_llm"),
        decisions=sum(row.decisions for row in rows),
        calls=sum(row.calls for row in rows),
        valid=fmean(valid) if valid else None,
        seconds_per_turn=mean("seconds_per_turn"),
        review_share=mean("review_share"),
    )
