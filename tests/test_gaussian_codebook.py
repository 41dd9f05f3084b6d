"""The levels of channels of unit variance: fitted to what they stand for, as good as is said."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from agentmem.kernels.code_stream import NARROW_WIDTHS, CodeStream
from agentmem.kernels.gaussian_codebook import CODEBOOK, CODING_ERRORS
from agentmem.kernels.trellis import path_codes

GROUPS = 8
SETTLED = 4
"""Channels from which on a path may be in any state."""


@cache
def coded(width: int) -> tuple[Tensor, Tensor]:
    """Channels with long tails and the windows they are read through, (tokens, channels)."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(16_000, 4 * GROUPS, generator=generator)
    states[torch.rand(len(states), generator=generator) < 0.12] *= 1.8
    states /= states.square().mean().sqrt()
    stream = CodeStream((width,) * GROUPS)
    codes = path_codes(states, stream.channel_widths.tolist(), CODEBOOK)
    windows = stream.windows(stream.pack(codes.view(-1, 16, 4 * GROUPS)))
    return states, windows.view_as(states).long()


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
    states, windows = coded(width)
    error = (CODEBOOK.table[width][windows] - states).square()[:, SETTLED:].mean()
    assert float(error) == pytest.approx(CODING_ERRORS[width], rel=0.2)


@pytest.mark.parametrize(("width", "best_alone"), [(1, 0.40), (2, 0.144), (3, 0.0454), (4, 0.0126)])
def test_a_trellis_loses_less_than_the_best_levels_of_codes_alone(
    width: int, best_alone: float
) -> None:
    assert CODING_ERRORS[width] < 0.85 * best_alone
