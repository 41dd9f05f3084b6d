"""Rotary position embedding as complex numbers: one pair of channels is one number.

Every convention (halves, interleaved, partial, none) becomes the same thing once the channels of a
head are put in pair order: pair `i` of a token at position `p` is multiplied by exp(1j * p * f[i]).
Pairs that are never rotated have frequency 0. Knows nothing of models, only tensors.

Angles are computed in float64: at position 1,000 a float32 angle is already off by 6e-5.
"""

from __future__ import annotations

import torch
from torch import Tensor


def unit_rotations(positions: Tensor, frequencies: Tensor, *, inverse: bool = False) -> Tensor:
    """exp(1j * position * frequency), or its conjugate.

    Args:
        positions: (n,), int64.
        frequencies: (head_dim / 2,), float64, radians per position.
        inverse: rotate back instead.

    Returns:
        (n, head_dim / 2), complex64.
    """
    angles = positions.to(torch.float64)[:, None] * frequencies[None, :]
    if inverse:
        angles = -angles
    return torch.complex(angles.cos(), angles.sin()).to(torch.complex64)


def as_pairs(states: Tensor, pair_order: Tensor) -> Tensor:
    """Put the channels in pair order and read each pair as one complex number.

    Args:
        states: (..., head_dim), any float dtype.
        pair_order: (head_dim,), int64; channels 2i and 2i + 1 of the result form pair i.

    Returns:
        (..., head_dim / 2), complex64.
    """
    return ordered_pairs(states.float().index_select(-1, pair_order))


def ordered_pairs(channels: Tensor) -> Tensor:
    """Read channels that are in pair order, (..., head_dim) float32, as complex numbers."""
    return torch.view_as_complex(channels.reshape(*channels.shape[:-1], -1, 2))


def as_channels(pairs: Tensor) -> Tensor:
    """The pairs as channels in pair order: (..., head_dim), float32."""
    return torch.view_as_real(pairs).flatten(-2)
