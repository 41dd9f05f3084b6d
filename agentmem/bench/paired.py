"""How far two systems differ that were asked the same questions, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentmem.errors import InvalidInput

_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of paired differences with its bootstrap interval.

    Args:
        mean: first less second.
        low, high: 95 % interval.
        pairs: how many.
    """

    mean: float
    low: float
    high: float
    pairs: int

    def in_points(self, what: str) -> str:
        """The difference in percentage points, with its interval and how many of what it is of."""
        return (
            f"{100 * self.mean:+.1f} points (95 % {100 * self.low:+.1f} to {100 * self.high:+.1f}, "
            f"{self.pairs} {what})"
        )


def paired_difference(
    first: Sequence[float], second: Sequence[float], *, seed: int = 0
) -> Difference:  # fmt: skip
    """Compare two systems pair by pair.

    Args:
        first, second: one number a question (0 or 1 where it is right or wrong), in the same order.
        seed: of the resampling.

    Raises:
        InvalidInput: they are empty or of different length.
    """
    if not first or len(first) != len(second):
        raise InvalidInput(
            f"Pairs need one number each of both systems: got {len(first)} and {len(second)}."
        )
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    generator = np.random.default_rng(seed)
    drawn = generator.integers(0, differences.size, (_RESAMPLES, differences.size), dtype=np.int32)
    low, high = np.quantile(differences[drawn].mean(1), (0.025, 0.975))
    return Difference(float(differences.mean()), float(low), float(high), differences.size)
