"""Attention over packed pages in Triton: a few stretches a program, merged by log-sum-exp.

Grid of the first kernel: (splits, blocks of rows, heads). A program walks over its stretches with
an online softmax and writes the weighted levels of its part and their log-sum-exp; a second kernel
merges the splits. Few rows (decoding) are spread over many splits; many (prefill) over blocks of
rows. Token scales are folded into logits and probabilities, so that codes become levels and nothing
else. Same results as `packed.attend` to the rounding of queries and probabilities to float16.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from agentmem.kernels import triton_launch
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.page_table import PageTable
from agentmem.kernels.triton_codes import code_bits, levels_of, value_tile
from agentmem.kernels.triton_launch import jit, next_power_of_2, num_processors
from agentmem.kernels.triton_layer import layer_tables
from agentmem.kernels.triton_logits import (
    asked_queries,
    center_products,
    lane_rows,
    logits_arguments,
    logits_constants,
    max_registers,
    row_lengths,
    tile_logits,
    tile_pages,
    token_scales,
)

_PROGRAMS_PER_PROCESSOR = 2
_LARGEST_PARTIAL_NBYTES = 1 << 20
"""Of the parts of a split attention: what a step may allocate beyond the cache is 2 MiB a layer."""
_MERGED_CHANNELS = 128


@jit
def _attend_kernel(
    queries_ptr: tl.tensor, rotations_ptr: tl.tensor, stretch_pages_ptr: tl.tensor,
    rows_ptr: tl.tensor, starts_ptr: tl.tensor, begins_ptr: tl.tensor, ends_ptr: tl.tensor,
    pages_ptr: tl.tensor, scales_ptr: tl.tensor, key_groups_ptr: tl.tensor,
    key_scale_begins_ptr: tl.tensor, key_levels_ptr: tl.tensor, transform_ptr: tl.tensor,
    center_ptr: tl.tensor,
    factors_ptr: tl.tensor, limits_ptr: tl.tensor, value_groups_ptr: tl.tensor,
    value_scale_begins_ptr: tl.tensor, value_levels_ptr: tl.tensor, outputs_ptr: tl.tensor,
    log_sum_exp_ptr: tl.tensor, softcap: tl.tensor, num_rows: tl.tensor, page_words: tl.tensor,
    num_stretches: tl.tensor, transform_stride: tl.tensor, num_channels: tl.tensor,
    num_phases: tl.tensor, num_members: tl.tensor, groups_stride: tl.tensor,
    stretches_per_split: tl.tensor,
    HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr,
    LANES: tl.constexpr, PAGES: tl.constexpr, KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    SCALED: tl.constexpr, CENTERED: tl.constexpr, CAPPED: tl.constexpr,
) -> None:  # fmt: skip
    """One part: outputs (splits, H, R, D) of weighted levels, log_sum_exp (splits, H, R)."""
    GROUPS: tl.constexpr = BLOCK_DIM // 4
    BATCH: tl.constexpr = LANES // ROWS
    TOKENS: tl.constexpr = PAGES * 16
    split, block, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_heads = tl.num_programs(2)
    rows = lane_rows(block, ROWS, LANES)
    member = tl.arange(0, LANES) // ROWS
    group = tl.arange(0, GROUPS)
    channel = tl.arange(0, BLOCK_DIM)
    key_groups_ptr += head * GROUPS + group
    value_groups_ptr += head * GROUPS + group
    key_scales_ptr = scales_ptr + tl.load(key_scale_begins_ptr + head)
    value_scales_ptr = scales_ptr + tl.load(value_scale_begins_ptr + head)
    factor, center_factor = tl.load(factors_ptr + head * 2), tl.load(factors_ptr + head * 2 + 1)
    low = tl.load(limits_ptr + rows * 2, mask=rows < num_rows, other=0)
    high = tl.load(limits_ptr + rows * 2 + 1, mask=rows < num_rows, other=0)
    queries_ptr += head.to(tl.int64) * num_rows * HEAD_DIM
    transform_ptr += head * transform_stride
    center_ptr += head * BLOCK_DIM * 64
    lengths = row_lengths(queries_ptr, rows, num_rows, HEAD_DIM, BLOCK_DIM)
    shrink = 1.0 / tl.where(lengths > 0.0, lengths, 1.0)

    # Below every logit, yet finite: a row without any visible key must not become NaN.
    maximum = tl.full((LANES,), -1e30, tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    mixed = tl.zeros((LANES, BLOCK_DIM), tl.float32)
    last = tl.minimum((split + 1) * stretches_per_split, num_stretches)
    for first in range(split * stretches_per_split, last, BATCH):
        stretches = first + member
        inside = (rows < num_rows) & (stretches < last)
        asked = asked_queries(
            queries_ptr, rotations_ptr, transform_ptr, rows, stretches, inside, shrink,
            num_channels, HEAD_DIM, BLOCK_DIM, STEP, LANES,
        )  # fmt: skip
        for phase in range(0, num_phases, PAGES):
            off_center = tl.zeros((LANES, TOKENS), tl.float32)
            if CENTERED:
                off_center = center_products(
                    queries_ptr, rotations_ptr, center_ptr, rows, stretches, inside, shrink,
                    phase * 16, num_channels, HEAD_DIM, BLOCK_DIM, STEP, LANES, TOKENS,
                )  # fmt: skip
            for one in range(0, tl.minimum(num_members, last - first)):
                begin, start, first_slot, end_slot, page = tile_pages(
                    first + one, phase, last, stretch_pages_ptr, rows_ptr, starts_ptr, begins_ptr,
                    ends_ptr, page_words, PAGES,
                )  # fmt: skip
                # Read anew for every tile, the stride being 0: kept, they fill the registers.
                key_groups = tl.load(key_groups_ptr + one * groups_stride)
                logits = tile_logits(
                    asked, off_center, pages_ptr, key_scales_ptr, key_levels_ptr, key_groups, begin,
                    start, first_slot, end_slot, page, member == one, lengths, low, high, factor,
                    center_factor,
                    softcap, GROUPS, PAGES, KEY_WIDTH, SCALED, CENTERED, CAPPED,
                )  # fmt: skip
                raised = tl.maximum(maximum, tl.max(logits, 1))
                weights = tl.exp(logits - raised[:, None])
                kept = tl.exp(maximum - raised)
                total = total * kept + tl.sum(weights, 1)
                maximum = raised

                value_groups = tl.load(value_groups_ptr + one * groups_stride)
                bits = code_bits(pages_ptr, begin, value_groups, page >= 0, VALUE_WIDTH)
                levels = levels_of(bits, value_groups, value_levels_ptr, VALUE_WIDTH)
                values = value_tile(levels, GROUPS, PAGES)
                if SCALED:
                    scales = token_scales(value_scales_ptr, begin, page, PAGES)
                    # Relative to the largest, weights stay within 1, and so within float16.
                    largest = tl.max(scales, 0)
                    weights = weights * (scales / tl.maximum(largest, 1e-30))[None, :]
                    products = tl.dot(weights.to(tl.float16), values)
                    mixed = mixed * kept[:, None] + products * largest
                else:
                    mixed = tl.dot(weights.to(tl.float16), values, mixed * kept[:, None])

    # What the stretches of a batch saw is one row again.
    maxima = tl.reshape(maximum, (BATCH, ROWS))
    largest_of_row = tl.max(maxima, 0)
    shares = tl.exp(maxima - largest_of_row[None, :])
    totals = tl.sum(shares * tl.reshape(total, (BATCH, ROWS)), 0)
    parts = tl.reshape(mixed * tl.reshape(shares, (LANES,))[:, None], (BATCH, ROWS, BLOCK_DIM))
    # A row that saw nothing has a total of 0: output 0, and a log-sum-exp of -infinity.
    seen = totals > 0.0
    averages = tl.sum(parts, 0) / tl.where(seen, totals, 1.0)[:, None]
    row = block * ROWS + tl.arange(0, ROWS)
    place = (split * num_heads + head).to(tl.int64) * num_rows + row
    mask = (row < num_rows)[:, None] & (channel < HEAD_DIM)[None, :]
    tl.store(outputs_ptr + place[:, None] * HEAD_DIM + channel[None, :], averages, mask=mask)
    whole = tl.where(seen, largest_of_row + tl.log(tl.where(seen, totals, 1.0)), float("-inf"))
    tl.store(log_sum_exp_ptr + place, whole, mask=row < num_rows)


@jit
def _merge_kernel(
    parts_ptr: tl.tensor, part_log_sum_exp_ptr: tl.tensor, outputs_ptr: tl.tensor,
    log_sum_exp_ptr: tl.tensor, num_rows: tl.tensor, num_parts: tl.tensor,
    HEAD_DIM: tl.constexpr, CHANNELS: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:  # fmt: skip
    """One row and up to CHANNELS channels of all parts: (parts, rows, D) and (parts, rows)."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    each = tl.load(
        part_log_sum_exp_ptr + part * num_rows + row, mask=part < num_parts, other=float("-inf")
    )
    largest = tl.maximum(tl.max(each, 0), -1e30)
    weights = tl.exp(each - largest)
    total = tl.sum(weights, 0)
    mixed = tl.zeros((CHANNELS,), tl.float32)
    for one in range(0, num_parts):
        begin = parts_ptr + (one * num_rows + row) * HEAD_DIM
        weight = tl.exp(tl.load(part_log_sum_exp_ptr + one * num_rows + row) - largest)
        mixed += weight * tl.load(begin + channel, mask=channel < HEAD_DIM, other=0.0)
    seen = total > 0.0
    mixed = mixed / tl.where(seen, total, 1.0)
    tl.store(outputs_ptr + row * HEAD_DIM + channel, mixed, mask=channel < HEAD_DIM)
    whole = tl.where(seen, largest + tl.log(tl.where(seen, total, 1.0)), float("-inf"))
    tl.store(log_sum_exp_ptr + row, whole)


def attend(
    queries: Tensor,
    rotations: Tensor,
    table: PageTable,
    pages: Tensor,
    layer: PackedLayer,
    limits: Tensor,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of query rows over the pages of a table: see `packed.attend`, shape by shape.

    Raises:
        ValueError: pages are no byte records, or heads larger than 256 channels.
    """
    tables = layer_tables(layer, pages.device)
    heads, num_rows, head_dim = queries.shape
    num_stretches = table.stretch_starts.shape[0]
    constants = logits_constants(tables, softcap, num_rows)
    row_blocks = -(-num_rows // constants["ROWS"])
    batch = constants["LANES"] // constants["ROWS"]
    per_split = _stretches_per_split(num_stretches, batch, row_blocks, queries)
    num_splits = max(1, -(-num_stretches // per_split))
    parts = queries.new_empty((num_splits, heads, num_rows, head_dim), dtype=torch.float32)
    part_log_sum_exp = parts.new_empty((num_splits, heads, num_rows))
    arguments = logits_arguments(queries, rotations, table, pages, tables, limits, softcap)
    triton_launch.launch(
        _attend_kernel,
        (num_splits, row_blocks, heads),
        {
            **arguments,
            "value_groups_ptr": tables.values.groups,
            "value_scale_begins_ptr": tables.values.scale_begins,
            "value_levels_ptr": tables.values.levels,
            "outputs_ptr": parts,
            "log_sum_exp_ptr": part_log_sum_exp,
            "num_members": batch,
            "stretches_per_split": per_split,
        },
        {
            **constants,
            "VALUE_WIDTH": tables.values.width,
        },
        num_warps=4,
        max_registers=max_registers(tables, constants["LANES"]),
    )
    mixed, log_sum_exp = merge_parts(parts, part_log_sum_exp)
    return tables.restore_values(mixed, log_sum_exp), log_sum_exp


def merge_parts(parts: Tensor, part_log_sum_exp: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over all parts from that over each.

    Args:
        parts: (parts, H, R, D), float32, contiguous.
        part_log_sum_exp: (parts, H, R), float32, contiguous.

    Returns:
        (H, R, D) and (H, R), float32; 0 and -inf for a row that saw nothing.
    """
    num_parts, heads, num_rows, head_dim = parts.shape
    if num_parts == 1:
        return parts[0], part_log_sum_exp[0]
    outputs = parts.new_empty((heads, num_rows, head_dim))
    log_sum_exp = parts.new_empty((heads, num_rows))
    channels = min(_MERGED_CHANNELS, next_power_of_2(head_dim))
    triton_launch.launch(
        _merge_kernel,
        (heads * num_rows, -(-head_dim // channels)),
        {
            "parts_ptr": parts,
            "part_log_sum_exp_ptr": part_log_sum_exp,
            "outputs_ptr": outputs,
            "log_sum_exp_ptr": log_sum_exp,
            "num_rows": heads * num_rows,
            "num_parts": num_parts,
        },
        {"HEAD_DIM": head_dim, "CHANNELS": channels, "PARTS": next_power_of_2(num_parts)},
        num_warps=1,
    )
    return outputs, log_sum_exp


def merge(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention over arenas and tails from that over each: see `attention.merge`."""
    if len(parts) == 1:
        return parts[0]
    return merge_parts(
        torch.stack([values for values, _ in parts]), torch.stack([one for _, one in parts])
    )


def _stretches_per_split(
    num_stretches: int, batch: int, row_blocks: int, queries: Tensor
) -> int:  # fmt: skip
    """Enough splits to fill the device, few enough for their parts to stay small."""
    heads, num_rows, head_dim = queries.shape
    wanted = _PROGRAMS_PER_PROCESSOR * num_processors(queries.device) // (heads * row_blocks)
    affordable = _LARGEST_PARTIAL_NBYTES // (4 * heads * num_rows * (head_dim + 1))
    num_batches = -(-num_stretches // batch)
    num_splits = max(1, min(num_batches, wanted, affordable))
    return max(1, -(-num_batches // num_splits)) * batch
