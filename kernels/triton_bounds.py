"""Upper bounds of a page's logits in Triton, to read only the pages that can matter.

Of each page and head are kept an int8 middle of its keys in the frame they are coded in, and how
far the farthest key is from it:

    <q, k> <= <q, middle> + |q / w| * max |w * (k - middle)|        (Cauchy-Schwarz)

where w weighs channels by the root of how long their column of the transform is, as queries do on
average. With the step of the middle and the radius in float16 that is head_dim + 4 bytes a page and
head, for 16 tokens: a third of boxes of minima and maxima (Quest, arXiv 2406.10774) in float16, and
tighter where channels are alike. Centers are added exactly, by offset. The bound is honest: of the
very codes attention reads, rounding included.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor

from agentmem.kernels import triton_launch
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.page_table import PageTable
from agentmem.kernels.triton_codes import code_bits, key_tile, levels_of
from agentmem.kernels.triton_launch import jit
from agentmem.kernels.triton_layer import layer_tables
from agentmem.kernels.triton_logits import (
    asked_queries,
    center_products,
    lane_rows,
    logits_arguments,
    logits_constants,
    row_lengths,
    tile_pages,
    token_scales,
)

_SLACK = 1.002
"""Times the radius: what float16 operands may add."""


@dataclass(frozen=True, eq=False)
class PageBounds:
    """What is kept of each page and head.

    Args:
        middles: (capacity, H, B), int8; B channels, padded to a power of two.
        sizes: (capacity, H, 2), float16: step of the middle, and radius.
    """

    middles: Tensor
    sizes: Tensor


@jit
def _rounded_up(number: tl.tensor) -> tl.tensor:
    """The smallest float16 not below a non-negative float32."""
    half = number.to(tl.float16)
    raised = (half.to(tl.int16, bitcast=True) + 1).to(tl.float16, bitcast=True)
    return tl.where(half.to(tl.float32) < number, raised, half)


@jit
def _page_bounds_kernel(
    pages_ptr: tl.tensor, scales_ptr: tl.tensor, groups_ptr: tl.tensor,
    scale_begins_ptr: tl.tensor, levels_ptr: tl.tensor, weights_ptr: tl.tensor,
    slots_ptr: tl.tensor, middles_ptr: tl.tensor, sizes_ptr: tl.tensor, page_words: tl.tensor,
    BLOCK_DIM: tl.constexpr, WIDTH: tl.constexpr, SCALED: tl.constexpr,
) -> None:  # fmt: skip
    """Middle and radius of one page and head. Grid: (pages, H)."""
    GROUPS: tl.constexpr = BLOCK_DIM // 4
    head, num_heads = tl.program_id(1), tl.num_programs(1)
    page = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    begin = page * page_words
    channel, token = tl.arange(0, BLOCK_DIM), tl.arange(0, 16)
    groups = tl.load(groups_ptr + head * GROUPS + tl.arange(0, GROUPS))
    bits = code_bits(pages_ptr, begin, groups, page >= 0, WIDTH)
    keys = key_tile(levels_of(bits, groups, levels_ptr, WIDTH), GROUPS, 1).to(tl.float32)
    filled = ((tl.load(slots_ptr + tl.program_id(0)) >> token) & 1 > 0)[None, :]
    if SCALED:
        scales = token_scales(scales_ptr + tl.load(scale_begins_ptr + head), begin, page, 1)
        keys = keys * tl.where(filled, scales[None, :], 0.0)
    weights = tl.load(weights_ptr + head * BLOCK_DIM + channel)
    highest = tl.max(tl.where(filled, keys, -1e30), 1)
    lowest = tl.min(tl.where(filled, keys, 1e30), 1)
    middle = tl.where(weights > 0.0, (highest + lowest) * 0.5, 0.0)
    step = _rounded_up(tl.max(tl.abs(middle), 0) / 127.0)
    stored = middle / tl.maximum(step.to(tl.float32), 1e-30)
    stored = tl.floor(tl.minimum(tl.maximum(stored, -127.0), 127.0) + 0.5).to(tl.int8)
    away = (keys - (stored.to(tl.float32) * step.to(tl.float32))[:, None]) * weights[:, None]
    distances = tl.where(filled, tl.sum(away * away, 0)[None, :], 0.0)
    radius = _rounded_up(tl.sqrt(tl.max(tl.max(distances, 1), 0)))
    place = tl.program_id(0).to(tl.int64) * num_heads + head
    tl.store(middles_ptr + place * BLOCK_DIM + channel, stored)
    tl.store(sizes_ptr + place * 2, step)
    tl.store(sizes_ptr + place * 2 + 1, radius)


@jit
def _logit_bounds_kernel(
    queries_ptr: tl.tensor, rotations_ptr: tl.tensor, stretch_pages_ptr: tl.tensor,
    rows_ptr: tl.tensor, starts_ptr: tl.tensor, begins_ptr: tl.tensor, ends_ptr: tl.tensor,
    transform_ptr: tl.tensor,
    center_ptr: tl.tensor, factors_ptr: tl.tensor, limits_ptr: tl.tensor, weights_ptr: tl.tensor,
    middles_ptr: tl.tensor, sizes_ptr: tl.tensor, bounds_ptr: tl.tensor, slack: tl.tensor,
    num_rows: tl.tensor, num_stretches: tl.tensor, transform_stride: tl.tensor,
    num_channels: tl.tensor, num_phases: tl.tensor, num_members: tl.tensor, num_pages: tl.tensor,
    HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr,
    LANES: tl.constexpr, CENTERED: tl.constexpr,
) -> None:  # fmt: skip
    """Bounds (H, R, P) of a batch of stretches. Grid: (batches, blocks of rows, H)."""
    BATCH: tl.constexpr = LANES // ROWS
    first, head = tl.program_id(0) * BATCH, tl.program_id(2)
    rows = lane_rows(tl.program_id(1), ROWS, LANES)
    there_rows = rows < num_rows
    member = tl.arange(0, LANES) // ROWS
    stretches = first + member
    inside = there_rows & (stretches < num_stretches)
    channel, token = tl.arange(0, BLOCK_DIM), tl.arange(0, 16)
    factor, center_factor = tl.load(factors_ptr + head * 2), tl.load(factors_ptr + head * 2 + 1)
    low = tl.load(limits_ptr + rows * 2, mask=there_rows, other=0)
    high = tl.load(limits_ptr + rows * 2 + 1, mask=there_rows, other=0)
    queries_ptr += head.to(tl.int64) * num_rows * HEAD_DIM
    transform_ptr += head * transform_stride
    center_ptr += head * BLOCK_DIM * 64
    lengths = row_lengths(queries_ptr, rows, num_rows, HEAD_DIM, BLOCK_DIM)
    shrink = 1.0 / tl.where(lengths > 0.0, lengths, 1.0)
    asked = asked_queries(
        queries_ptr, rotations_ptr, transform_ptr, rows, stretches, inside, shrink, num_channels,
        HEAD_DIM, BLOCK_DIM, STEP, LANES,
    ).to(tl.float32)  # fmt: skip
    weights = tl.load(weights_ptr + head * BLOCK_DIM + channel)
    weighed = asked * tl.where(weights > 0.0, 1.0 / tl.maximum(weights, 1e-30), 0.0)[None, :]
    reach = tl.sqrt(tl.sum(weighed * weighed, 1)) * slack
    for phase in range(0, num_phases):
        off_center = tl.zeros((LANES, 16), tl.float32)
        if CENTERED:
            off_center = center_factor * center_products(
                queries_ptr, rotations_ptr, center_ptr, rows, stretches, inside, shrink,
                phase * 16, num_channels, HEAD_DIM, BLOCK_DIM, STEP, LANES, 16,
            )  # fmt: skip
        for one in range(0, tl.minimum(num_members, num_stretches - first)):
            row, start, begin, end, page = tile_pages(
                first + one, phase, num_stretches, stretch_pages_ptr, rows_ptr, starts_ptr,
                begins_ptr, ends_ptr, 1, 1,
            )  # fmt: skip
            place = tl.max(row, 0) * tl.num_programs(2) + head
            middle = tl.load(middles_ptr + place * BLOCK_DIM + channel).to(tl.float32)
            step = tl.load(sizes_ptr + place * 2).to(tl.float32)
            radius = tl.load(sizes_ptr + place * 2 + 1).to(tl.float32)
            bound = tl.sum(asked * middle[None, :], 1) * step + reach * radius
            zero, first_slot, end_slot = tl.max(start, 0), tl.max(begin, 0), tl.max(end, 0)
            position = (zero + token)[None, :]
            seen = (position >= low[:, None]) & (position < high[:, None])
            seen = seen & ((token >= first_slot) & (token < end_slot))[None, :]
            highest = tl.max(tl.where(seen, off_center, float("-inf")), 1)
            index = tl.max(page, 0)
            target = (head.to(tl.int64) * num_rows + rows) * num_pages + index
            exists = inside & (member == one) & (index + 0 * rows >= 0)
            tl.store(bounds_ptr + target, (bound * factor + highest) * lengths, mask=exists)


def page_bounds(pages: Tensor, slots: Tensor, layer: PackedLayer) -> PageBounds:
    """What to keep of pages, made when they are encoded.

    Args:
        pages: (N, page_nbytes), uint8.
        slots: (N,), int32: bit t of each is 1 where slot t holds a token, whosesoever it is.
        layer: what they hold.
    """
    tables = layer_tables(layer, pages.device)
    pages = pages.contiguous()
    heads = layer.packing.num_heads
    middles = torch.empty(
        (pages.shape[0], heads, tables.block_dim), dtype=torch.int8, device=pages.device
    )
    sizes = torch.empty((pages.shape[0], heads, 2), dtype=torch.float16, device=pages.device)
    triton_launch.launch(
        _page_bounds_kernel,
        (pages.shape[0], heads),
        {
            "pages_ptr": pages.view(torch.int32),
            "scales_ptr": pages.view(torch.float16),
            "groups_ptr": tables.keys.groups,
            "scale_begins_ptr": tables.keys.scale_begins,
            "levels_ptr": tables.keys.levels,
            "weights_ptr": tables.channel_weights,
            "slots_ptr": slots,
            "middles_ptr": middles,
            "sizes_ptr": sizes,
            "page_words": pages.shape[1] // 4,
        },
        {
            "BLOCK_DIM": tables.block_dim,
            "WIDTH": tables.keys.width,
            "SCALED": tables.token_scales,
        },
        num_warps=4,
    )
    return PageBounds(middles, sizes)


def logit_bounds(
    queries: Tensor,
    rotations: Tensor,
    table: PageTable,
    bounds: PageBounds,
    layer: PackedLayer,
    limits: Tensor,
) -> Tensor:
    """The most a page's logits can be, before any softcap, which keeps their order.

    Args:
        queries, rotations, table, layer, limits: as `packed.attend` takes them.
        bounds: of every row of the arena.

    Returns:
        (H, R, P), float32; -inf where a row sees no token of the page.
    """
    tables = layer_tables(layer, queries.device)
    heads, num_rows, _ = queries.shape
    constants = logits_constants(tables, None, num_rows)
    arguments = logits_arguments(
        queries, rotations, table, bounds.middles.flatten(1).view(torch.uint8), tables, limits, None
    )
    found = torch.empty((heads, num_rows, table.num_pages), device=queries.device)
    batch = constants["LANES"] // constants["ROWS"]
    names = ("queries_ptr", "rotations_ptr", "stretch_pages_ptr", "rows_ptr", "starts_ptr",
             "begins_ptr", "ends_ptr", "transform_ptr", "center_ptr", "factors_ptr",
             "limits_ptr", "num_rows", "num_stretches", "transform_stride", "num_channels",
             "num_phases")  # fmt: skip
    triton_launch.launch(
        _logit_bounds_kernel,
        (-(-arguments["num_stretches"] // batch), -(-num_rows // constants["ROWS"]), heads),
        {
            **{name: arguments[name] for name in names},
            "weights_ptr": tables.channel_weights,
            "middles_ptr": bounds.middles,
            "sizes_ptr": bounds.sizes,
            "bounds_ptr": found,
            "slack": _SLACK,
            "num_members": batch,
            "num_pages": table.num_pages,
        },
        {
            name: constants[name]
            for name in ("HEAD_DIM", "BLOCK_DIM", "STEP", "ROWS", "LANES", "CENTERED")
        },
        num_warps=4,
    )
    return found
