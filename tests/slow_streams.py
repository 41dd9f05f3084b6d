"""The documented rules of streams of codes in plain Python, one bit at a time.

A token's codes are those of its stream, in order; widths are of each group of four of its channels.
"""

from __future__ import annotations

from collections.abc import Sequence

Codes = Sequence[int]


def in_order(keys: Sequence[Sequence[Codes]], values: Sequence[Sequence[Codes]]) -> list[list[int]]:
    """The codes of each token of a page: of its keys, head by head, and then of its values.

    Args:
        keys: codes of each head's 16 tokens.
        values: the same.
    """
    heads = [*keys, *values]
    return [[code for head in heads for code in head[token]] for token in range(16)]


def stream_bits(codes: Codes, widths: Sequence[int]) -> list[int]:
    """One token's stream."""
    return [
        code >> bit & 1 for channel, code in enumerate(codes) for bit in range(widths[channel // 4])
    ]


def last_state(codes: Codes, widths: Sequence[int]) -> int:
    """The last four bits of a stream before which there are zeros."""
    return number([0, 0, 0, 0, *stream_bits(codes, widths)][-4:])


def slow_windows(codes: Codes, widths: Sequence[int]) -> list[int]:
    """Each channel's code, above the four bits before it where it has 1 to 4 bits."""
    bits, windows, end = [0, 0, 0, 0, *stream_bits(codes, widths)], [], 4
    for channel, code in enumerate(codes):
        width = widths[channel // 4]
        state = number(bits[end - 4 : end])
        windows.append(code << 4 | state if 1 <= width <= 4 else code)
        end += width
    return windows


def slow_stream(page: Sequence[Codes], widths: Sequence[int]) -> bytes:
    """The streams of a page's 16 tokens, as they lie."""
    num_words = (4 * sum(widths) + 31) // 32
    packed = bytearray(num_words * 16 * 4)
    for token, codes in enumerate(page):
        for index, bit in enumerate(stream_bits(codes, widths)):
            word, place = divmod(index, 32)
            packed[64 * word + 4 * token + place // 8] |= bit << place % 8
    return bytes(packed)


def number(bits: Sequence[int]) -> int:
    """Bits as a number, the first one lowest."""
    return sum(bit << place for place, bit in enumerate(bits))
