"""Page tables: where tokens stand, who may see them, and parts of a table."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.kernels.page_table import (
    PAGES_PER_STRETCH,
    STRETCH_TOKENS,
    PageTable,
    PlacedSegment,
)

COLUMNS = ("rows", "stretches", "phases", "starts", "begins", "ends")
SEGMENTS = [
    PlacedSegment(100, 70, [7, 2, 9, 4, 0]),
    PlacedSegment(0, 16, [1, 3], first_slot=9),
    PlacedSegment(3_000, 1, [8]),
]


@st.composite
def windows(draw: st.DrawFn) -> list[PlacedSegment]:
    """Segments of any lengths at any places and slots, their rows scattered."""
    lengths = draw(st.lists(st.integers(1, 200), min_size=1, max_size=6))
    slots = [draw(st.integers(0, 15)) for _ in lengths]
    pages = [-(-(slot + length) // 16) for slot, length in zip(slots, lengths, strict=True)]
    rows = draw(st.permutations(range(sum(pages) + 3)))
    segments, start, first = [], 0, 0
    for length, slot, count in zip(lengths, slots, pages, strict=True):
        start += draw(st.integers(0, 40))
        segments.append(PlacedSegment(start, length, rows[first : first + count], slot))
        start, first = start + length, first + count
    return draw(st.permutations(segments))


def test_a_table_of_hand_made_segments() -> None:
    table = PageTable.of_segments(SEGMENTS)
    assert table.rows.tolist() == [7, 2, 9, 4, 0, 1, 3, 8]
    assert table.stretches.tolist() == [0, 0, 0, 0, 1, 2, 2, 3]
    assert table.phases.tolist() == [0, 1, 2, 3, 0, 0, 1, 0]
    assert table.starts.tolist() == [100, 116, 132, 148, 164, -9, 7, 3_000]
    assert table.begins.tolist() == [0, 0, 0, 0, 0, 9, 0, 0]
    assert table.ends.tolist() == [16, 16, 16, 16, 6, 16, 9, 1]
    assert table.stretch_starts.tolist() == [100, 164, -9, 3_000]
    assert {getattr(table, name).dtype for name in COLUMNS} == {torch.int32}
    assert table.stretch_starts.dtype == torch.int64
    assert (table.num_pages, table.num_slots) == (8, 128)


@settings(deadline=None, max_examples=80)
@given(segments=windows())
def test_every_token_of_every_segment_has_one_slot(
    segments: list[PlacedSegment],
) -> None:
    table = PageTable.of_segments(segments)
    expected = [one.start + token for one in segments for token in range(one.num_tokens)]
    assert table.positions()[table.filled()].tolist() == expected
    assert int((table.ends - table.begins).sum()) == len(expected)


@settings(deadline=None, max_examples=80)
@given(segments=windows())
def test_a_stretch_starts_at_its_first_page_and_holds_one_segment(
    segments: list[PlacedSegment],
) -> None:
    table = PageTable.of_segments(segments)
    of_page = table.stretch_starts[table.stretches.long()]
    assert torch.equal(of_page + 16 * table.phases, table.starts.long())
    steps = table.stretches.diff()
    assert bool(((steps == 0) | (steps == 1)).all())
    assert table.stretch_starts.tolist() == [
        one.start - one.first_slot + first
        for one in segments
        for first in range(0, one.first_slot + one.num_tokens, STRETCH_TOKENS)
    ]
    assert int(table.phases.max()) < PAGES_PER_STRETCH


@settings(deadline=None, max_examples=80)
@given(segments=windows(), data=st.data())
def test_a_row_sees_the_tokens_between_its_limits_and_no_padding(
    segments: list[PlacedSegment], data: st.DataObject
) -> None:
    table = PageTable.of_segments(segments)
    end = max(one.start + one.num_tokens for one in segments)
    limit = st.integers(0, end + 5)
    limits = data.draw(st.lists(st.tuples(limit, limit), min_size=1, max_size=5))
    visible = table.visible(torch.tensor(limits, dtype=torch.int32))
    assert visible.shape == (len(limits), table.num_slots)
    positions = table.positions().flatten()
    for row, (low, high) in enumerate(limits):
        assert sorted(positions[visible[row]].tolist()) == sorted(
            position
            for one in segments
            for position in range(one.start, one.start + one.num_tokens)
            if low <= position < high
        )


def test_a_sliding_window_sees_its_last_tokens_only() -> None:
    table = PageTable.of_segments(SEGMENTS)
    # Queries at 0, 15, 120 and 3,000 in a layer that sees eight tokens back.
    limits = torch.tensor([[0, 1], [8, 16], [113, 121], [2_993, 3_001]], dtype=torch.int32)
    positions, visible = table.positions().flatten(), table.visible(limits)
    seen = [positions[row].tolist() for row in visible]
    assert seen == [[0], list(range(8, 16)), list(range(113, 121)), [3_000]]


@settings(deadline=None, max_examples=80)
@given(segments=windows(), max_tokens=st.sampled_from([1, 16, 47, 64, 100, 10_000]))
def test_tiles_cut_a_table_into_its_pages_in_order(
    segments: list[PlacedSegment], max_tokens: int
) -> None:
    table = PageTable.of_segments(segments)
    tiles = list(table.tiles(max_tokens))
    pages = torch.arange(table.num_pages)
    assert torch.cat([pages[which] for _, which in tiles]).tolist() == pages.tolist()
    for tile, which in tiles:
        # At least a page, or else a table could not be read in steps of eight tokens.
        assert 0 < tile.num_slots <= max(16, max_tokens)
        for name in COLUMNS:
            assert torch.equal(getattr(tile, name), getattr(table, name)[which])
        assert torch.equal(tile.stretch_starts, table.stretch_starts)
        assert torch.equal(tile.positions(), table.positions()[which])


def test_a_table_that_fits_is_one_tile() -> None:
    table = PageTable.of_segments(SEGMENTS)
    assert [which for _, which in table.tiles(128)] == [slice(0, 8)]


def test_a_window_without_segments_has_no_pages_and_no_tiles() -> None:
    table = PageTable.of_segments([])
    assert (table.num_pages, table.num_slots) == (0, 0)
    assert table.positions().shape == (0, 16)
    assert table.visible(torch.tensor([[0, 9]], dtype=torch.int32)).shape == (1, 0)
    assert list(table.tiles(4096)) == []


@pytest.mark.parametrize("start", [0, 2**30])
def test_positions_of_a_long_conversation_are_exact(start: int) -> None:
    table = PageTable.of_segments([PlacedSegment(start, 17, [0, 1])])
    assert table.positions().flatten()[:17].tolist() == list(range(start, start + 17))
