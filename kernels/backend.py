"""Which implementation codes and attends to packed pages: C on a CPU, Triton on CUDA, else eager.

All take the same arguments; `packed` is the reference, and what every machine can do.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from agentmem.kernels import cpu, cpu_dense, packed
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.page_table import PageTable


class PackedKernels(Protocol):
    """What is done with packed pages; see `packed` for arguments."""

    def encode(
        self, keys: Tensor, values: Tensor, phases: Tensor, layer: PackedLayer
    ) -> Tensor:  # fmt: skip
        """Pages of keys and values; ValueError for what they cannot hold."""
        ...

    def decode(
        self, pages: Tensor, phases: Tensor, layer: PackedLayer
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Keys and values of pages."""
        ...

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
    kernels, _ = _choose(device, head_dim)
    return kernels


def attends_dense_in_c(device: torch.device, head_dim: int, dtype: torch.dtype) -> bool:
    """Whether `cpu_dense` attends to such keys and values on a device; else eager PyTorch does."""
    return (
        device.type == "cpu" and cpu_dense.takes(head_dim, dtype) and cpu.why_unavailable() is None
    )


def kernels_in_words(device: torch.device, head_dim: int) -> str:
    """Which kernels `kernels_for` chooses, and why not faster ones."""
    _, words = _choose(device, head_dim)
    return words


def _choose(device: torch.device, head_dim: int) -> tuple[PackedKernels, str]:
    if device.type == "cpu":
        why = _too_wide(head_dim, cpu.MAX_HEAD_DIM) or cpu.why_unavailable()
        if why is None:
            return cpu, "C for AVX-512"
        return packed, f"eager PyTorch, which is slower: {why}"
    if device.type != "cuda":
        return packed, f"eager PyTorch on {device.type}"
    found = _triton_kernels()
    if isinstance(found, str):
        return packed, f"eager PyTorch on cuda, which is slower: {found}"
    why = _too_wide(head_dim, found.LARGEST_HEAD_DIM) or found.why_unavailable(device, head_dim)
    if why is None:
        return found, "Triton on cuda"
    return packed, f"eager PyTorch on cuda, which is slower: {why}"


def _too_wide(head_dim: int, most: int) -> str | None:
    return None if head_dim <= most else f"heads have {head_dim} channels"


class _TritonKernels(PackedKernels, Protocol):
    LARGEST_HEAD_DIM: int

    def why_unavailable(self, device: torch.device, head_dim: int) -> str | None: ...


@cache
def _triton_kernels() -> _TritonKernels | str:
    """The kernels in Triton, or why they cannot be had; only asked for where there is CUDA."""
    try:
        from agentmem.kernels import triton_kernels
    except ImportError as error:
        return f"Triton cannot be imported: {error}"
    return triton_kernels
