"""What Triton kernels share to read packed codes: a word of four codes at a time.

A group of a page holds 64 codes e[0..63]; code word i is e[4i .. 4i + 3], one a byte: for keys the
four channels of token i, for values four tokens of channel i // 4. Every plane of a width gives its
bits of a code word with one load, one shift and one mask, and the planes of a width are the binary
digits of it, so that a lane has plane p exactly where `width & p`, and takes p more bits there:

    plane 8: word i                        plane 2: word i % 4, shifted by 2 * (i // 4)
    plane 4: word i % 8, by 4 * (i // 8)   plane 1: word i // 8, by 4 * (i % 8), one bit a code

See packing.py for the bytes. Knows nothing of what codes mean.
"""

from __future__ import annotations

import triton.language as tl

from agentmem.kernels.triton_launch import jit


@jit
def code_words(
    pages_ptr: tl.tensor, begin: tl.tensor, groups: tl.tensor, there: tl.tensor,
    PLANES: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Code words of groups, each code behind a 1: code + 2 ** width; those of width 8 bare.

    Args:
        pages_ptr: int32, the arena.
        begin: (pages,), int64, first word of each page.
        groups: (groups,), int32: first word of each group in a page, times 16, plus its width.
        there: (pages,), bool: pages to read.
        PLANES: every plane that some width has, or-ed.

    Returns:
        (groups, pages, 16), int32; as if all codes were 0 where there is no page.
    """
    word = tl.arange(0, 16)[None, None, :]
    widths = (groups & 15)[:, None, None]
    first = pages_ptr + begin[None, :, None] + (groups >> 4)[:, None, None]
    there = there[None, :, None]
    codes = tl.zeros(first.shape, tl.int32) + word * 0 + 0x01010101
    if PLANES & 8:
        plane = tl.load(first + word, mask=there & ((widths & 8) != 0), other=0)
        codes = tl.where((widths & 8) != 0, plane, codes)
    if PLANES & 4:
        plane = tl.load(first + word % 8, mask=there & ((widths & 4) != 0), other=0)
        codes = (codes << (widths & 4)) | ((plane >> (word // 8 * 4)) & 0x0F0F0F0F)
    if PLANES & 2:
        begin = first + (widths & 4) * 2
        plane = tl.load(begin + word % 4, mask=there & ((widths & 2) != 0), other=0)
        codes = (codes << (widths & 2)) | ((plane >> (word // 4 * 2)) & 0x03030303)
    if PLANES & 1:
        begin = first + (widths & 6) * 2
        plane = tl.load(begin + word // 8, mask=there & ((widths & 1) != 0), other=0)
        # Four bits become one a byte: the product puts bit b at 8 * b, and more that is masked.
        bits = (((plane >> (word % 8 * 4)) & 15) * 0x00204081) & 0x01010101
        codes = (codes << (widths & 1)) | bits
    return codes


@jit
def levels_of(
    codes: tl.tensor, groups: tl.tensor, levels_ptr: tl.tensor, PLANES: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """Integer levels of code words.

    Args:
        codes: (groups, pages, 16), int32, of `code_words`.
        groups: (groups,), int32, as `code_words` takes them.
        levels_ptr: (256,), float16: levels of narrower codes at 2 ** width + code.

    Returns:
        (groups, pages, 16, 4), float16: exact, being integers in [-128, 127].
    """
    byte = tl.arange(0, 4)[None, None, None, :]
    code = (codes[:, :, :, None] >> (byte * 8)) & 255
    if PLANES == 8:
        return (code - 128).to(tl.float16)
    levels = tl.load(levels_ptr + code)
    if PLANES & 8:
        return tl.where((groups & 8)[:, None, None, None] != 0, (code - 128).to(tl.float16), levels)
    return levels


@jit
def key_tile(levels: tl.tensor, GROUPS: tl.constexpr, SLOTS: tl.constexpr) -> tl.tensor:
    """(groups, pages, 16 tokens, 4 channels) as (channels, SLOTS)."""
    return tl.reshape(tl.permute(levels, (0, 3, 1, 2)), (GROUPS * 4, SLOTS))


@jit
def value_tile(levels: tl.tensor, GROUPS: tl.constexpr, PAGES: tl.constexpr) -> tl.tensor:
    """(groups, pages, 4 channels x 4 quads, 4 tokens) as (slots, channels)."""
    by_channel = tl.reshape(levels, (GROUPS, PAGES, 4, 16))
    return tl.reshape(tl.permute(by_channel, (1, 3, 0, 2)), (PAGES * 16, GROUPS * 4))
