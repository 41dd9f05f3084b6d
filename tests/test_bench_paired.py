"""Paired differences and their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from agentmem.bench.paired import paired_difference
from agentmem.errors import InvalidInput


def test_equal_systems_do_not_differ() -> None:
    difference = paired_difference([1, 0, 1], [1, 0, 1])
    assert (difference.mean, difference.low, difference.high, difference.pairs) == (0, 0, 0, 3)


def test_the_interval_is_that_of_the_normal_law_where_pairs_are_many() -> None:
    generator = np.random.default_rng(0)
    first = (generator.random(2000) < 0.6).astype(float)
    second = (generator.random(2000) < 0.5).astype(float)
    difference = paired_difference(first.tolist(), second.tolist())
    error = float((first - second).std()) / 2000**0.5
    assert difference.mean == pytest.approx(float((first - second).mean()))
    assert difference.low == pytest.approx(difference.mean - 1.96 * error, abs=0.1 * error)
    assert difference.high == pytest.approx(difference.mean + 1.96 * error, abs=0.1 * error)


def test_resampling_is_seeded() -> None:
    first, second = [1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0]
    assert paired_difference(first, second, seed=3) == paired_difference(first, second, seed=3)


@pytest.mark.parametrize(("first", "second"), [([], []), ([1.0], [1.0, 0.0])])
def test_pairs_need_both_halves(first: list[float], second: list[float]) -> None:
    with pytest.raises(InvalidInput, match="one number each of both systems"):
        paired_difference(first, second)
