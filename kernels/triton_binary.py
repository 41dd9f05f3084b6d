"""Products of signs in Triton: which pages of a binary arena are worth reading.

Signs of 32 channels of a token are one word, a query's another: the bits of their exclusive or are
counted, with no multiplication. A score is an estimate of a logit up to one factor a query, not a
bound.
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
def _bits_set(words: tl.tensor) -> tl.tensor:
    """How many bits of each uint32 are 1, in its shape; compilers know it by its steps."""
    words = words - ((words >> 1) & 0x55555555)
    words = (words & 0x33333333) + ((words >> 2) & 0x33333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F
    return ((words * 0x01010101) >> 24).to(tl.int32, bitcast=True)


@jit
def _binary_kernel(
    queries_ptr: tl.tensor, rotations_ptr: tl.tensor, stretch_pages_ptr: tl.tensor,
    rows_ptr: tl.tensor, starts_ptr: tl.tensor, begins_ptr: tl.tensor, ends_ptr: tl.tensor,
    pages_ptr: tl.tensor, scales_ptr: tl.tensor, key_first_bits_ptr: tl.tensor,
    key_scale_begins_ptr: tl.tensor,
    transform_ptr: tl.tensor, scores_ptr: tl.tensor, num_rows: tl.tensor, page_words: tl.tensor,
    num_stretches: tl.tensor, transform_stride: tl.tensor, num_channels: tl.tensor,
    num_phases: tl.tensor, num_members: tl.tensor, num_pages: tl.tensor, HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
) -> None:  # fmt: skip
    """Scores (H, R, P) of a batch of stretches. Grid: (batches, blocks of rows, H)."""
    BITS: tl.constexpr = min(32, BLOCK_DIM)
    WORDS: tl.constexpr = BLOCK_DIM // BITS
    BATCH: tl.constexpr = LANES // ROWS
    first, head = tl.program_id(0) * BATCH, tl.program_id(2)
    rows = lane_rows(tl.program_id(1), ROWS, LANES)
    member = tl.arange(0, LANES) // ROWS
    stretches = first + member
    inside = (rows < num_rows) & (stretches < num_stretches)
    first_word = tl.load(key_first_bits_ptr + head) >> 5
    shift = tl.load(key_first_bits_ptr + head) & 31
    scales_ptr += tl.load(key_scale_begins_ptr + head)
    queries_ptr += head.to(tl.int64) * num_rows * HEAD_DIM
    transform_ptr += head * transform_stride
    lengths = row_lengths(queries_ptr, rows, num_rows, HEAD_DIM, BLOCK_DIM)
    asked = asked_queries(
        queries_ptr, rotations_ptr, transform_ptr, rows, stretches, inside,
        1.0 / tl.where(lengths > 0.0, lengths, 1.0), num_channels, HEAD_DIM, BLOCK_DIM, STEP,
        LANES,
    )  # fmt: skip
    channel, word, token = tl.arange(0, BLOCK_DIM), tl.arange(0, WORDS), tl.arange(0, 16)
    # Behind the last channel there are zeros on both sides: other channels' bits are masked away.
    count = tl.minimum(tl.maximum(HEAD_DIM - word * 32, 0), 32)
    own = (((1 << (count // 2)) << ((count + 1) // 2)) - 1).to(tl.uint32, bitcast=True)
    signs = ((asked >= 0.0) & (channel < HEAD_DIM)[None, :]).to(tl.int32)
    signs = tl.reshape(signs, (LANES, WORDS, BITS)) << tl.arange(0, BITS)[None, None, :]
    asked_words = tl.sum(signs, 2)[:, :, None].to(tl.uint32, bitcast=True)
    for phase in range(0, num_phases):
        for one in range(0, tl.minimum(num_members, num_stretches - first)):
            begin, _, first_slot, end_slot, page = tile_pages(
                first + one, phase, num_stretches, stretch_pages_ptr, rows_ptr, starts_ptr,
                begins_ptr, ends_ptr, page_words, 1,
            )  # fmt: skip
            page_begin, index = tl.max(begin, 0), tl.max(page, 0)
            place = pages_ptr + page_begin + (first_word + word)[:, None] * 16 + token[None, :]
            low = tl.load(place, mask=(count > 0)[:, None], other=0).to(tl.uint32, bitcast=True)
            high = tl.load(place + 16, mask=(shift + count > 32)[:, None], other=0)
            # In two steps: a shift by all 32 bits is undefined.
            words = (low >> shift) | ((high.to(tl.uint32, bitcast=True) << 1) << (31 - shift))
            differ = asked_words ^ (words & own[:, None])[None, :, :]
            number_differ = tl.sum(_bits_set(differ), 1)
            filled = (token >= tl.max(first_slot, 0)) & (token < tl.max(end_slot, 0))
            scales = tl.load(scales_ptr + page_begin * 2 + token, mask=filled, other=0.0)
            products = (HEAD_DIM - 2 * number_differ).to(tl.float32) * scales.to(tl.float32)[
                None, :
            ]
            highest = tl.max(tl.where(filled[None, :], products, float("-inf")), 1)
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
             "begins_ptr", "ends_ptr", "pages_ptr", "scales_ptr",
             "key_scale_begins_ptr", "transform_ptr", "num_rows", "page_words",
             "num_stretches", "transform_stride", "num_channels", "num_phases")  # fmt: skip
    triton_launch.launch(
        _binary_kernel,
        (-(-arguments["num_stretches"] // batch), -(-num_rows // constants["ROWS"]), heads),
        {
            **{name: arguments[name] for name in names},
            "key_first_bits_ptr": tables.keys.first_bits,
            "scores_ptr": scores,
            "num_members": batch,
            "num_pages": table.num_pages,
        },
        {name: constants[name] for name in ("HEAD_DIM", "BLOCK_DIM", "STEP", "ROWS", "LANES")},
        num_warps=4,
    )
    return scores
