"""Encode pages in Triton: token scales, codes, streams of bits. One program a page and head.

States are brought into the frame they are coded in by PyTorch's matrix product; what follows equals
`packed.encode` code for code, as long as both see the same bits. Divisions are rounded correctly
and nothing is fused, so that no code at a border differs. A trellis' codes are found by
triton_trellis.py between the other two steps.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from agentmem.kernels import triton_launch
from agentmem.kernels.code_stream import GROUP_CHANNELS, PAGE_TOKENS
from agentmem.kernels.packed import NOT_FINITE, PackedLayer, times_by_head
from agentmem.kernels.trellis import state_after
from agentmem.kernels.triton_launch import jit
from agentmem.kernels.triton_layer import Coded, LayerTables, layer_tables
from agentmem.kernels.triton_trellis import nearest_codes, path_codes

_NOT_FINITE = 1
_TOO_LARGE = 2
_LARGEST_SCALE = torch.finfo(torch.float16).max


@jit
def _quantize_kernel(
    states_ptr: tl.tensor, record_scales_ptr: tl.tensor, scale_begins_ptr: tl.tensor,
    groups_ptr: tl.tensor, borders_ptr: tl.tensor, codes_ptr: tl.tensor, faults_ptr: tl.tensor,
    top: tl.tensor, page_words: tl.tensor, HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr,
    STEPS: tl.constexpr, SCALED: tl.constexpr, MEAN: tl.constexpr, TRELLIS: tl.constexpr,
) -> None:  # fmt: skip
    """Faults, scales and, but for a trellis, codes of keys or values of one page and head.

    States are (N, H, 16, D), float32; codes (N, H, D, 16), uint8. Grid: (N, H).
    """
    page, head, num_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    program = page.to(tl.int64) * num_heads + head
    token, channel = tl.arange(0, 16), tl.arange(0, BLOCK_DIM)
    inside = (channel < HEAD_DIM)[None, :]
    place = states_ptr + (program * 16 + token[:, None]) * HEAD_DIM + channel[None, :]
    states = tl.load(place, mask=inside, other=0.0)
    # NaN and infinities are what is not below infinity.
    unfit = tl.where(tl.abs(states) < float("inf"), 0, 1)
    fault = tl.max(tl.max(unfit, 1), 0)
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
        record_scales_ptr += page.to(tl.int64) * page_words * 2 + tl.load(scale_begins_ptr + head)
        tl.store(record_scales_ptr + token, scales)
        divisors = tl.where(scales == 0.0, 1.0, scales.to(tl.float32))
        states = tl.div_rn(states, divisors[:, None] + tl.zeros((16, BLOCK_DIM), tl.float32))
    tl.store(faults_ptr + program, fault)
    if not TRELLIS:
        widths = tl.load(groups_ptr + head * (BLOCK_DIM // 4) + channel // 4) & 15
        codes = nearest_codes(states, borders_ptr + widths[None, :] * 256, STEPS)
        target = codes_ptr + (program * HEAD_DIM + channel[None, :]) * 16 + token[:, None]
        tl.store(target, codes.to(tl.uint8), mask=inside)


@jit
def _pack_kernel(
    codes_ptr: tl.tensor, records_ptr: tl.tensor, parts_ptr: tl.tensor, page_words: tl.tensor,
    num_pages: tl.tensor, num_channels: tl.tensor,
) -> None:  # fmt: skip
    """A word of the streams of one page's codes (2, N, H * D, 16), uint8. Grid: (N, words)."""
    page, word = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = tl.arange(0, 16)
    parts = tl.load(parts_ptr + word * 32 + tl.arange(0, 32))
    channel, shift = parts >> 6, (parts & 63) - 8
    side = tl.where(channel < num_channels, 0, 1)
    place = (side * num_pages + page) * num_channels + channel - side * num_channels
    codes = tl.load(
        codes_ptr + place[:, None] * 16 + token[None, :], mask=(parts >= 0)[:, None], other=0
    ).to(tl.uint32)
    higher = codes << tl.maximum(shift, 0)[:, None]
    # A code that began in the word before.
    bits = tl.where((shift >= 0)[:, None], higher, codes >> tl.maximum(-shift, 0)[:, None])
    # No two codes have a bit in common: their sum is their or.
    whole = tl.sum(bits.to(tl.int32, bitcast=True), 0)
    tl.store(records_ptr + page * page_words + word * 16 + token, whole)


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
    records = torch.empty(
        (num_pages, layer.packing.page_nbytes), dtype=torch.uint8, device=keys.device
    )
    faults = torch.zeros((2, num_pages, heads), dtype=torch.int32, device=keys.device)
    keys, values = keys.contiguous(), values.contiguous()
    codes = torch.empty(
        (2, num_pages, heads, head_dim, PAGE_TOKENS), dtype=torch.uint8, device=keys.device
    )
    sides = ((keys, tables.keys), (values, tables.values))
    for (states, coded), of_side, fault in zip(sides, codes, faults, strict=True):
        _quantize(states, coded, tables, records, of_side, fault)
    _refuse(int(faults.max()) if faults.numel() else 0, tables.keys, tables.values)
    before = torch.zeros((num_pages, PAGE_TOKENS), dtype=torch.int32, device=keys.device)
    for (states, coded), of_side in zip(sides, codes, strict=True):
        if coded.is_trellis:
            scales = records.view(torch.float16)
            path_codes(states, scales, coded, before, of_side, scaled=tables.token_scales)
        if tables.values.is_trellis:
            before = _state_after(of_side, layer.packing.key_widths)
    _pack(codes, tables, records)
    return records


def _state_after(codes: Tensor, widths: Tensor) -> Tensor:
    """(N, 16), int32: the states that what follows the codes (N, H, D, 16) begins in."""
    by_token = codes.flatten(1, 2).transpose(1, 2)
    by_channel = widths.flatten().repeat_interleave(GROUP_CHANNELS).tolist()
    state = state_after(by_token.flatten(0, 1), by_channel)
    return state.view(by_token.shape[:2]).to(torch.int32)


def _quantize(
    states: Tensor, coded: Coded, tables: LayerTables, records: Tensor, codes: Tensor,
    faults: Tensor,
) -> None:  # fmt: skip
    """Write codes (N, H, D, 16), uint8, but for a trellis; scales go into the records."""
    num_pages, heads, _, head_dim = states.shape
    triton_launch.launch(
        _quantize_kernel,
        (num_pages, heads),
        {
            "states_ptr": states,
            "record_scales_ptr": records.view(torch.float16),
            "scale_begins_ptr": coded.scale_begins,
            "groups_ptr": coded.groups,
            "borders_ptr": coded.borders,
            "codes_ptr": codes,
            "faults_ptr": faults,
            "top": coded.scale_top,
            "page_words": records.shape[1] // 4,
        },
        {
            "HEAD_DIM": head_dim,
            "BLOCK_DIM": tables.block_dim,
            "STEPS": coded.max_width,
            "SCALED": tables.token_scales,
            "MEAN": coded.max_width == 1,
            "TRELLIS": coded.is_trellis,
        },
        num_warps=4,
        fused=False,
    )


def _pack(codes: Tensor, tables: LayerTables, records: Tensor) -> None:
    """Write codes (2, N, H, D, 16) of keys and of values into the records."""
    _, num_pages, heads, head_dim, _ = codes.shape
    triton_launch.launch(
        _pack_kernel,
        (num_pages, tables.word_parts.shape[0]),
        {
            "codes_ptr": codes,
            "records_ptr": records.view(torch.int32),
            "parts_ptr": tables.word_parts,
            "page_words": records.shape[1] // 4,
            "num_pages": num_pages,
            "num_channels": heads * head_dim,
        },
        {},
        num_warps=1,
    )


def _refuse(fault: int, keys: Coded, values: Coded) -> None:
    if fault == _NOT_FINITE:
        raise ValueError(NOT_FINITE)
    if fault == _TOO_LARGE:
        raise ValueError(
            f"Keys up to {_LARGEST_SCALE * keys.scale_top:.3g} and values up to "
            f"{_LARGEST_SCALE * values.scale_top:.3g} can be packed: got larger ones."
        )
