"""Encode and decode pages in C: equal to packed.py's, codes and scales bit for bit.

The product with a layer's transform is the one PyTorch call that the eager twin makes, so that both
round alike; before it the center is taken off, and after it values become codes, in C. See
cpu/encode.c and cpu/decode.c.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from agentmem.kernels.code_stream import PAGE_TOKENS
from agentmem.kernels.cpu_codes import PreparedCoding, prepared_coding
from agentmem.kernels.cpu_library import ready_functions
from agentmem.kernels.cpu_tensors import checked_pages, checked_states
from agentmem.kernels.packed import LARGEST_SCALE, NOT_FINITE, PackedLayer, too_large
from agentmem.kernels.page_table import PAGES_PER_STRETCH

_MOST_PAGES = 2**31 // PAGE_TOKENS


class _States(ctypes.Structure):
    _fields_ = [
        ("first", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("page", "head", "token")),
    ]

    @staticmethod
    def of_pages(pages: Tensor) -> _States:
        """(P, H, 16, D), which must outlive this."""
        return _States(pages.data_ptr(), *pages.stride()[:3])

    @staticmethod
    def of_rows(rows: Tensor, num_pages: int) -> _States:
        """(H, P * 16, D) in one piece, which must outlive this."""
        size = rows.shape[2]
        page = PAGE_TOKENS * size
        return _States(rows.data_ptr(), page, num_pages * page, size)


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
    batch = _batch(num_pages, [_States.of_pages(one) for one in states])
    if coding.is_framed or any(coding.means):
        framed = _framed(functions, coding, layer, batch, phases)
        # Of one bit the size is a mean, whose order of summation is PyTorch's.
        sizes = [
            rows.abs().mean(-1) if is_mean else None
            for rows, is_mean in zip(framed, coding.means, strict=True)
        ]
        batch.states = _BothStates(*[_States.of_rows(rows, num_pages) for rows in framed])
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
    functions: ctypes.CDLL, coding: PreparedCoding, layer: PackedLayer, batch: _Batch,
    phases: Tensor,
) -> list[Tensor]:  # fmt: skip
    """Keys and values in the frame they are coded in, (H, P * 16, D): a head's rows together."""
    num_pages = batch.num_pages
    shape = (coding.num_heads, num_pages * PAGE_TOKENS, coding.head_dim)
    framed = [torch.empty(shape), torch.empty(shape)]
    _center(functions, coding, batch, [_States.of_rows(one, num_pages) for one in framed], phases)
    for side, matrices in enumerate((layer.key_transform, layer.value_transform)):
        if matrices is not None:
            framed[side] = torch.bmm(framed[side], matrices)
    return framed


def decode(pages: Tensor, phases: Tensor, layer: PackedLayer) -> tuple[Tensor, Tensor]:
    """Keys and values again, (P, H, 16, D), float32: see `packed.decode`.

    Raises:
        KernelsUnavailable: `why_unavailable` says why.
        ValueError: a tensor is of another shape, type or place.
    """
    functions = ready_functions()
    coding = prepared_coding(layer)
    checked_pages(pages, coding.page_nbytes)
    num_pages, heads, size = pages.shape[0], coding.num_heads, coding.head_dim
    decoded = [torch.empty((num_pages, heads, PAGE_TOKENS, size)) for _ in range(2)]
    if not coding.is_framed:
        _decode(functions, coding, pages, [_States.of_pages(one) for one in decoded])
        return decoded[0], decoded[1]
    rows = [torch.empty((heads, num_pages * PAGE_TOKENS, size)) for _ in range(2)]
    _decode(functions, coding, pages, [_States.of_rows(one, num_pages) for one in rows])
    if layer.query_transform is not None:
        rows[0] = torch.bmm(rows[0], layer.query_transform.transpose(1, 2))
    if layer.value_inverse is not None:
        rows[1] = torch.bmm(rows[1], layer.value_inverse)
    batch = _batch(num_pages, [_States.of_rows(one, num_pages) for one in rows])
    to = [_States.of_pages(one) for one in decoded]
    _center(functions, coding, batch, to, phases, back=True)
    return decoded[0], decoded[1]


def _decode(
    functions: ctypes.CDLL, coding: PreparedCoding, pages: Tensor, to: Sequence[_States]
) -> None:  # fmt: skip
    batch = _batch(pages.shape[0], to)
    batch.pages, batch.page_stride = pages.data_ptr(), pages.stride(0)
    functions.agentmem_decode(coding.reference, ctypes.byref(batch))


def _batch(num_pages: int, states: Sequence[_States]) -> _Batch:
    if num_pages > _MOST_PAGES:
        raise ValueError(f"At most {_MOST_PAGES} pages can be coded at once: got {num_pages}.")
    both = _BothStates(*states)
    return _Batch(both, num_pages=num_pages, num_threads=torch.get_num_threads())


def _center(
    functions: ctypes.CDLL, coding: PreparedCoding, batch: _Batch, to: Sequence[_States],
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
        coding.reference, ctypes.byref(batch), _BothStates(*to), int(back), ctypes.byref(where)
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
