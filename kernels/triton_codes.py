"""What Triton kernels share to read packed codes: the four codes of a group at a time.

A group's codes, and the four bits of the stream before them where they are narrow, never span more
than two words: two loads and a shift bring them to the bottom of one. Where each group begins is in
a table (`group_entry`), which is read anew with every tile. See code_stream.py for the bits.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from agentmem.kernels.code_stream import (
    GROUP_CHANNELS,
    NARROW_WIDTHS,
    PAGE_TOKENS,
    STATE_BITS,
    WORD_BITS,
)
from agentmem.kernels.triton_launch import jit

NUM_LEVELS = 1024
"""Of the table of levels: those of a narrow width begin at 16 << width, of a wide one at 512 plus
2 ** width."""


def first_level(width: int) -> int:
    """Where the levels of a width begin in a table of levels, by window."""
    return 1 << (width + STATE_BITS) if width <= NARROW_WIDTHS[-1] else 512 + (1 << width)


def group_entries(widths: Tensor, first_bits: Tensor) -> Tensor:
    """What `code_bits` must know of each group.

    Args:
        widths: (H, G), int64: bits a code.
        first_bits: (H, G), int64: where each group's first code begins in the stream.

    Returns:
        (H, G), int64: from the lowest bit on the width (4 bits), the shift over 4 (3 bits), whether
        there is a lower word and whether a higher one (1 bit each), and the lower word's place in a
        page over 8, which may be below 0 where there is none.
    """
    state = torch.where(widths <= NARROW_WIDTHS[-1], STATE_BITS, 0)
    begins = first_bits - state
    # Rounded down: the state of a stream's first code lies in a word before it, which there is not.
    index, shift = begins >> 5, begins & (WORD_BITS - 1)
    has_low = (widths > 0) & (begins >= 0)
    has_high = (widths > 0) & (shift + state + GROUP_CHANNELS * widths > WORD_BITS)
    places = index * PAGE_TOKENS
    flags = has_low.long() << 7 | has_high.long() << 8
    return widths | (shift // 4) << 4 | flags | (places // 8) << 9


@jit
def code_bits(
    pages_ptr: tl.tensor, begin: tl.tensor, groups: tl.tensor, there: tl.tensor,
    WIDTH: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Each group's codes, lowest channel first, behind the state of the first where it is narrow.

    Args:
        pages_ptr: int32, the arena.
        begin: (pages,), int64, first word of each page.
        groups: (groups,), int32, of `group_entries`.
        there: (pages,), bool: pages to read.
        WIDTH: of all groups; 0: they differ.

    Returns:
        (groups, pages, 16), uint32; what lies above a group's codes is anything. 0 where there is
        no page, or no bit.
    """
    # Counted in eights, so that a compiler sees that four tokens may be read at once.
    place = ((groups >> 9) * 8)[:, None, None] + tl.arange(0, 16)[None, None, :]
    low_ptr = pages_ptr + begin[None, :, None] + place
    there = there[None, :, None]
    has_low = ((groups & 128) != 0)[:, None, None]
    bits = tl.load(low_ptr, mask=there & has_low, other=0).to(tl.uint32, bitcast=True)
    # Four codes of eight bits are a word.
    if WIDTH != 8:
        has_high = ((groups & 256) != 0)[:, None, None]
        high = tl.load(low_ptr + 16, mask=there & has_high, other=0).to(tl.uint32, bitcast=True)
        shift = ((groups >> 2) & 28)[:, None, None]
        # In two steps: a shift by all 32 bits is undefined.
        bits = (bits >> shift) | ((high << 1) << (31 - shift))
    return bits


@jit
def levels_of(
    bits: tl.tensor, groups: tl.tensor, levels_ptr: tl.tensor, WIDTH: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """Integer levels of each group's four codes.

    Args:
        bits: (groups, pages, 16), uint32, of `code_bits`.
        groups: (groups,), int32, as `code_bits` takes them.
        levels_ptr: (1024,), float16: level of each window of a width, from `first_level` on.
        WIDTH: of all groups; 0: they differ.

    Returns:
        (groups, pages, 16, 4), float16: exact, being integers in [-128, 127].
    """
    channel = tl.arange(0, 4)[None, None, None, :]
    if WIDTH == 0:
        widths = groups & 15
        narrow = widths <= 4
        sizes = tl.where(narrow, 16, 1) << widths
        firsts = (sizes + tl.where(narrow, 0, 512))[:, None, None, None]
        windows = bits[:, :, :, None] >> (widths[:, None, None, None] * channel)
        windows = windows.to(tl.int32, bitcast=True) & (sizes - 1)[:, None, None, None]
        return tl.load(levels_ptr + firsts + windows)
    windows = (bits[:, :, :, None] >> (WIDTH * channel)).to(tl.int32, bitcast=True)
    if WIDTH <= 4:
        return tl.load(levels_ptr + (16 << WIDTH) + (windows & ((16 << WIDTH) - 1)))
    code = (windows & ((1 << WIDTH) - 1)) << (8 - WIDTH)
    return (code + ((1 << (8 - WIDTH)) // 2 - 128)).to(tl.float16)


@jit
def key_tile(levels: tl.tensor, GROUPS: tl.constexpr, PAGES: tl.constexpr) -> tl.tensor:
    """(groups, pages, 16 tokens, 4 channels) as (channels, slots)."""
    return tl.reshape(tl.permute(levels, (0, 3, 1, 2)), (GROUPS * 4, PAGES * 16))


@jit
def value_tile(levels: tl.tensor, GROUPS: tl.constexpr, PAGES: tl.constexpr) -> tl.tensor:
    """(groups, pages, 16 tokens, 4 channels) as (slots, channels)."""
    return tl.reshape(tl.permute(levels, (1, 2, 0, 3)), (PAGES * 16, GROUPS * 4))
