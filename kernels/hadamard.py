"""Hadamard matrices: rotations that spread a large channel over all others.

A rotated token's channels are near Gaussian whatever they were, so one scale a token suits them all
(QuaRot, arXiv 2404.00456). Channels that are no power of two are rotated in equal blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor


def hadamard(num_channels: int) -> Tensor:
    """An orthogonal matrix of blocks as large as a power of two can be.

    Args:
        num_channels: D, at least 1.

    Returns:
        (D, D), float32, symmetric: its own inverse.
    """
    size = num_channels & -num_channels
    block = torch.ones(1, 1)
    while block.shape[0] < size:
        block = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), block)
    return torch.kron(torch.eye(num_channels // size), block / size**0.5)
