"""Encode and decode pages in C: equal to packed.py's, codes and scales bit for bit.

The product with a layer's transform is the one PyTorch call that the eager twin makes, so that both
round alike; before it the center is taken off, and after it values become codes, in C. See
cpu/encode.c and cpu/decode.c.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from agentmem.kernels.cpu_codes import PreparedCoding, prepared_coding
from agentmem.kernels.cpu_library import ready_functions
from agentmem.kernels.cpu_tensors import checked_pages, checked_states
from agentmem.kernels.packed import LARGEST_SCALE, NOT_FINITE, PackedLayer, too_large
from agentmem.kernels.packing import PAGE_TOKENS
from agentmem.kernels.page_table import PAGES_PER_STRETCH

_MOST_PAGES = 2**31 // PAGE_TOKENS


class _States(ctypes.Structure):
    _fields_ = [
        ("first", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("page", "head", "token")),
    ]


_BothStates = _States * 2


class _Batch(ctypes.Structure):
    _fields_ = [
        ("states", _BothStates),
        ("sizes", ctypes.c_void_p * 2),
        ("pages", ctypes.c_void_p),
        ("page_stride", ctypes.c_int64),
        ("phases", ctypes.c_void_p),
        ("num_pages", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
    ]


def encode(keys: Tensor, values: Tensor, phases: Tensor, layer: PackedLayer) -> Tensor:
    """Pack pages: see `packed.encode`.

    Raises:
        KernelsUnavailable: `why_unavailable` says why.
        ValueError: a value is NaN, infinite, or too large for a float16 scale; or a tensor is of
            another shape, type or place.
    """
    functions = ready_functions()
    coding = prepared_coding(layer)
    states = [
        checked_states(name, tensor, coding.num_heads, coding.head_dim)
        for name, tensor in (("keys", keys), ("values", values))
    ]
    num_pages = keys.shape[0]
    if values.shape[0] != num_pages:
        raise ValueError(f"Keys have {num_pages} pages, values {values.shape[0]}.")
    sizes: list[Tensor | None] = [None, None]
    if coding.is_framed or any(coding.means):
        framed = _framed(functions, coding, layer, states, phases)
        # Of one bit the size is a mean, whose order of summation is PyTorch's.
        sizes = [
            rows.abs().mean(-1) if is_mean else None
            for rows, is_mean in zip(framed, coding.means, strict=True)
        ]
        states = [_by_page(rows, num_pages) for rows in framed]
    batch = _batch(num_pages, states)
    for side, of_tokens in enumerate(sizes):
        batch.sizes[side] = None if of_tokens is None else of_tokens.data_ptr()
    pages = torch.empty((num_pages, coding.page_nbytes), dtype=torch.uint8)
    batch.pages, batch.page_stride = pages.data_ptr(), coding.page_nbytes
    largest = (ctypes.c_float * 2)()
    if functions.agentmem_encode(coding.reference, ctypes.byref(batch), largest):
        raise MemoryError("No memory for the encoder's working space.")
    _refuse_unfit(coding, list(largest), sizes)
    return pages


def _framed(
    functions: ctypes.CDLL, coding: PreparedCoding, layer: PackedLayer, states: Sequence[Tensor],
    phases: Tensor,
) -> list[Tensor]:  # fmt: skip
    """Keys and values in the frame they are coded in, (H, P * 16, D): a head's rows together."""
    num_pages = states[0].shape[0]
    rows = torch.empty((2, coding.num_heads, num_pages * PAGE_TOKENS, coding.head_dim))
    batch = _batch(num_pages, states)
    _center(functions, coding, batch, [_by_page(one, num_pages) for one in rows], phases)
    return [
        one if matrices is None else torch.bmm(one, matrices)
        for one, matrices in zip(rows, (layer.key_transform, layer.value_transform), strict=True)
    ]


def decode(pages: Tensor, phases: Tensor, layer: PackedLayer) -> tuple[Tensor, Tensor]:
    """Keys and values again, (P, H, 16, D), float32: see `packed.decode`.

    Raises:
        KernelsUnavailable: `why_unavailable` says why.
        ValueError: a tensor is of another shape, type or place.
    """
    functions = ready_functions()
    coding = prepared_coding(layer)
    checked_pages(pages, coding.page_nbytes)
    num_pages, size = pages.shape[0], coding.head_dim
    decoded = [torch.empty((num_pages, coding.num_heads, PAGE_TOKENS, size)) for _ in range(2)]
    matrices = (
        None if layer.query_transform is None else layer.query_transform.transpose(1, 2),
        layer.value_inverse,
    )
    # A product takes a head's rows together.
    rows = [
        whole if matrix is None
        else _by_page(torch.empty((coding.num_heads, num_pages * PAGE_TOKENS, size)), num_pages)
        for whole, matrix in zip(decoded, matrices, strict=True)
    ]  # fmt: skip
    batch = _batch(num_pages, rows)
    batch.pages, batch.page_stride = pages.data_ptr(), pages.stride(0)
    functions.agentmem_decode(coding.reference, ctypes.byref(batch))
    if coding.is_framed:
        rows = [
            one if matrix is None else _by_page(torch.bmm(_by_head(one), matrix), num_pages)
            for one, matrix in zip(rows, matrices, strict=True)
        ]
        _center(functions, coding, _batch(num_pages, rows), decoded, phases, back=True)
    return decoded[0], decoded[1]


def _batch(num_pages: int, states: Sequence[Tensor]) -> _Batch:
    if num_pages > _MOST_PAGES:
        raise ValueError(f"At most {_MOST_PAGES} pages can be coded at once: got {num_pages}.")
    return _Batch(_both(states), num_pages=num_pages, num_threads=torch.get_num_threads())


def _both(states: Sequence[Tensor]) -> Any:
    """Two (P, H, 16, D) tensors as C reads them; they must outlive what is made of it."""
    return _BothStates(*[_States(one.data_ptr(), *one.stride()[:3]) for one in states])


def _by_page(rows: Tensor, num_pages: int) -> Tensor:
    """(H, P * 16, D) as (P, H, 16, D)."""
    return rows.view(rows.shape[0], num_pages, PAGE_TOKENS, rows.shape[2]).transpose(0, 1)


def _by_head(pages: Tensor) -> Tensor:
    """And back."""
    return pages.transpose(0, 1).flatten(1, 2)


def _center(
    functions: ctypes.CDLL, coding: PreparedCoding, batch: _Batch, to: Sequence[Tensor],
    phases: Tensor, *, back: bool = False,
) -> None:  # fmt: skip
    """Write the batch's states to others, less their center and mean, or plus them."""
    num_pages = batch.num_pages
    if phases.shape != (num_pages,) or not phases.is_cpu:
        raise ValueError(
            f"`phases` must be ({num_pages},), on the CPU: got {tuple(phases.shape)}, on "
            f"{phases.device}."
        )
    places = phases.to(torch.int32).contiguous()
    batch.phases = places.data_ptr()
    where = ctypes.c_int32(0)
    fault = functions.agentmem_center(
        coding.reference, ctypes.byref(batch), _both(to), int(back), ctypes.byref(where)
    )
    if fault:
        raise ValueError(
            f"`phases[{where.value}]` must be 0 to {PAGES_PER_STRETCH - 1}: "
            f"got {int(places[where.value])}."
        )


def _refuse_unfit(
    coding: PreparedCoding, largest: Sequence[float], sizes: Sequence[Tensor | None]
) -> None:  # fmt: skip
    for top, channel, tokens in zip(coding.tops, largest, sizes, strict=True):
        if not math.isfinite(channel):
            raise ValueError(NOT_FINITE)
        if not coding.token_scales:
            continue
        size = channel if tokens is None or not tokens.numel() else float(tokens.max())
        # As the scale is computed: in float32.
        if ctypes.c_float(size / ctypes.c_float(top).value).value > LARGEST_SCALE:
            raise ValueError(too_large(size, top))
