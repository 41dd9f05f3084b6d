"""Logits of query rows over packed keys, a tile at a time: what attention and column mass share.

    logit = |q| * (factor * <R(-start) q / |q| @ transform, levels> * token_scale
                   + center_factor * <R(-start) q / |q|, center>)

A tensor core multiplies 16 rows at once, and a decoded token has but a few a head: so a program
takes BATCH stretches together, each of its 16 lanes being one row as one stretch sees it. Turning
and transforming queries, the larger half of the work, is then done once a batch; keys of a stretch
are multiplied with all lanes, and what belongs to another stretch is masked. Many rows (prefill)
fill the lanes by themselves, with BATCH = 1.

Queries are brought to length 1, which a rotation keeps: with columns of the transform no longer
than 1 all operands lie within [-1, 1], where the 11 bits of float16 are enough; levels are integers
and exact. Products are summed in float32. B channels are D padded to a power of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from agentmem.kernels.code_stream import MAX_WIDTH
from agentmem.kernels.page_table import PAGES_PER_STRETCH, PageTable
from agentmem.kernels.triton_codes import code_bits, key_tile, levels_of
from agentmem.kernels.triton_launch import MAX_REGISTERS, jit, next_power_of_2
from agentmem.kernels.triton_layer import LayerTables
from agentmem.kernels.triton_window import pages_of_stretches

LANES = 16
"""Rows a tensor core multiplies at once."""
_TILE_ELEMENTS = 4096
"""Channels times tokens of a tile: what stays in registers, found by compiling."""

_THREE_PROGRAMS = 168


@jit
def lane_rows(block: tl.tensor, ROWS: tl.constexpr, LANES: tl.constexpr) -> tl.tensor:
    """(LANES,), int32: the query row of each lane."""
    return block * ROWS + tl.arange(0, LANES) % ROWS


@jit
def row_lengths(
    queries_ptr: tl.tensor, rows: tl.tensor, num_rows: tl.tensor, HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """(lanes,), float32: the length of each query; `queries_ptr` is at the head's first."""
    channel = tl.arange(0, BLOCK_DIM)
    inside = (rows < num_rows)[:, None] & (channel < HEAD_DIM)[None, :]
    offsets = rows.to(tl.int64)[:, None] * HEAD_DIM + channel[None, :]
    queries = tl.load(queries_ptr + offsets, mask=inside, other=0.0)
    return tl.sqrt(tl.sum(queries * queries, 1))


@jit
def turned_block(
    queries_ptr: tl.tensor, rotations_ptr: tl.tensor, rows: tl.tensor, stretches: tl.tensor,
    inside: tl.tensor, shrink: tl.tensor, first: tl.tensor, HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr, LANES: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """(lanes, BLOCK), float16: queries of length 1, turned back to their lane's stretch.

    Args:
        queries_ptr: the head's first query, float32.
        rotations_ptr: the first stretch's first pair (cos, sin), float32.
        stretches: (lanes,), the stretch of each.
        inside: (lanes,), bool: lanes that have a row and a stretch.
        shrink: (lanes,), one over the length of each.
        first: the block's first channel.
    """
    channel = first + tl.arange(0, BLOCK)
    mask = inside[:, None] & (channel < HEAD_DIM)[None, :]
    query = queries_ptr + rows.to(tl.int64)[:, None] * HEAD_DIM + channel[None, :]
    turn = rotations_ptr + stretches.to(tl.int64)[:, None] * HEAD_DIM + channel[None, :]
    pairs = tl.reshape(
        tl.load(query, mask=mask, other=0.0) * shrink[:, None], (LANES, BLOCK // 2, 2)
    )
    turns = tl.reshape(tl.load(turn, mask=mask, other=0.0), (LANES, BLOCK // 2, 2))
    even, odd = tl.split(pairs)
    cos, sin = tl.split(turns)
    return tl.interleave(even * cos - odd * sin, even * sin + odd * cos).to(tl.float16)


@jit
def asked_queries(
    queries_ptr: tl.tensor, rotations_ptr: tl.tensor, transform_ptr: tl.tensor, rows: tl.tensor,
    stretches: tl.tensor, inside: tl.tensor, shrink: tl.tensor, num_channels: tl.tensor,
    HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, STEP: tl.constexpr, LANES: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """(lanes, BLOCK_DIM), float16: turned queries in the frame of the levels."""
    channel = tl.arange(0, BLOCK_DIM)
    asked = tl.zeros((LANES, BLOCK_DIM), tl.float32)
    for first in range(0, num_channels, STEP):
        turned = turned_block(
            queries_ptr,
            rotations_ptr,
            rows,
            stretches,
            inside,
            shrink,
            first,
            HEAD_DIM,
            STEP,
            LANES,
        )
        source = first + tl.arange(0, STEP)
        matrix = tl.load(transform_ptr + source[:, None] * BLOCK_DIM + channel[None, :])
        asked = tl.dot(turned, matrix, asked)
    return asked.to(tl.float16)


@jit
def center_products(
    queries_ptr: tl.tensor, rotations_ptr: tl.tensor, center_ptr: tl.tensor, rows: tl.tensor,
    stretches: tl.tensor, inside: tl.tensor, shrink: tl.tensor, offset: tl.tensor,
    num_channels: tl.tensor, HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, STEP: tl.constexpr,
    LANES: tl.constexpr, TOKENS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """(lanes, TOKENS), float32: turned queries times the center, from an offset on."""
    token = offset + tl.arange(0, TOKENS)
    products = tl.zeros((LANES, TOKENS), tl.float32)
    for first in range(0, num_channels, STEP):
        turned = turned_block(
            queries_ptr,
            rotations_ptr,
            rows,
            stretches,
            inside,
            shrink,
            first,
            HEAD_DIM,
            STEP,
            LANES,
        )
        source = first + tl.arange(0, STEP)
        centers = tl.load(center_ptr + source[:, None] * 64 + token[None, :])
        products = tl.dot(turned, centers, products)
    return products


@jit
def tile_pages(
    stretch: tl.tensor, phase: tl.tensor, num_stretches: tl.tensor, stretch_pages_ptr: tl.tensor,
    rows_ptr: tl.tensor, starts_ptr: tl.tensor, begins_ptr: tl.tensor,
    ends_ptr: tl.tensor, page_words: tl.tensor,
    PAGES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """First word, position of slot 0, first slot, end of the slots, index in the table (-1: none).

    Each is (PAGES,).
    """
    lane = tl.arange(0, PAGES)
    place = stretch_pages_ptr + stretch * 4 + phase + lane
    page = tl.load(place, mask=(stretch + lane * 0) < num_stretches, other=-1)
    there = page >= 0
    # int64: an arena is larger than 2 ** 31 words sooner than one thinks.
    begin = tl.load(rows_ptr + page, mask=there, other=0).to(tl.int64) * page_words
    start = tl.load(starts_ptr + page, mask=there, other=0)
    first_slot = tl.load(begins_ptr + page, mask=there, other=0)
    end_slot = tl.load(ends_ptr + page, mask=there, other=0)
    return begin, start, first_slot, end_slot, page


@jit
def token_scales(
    scales_ptr: tl.tensor, begin: tl.tensor, page: tl.tensor, PAGES: tl.constexpr
) -> tl.tensor:
    """(tokens,), float32: scales of a tile's tokens; 0 where there is no page.

    Args:
        scales_ptr: float16, at the head's first scale in row 0.
        begin: (PAGES,), first word of each page.
    """
    token = tl.arange(0, 16)
    place = scales_ptr + begin[:, None] * 2 + token[None, :]
    scales = tl.load(place, mask=(page >= 0)[:, None], other=0.0)
    return tl.reshape(scales.to(tl.float32), (PAGES * 16,))


@jit
def tile_logits(
    asked: tl.tensor, off_center: tl.tensor, pages_ptr: tl.tensor, scales_ptr: tl.tensor,
    levels_ptr: tl.tensor, groups: tl.tensor, begin: tl.tensor,
    start: tl.tensor, first_slot: tl.tensor, end_slot: tl.tensor, page: tl.tensor,
    asks_here: tl.tensor, lengths: tl.tensor,
    low: tl.tensor, high: tl.tensor, factor: tl.tensor, center_factor: tl.tensor,
    softcap: tl.tensor, GROUPS: tl.constexpr, PAGES: tl.constexpr, WIDTH: tl.constexpr,
    SCALED: tl.constexpr, CENTERED: tl.constexpr, CAPPED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """(lanes, tokens), float32: logits of a head's lanes over a tile, -inf where one may not see.

    Args:
        asked: (lanes, BLOCK_DIM), float16, of `asked_queries`.
        off_center: (lanes, tokens), of `center_products`.
        groups: (GROUPS,), int32, the head's key groups.
        asks_here: (lanes,), bool: whether a lane belongs to the tile's stretch.
        low, high: (lanes,): positions each lane sees.
    """
    bits = code_bits(pages_ptr, begin, groups, page >= 0, WIDTH)
    levels = levels_of(bits, groups, levels_ptr, WIDTH)
    products = tl.dot(asked, key_tile(levels, GROUPS, PAGES)) * factor
    if SCALED:
        products = products * token_scales(scales_ptr, begin, page, PAGES)[None, :]
    if CENTERED:
        products = products + off_center * center_factor
    logits = products * lengths[:, None]
    if CAPPED:
        # tanh(x) = 1 - 2 / (exp(2x) + 1), which is right at infinity too.
        logits = softcap * (1.0 - 2.0 / (tl.exp(2.0 * logits / softcap) + 1.0))
    token = tl.arange(0, 16)
    # Slots of nobody, and of other segments, stand where nobody looks.
    position = start[:, None] + token[None, :]
    mine = (token[None, :] >= first_slot[:, None]) & (token[None, :] < end_slot[:, None])
    position = tl.where(mine, position, -(2**31))
    position = tl.reshape(position, (PAGES * 16,))[None, :]
    visible = (position >= low[:, None]) & (position < high[:, None])
    return tl.where(visible & asks_here[:, None], logits, float("-inf"))


def logits_arguments(
    queries: Tensor, rotations: Tensor, table: PageTable, pages: Tensor, tables: LayerTables,
    limits: Tensor, softcap: float | None,
) -> Mapping[str, Any]:  # fmt: skip
    """What a kernel that computes logits takes, by parameter.

    Raises:
        ValueError: `pages` is no arena of byte records, or the table points outside it.
    """
    if pages.dtype != torch.uint8 or pages.ndim != 2 or pages.stride(1) != 1:
        raise ValueError(
            f"`pages` must be (capacity, page_nbytes), uint8, each row contiguous: got "
            f"{tuple(pages.shape)}, {pages.dtype}, strides {pages.stride()}."
        )
    stretch_pages = pages_of_stretches(table, pages.shape[0])
    queries = queries.float().contiguous()
    return {
        "queries_ptr": queries,
        "rotations_ptr": torch.view_as_real(rotations.contiguous()),
        "stretch_pages_ptr": stretch_pages,
        "rows_ptr": table.rows,
        "starts_ptr": table.starts,
        "begins_ptr": table.begins,
        "ends_ptr": table.ends,
        "pages_ptr": pages.view(torch.int32),
        "scales_ptr": pages.view(torch.float16),
        "key_groups_ptr": tables.keys.groups,
        "key_scale_begins_ptr": tables.keys.scale_begins,
        "key_levels_ptr": tables.keys.levels,
        "transform_ptr": tables.transform,
        "center_ptr": tables.transform if tables.centers is None else tables.centers,
        "factors_ptr": tables.factors,
        "limits_ptr": limits.to(torch.int32).contiguous(),
        "softcap": 1.0 if softcap is None else float(softcap),
        "num_rows": queries.shape[1],
        "page_words": pages.stride(0) // 4,
        "num_stretches": stretch_pages.shape[0],
        "transform_stride": tables.transform.stride(0),
        # Loops of a fixed length would be unrolled, and need more registers than there are.
        "num_channels": tables.block_dim,
        "num_phases": PAGES_PER_STRETCH,
        "groups_stride": 0,
    }


def logits_constants(tables: LayerTables, softcap: float | None, num_rows: int) -> dict[str, Any]:
    """What a kernel that computes logits is compiled for, by parameter."""
    rows = min(most_rows(tables), next_power_of_2(num_rows))
    return {
        "HEAD_DIM": tables.head_dim,
        "BLOCK_DIM": tables.block_dim,
        "STEP": 32 if tables.block_dim <= 64 else 16,
        "ROWS": rows,
        "LANES": max(LANES, rows),
        "PAGES": max(1, min(4, _TILE_ELEMENTS // (16 * tables.block_dim))),
        "KEY_WIDTH": tables.keys.width,
        "SCALED": tables.token_scales,
        "CENTERED": tables.centers is not None,
        "CAPPED": softcap is not None,
    }


def most_rows(tables: LayerTables) -> int:
    """Rows a program takes where there are many."""
    return max(LANES, min(32, _TILE_ELEMENTS // tables.block_dim))


def max_registers(tables: LayerTables, lanes: int) -> int:
    """Registers of a thread: three programs of four warps fit a processor with 168, else two.

    What suffices was found by compiling: few lanes, and channels that are few or of whole bytes.
    """
    of_bytes = tables.keys.width == tables.values.width == MAX_WIDTH
    light = tables.block_dim <= 64 or (of_bytes and tables.block_dim <= 128)
    return _THREE_PROGRAMS if light and lanes == LANES else MAX_REGISTERS
