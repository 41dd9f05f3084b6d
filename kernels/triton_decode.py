"""Decode pages in Triton, for what cannot be answered on packed ones. One program a page and head.

The frame they are coded in is left by PyTorch's matrix product, as in `packed.decode`.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from agentmem.kernels import triton_launch
from agentmem.kernels.packed import PackedLayer, times_by_head
from agentmem.kernels.triton_codes import code_bits, levels_of, value_tile
from agentmem.kernels.triton_launch import jit
from agentmem.kernels.triton_layer import layer_tables
from agentmem.kernels.triton_logits import token_scales


@jit
def _decode_kernel(
    records_ptr: tl.tensor, record_scales_ptr: tl.tensor, groups_ptr: tl.tensor,
    scale_begins_ptr: tl.tensor, levels_ptr: tl.tensor, units_ptr: tl.tensor, states_ptr: tl.tensor,
    page_words: tl.tensor, HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, WIDTH: tl.constexpr,
    SCALED: tl.constexpr,
) -> None:  # fmt: skip
    """Coded keys or values (N, H, 16, D), float32, of one page and head. Grid: (N, H)."""
    GROUPS: tl.constexpr = BLOCK_DIM // 4
    head, num_heads = tl.program_id(1), tl.num_programs(1)
    page = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    begin = page * page_words
    token, channel, group = tl.arange(0, 16), tl.arange(0, BLOCK_DIM), tl.arange(0, GROUPS)
    groups = tl.load(groups_ptr + head * GROUPS + group)
    bits = code_bits(records_ptr, begin, groups, page >= 0, WIDTH)
    tile = value_tile(levels_of(bits, groups, levels_ptr, WIDTH), GROUPS, 1)
    units = tl.load(units_ptr + head * HEAD_DIM + channel, mask=channel < HEAD_DIM, other=0.0)
    states = tile.to(tl.float32) * units[None, :]
    if SCALED:
        scales_ptr = record_scales_ptr + tl.load(scale_begins_ptr + head)
        states = states * token_scales(scales_ptr, begin, page, 1)[:, None]
    program = tl.program_id(0).to(tl.int64) * num_heads + head
    place = states_ptr + (program * 16 + token[:, None]) * HEAD_DIM + channel[None, :]
    tl.store(place, states, mask=(channel < HEAD_DIM)[None, :])


def decode(pages: Tensor, phases: Tensor, layer: PackedLayer) -> tuple[Tensor, Tensor]:
    """Keys and values again, (num_pages, H, 16, D), float32: see `packed.decode`."""
    tables = layer_tables(layer, pages.device)
    pages = pages.contiguous()
    shape = (pages.shape[0], layer.packing.num_heads, 16, tables.head_dim)
    coded = []
    for part in (tables.keys, tables.values):
        states = torch.empty(shape, device=pages.device)
        triton_launch.launch(
            _decode_kernel,
            shape[:2],
            {
                "records_ptr": pages.view(torch.int32),
                "record_scales_ptr": pages.view(torch.float16),
                "groups_ptr": part.groups,
                "scale_begins_ptr": part.scale_begins,
                "levels_ptr": part.levels,
                "units_ptr": part.units,
                "states_ptr": states,
                "page_words": pages.shape[1] // 4,
            },
            {
                "HEAD_DIM": tables.head_dim,
                "BLOCK_DIM": tables.block_dim,
                "WIDTH": part.width,
                "SCALED": tables.token_scales,
            },
            num_warps=4,
        )
        coded.append(states)
    keys, values = coded
    if layer.query_transform is not None:
        keys = times_by_head(keys, layer.query_transform.to(pages.device).transpose(1, 2))
    if layer.center_by_phase is not None:
        keys = keys + layer.center_by_phase.to(pages.device)[phases.long()]
    if layer.value_inverse is not None:
        values = times_by_head(values, layer.value_inverse.to(pages.device))
    if tables.mean is not None:
        values = values + tables.mean[:, None]
    return keys, values
