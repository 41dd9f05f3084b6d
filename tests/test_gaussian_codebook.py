"""The levels of channels of unit variance: fitted to what they stand for, as good as is said, and
safe beside an outlier."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from agentmem.kernels.code_stream import NARROW_WIDTHS, CodeStream
from agentmem.kernels.gaussian_codebook import CODEBOOK
from agentmem.kernels.trellis import path_codes

CODING_ERRORS = (1.0, 0.3227, 0.0962, 0.0267, 0.0075, 0.0061, 0.0019, 0.0006, 0.0002)
"""Mean squared error at 0 to 8 bits, over the variance."""
GROUPS = 8
SETTLED = 4
"""Channels from which on a path may be in any state."""
LLOYD_MAX = {1: 0.3634, 2: 0.1175, 3: 0.0345, 4: 0.0095}
"""Mean squared error of the best levels by code for a Gaussian of unit variance, by width."""


@cache
def coded(width: int) -> tuple[Tensor, Tensor]:
    """Channels with long tails and the windows they are read through, (tokens, channels)."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(16_000, 4 * GROUPS, generator=generator)
    states[torch.rand(len(states), generator=generator) < 0.12] *= 1.8
    states /= states.square().mean().sqrt()
    return states, windows_of(states, width)


def error_at(width: int) -> float:
    """Mean squared error of those channels, over their variance."""
    states, windows = coded(width)
    return float((CODEBOOK.table[width][windows] - states).square()[:, SETTLED:].mean())


def windows_of(states: Tensor, width: int) -> Tensor:
    """What the codes of these channels are read through, int64, (tokens, channels)."""
    stream = CodeStream((width,) * (states.shape[1] // 4))
    codes = path_codes(states, stream.channel_widths.tolist(), CODEBOOK)
    windows = stream.windows(stream.pack(codes.view(-1, 16, states.shape[1])))
    return windows.view_as(states).long()


@pytest.mark.parametrize("width", NARROW_WIDTHS)
def test_a_level_is_the_mean_of_what_it_stands_for(width: int) -> None:
    states, windows = (part[:, SETTLED:].flatten() for part in coded(width))
    count = len(CODEBOOK.levels[width])
    chosen = torch.bincount(windows, minlength=count)
    means = torch.zeros(count).index_add_(0, windows, states) / chosen
    # What is left are the rounding to an integer and the noise of means.
    off = (means - CODEBOOK.table[width, :count]).abs()
    assert bool((off < 1.5 * CODEBOOK.units[width] + 2 / chosen.sqrt()).all())


@pytest.mark.parametrize("width", range(1, 9))
def test_the_stated_coding_errors_are_those_of_the_codebook(width: int) -> None:
    assert error_at(width) == pytest.approx(CODING_ERRORS[width], rel=0.2)


@pytest.mark.parametrize(("width", "best_alone"), [(1, 0.40), (2, 0.144), (3, 0.0454), (4, 0.0126)])
def test_a_trellis_loses_less_than_the_best_levels_of_codes_alone(
    width: int, best_alone: float
) -> None:
    assert error_at(width) < 0.85 * best_alone


@pytest.mark.parametrize(("width", "share"), [(1, 0.9), (2, 0.82), (3, 0.8), (4, 0.8)])
def test_a_gaussian_loses_clearly_less_than_to_the_best_levels_by_code(
    width: int, share: float
) -> None:
    states = torch.randn((2048, 64), generator=torch.Generator().manual_seed(1))
    error = float((CODEBOOK.table[width][windows_of(states, width)] - states).square().mean())
    # Nothing of so many bits loses less than 4 ** -width.
    assert 4.0**-width < error < share * LLOYD_MAX[width]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("width", NARROW_WIDTHS)
def test_an_outlier_is_coded_far_out_and_costs_the_others_less_than_a_bit(
    width: int, sign: int
) -> None:
    states = torch.randn((256, 16), generator=torch.Generator().manual_seed(3))
    states[:, 7] = sign * 1e30
    values = CODEBOOK.table[width][windows_of(states, width)]
    # Of one bit the largest level of a side may cost its neighbours more than it saves.
    assert bool((sign * values[:, 7] > (0.2 if width == 1 else 0.7) * CODEBOOK.top(width)).all())
    errors = (values - states).index_fill(1, torch.tensor([7]), 0.0)
    assert float(errors.square().mean()) < LLOYD_MAX.get(width - 1, 1.0)
