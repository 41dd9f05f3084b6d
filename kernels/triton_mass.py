"""Probability each token received, in Triton: from queries, keys and log-sum-exp alone.

Grid: (batches of stretches, heads). Each program writes the mass of its tokens over one block of
rows of one head; heads are summed afterwards, in order, so that equal inputs give equal bits. Same
results as `packed.column_mass`, to the rounding of queries to float16.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from agentmem.kernels import triton_launch
from agentmem.kernels.code_stream import PAGE_TOKENS
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.page_table import STRETCH_TOKENS, PageTable
from agentmem.kernels.triton_launch import jit
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
)

_LARGEST_PARTIAL_NBYTES = 1 << 20
"""Of the masses by head: what a step may allocate beyond the cache is 2 MiB a layer."""


@jit
def _mass_kernel(
    queries_ptr: tl.tensor, rotations_ptr: tl.tensor, stretch_pages_ptr: tl.tensor,
    rows_ptr: tl.tensor, starts_ptr: tl.tensor, begins_ptr: tl.tensor, ends_ptr: tl.tensor,
    pages_ptr: tl.tensor, scales_ptr: tl.tensor, key_groups_ptr: tl.tensor,
    key_scale_begins_ptr: tl.tensor,
    key_levels_ptr: tl.tensor, transform_ptr: tl.tensor, center_ptr: tl.tensor,
    factors_ptr: tl.tensor, limits_ptr: tl.tensor, log_sum_exp_ptr: tl.tensor,
    masses_ptr: tl.tensor, softcap: tl.tensor, num_rows: tl.tensor, page_words: tl.tensor,
    num_stretches: tl.tensor, transform_stride: tl.tensor, num_channels: tl.tensor,
    num_phases: tl.tensor, num_members: tl.tensor, groups_stride: tl.tensor, block: tl.tensor,
    first_stretch: tl.tensor,
    HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr,
    LANES: tl.constexpr, PAGES: tl.constexpr, KEY_WIDTH: tl.constexpr, SCALED: tl.constexpr,
    CENTERED: tl.constexpr, CAPPED: tl.constexpr,
) -> None:  # fmt: skip
    """Masses (H, stretches from `first_stretch` to `num_stretches`, 64), 0 where no token is."""
    GROUPS: tl.constexpr = BLOCK_DIM // 4
    BATCH: tl.constexpr = LANES // ROWS
    TOKENS: tl.constexpr = PAGES * 16
    first = first_stretch + tl.program_id(0) * BATCH
    head = tl.program_id(1)
    rows = lane_rows(block, ROWS, LANES)
    there_rows = rows < num_rows
    member = tl.arange(0, LANES) // ROWS
    stretches = first + member
    inside = there_rows & (stretches < num_stretches)
    group = tl.arange(0, GROUPS)
    key_groups_ptr += head * GROUPS + group
    key_scales_ptr = scales_ptr + tl.load(key_scale_begins_ptr + head)
    factor, center_factor = tl.load(factors_ptr + head * 2), tl.load(factors_ptr + head * 2 + 1)
    low = tl.load(limits_ptr + rows * 2, mask=there_rows, other=0)
    high = tl.load(limits_ptr + rows * 2 + 1, mask=there_rows, other=0)
    queries_ptr += head.to(tl.int64) * num_rows * HEAD_DIM
    transform_ptr += head * transform_stride
    center_ptr += head * BLOCK_DIM * 64
    lengths = row_lengths(queries_ptr, rows, num_rows, HEAD_DIM, BLOCK_DIM)
    shrink = 1.0 / tl.where(lengths > 0.0, lengths, 1.0)
    whole = tl.load(log_sum_exp_ptr + head * num_rows + rows, mask=there_rows, other=0.0)
    # A row that saw nothing has a log-sum-exp of -infinity, and every logit of it is that too.
    whole = tl.maximum(whole, -1e30)
    asked = asked_queries(
        queries_ptr, rotations_ptr, transform_ptr, rows, stretches, inside, shrink, num_channels,
        HEAD_DIM, BLOCK_DIM, STEP, LANES,
    )  # fmt: skip
    for phase in range(0, num_phases, PAGES):
        off_center = tl.zeros((LANES, TOKENS), tl.float32)
        if CENTERED:
            off_center = center_products(
                queries_ptr, rotations_ptr, center_ptr, rows, stretches, inside, shrink,
                phase * 16, num_channels, HEAD_DIM, BLOCK_DIM, STEP, LANES, TOKENS,
            )  # fmt: skip
        for one in range(0, tl.minimum(num_members, num_stretches - first)):
            begin, start, first_slot, end_slot, page = tile_pages(
                first + one, phase, num_stretches, stretch_pages_ptr, rows_ptr, starts_ptr,
                begins_ptr, ends_ptr, page_words, PAGES,
            )  # fmt: skip
            # Read anew for every tile, the stride being 0: kept, they fill the registers.
            groups = tl.load(key_groups_ptr + one * groups_stride)
            logits = tile_logits(
                asked, off_center, pages_ptr, key_scales_ptr, key_levels_ptr, groups, begin,
                start, first_slot, end_slot, page, there_rows & (member == one), lengths, low,
                high, factor, center_factor, softcap, GROUPS, PAGES, KEY_WIDTH, SCALED, CENTERED,
                CAPPED,
            )  # fmt: skip
            mass = tl.sum(tl.exp(logits - whole[:, None]), 0)
            begin_of_head = head.to(tl.int64) * (num_stretches - first_stretch) - first_stretch
            token = phase * 16 + tl.arange(0, TOKENS)
            exists = (first + one + 0 * token) < num_stretches
            tl.store(masses_ptr + (begin_of_head + first + one) * 64 + token, mass, mask=exists)


def column_mass(
    queries: Tensor,
    rotations: Tensor,
    table: PageTable,
    pages: Tensor,
    layer: PackedLayer,
    limits: Tensor,
    softcap: float | None,
    log_sum_exp: Tensor,
) -> Tensor:
    """Probability each token slot received: see `packed.column_mass`, shape by shape.

    Raises:
        ValueError: pages are no byte records, the table points outside, or heads are too large.
    """
    tables = layer_tables(layer, pages.device)
    heads, num_rows, _ = queries.shape
    constants = logits_constants(tables, softcap, num_rows)
    batch = constants["LANES"] // constants["ROWS"]
    arguments = {
        **logits_arguments(queries, rotations, table, pages, tables, limits, softcap),
        "log_sum_exp_ptr": log_sum_exp.float().contiguous(),
        "num_members": batch,
    }
    num_stretches = int(arguments["num_stretches"])
    chunk = max(batch, _LARGEST_PARTIAL_NBYTES // (4 * STRETCH_TOKENS * heads))
    by_stretch = torch.zeros((num_stretches, STRETCH_TOKENS), device=pages.device)
    for first in range(0, num_stretches, chunk):
        last = min(first + chunk, num_stretches)
        masses = by_stretch.new_empty((heads, last - first, STRETCH_TOKENS))
        for block in range(-(-num_rows // constants["ROWS"])):
            triton_launch.launch(
                _mass_kernel,
                (-(-(last - first) // batch), heads),
                {
                    **arguments,
                    "masses_ptr": masses,
                    "block": block,
                    "first_stretch": first,
                    "num_stretches": last,
                },
                constants,
                num_warps=4,
                max_registers=max_registers(tables, constants["LANES"]),
            )
            by_stretch[first:last] += masses.sum(0)
    slots = by_stretch.view(-1, PAGE_TOKENS)
    return slots[(table.stretches * 4 + table.phases).long()].flatten()
