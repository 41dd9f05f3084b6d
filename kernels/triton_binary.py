"""Products of signs in Triton: which pages of a binary arena are worth reading.

Four channels of eight tokens are one word, a query's four signs eight times over another: their
exclusive or shows where signs differ, nibble by nibble, with no multiplication. A score is an
estimate of a logit up to one factor a query, not a bound.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from agentmem.kernels import triton_launch
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.page_table import PageTable
from agentmem.kernels.triton_launch import jit
from agentmem.kernels.triton_layer import layer_tables
from agentmem.kernels.triton_logits import (
    asked_queries,
    lane_rows,
    logits_arguments,
    logits_constants,
    row_lengths,
    tile_pages,
)

_BINARY = 1


@jit
def _binary_kernel(
    queries_ptr: tl.tensor, rotations_ptr: tl.tensor, stretch_pages_ptr: tl.tensor,
    rows_ptr: tl.tensor, starts_ptr: tl.tensor, begins_ptr: tl.tensor, ends_ptr: tl.tensor,
    pages_ptr: tl.tensor, scales_ptr: tl.tensor, key_groups_ptr: tl.tensor,
    key_scale_begins_ptr: tl.tensor,
    transform_ptr: tl.tensor, scores_ptr: tl.tensor, num_rows: tl.tensor, page_words: tl.tensor,
    num_stretches: tl.tensor, transform_stride: tl.tensor, num_channels: tl.tensor,
    num_phases: tl.tensor, num_members: tl.tensor, num_pages: tl.tensor, HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
) -> None:  # fmt: skip
    """Scores (H, R, P) of a batch of stretches. Grid: (batches, blocks of rows, H)."""
    GROUPS: tl.constexpr = BLOCK_DIM // 4
    BATCH: tl.constexpr = LANES // ROWS
    first, head = tl.program_id(0) * BATCH, tl.program_id(2)
    rows = lane_rows(tl.program_id(1), ROWS, LANES)
    member = tl.arange(0, LANES) // ROWS
    stretches = first + member
    inside = (rows < num_rows) & (stretches < num_stretches)
    groups = tl.load(key_groups_ptr + head * GROUPS + tl.arange(0, GROUPS))
    scales_ptr += tl.load(key_scale_begins_ptr + head)
    queries_ptr += head.to(tl.int64) * num_rows * HEAD_DIM
    transform_ptr += head * transform_stride
    lengths = row_lengths(queries_ptr, rows, num_rows, HEAD_DIM, BLOCK_DIM)
    asked = asked_queries(
        queries_ptr, rotations_ptr, transform_ptr, rows, stretches, inside,
        1.0 / tl.where(lengths > 0.0, lengths, 1.0), num_channels, HEAD_DIM, BLOCK_DIM, STEP,
        LANES,
    )  # fmt: skip
    signs = tl.reshape((asked >= 0.0).to(tl.int32), (LANES, GROUPS, 2, 2))
    even, odd = tl.split(signs)
    low, high = tl.split(even | (odd << 1))
    asked_words = (low | (high << 2)) * 0x11111111
    half = tl.arange(0, 2)
    for phase in range(0, num_phases):
        for one in range(0, tl.minimum(num_members, num_stretches - first)):
            begin, _, first_slot, end_slot, page = tile_pages(
                first + one, phase, num_stretches, stretch_pages_ptr, rows_ptr, starts_ptr,
                begins_ptr, ends_ptr, page_words, 1,
            )  # fmt: skip
            page_begin, index = tl.max(begin, 0), tl.max(page, 0)
            begin_slot, last_slot = tl.max(first_slot, 0), tl.max(end_slot, 0)
            place = pages_ptr + page_begin + (groups >> 4)[:, None] + half[None, :]
            has = ((groups & 15) != 0)[:, None] & (half >= 0)[None, :]
            words = tl.load(place, mask=has, other=0)
            differ = tl.where(has[None, :, :], asked_words[:, :, None] ^ words[None, :, :], 0)
            differ = differ - ((differ >> 1) & 0x55555555)
            differ = (differ & 0x33333333) + ((differ >> 2) & 0x33333333)
            highest = tl.full((LANES,), float("-inf"), tl.float32)
            for nibble in tl.static_range(4):
                # Sixteen bits hold the sum of all groups; eight would not, at 256 channels.
                sums = tl.sum((differ >> (4 * nibble)) & 0x000F000F, 1)
                for later in tl.static_range(2):
                    number_differ = (sums >> (16 * later)) & 0xFFFF
                    slot = half * 8 + nibble + 4 * later
                    filled = (slot >= begin_slot) & (slot < last_slot)
                    scale = tl.load(scales_ptr + page_begin * 2 + slot, mask=filled, other=0.0).to(
                        tl.float32
                    )
                    product = (HEAD_DIM - 2 * number_differ).to(tl.float32) * scale[None, :]
                    product = tl.where(filled[None, :], product, float("-inf"))
                    highest = tl.maximum(highest, tl.max(product, 1))
            target = (head.to(tl.int64) * num_rows + rows) * num_pages + index
            exists = inside & (member == one) & (index + 0 * rows >= 0)
            tl.store(scores_ptr + target, highest, mask=exists)


def binary_scores(
    queries: Tensor, rotations: Tensor, table: PageTable, pages: Tensor, layer: PackedLayer
) -> Tensor:
    """The largest product of signs, times the token's scale, of each page.

    Args:
        queries, rotations, table, pages: as `packed.attend` takes them.
        layer: one bit a key channel, and token scales.

    Returns:
        (H, R, P), float32: higher is more alike.

    Raises:
        ValueError: the layer's keys are not of one bit with token scales.
    """
    packing = layer.packing
    if not packing.token_scales or bool((packing.key_widths != _BINARY).any()):
        raise ValueError(
            f"Keys must have one bit a channel and token scales: got widths "
            f"{sorted(set(packing.key_widths.flatten().tolist()))}, "
            f"{'with' if packing.token_scales else 'without'} token scales."
        )
    tables = layer_tables(layer, pages.device)
    heads, num_rows, _ = queries.shape
    limits = torch.zeros((num_rows, 2), dtype=torch.int32, device=pages.device)
    arguments = logits_arguments(queries, rotations, table, pages, tables, limits, None)
    constants = logits_constants(tables, None, num_rows)
    batch = constants["LANES"] // constants["ROWS"]
    scores = torch.empty((heads, num_rows, table.num_pages), device=pages.device)
    names = ("queries_ptr", "rotations_ptr", "stretch_pages_ptr", "rows_ptr", "starts_ptr",
             "begins_ptr", "ends_ptr", "pages_ptr", "scales_ptr", "key_groups_ptr",
             "key_scale_begins_ptr", "transform_ptr", "num_rows", "page_words",
             "num_stretches", "transform_stride", "num_channels", "num_phases")  # fmt: skip
    triton_launch.launch(
        _binary_kernel,
        (-(-arguments["num_stretches"] // batch), -(-num_rows // constants["ROWS"]), heads),
        {
            **{name: arguments[name] for name in names},
            "scores_ptr": scores,
            "num_members": batch,
            "num_pages": table.num_pages,
        },
        {name: constants[name] for name in ("HEAD_DIM", "BLOCK_DIM", "STEP", "ROWS", "LANES")},
        num_warps=4,
    )
    return scores
