"""Streams of codes: pinned byte by byte, and by rules that set one bit at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentmem.kernels.code_stream import MAX_WIDTH, NARROW_WIDTHS, CodeStream
from tests.slow_streams import slow_stream, slow_windows


def random_codes(stream: CodeStream, num_pages: int, seed: int) -> Tensor:
    """Codes that use every bit of their width."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_pages, 16, len(stream.widths) * 4)
    return (torch.randint(0, 256, shape, generator=generator) % (1 << stream.channel_widths)).byte()


def code_of(windows: Tensor, stream: CodeStream) -> Tensor:
    """Without the state below it."""
    return windows >> torch.where(stream.channel_widths <= 4, 4, 0)


@st.composite
def streams(draw: st.DrawFn) -> CodeStream:
    """Any widths for each group; of few kinds, so that some streams have one width alone."""
    kinds = draw(st.lists(st.integers(0, 8), min_size=1, max_size=4))
    return CodeStream(tuple(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=12))))


@settings(deadline=None, max_examples=60)
@given(stream=streams(), num_pages=st.integers(0, 2), seed=st.integers(0, 1000))
def test_streams_are_those_of_setting_one_bit_at_a_time(
    stream: CodeStream, num_pages: int, seed: int
) -> None:
    codes = random_codes(stream, num_pages, seed)
    packed = stream.pack(codes)
    assert packed.dtype == torch.uint8 and packed.shape == (num_pages, stream.nbytes)
    for page, found in zip(codes.tolist(), packed.tolist(), strict=True):
        assert bytes(found) == slow_stream(page, stream.widths)


@settings(deadline=None, max_examples=60)
@given(stream=streams(), num_pages=st.integers(0, 2), seed=st.integers(0, 1000))
def test_windows_are_codes_above_the_four_bits_before_them(
    stream: CodeStream, num_pages: int, seed: int
) -> None:
    codes = random_codes(stream, num_pages, seed)
    windows = stream.windows(stream.pack(codes))
    assert windows.dtype == torch.uint8 and windows.shape == codes.shape
    assert windows.tolist() == [
        [slow_windows(token, stream.widths) for token in page] for page in codes.tolist()
    ]


@settings(deadline=None, max_examples=100)
@given(stream=streams(), num_pages=st.integers(0, 3), seed=st.integers(0, 1000))
def test_codes_come_back(stream: CodeStream, num_pages: int, seed: int) -> None:
    codes = random_codes(stream, num_pages, seed)
    assert torch.equal(code_of(stream.windows(stream.pack(codes)), stream), codes)


def test_codes_and_the_states_before_them_fill_a_byte_at_most() -> None:
    assert list(NARROW_WIDTHS) == [1, 2, 3, 4]
    assert max(NARROW_WIDTHS) + 4 == MAX_WIDTH


def word(packed: Tensor, index: int, token: int) -> int:
    """A word of a page's only record, by the documented place of its four bytes."""
    first = 64 * index + 4 * token
    return int.from_bytes(bytes(packed[0, first : first + 4].tolist()), "little")


def test_a_stream_of_hand() -> None:
    """Codes of 5 bits, then of none, then of 2: the seventh lies in two words."""
    stream = CodeStream((5, 5, 0, 2))
    assert (stream.num_words, stream.nbytes) == (2, 128)
    assert stream.first_bits.tolist() == [*range(0, 40, 5), *[40] * 4, 40, 42, 44, 46]
    codes = torch.zeros((1, 16, 16), dtype=torch.uint8)
    codes[0, 3, 0] = 0b10011  # bits 0 to 4
    codes[0, 3, 6] = 0b11101  # bits 30 to 34
    codes[0, 3, 7] = 0b11001  # bits 35 to 39
    codes[0, 3, 12] = 0b10  # bits 40 and 41
    codes[0, 3, 15] = 0b01  # bits 46 and 47
    codes[0, 15, 15] = 0b11
    packed = stream.pack(codes)
    assert word(packed, 0, 3) == 0b10011 | 0b01 << 30
    assert word(packed, 1, 3) == 0b111 | 0b11001 << 3 | 0b10 << 8 | 0b01 << 14
    assert word(packed, 1, 15) == 0b11 << 14
    others = [(at, token) for at in (0, 1) for token in range(16) if token not in (3, 15)]
    assert not any(word(packed, at, token) for at, token in [*others, (0, 15)])
    windows = stream.windows(packed)[0, 3].tolist()
    assert windows[:8] == [0b10011, 0, 0, 0, 0, 0, 0b11101, 0b11001], "wide codes are alone"
    assert windows[8:12] == [0] * 4
    # The last four bits of 11001, then the two bits between them and the code.
    assert windows[12:] == [0b10_1100, 0b00_1011, 0b00_0010, 0b01_0000]


@pytest.mark.parametrize(
    ("width", "first", "second"),
    [
        # Windows of the first two channels, all of whose bits are set.
        (1, 0b1_0000, 0b1_1000),
        (2, 0b11_0000, 0b11_1100),
        (3, 0b111_0000, 0b111_1110),
        (4, 0b1111_0000, 0b1111_1111),
        (5, 0b11111, 0b11111),
        (8, 0xFF, 0xFF),
    ],
)
def test_the_bits_before_a_stream_count_as_zeros(width: int, first: int, second: int) -> None:
    stream = CodeStream((width,))
    codes = torch.full((1, 16, 4), (1 << width) - 1, dtype=torch.uint8)
    assert stream.windows(stream.pack(codes))[0, :, :2].tolist() == [[first, second]] * 16


def test_what_codes_leave_of_the_last_word_is_empty() -> None:
    for width in range(1, 9):
        stream = CodeStream((width,) * 3)
        codes = torch.full((1, 16, 12), (1 << width) - 1, dtype=torch.uint8)
        last = word(stream.pack(codes), stream.num_words - 1, 9)
        assert last == (1 << (12 * width - 32 * (stream.num_words - 1))) - 1


@pytest.mark.parametrize(
    ("widths", "num_words"),
    [((0,), 0), ((0, 0, 0), 0), ((1,), 1), ((8,), 1), ((8, 1), 2), ((3,) * 16, 6), ((5,) * 16, 10)],
)
def test_a_stream_takes_whole_words(widths: tuple[int, ...], num_words: int) -> None:
    stream = CodeStream(widths)
    assert stream.num_words == num_words and stream.nbytes == num_words * 4 * 16
    assert stream.channel_widths.tolist() == [width for width in widths for _ in range(4)]


@pytest.mark.parametrize("widths", [(5, 3, 0, 2), (8, 8, 8)])
def test_streams_are_read_wherever_they_lie(widths: tuple[int, ...]) -> None:
    stream = CodeStream(widths)
    codes = random_codes(stream, 3, seed=0)
    packed = stream.pack(codes)
    strided = torch.zeros((3, stream.nbytes + 5), dtype=torch.uint8)[:, 5:]
    sparse = torch.zeros((3, 2 * stream.nbytes), dtype=torch.uint8)[:, ::2]
    odd = torch.zeros(stream.nbytes * 3 + 1, dtype=torch.uint8)[1:].view(3, -1)
    for moved in (strided, sparse, odd):
        moved.copy_(packed)
        assert torch.equal(stream.windows(moved), stream.windows(packed))
    strided_codes = codes.mT.contiguous().mT
    assert not strided_codes.is_contiguous()
    assert torch.equal(stream.pack(strided_codes), packed)
