"""Records of packed pages: pinned byte by byte, and by a packer that sets one bit at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentmem.kernels.packing import Packing
from tests.slow_streams import in_order, last_state, slow_stream, slow_windows

Pages = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def widths_of(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.uint8)


def random_pages(packing: Packing, num_pages: int, seed: int) -> Pages:
    """Codes that use every bit of their width, and scales of any bit pattern."""
    generator = torch.Generator().manual_seed(seed)
    heads, head_dim = packing.num_heads, packing.head_dim
    codes = torch.randint(0, 256, (2, num_pages, heads, 16, head_dim), generator=generator)
    keys, values = (
        (part % (1 << widths.long().repeat_interleave(4, 1))[:, None]).byte()
        for part, widths in zip(codes, (packing.key_widths, packing.value_widths), strict=True)
    )
    if not packing.token_scales:
        return keys, values, None, None
    scales = torch.randint(
        0, 1 << 15, (2, num_pages, heads, 16), generator=generator, dtype=torch.int16
    ).view(torch.float16)
    return keys, values, scales[0], scales[1]


def bits_of(pages: Pages) -> list[list[int] | None]:
    """All that a page holds, as integers."""
    return [
        None if part is None else part.contiguous().view(torch.uint8).flatten().tolist()
        for part in pages
    ]


def widths_in_order(packing: Packing) -> list[int]:
    """Of each group of four channels of a token's stream."""
    tables = (packing.key_widths.tolist(), packing.value_widths.tolist())
    return [width for table in tables for head in table for width in head]


def slow_record(packing: Packing, pages: Pages, page: int) -> bytes:
    """One page's record."""
    keys, values, *scales = pages
    tokens = in_order(keys[page].tolist(), values[page].tolist())
    record = bytearray(slow_stream(tokens, widths_in_order(packing)))
    for head in range(packing.num_heads):
        for part in scales:
            if part is not None:
                record += bytes(part[page, head].clone().view(torch.uint8).tolist())
    return bytes(record)


@st.composite
def packings(draw: st.DrawFn) -> Packing:
    """Any widths for each head and group, keys and values apart."""
    heads, groups = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    # Few widths, so that some neighbours have the same and are packed together.
    of_heads = st.lists(
        st.sampled_from(draw(st.lists(st.integers(0, 8), min_size=1, max_size=3))),
        min_size=groups,
        max_size=groups,
    )
    kinds = [draw(of_heads) for _ in range(2)]
    keys, values = (
        widths_of(*[draw(st.sampled_from([kind, draw(of_heads)])) for _ in range(heads)])
        for kind in kinds
    )
    return Packing(keys, values, draw(st.booleans()))


@settings(deadline=None, max_examples=120)
@given(packing=packings(), num_pages=st.integers(0, 3), seed=st.integers(0, 1000))
def test_unpacking_gives_back_what_was_packed(packing: Packing, num_pages: int, seed: int) -> None:
    pages = random_pages(packing, num_pages, seed)
    records = packing.pack(*pages)
    assert records.dtype == torch.uint8 and records.shape == (num_pages, packing.page_nbytes)
    assert bits_of(packing.unpack(records)) == bits_of(pages)


@settings(deadline=None, max_examples=30)
@given(packing=packings(), seed=st.integers(0, 1000))
def test_records_are_those_of_packing_one_bit_at_a_time(packing: Packing, seed: int) -> None:
    pages = random_pages(packing, 2, seed)
    records = packing.pack(*pages)
    for page in range(2):
        assert bytes(records[page].tolist()) == slow_record(packing, pages, page)


@settings(deadline=None, max_examples=30)
@given(packing=packings(), seed=st.integers(0, 1000))
def test_windows_are_those_of_one_stream_of_all_heads_keys_and_values(
    packing: Packing, seed: int
) -> None:
    pages = random_pages(packing, 2, seed)
    key_windows, value_windows = packing.windows(packing.pack(*pages))
    assert key_windows.dtype == value_windows.dtype == torch.uint8
    assert key_windows.shape == value_windows.shape == pages[0].shape
    for page in range(2):
        tokens = in_order(pages[0][page].tolist(), pages[1][page].tolist())
        found = in_order(key_windows[page].tolist(), value_windows[page].tolist())
        assert found == [slow_windows(token, widths_in_order(packing)) for token in tokens]


@settings(deadline=None, max_examples=30)
@given(packing=packings(), width=st.integers(1, 4), seed=st.integers(0, 1000))
def test_the_first_value_follows_on_the_last_bits_of_the_keys(
    packing: Packing, width: int, seed: int
) -> None:
    value_widths = packing.value_widths.clone()
    value_widths[0, 0] = width
    packing = replace(packing, value_widths=value_widths)
    pages = random_pages(packing, 1, seed)
    _, windows = packing.windows(packing.pack(*pages))
    keys, widths = pages[0][0].tolist(), packing.key_widths.flatten().tolist()
    assert (windows[0, 0, :, 0] & 15).tolist() == [
        last_state(codes, widths) for codes in in_order(keys, [])
    ]


@settings(deadline=None, max_examples=60)
@given(packing=packings())
def test_scales_follow_the_streams_head_by_head_and_fill_the_page(packing: Packing) -> None:
    end = -(-4 * sum(widths_in_order(packing)) // 32) * 64
    assert packing.stream.nbytes == end
    if packing.token_scales:
        keys, values = packing.scale_begins.tolist()
        for begins in zip(keys, values, strict=True):
            assert begins == (end, end + 32), "a head's lie side by side"
            end += 64
    assert packing.page_nbytes == end
    assert end % 64 == 0, "pages fill whole vectors of 512 bits"


@settings(deadline=None, max_examples=40)
@given(packing=packings(), seed=st.integers(0, 1000), num_slots=st.integers(0, 16))
def test_the_bits_below_a_slot_are_those_of_the_tokens_below_it(
    packing: Packing, seed: int, num_slots: int
) -> None:
    one_page = random_pages(packing, 2, seed)
    below = packing.slots_below[num_slots]
    first, second = packing.pack(*one_page), packing.pack(*random_pages(packing, 2, seed + 1))
    mixed = packing.unpack((first & below) | (second & ~below))
    for parts in zip(mixed, packing.unpack(first), packing.unpack(second), strict=True):
        # Slots are the third axis; of scales some are NaN.
        bits = [
            part.movedim(2, 0).contiguous().view(torch.uint8) for part in parts if part is not None
        ]
        for found, here, there in [bits] if bits else []:
            assert torch.equal(found[:num_slots], here[:num_slots])
            assert torch.equal(found[num_slots:], there[num_slots:])


def test_a_record_of_hand() -> None:
    """Two heads of four channels; keys of 3 and 7 bits, values of 1 and 2."""
    packing = Packing(widths_of([3], [7]), widths_of([1], [2]))
    keys, values = torch.zeros((2, 1, 2, 16, 4), dtype=torch.uint8)
    keys[0, 0, 0, 0] = 0b101  # bits 0 to 2
    keys[0, 1, 4, 2] = 0b1010111  # bits 26 to 32
    keys[0, 1, 15, 3] = 0b1000001  # bits 33 to 39
    values[0, 0, :, 2] = 1  # bit 42
    values[0, 1, 9, 3] = 0b10  # bits 50 and 51
    scales = torch.zeros((2, 2, 16))
    scales[:, :, 0] = torch.tensor([[1.0, 2.0], [0.5, 4.0]])
    scales[0, 0, 15] = -2.0
    record = packing.pack(keys, values, *scales.half()[:, None])[0].tolist()
    words = [[0, 0, 0, 0] for _ in range(16)] + [[0, 0b100, 0, 0] for _ in range(16)]
    words[0][0] = 0b101
    words[4][3] = 0b010111 << 2
    words[16 + 4][0] = 1
    words[16 + 15][0] = 0b1000001 << 1
    words[16 + 9][2] = 0b1000
    assert record == [
        *(byte for word in words for byte in word),
        *[0x00, 0x3C, *[0] * 28, 0x00, 0xC0],  # keys of head 0
        *[0x00, 0x38, *[0] * 30],  # its values
        *[0x00, 0x40, *[0] * 30],  # keys of head 1
        *[0x00, 0x44, *[0] * 30],
    ]


@pytest.mark.parametrize(
    ("heads", "head_dim", "width", "token_scales", "nbytes"),
    [
        (1, 64, 8, True, 2 * (16 * 64 + 32)),
        (3, 64, 8, True, 3 * 2 * (16 * 64 + 32)),
        (2, 128, 4, True, 2 * 2 * (16 * 64 + 32)),
        (2, 96, 1, False, 2 * 2 * 16 * 12),
        # Codes of four heads of keys and values, 9 bytes each, leave nothing of nine words.
        (2, 24, 3, False, 16 * 36),
        # Of 15 bytes they leave the end of the fourth word.
        (1, 20, 3, True, 16 * 16 + 2 * 32),
        (5, 256, 3, False, 5 * 2 * 16 * 96),
        (2, 64, 0, False, 0),
    ],
)
def test_a_page_takes_as_many_bytes_as_its_bits_in_whole_words(
    heads: int, head_dim: int, width: int, token_scales: bool, nbytes: int
) -> None:
    packing = Packing.uniform(heads, head_dim, width, token_scales=token_scales)
    assert (packing.num_heads, packing.head_dim) == (heads, head_dim)
    assert packing.page_nbytes == nbytes


@pytest.mark.parametrize("layout", ["strided rows", "every second byte", "odd address"])
def test_records_are_read_wherever_they_lie(layout: str) -> None:
    packing = Packing(widths_of([8, 3, 0, 8], [8, 3, 0, 8]), widths_of([5, 8, 8, 2], [8, 8, 8, 8]))
    pages = random_pages(packing, 1 if layout == "odd address" else 3, seed=0)
    records = packing.pack(*pages)
    num_pages, nbytes = records.shape
    if layout == "strided rows":
        moved = torch.zeros((num_pages, nbytes + 5), dtype=torch.uint8)[:, 5:]
    elif layout == "every second byte":
        moved = torch.zeros((num_pages, 2 * nbytes), dtype=torch.uint8)[:, ::2]
    else:
        moved = torch.zeros(nbytes + 1, dtype=torch.uint8)[1:].view(1, nbytes)
    moved.copy_(records)
    assert bits_of(packing.unpack(moved)) == bits_of(pages)


def test_codes_are_packed_wherever_they_lie() -> None:
    packing = Packing(widths_of([8, 3], [4, 4]), widths_of([5, 8], [1, 2]))
    keys, values, key_scales, value_scales = random_pages(packing, 2, seed=0)
    assert key_scales is not None and value_scales is not None
    expected = packing.pack(keys, values, key_scales, value_scales)
    strided = [t.mT.contiguous().mT for t in (keys, values, key_scales, value_scales)]
    assert not any(t.is_contiguous() for t in strided)
    assert torch.equal(packing.pack(*strided), expected)


@pytest.mark.parametrize(
    ("keys", "values", "reason"),
    [
        (widths_of([9]), widths_of([8]), "key_widths.*up to 9"),
        (widths_of([8]), widths_of([255]), "value_widths.*up to 255"),
        (widths_of([8]).int(), widths_of([8]), "key_widths.*int32"),
        (widths_of([8]), widths_of([8])[0], r"value_widths.*\(1,\)"),
        (widths_of([8, 8]), widths_of([8]), r"\(1, 2\).*\(1, 1\)"),
        (widths_of([]), widths_of([]), r"key_widths.*\(1, 0\)"),
        (torch.zeros((0, 2), dtype=torch.uint8), widths_of([8, 8]), r"key_widths.*\(0, 2\)"),
    ],
)
def test_widths_that_no_page_can_have_are_refused(
    keys: Tensor, values: Tensor, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Packing(keys, values)


@pytest.mark.parametrize("head_dim", [1, 6, 63, 0])
def test_a_head_that_cannot_be_cut_into_groups_is_refused(head_dim: int) -> None:
    with pytest.raises(ValueError, match=f"multiple of 4.*got {head_dim}"):
        Packing.uniform(1, head_dim, 8)


@pytest.mark.parametrize("width", [-1, 9, 256])
def test_a_width_out_of_range_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match=f"0 to 8.*{width}"):
        Packing.uniform(1, 8, width)


@pytest.mark.parametrize("token_scales", [True, False])
def test_scales_are_given_exactly_where_the_page_has_room_for_them(token_scales: bool) -> None:
    packing = Packing.uniform(1, 4, 8, token_scales=token_scales)
    codes = torch.zeros((1, 1, 16, 4), dtype=torch.uint8)
    scales = None if token_scales else torch.ones((1, 1, 16), dtype=torch.float16)
    with pytest.raises(ValueError, match="scales"):
        packing.pack(codes, codes, scales, scales)
