"""The documented rules of streams of codes in plain Python, one bit at a time."""

from __future__ import annotations

from collections.abc import Sequence


def stream_bits(codes: Sequence[int], widths: Sequence[int]) -> list[int]:
    """One token's stream.

    Args:
        codes: of each channel.
        widths: of each group of four channels.
    """
    return [
        code >> bit & 1 for channel, code in enumerate(codes) for bit in range(widths[channel // 4])
    ]


def slow_windows(codes: Sequence[int], widths: Sequence[int]) -> list[int]:
    """Each channel's code, above the four bits before it where it has 1 to 4 bits."""
    bits, windows, end = [0, 0, 0, 0, *stream_bits(codes, widths)], [], 4
    for channel, code in enumerate(codes):
        width = widths[channel // 4]
        state = sum(bit << place for place, bit in enumerate(bits[end - 4 : end]))
        windows.append(code << 4 | state if 1 <= width <= 4 else code)
        end += width
    return windows


def slow_stream(page: Sequence[Sequence[int]], widths: Sequence[int]) -> bytes:
    """The streams of a page's tokens, as they lie.

    Args:
        page: codes of each of 16 tokens.
        widths: of each group of four channels.
    """
    num_words = (4 * sum(widths) + 31) // 32
    packed = bytearray(num_words * 16 * 4)
    for token, codes in enumerate(page):
        for index, bit in enumerate(stream_bits(codes, widths)):
            word, place = divmod(index, 32)
            packed[64 * word + 4 * token + place // 8] |= bit << place % 8
    return bytes(packed)
