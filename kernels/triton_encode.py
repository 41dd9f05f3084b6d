"""Encode pages in Triton: token scales, nearest codes, planes. One program a page and head.

States are brought into the frame they are coded in by PyTorch's matrix product; what follows equals
`packed.encode` code for code, as long as both see the same bits. Divisions are rounded correctly
and nothing is fused, so that no code at a border differs.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from agentmem.kernels import triton_launch
from agentmem.kernels.packed import PackedLayer, times_by_head
from agentmem.kernels.triton_launch import jit
from agentmem.kernels.triton_layer import Coded, layer_tables

_NOT_FINITE = 1
_TOO_LARGE = 2
_LARGEST_SCALE = torch.finfo(torch.float16).max


@jit
def _folded(words: tl.tensor, BITS: tl.constexpr) -> tl.tensor:
    """(..., 2): the second shifted by BITS and or-ed to the first."""
    low, high = tl.split(words)
    return low | (high << BITS)


@jit
def _store_plane(
    words: tl.tensor, begin: tl.tensor, has: tl.tensor, COUNT: tl.constexpr
) -> None:  # fmt: skip
    """(COUNT, groups) words from each group's `begin` (groups,) on, where a group has the plane."""
    place = begin[None, :] + tl.arange(0, COUNT)[:, None]
    tl.store(place, words, mask=has[None, :] & (tl.arange(0, COUNT)[:, None] >= 0))


@jit
def _store_codes(
    words: tl.tensor, first: tl.tensor, widths: tl.tensor, GROUPS: tl.constexpr,
    PLANES: tl.constexpr,
) -> None:  # fmt: skip
    """Pack (16, groups) code words, four codes each; the inverse of `triton_codes.code_words`."""
    if PLANES & 8:
        _store_plane(words, first, (widths & 8) != 0, 16)
    if PLANES & 4:
        plane = (words >> (widths & 3)[None, :]) & 0x0F0F0F0F
        pairs = tl.permute(tl.reshape(plane, (2, 8, GROUPS)), (1, 2, 0))
        _store_plane(_folded(pairs, 4), first, (widths & 4) != 0, 8)
    if PLANES & 2:
        plane = (words >> (widths & 1)[None, :]) & 0x03030303
        fours = tl.permute(tl.reshape(plane, (2, 2, 4, GROUPS)), (2, 3, 0, 1))
        _store_plane(_folded(_folded(fours, 2), 4), first + (widths & 4) * 2, (widths & 2) != 0, 4)
    if PLANES & 1:
        # One bit a byte becomes four bits: the product gathers bit 8 * b at 24 + b.
        plane = (((words & 0x01010101) * 0x01020408) >> 24) & 15
        eights = tl.permute(tl.reshape(plane, (2, 2, 2, 2, GROUPS)), (0, 4, 1, 2, 3))
        _store_plane(
            _folded(_folded(_folded(eights, 4), 8), 16), first + (widths & 6) * 2,
            (widths & 1) != 0, 2,
        )  # fmt: skip


@jit
def _encode_kernel(
    states_ptr: tl.tensor, records_ptr: tl.tensor, record_scales_ptr: tl.tensor,
    groups_ptr: tl.tensor, scale_begins_ptr: tl.tensor, borders_ptr: tl.tensor,
    faults_ptr: tl.tensor, top: tl.tensor, page_words: tl.tensor, HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr, PLANES: tl.constexpr, STEPS: tl.constexpr, SCALED: tl.constexpr,
    MEAN: tl.constexpr, VALUES: tl.constexpr,
) -> None:  # fmt: skip
    """Keys or values (N, H, 16, D), float32, of one page and head. Grid: (N, H)."""
    GROUPS: tl.constexpr = BLOCK_DIM // 4
    page, head, num_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    program = page.to(tl.int64) * num_heads + head
    token, channel = tl.arange(0, 16), tl.arange(0, BLOCK_DIM)
    group = tl.arange(0, GROUPS)
    place = states_ptr + (program * 16 + token[:, None]) * HEAD_DIM + channel[None, :]
    states = tl.load(place, mask=(channel < HEAD_DIM)[None, :], other=0.0)
    # NaN and infinities are what is not below infinity.
    unfit = tl.where(tl.abs(states) < float("inf"), 0, 1)
    fault = tl.max(tl.max(unfit, 1), 0)
    record_scales_ptr += page.to(tl.int64) * page_words * 2 + tl.load(scale_begins_ptr + head)
    if SCALED:
        if MEAN:
            sizes = tl.div_rn(tl.sum(tl.abs(states), 1), tl.full((16,), HEAD_DIM, tl.float32))
        else:
            sizes = tl.max(tl.abs(states), 1)
        exact = tl.div_rn(sizes, tl.zeros((16,), tl.float32) + top)
        fault = tl.maximum(fault, tl.max(tl.where(exact > 65504.0, 2, 0), 0))
        scales = exact.to(tl.float16)
        # The bit pattern of a non-negative float16 plus one is the next larger one.
        raised = (scales.to(tl.int16, bitcast=True) + 1).to(tl.float16, bitcast=True)
        scales = tl.where(scales.to(tl.float32) < exact, raised, scales)
        tl.store(record_scales_ptr + token, scales)
        divisors = tl.where(scales == 0.0, 1.0, scales.to(tl.float32))
        states = tl.div_rn(states, divisors[:, None] + tl.zeros((16, BLOCK_DIM), tl.float32))
    tl.store(faults_ptr + program, fault)

    groups = tl.load(groups_ptr + head * GROUPS + group)
    widths, first = groups & 15, groups >> 4
    of_channel = tl.load(groups_ptr + head * GROUPS + channel // 4) & 15
    borders_ptr += of_channel[None, :] * 256
    codes = tl.zeros((16, BLOCK_DIM), tl.int32)
    for step in tl.static_range(STEPS):
        half = 1 << (STEPS - 1 - step)
        border = tl.load(borders_ptr + codes + (half - 1))
        codes = tl.where(states > border, codes + half, codes)
    if VALUES:
        quads = tl.permute(tl.reshape(codes, (4, 2, 2, GROUPS, 4)), (4, 0, 3, 1, 2))
        words = _folded(_folded(quads, 8), 16)
    else:
        words = _folded(_folded(tl.reshape(codes, (16, GROUPS, 2, 2)), 8), 16)
    words = tl.reshape(words, (16, GROUPS))
    begin = records_ptr + page.to(tl.int64) * page_words + first
    _store_codes(words, begin, widths, GROUPS, PLANES)


def encode(keys: Tensor, values: Tensor, phases: Tensor, layer: PackedLayer) -> Tensor:
    """Pack pages: see `packed.encode`, argument by argument.

    Raises:
        ValueError: a value is NaN, infinite, or too large for a float16 scale.
    """
    tables = layer_tables(layer, keys.device)
    keys, values = keys.float(), values.float()
    if layer.center_by_phase is not None:
        keys = keys - layer.center_by_phase.to(keys.device)[phases.long()]
    if tables.mean is not None:
        values = values - tables.mean[:, None]
    if layer.key_transform is not None:
        keys = times_by_head(keys, layer.key_transform.to(keys.device))
    if layer.value_transform is not None:
        values = times_by_head(values, layer.value_transform.to(keys.device))
    num_pages, heads, _, head_dim = keys.shape
    packing = layer.packing
    records = torch.empty((num_pages, packing.page_nbytes), dtype=torch.uint8, device=keys.device)
    faults = torch.zeros((2, num_pages, heads), dtype=torch.int32, device=keys.device)
    for states, coded, fault in (
        (keys, tables.keys, faults[0]),
        (values, tables.values, faults[1]),
    ):
        triton_launch.launch(
            _encode_kernel,
            (num_pages, heads),
            {
                "states_ptr": states.contiguous(),
                "records_ptr": records.view(torch.int32),
                "record_scales_ptr": records.view(torch.float16),
                "groups_ptr": coded.groups,
                "scale_begins_ptr": coded.scale_begins,
                "borders_ptr": coded.borders,
                "faults_ptr": fault,
                "top": coded.scale_top,
                "page_words": packing.page_nbytes // 4,
            },
            {
                "HEAD_DIM": head_dim,
                "BLOCK_DIM": tables.block_dim,
                "PLANES": coded.planes,
                "STEPS": coded.max_width,
                "SCALED": packing.token_scales,
                "MEAN": coded.max_width == 1,
                "VALUES": coded is tables.values,
            },
            num_warps=4,
            fused=False,
        )
    _refuse(int(faults.max()) if faults.numel() else 0, tables.keys, tables.values)
    return records


def _refuse(fault: int, keys: Coded, values: Coded) -> None:
    if fault == _NOT_FINITE:
        raise ValueError("Only finite keys and values can be packed: got NaN or infinity.")
    if fault == _TOO_LARGE:
        raise ValueError(
            f"Keys up to {_LARGEST_SCALE * keys.scale_top:.3g} and values up to "
            f"{_LARGEST_SCALE * values.scale_top:.3g} can be packed: got larger ones."
        )
