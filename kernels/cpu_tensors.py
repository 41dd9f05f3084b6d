"""Tensors as the C kernels read them: what does not fit is named before C is given a pointer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

Source = TypeVar("Source")
Made = TypeVar("Made")


def made_once(make: Callable[[Source], Made]) -> Callable[[Source], Made]:
    """The same function, but what it makes of an object is kept as long as the object lives."""
    kept: WeakKeyDictionary[Source, Made] = WeakKeyDictionary()

    def made(source: Source) -> Made:
        found = kept.get(source)
        if found is None:
            found = kept[source] = make(source)
        return found

    return made


def checked(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The tensor in one piece.

    Raises:
        ValueError: another shape, type or place.
    """
    if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_cpu:
        raise ValueError(
            f"`{name}` must be {tuple(shape)}, {dtype}, on the CPU: got {tuple(tensor.shape)}, "
            f"{tensor.dtype}, on {tensor.device}."
        )
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def checked_pages(pages: Tensor, page_nbytes: int) -> Tensor:
    """Records that may have anything between them.

    Raises:
        ValueError: another shape, type or place, or a record that is not in one piece.
    """
    if (
        pages.dtype != torch.uint8 or pages.ndim != 2 or not pages.is_cpu
        or pages.shape[1] != page_nbytes or (pages.stride(1) != 1 and pages.numel())
    ):  # fmt: skip
        raise ValueError(
            f"`pages` must be (capacity, {page_nbytes}), torch.uint8, on the CPU, each page in "
            f"one piece: got {tuple(pages.shape)}, {pages.dtype}, on {pages.device}, strides "
            f"{pages.stride()}."
        )
    return pages


def checked_states(name: str, states: Tensor, num_heads: int, head_dim: int) -> Tensor:
    """Float32 keys or values of pages, (P, H, 16, D), channels side by side.

    Raises:
        ValueError: another shape, type or place.
    """
    shape = (num_heads, 16, head_dim)
    if (
        states.ndim != 4 or states.shape[1:] != shape or not states.is_cpu
        or not states.is_floating_point()
    ):  # fmt: skip
        raise ValueError(
            f"`{name}` must be (num_pages, {', '.join(map(str, shape))}), floats, on the CPU: got "
            f"{tuple(states.shape)}, {states.dtype}, on {states.device}."
        )
    states = states.float().resolve_neg()
    return states if states.stride(3) == 1 else states.contiguous()
