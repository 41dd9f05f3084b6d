"""Records of packed pages: pinned byte by byte, and by a packer that sets one bit at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentmem.kernels.packing import MAX_WIDTH, PLANES, Packing

Pages = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


PLANES_OF: dict[int, tuple[int, ...]] = {0: (), 3: (2, 1), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1)}
"""The others are one plane."""


def widths_of(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.uint8)


def random_pages(packing: Packing, num_pages: int, seed: int) -> Pages:
    """Codes that use every bit of their width, and scales of any bit pattern."""
    generator = torch.Generator().manual_seed(seed)
    heads, head_dim = packing.num_heads, packing.head_dim
    codes = torch.randint(0, 256, (2, num_pages, heads, 16, head_dim), generator=generator)
    tops = [w.long().repeat_interleave(4, 1) for w in (packing.key_widths, packing.value_widths)]
    keys = (codes[0] % (1 << tops[0])[:, None]).byte()
    values = (codes[1].mT % (1 << tops[1])[..., None]).byte()
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


def place(plane_bits: int, element: int) -> tuple[int, int]:
    """Byte and lowest bit at which a plane keeps an element, from the documented rules."""
    if plane_bits == 1:
        return element // 8, element % 8
    stride = {8: 64, 4: 32, 2: 16}[plane_bits]
    return element % stride, element // stride * plane_bits


def slow_codes(elements: list[int], width: int) -> bytearray:
    """64 codes, one bit at a time."""
    packed, shift = bytearray(8 * width), width
    begin = 0
    for plane_bits in PLANES_OF.get(width, (width,)):
        shift -= plane_bits
        for element, code in enumerate(elements):
            byte, low = place(plane_bits, element)
            for bit in range(plane_bits):
                packed[begin + byte] |= (code >> (shift + bit) & 1) << (low + bit)
        begin += 8 * plane_bits
    return packed


def slow_record(packing: Packing, pages: Pages, page: int) -> bytes:
    """One page's record."""
    key_codes, value_codes, key_scales, value_scales = pages
    record = bytearray()
    for head in range(packing.num_heads):
        for widths, codes, scales in (
            (packing.key_widths, key_codes, key_scales),
            (packing.value_widths, value_codes, value_scales),
        ):
            for group, width in enumerate(widths[head].tolist()):
                channels = range(4 * group, 4 * group + 4)
                if codes is key_codes:
                    places = [(token, channel) for token in range(16) for channel in channels]
                else:
                    places = [(channel, token) for channel in channels for token in range(16)]
                record += slow_codes([int(codes[page, head, a, b]) for a, b in places], width)
            if scales is not None:
                record += bytes(scales[page, head].clone().view(torch.uint8).tolist())
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


@settings(deadline=None, max_examples=60)
@given(packing=packings())
def test_sections_follow_each_other_and_fill_the_page(packing: Packing) -> None:
    end = 0
    scales = 32 if packing.token_scales else 0
    for head, sections in enumerate(packing.sections.tolist()):
        keys = int(packing.key_widths[head].long().sum()) * 8
        values = int(packing.value_widths[head].long().sum()) * 8
        assert sections == [end, end + keys, end + keys + scales, end + keys + scales + values]
        end = sections[3] + scales
    assert packing.page_nbytes == end
    assert end % 8 == 0, "every group fills whole 64-bit words"


@settings(deadline=None, max_examples=40)
@given(packing=packings(), seed=st.integers(0, 1000), num_slots=st.integers(0, 16))
def test_the_bits_below_a_slot_are_those_of_the_tokens_below_it(
    packing: Packing, seed: int, num_slots: int
) -> None:
    one_page = random_pages(packing, 2, seed)
    below = packing.slots_below[num_slots]
    first, second = packing.pack(*one_page), packing.pack(*random_pages(packing, 2, seed + 1))
    mixed = packing.unpack((first & below) | (second & ~below))
    for index, parts in enumerate(
        zip(mixed, packing.unpack(first), packing.unpack(second), strict=True)
    ):
        # Slots are the third axis of keys, and the last of all else; of scales some are NaN.
        axis = 2 if index == 0 else -1
        bits = [
            part.movedim(axis, 0).contiguous().view(torch.uint8)
            for part in parts
            if part is not None
        ]
        for found, here, there in [bits] if bits else []:
            assert torch.equal(found[:num_slots], here[:num_slots])
            assert torch.equal(found[num_slots:], there[num_slots:])


def test_a_record_of_hand() -> None:
    """One head of four channels; keys of 3 bits, values of 1."""
    packing = Packing(widths_of([3]), widths_of([1]))
    keys = torch.zeros((1, 1, 16, 4), dtype=torch.uint8)
    keys[0, 0, 0, 0] = 0b101  # element 0
    keys[0, 0, 4, 1] = 0b010  # element 17
    keys[0, 0, 15, 3] = 0b111  # element 63
    values = torch.zeros((1, 1, 4, 16), dtype=torch.uint8)
    values[0, 0, 2] = 1  # elements 32 to 47
    values[0, 0, 3, 9] = 1  # element 57
    scales = torch.tensor([1.0] + [0.0] * 14 + [-2.0]).half().view(1, 1, 16)
    record = packing.pack(keys, values, scales, scales * 0.5)[0].tolist()
    two_bits = [0] * 16
    two_bits[0] = 0b10  # element 0, upper two bits of 101
    two_bits[1] = 0b01 << 2  # element 17 = 1 + 16
    two_bits[15] = 0b11 << 6  # element 63 = 15 + 48
    one_bit = [1, 0, 0, 0, 0, 0, 0, 0x80]  # elements 0 and 63
    key_scales = [0x00, 0x3C] + [0] * 28 + [0x00, 0xC0]
    value_bits = [0, 0, 0, 0, 0xFF, 0xFF, 0, 0b10]
    value_scales = [0x00, 0x38] + [0] * 28 + [0x00, 0xBC]
    assert record == two_bits + one_bit + key_scales + value_bits + value_scales


@pytest.mark.parametrize(
    ("width", "first", "last"),
    [
        # Bytes that are not 0 where only element 0, and only element 63, has all its bits.
        (1, {0: 0x01}, {7: 0x80}),
        (2, {0: 0x03}, {15: 0xC0}),
        (3, {0: 0x03, 16: 0x01}, {15: 0xC0, 23: 0x80}),
        (4, {0: 0x0F}, {31: 0xF0}),
        (5, {0: 0x0F, 32: 0x01}, {31: 0xF0, 39: 0x80}),
        (6, {0: 0x0F, 32: 0x03}, {31: 0xF0, 47: 0xC0}),
        (7, {0: 0x0F, 32: 0x03, 48: 0x01}, {31: 0xF0, 47: 0xC0, 55: 0x80}),
        (8, {0: 0xFF}, {63: 0xFF}),
    ],
)
def test_planes_of_each_width_by_hand(
    width: int, first: dict[int, int], last: dict[int, int]
) -> None:
    packing = Packing(widths_of([width]), widths_of([0]), token_scales=False)
    assert packing.page_nbytes == 8 * width
    for token, channel, expected in ((0, 0, first), (15, 3, last)):
        keys = torch.zeros((1, 1, 16, 4), dtype=torch.uint8)
        keys[0, 0, token, channel] = (1 << width) - 1
        record = packing.pack(keys, torch.zeros((1, 1, 4, 16), dtype=torch.uint8))[0]
        found = {i: byte for i, byte in enumerate(record.tolist()) if byte}
        assert found == expected


def test_planes_are_powers_of_two_and_add_up_to_their_width() -> None:
    assert list(PLANES) == list(range(MAX_WIDTH + 1))
    for width, planes in PLANES.items():
        assert sum(planes) == width and set(planes) <= {1, 2, 4, 8}
        assert list(planes) == sorted(planes, reverse=True)


@pytest.mark.parametrize(
    ("heads", "head_dim", "width", "token_scales", "nbytes"),
    [
        (1, 64, 8, True, 2 * (16 * 64 + 32)),
        (3, 64, 8, True, 3 * 2 * (16 * 64 + 32)),
        (2, 128, 4, True, 2 * 2 * (16 * 64 + 32)),
        (2, 96, 1, False, 2 * 2 * 16 * 12),
        (5, 256, 3, False, 5 * 2 * 16 * 96),
        (2, 64, 0, False, 0),
    ],
)
def test_a_page_takes_as_many_bytes_as_its_bits(
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


def test_a_record_of_eight_bits_alone_is_read_at_an_odd_address() -> None:
    packing = Packing.uniform(1, 8, 8, token_scales=False)
    pages = random_pages(packing, 1, seed=0)
    buffer = torch.zeros(packing.page_nbytes + 1, dtype=torch.uint8)
    buffer[1:] = packing.pack(*pages)[0]
    assert bits_of(packing.unpack(buffer[1:].view(1, -1))) == bits_of(pages)


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
        packing.pack(codes, codes.mT, scales, scales)
