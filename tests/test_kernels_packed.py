"""Attention on packed codes against plain attention in float64 over what they decode to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentmem.kernels import packed
from agentmem.kernels.attention import TILE_TOKENS
from agentmem.kernels.page_table import PageTable
from agentmem.kernels.rotary import as_channels, ordered_pairs, unit_rotations
from tests.packed_windows import (
    ALL_WIDTHS,
    PackedWindow,
    packed_window,
    plain_attention,
    random_layer,
)

FRAMES: dict[str, dict[str, Any]] = {
    "q8": {"widths": (8,)},
    "q8 with a center": {"widths": (8,), "centered": True},
    "q4": {"widths": (5,), "value_widths": (3,)},
    "one bit in a frame": {"widths": (1,), "transformed": True},
    "any widths": {"widths": ALL_WIDTHS, "token_scales": False},
    "all at once": {"widths": ALL_WIDTHS, "centered": True, "transformed": True},
    "a trellis": {"widths": (2,), "value_widths": (1,), "trellis": True},
    "keys a trellis": {"widths": (3, 5), "trellis": True, "value_trellis": False},
    "values a trellis": {"widths": (1, 2, 0), "trellis": False, "value_trellis": True},
    "a trellis at once": {
        "widths": ALL_WIDTHS, "token_scales": False, "centered": True, "transformed": True,
        "trellis": True,
    },
}  # fmt: skip
"""What a layer may be coded in."""


def window_in(
    frame: str, lengths: Sequence[int], *, num_heads: int = 2, head_dim: int = 64, seed: int = 0
) -> PackedWindow:
    layer = random_layer(num_heads, head_dim, seed=seed, **FRAMES[frame])
    return packed_window(layer, lengths, seed=seed)


def attend(
    window: PackedWindow, queries: Tensor, limits: Tensor, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    return packed.attend(
        queries, window.rotations, window.table, window.pages, window.layer, limits, softcap
    )


def mass_of(
    window: PackedWindow, queries: Tensor, limits: Tensor, log_sum_exp: Tensor,
    softcap: float | None = None,
) -> Tensor:  # fmt: skip
    return packed.column_mass(
        queries, window.rotations, window.table, window.pages, window.layer, limits, softcap,
        log_sum_exp,
    )  # fmt: skip


def check(
    window: PackedWindow, queries: Tensor, limits: Tensor, softcap: float | None = None
) -> None:
    """Attended values, log-sum-exp and mass are those of plain attention."""
    values, log_sum_exp, weights = plain_attention(window, queries, limits, softcap)
    found, found_sum = attend(window, queries, limits, softcap)
    assert found.dtype == found_sum.dtype == torch.float32
    torch.testing.assert_close(found.double(), values, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found_sum.double(), log_sum_exp, rtol=1e-5, atol=1e-4)
    mass = mass_of(window, queries, limits, found_sum, softcap)
    assert mass.shape == (window.table.num_slots,)
    torch.testing.assert_close(
        mass[window.slots].double(), weights.sum((0, 1)), rtol=1e-3, atol=1e-4
    )
    padding = torch.ones_like(mass, dtype=torch.bool)
    padding[window.slots] = False
    assert not mass[padding].any()


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize(
    ("head_dim", "num_heads", "group", "lengths"),
    [
        (64, 1, 1, [1]),
        (64, 3, 3, [63, 1, 64]),
        (96, 2, 4, [65, 17]),
        (128, 2, 8, [64, 63, 65, 1]),
        (256, 1, 3, [16, 200]),
    ],
)
def test_attention_is_that_of_the_decoded_tokens_at_their_positions(
    frame: str, head_dim: int, num_heads: int, group: int, lengths: list[int]
) -> None:
    window = window_in(frame, lengths, num_heads=num_heads, head_dim=head_dim)
    num_rows = group * 3
    check(window, window.queries(num_rows), window.limits(num_rows))


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 63, 64, 65, 1_000])
def test_a_segment_of_any_length(num_tokens: int) -> None:
    window = window_in("all at once", [num_tokens])
    check(window, window.queries(4), window.limits(4))


@settings(deadline=None, max_examples=40)
@given(
    frame=st.sampled_from(list(FRAMES)),
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=5),
    num_heads=st.integers(1, 3),
    head_dim=st.sampled_from([4, 20, 64]),
    num_rows=st.integers(1, 12),
    softcap=st.sampled_from([None, 0.5, 30.0]),
    seed=st.integers(0, 1000),
)
def test_attention_of_any_window(
    frame: str,
    lengths: list[int],
    num_heads: int,
    head_dim: int,
    num_rows: int,
    softcap: float | None,
    seed: int,
) -> None:
    window = window_in(frame, lengths, num_heads=num_heads, head_dim=head_dim, seed=seed)
    queries = window.queries(num_rows, seed=seed, scale=2.0)
    check(window, queries, window.limits(num_rows, seed=seed), softcap)


def test_a_window_of_several_tiles() -> None:
    window = window_in("all at once", [1_000, 65, 3, 4_090])
    assert len(list(window.table.tiles(TILE_TOKENS))) == 2
    check(window, window.queries(3), window.limits(3))


def test_tiles_may_end_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    window = window_in("all at once", [65, 200, 3, 90])
    whole = attend(window, window.queries(4), window.limits(4))
    for size in (16, 48, 112):
        monkeypatch.setattr(packed, "TILE_TOKENS", size)
        torch.testing.assert_close(attend(window, window.queries(4), window.limits(4)), whole)
        check(window, window.queries(4), window.limits(4))


def test_a_sliding_window_sees_its_last_tokens_only() -> None:
    window = window_in("q8", [100, 50])
    last = int(window.positions.max())
    high = torch.tensor([last + 1, last - 20, last - 70])
    check(window, window.queries(3), torch.stack((high - 24, high), 1).int())


@pytest.mark.parametrize("softcap", [0.1, 2.0, 50.0])
def test_logits_are_capped(softcap: float) -> None:
    window = window_in("q8 with a center", [40, 70])
    check(window, window.queries(3, scale=10.0), window.limits(3), softcap)


def test_sharp_attention_does_not_overflow() -> None:
    window = window_in("q8", [40, 70])
    queries = window.queries(3, scale=300.0)
    limits = window.limits(3)
    values, log_sum_exp, _ = plain_attention(window, queries, limits)
    found, found_sum = attend(window, queries, limits)
    assert float(found_sum.max()) > 500, "exp of such a logit overflows"
    torch.testing.assert_close(found_sum.double(), log_sum_exp, rtol=1e-5, atol=0.01)
    torch.testing.assert_close(found.double(), values, rtol=0, atol=0.01)


@pytest.mark.parametrize("frame", ["q8", "all at once"])
def test_a_row_that_sees_nothing_gets_zeros_and_adds_no_mass(frame: str) -> None:
    window = window_in(frame, [20, 30])
    end = int(window.positions.max()) + 1
    limits = torch.tensor([[0, end], [end, end + 9], [7, 7], [9, 3]], dtype=torch.int32)
    queries = window.queries(4)
    values, log_sum_exp = attend(window, queries, limits)
    assert not torch.isnan(values).any()
    assert bool((log_sum_exp[:, 1:] == float("-inf")).all())
    mass = mass_of(window, queries, limits, log_sum_exp)
    alone = mass_of(window, queries[:, :1], limits[:1], log_sum_exp[:, :1])
    torch.testing.assert_close(mass, alone)
    # Nothing seen is no share of anything, not the mean of the values.
    assert not values[:, 1:].any()
    check(window, queries, limits)


def test_a_table_without_pages_is_nothing_seen() -> None:
    window = window_in("all at once", [20])
    queries, limits = window.queries(2), window.limits(2)
    empty = PageTable.of_segments([])
    values, log_sum_exp = packed.attend(
        queries, window.rotations[:0], empty, window.pages, window.layer, limits
    )
    assert values.shape == queries.shape and not values.any()
    assert bool((log_sum_exp == float("-inf")).all())
    mass = packed.column_mass(
        queries, window.rotations[:0], empty, window.pages, window.layer, limits, None, log_sum_exp
    )
    assert mass.shape == (0,)


def test_mass_is_one_for_every_row_of_every_head() -> None:
    window = window_in("all at once", [63, 70, 5], num_heads=3)
    queries, limits = window.queries(8), window.limits(8)[:1].repeat(8, 1)
    _, log_sum_exp = attend(window, queries, limits)
    mass = mass_of(window, queries, limits, log_sum_exp)
    assert float(mass.min()) >= 0
    assert float(mass.sum()) == pytest.approx(3 * 8, rel=1e-5)


def test_mass_is_a_share_of_all_that_rows_saw_elsewhere_too() -> None:
    window = window_in("q8", [63, 70])
    queries, limits = window.queries(4), window.limits(4)[:1].repeat(4, 1)
    _, log_sum_exp = attend(window, queries, limits)
    alone = mass_of(window, queries, limits, log_sum_exp)
    # Another part of the same weight halves every share.
    shared = mass_of(window, queries, limits, log_sum_exp + torch.tensor(2.0).log())
    torch.testing.assert_close(shared, alone / 2)


@pytest.mark.parametrize("frame", ["q8", "all at once"])
def test_neither_the_order_of_segments_nor_their_rows_matter(frame: str) -> None:
    window = window_in(frame, [40, 150, 7])
    place = torch.randperm(len(window.pages)).tolist()
    moved = torch.empty_like(window.pages)
    moved[place] = window.pages
    table = PageTable.of_segments(
        [
            segment._replace(rows=[place[row] for row in segment.rows])
            for segment in reversed(window.segments)
        ]
    )
    rotations = unit_rotations(table.stretch_starts, window.frequencies, inverse=True)
    queries, limits = window.queries(4), window.limits(4)
    found = packed.attend(queries, rotations, table, moved, window.layer, limits)
    torch.testing.assert_close(found, attend(window, queries, limits), rtol=1e-5, atol=1e-5)


def test_moving_everything_together_changes_nothing() -> None:
    layer = random_layer(2, 64, centered=True)
    here, there = packed_window(layer, [40, 70]), packed_window(layer, [40, 70], first=5_000)
    assert torch.equal(here.positions + 5_000, there.positions)
    assert torch.equal(here.pages, there.pages), "a segment's place is not in its bytes"
    query = ordered_pairs(here.queries(3))
    turns = unit_rotations(torch.tensor([200, 5_200]), here.frequencies)
    asked = [as_channels(query * turn) for turn in turns]
    limits = torch.tensor([[0, 201]] * 3, dtype=torch.int32)
    torch.testing.assert_close(
        attend(here, asked[0], limits), attend(there, asked[1], limits + 5_000),
        rtol=1e-4, atol=1e-4,
    )  # fmt: skip


def test_inputs_may_lie_anywhere() -> None:
    window = window_in("all at once", [40, 70])
    queries, limits = window.queries(4), window.limits(4)
    expected = attend(window, queries, limits)
    wide = torch.zeros((len(window.pages), window.pages.shape[1] + 3), dtype=torch.uint8)
    wide[:, 3:] = window.pages
    strided_queries = queries.mT.contiguous().mT
    strided_limits = limits.T.contiguous().T
    assert not strided_queries.is_contiguous() and not strided_limits.is_contiguous()
    table, layer = window.table, window.layer
    found = packed.attend(
        strided_queries, window.rotations, table, wide[:, 3:], layer, strided_limits
    )
    torch.testing.assert_close(found, expected)
    before = queries.clone()
    mass = packed.column_mass(
        strided_queries, window.rotations, table, wide[:, 3:], layer, strided_limits, None,
        expected[1],
    )  # fmt: skip
    torch.testing.assert_close(mass, mass_of(window, queries, limits, expected[1]))
    assert torch.equal(queries, before), "what is asked is left as it was"
