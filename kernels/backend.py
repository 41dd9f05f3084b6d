"""Which implementation attends to packed pages: C or Triton where they run, else eager PyTorch.

All take the same arguments; `packed` is the reference, and what every machine can do.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from agentmem.kernels import cpu, cpu_dense, packed
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.page_table import PageTable


class PackedKernels(Protocol):
    """Attention over packed pages; see `packed` for arguments."""

    def attend(
        self, queries: Tensor, rotations: Tensor, table: PageTable, pages: Tensor,
        layer: PackedLayer, limits: Tensor, softcap: float | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Attended values and log-sum-exp."""
        ...

    def column_mass(
        self, queries: Tensor, rotations: Tensor, table: PageTable, pages: Tensor,
        layer: PackedLayer, limits: Tensor, softcap: float | None, log_sum_exp: Tensor,
    ) -> Tensor:  # fmt: skip
        """Probability each slot received."""
        ...


def kernels_for(device: torch.device, head_dim: int) -> PackedKernels:
    """The fastest kernels for pages on a device.

    Args:
        device: where the pages are.
        head_dim: channels of a head.
    """
    if device.type == "cpu" and head_dim <= cpu.MAX_HEAD_DIM and cpu.why_unavailable() is None:
        return cpu
    return packed


def attends_dense_in_c(device: torch.device, head_dim: int, dtype: torch.dtype) -> bool:
    """Whether `cpu_dense` attends to such keys and values on a device; else eager PyTorch does."""
    return (
        device.type == "cpu" and cpu_dense.takes(head_dim, dtype) and cpu.why_unavailable() is None
    )


def kernels_in_words(device: torch.device, head_dim: int) -> str:
    """Which kernels `kernels_for` chooses, and why not faster ones."""
    if device.type != "cpu":
        return f"eager PyTorch on {device.type}"
    if head_dim > cpu.MAX_HEAD_DIM:
        return f"eager PyTorch, which is slower: heads have {head_dim} channels"
    why = cpu.why_unavailable()
    return f"eager PyTorch, which is slower: {why}" if why else "C for AVX-512 VNNI"
