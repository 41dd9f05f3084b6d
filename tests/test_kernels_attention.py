"""Attention by pages and by parts against softmax over the whole row, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentmem.kernels.attention import (
    OnlineSoftmax,
    masked_logits,
    merge,
    page_products,
    probabilities,
    turned_queries,
)
from agentmem.kernels.page_table import PageTable, PlacedSegment
from agentmem.kernels.rotary import unit_rotations

CPU = torch.device("cpu")
NOTHING = float("-inf")


def whole_row(logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Attended values and log-sum-exp, float32; zeros for a row that sees nothing."""
    log_sum_exp = logits.double().logsumexp(-1)
    weights = logits.double().softmax(-1).nan_to_num(0.0)
    return (weights @ values.double()).float(), log_sum_exp.float()


def random_row(
    num_tokens: int, *, seed: int = 0, size: float = 20.0, hidden: float = 0.3
) -> tuple[Tensor, Tensor]:
    """Logits (2, 5, tokens) of which some are hidden, and values (2, tokens, 8)."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((2, 5, num_tokens), generator=generator) * size
    logits[torch.rand(logits.shape, generator=generator) < hidden] = NOTHING
    return logits, torch.randn((2, num_tokens, 8), generator=generator)


def fold_all(logits: Tensor, values: Tensor, bounds: list[int]) -> OnlineSoftmax:
    softmax = OnlineSoftmax(logits.shape[0], logits.shape[1], values.shape[-1], CPU)
    for begin, end in zip(bounds, bounds[1:], strict=False):
        softmax.fold(logits[..., begin:end].clone(), values[:, begin:end])
    return softmax


@settings(deadline=None, max_examples=60)
@given(
    cuts=st.sets(st.integers(1, 39), max_size=6),
    size=st.sampled_from([0.1, 20.0, 1e4]),
    hidden=st.sampled_from([0.0, 0.3, 0.97]),
    seed=st.integers(0, 1000),
)
def test_tiles_of_any_size_equal_the_whole_row(
    cuts: set[int], size: float, hidden: float, seed: int
) -> None:
    logits, values = random_row(40, seed=seed, size=size, hidden=hidden)
    softmax = fold_all(logits, values, [0, *sorted(cuts), 40])
    expected, log_sum_exp = whole_row(logits, values)
    torch.testing.assert_close(softmax.result(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(softmax.log_sum_exp(), log_sum_exp, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("first", ["pages", "tokens"])
def test_pages_are_folded_as_their_tokens(first: str) -> None:
    logits, values = random_row(5 * 16)
    pages = values.view(2, 5, 16, 8).permute(1, 0, 3, 2)
    softmax = OnlineSoftmax(2, 5, 8, CPU)
    for begin, end in ((0, 2), (2, 5)):
        tokens = slice(16 * begin, 16 * end)
        if (first == "pages") == (begin == 0):
            softmax.fold_pages(logits[..., tokens].clone(), pages[begin:end])
        else:
            softmax.fold(logits[..., tokens].clone(), values[:, tokens])
    expected, log_sum_exp = whole_row(logits, values)
    torch.testing.assert_close(softmax.result(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(softmax.log_sum_exp(), log_sum_exp, rtol=1e-6, atol=1e-5)


def test_a_page_that_is_hidden_counts_for_nothing_whatever_it_holds() -> None:
    logits, values = random_row(32)
    logits[..., 16:] = NOTHING
    values[:, 16:] = 1e30
    pages = values.view(2, 2, 16, 8).permute(1, 0, 3, 2)
    softmax = OnlineSoftmax(2, 5, 8, CPU)
    softmax.fold_pages(logits.clone(), pages)
    expected, _ = whole_row(logits[..., :16], values[:, :16])
    torch.testing.assert_close(softmax.result(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tiles", [0, 1, 3])
def test_a_row_that_sees_nothing_gets_zeros_and_no_nan(tiles: int) -> None:
    softmax = OnlineSoftmax(1, 2, 4, CPU)
    for _ in range(tiles):
        softmax.fold(torch.full((1, 2, 3), NOTHING), torch.randn(1, 3, 4))
    assert not softmax.result().any()
    assert softmax.log_sum_exp().tolist() == [[NOTHING, NOTHING]]


def test_a_row_that_saw_nothing_at_first_sees_what_follows() -> None:
    logits, values = random_row(8, hidden=0.0)
    hidden = torch.full_like(logits, NOTHING)
    softmax = fold_all(torch.cat((hidden, logits), -1), torch.cat((values, values), 1), [0, 8, 16])
    expected, log_sum_exp = whole_row(logits, values)
    torch.testing.assert_close(softmax.result(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(softmax.log_sum_exp(), log_sum_exp)


@settings(deadline=None, max_examples=60)
@given(
    cuts=st.sets(st.integers(1, 39), max_size=4),
    size=st.sampled_from([0.1, 20.0, 1e4]),
    hidden=st.sampled_from([0.0, 0.9, 1.0]),
    seed=st.integers(0, 1000),
)
def test_merged_parts_equal_the_whole_row(
    cuts: set[int], size: float, hidden: float, seed: int
) -> None:
    logits, values = random_row(40, seed=seed, size=size, hidden=hidden)
    bounds = [0, *sorted(cuts), 40]
    parts = [
        whole_row(logits[..., begin:end], values[:, begin:end])
        for begin, end in zip(bounds, bounds[1:], strict=False)
    ]
    merged, merged_sum = merge(parts)
    expected, log_sum_exp = whole_row(logits, values)
    torch.testing.assert_close(merged, expected, rtol=1e-4, atol=1e-4 if size < 1e3 else 1e-2)
    torch.testing.assert_close(merged_sum, log_sum_exp, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_part_in_which_nothing_was_seen_changes_nothing(place: int) -> None:
    logits, values = random_row(20, hidden=0.0)
    parts = [whole_row(logits[..., :9], values[:, :9]), whole_row(logits[..., 9:], values[:, 9:])]
    expected = merge(parts)
    parts.insert(place, (torch.zeros(2, 5, 8), torch.full((2, 5), NOTHING)))
    for found, wanted in zip(merge(parts), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_parts_in_which_nothing_was_seen_merge_to_nothing() -> None:
    nothing = (torch.zeros(1, 2, 4), torch.full((1, 2), NOTHING))
    for count in (1, 2, 3):
        values, log_sum_exp = merge([nothing] * count)
        assert not values.any() and bool((log_sum_exp == NOTHING).all())


def test_a_part_without_values_takes_its_share_of_the_mass() -> None:
    values, log_sum_exp = torch.ones(1, 1, 4), torch.tensor([[2.0]])
    merged, merged_sum = merge([(values, log_sum_exp), (torch.zeros(1, 1, 4), log_sum_exp)])
    torch.testing.assert_close(merged, values / 2)
    torch.testing.assert_close(merged_sum, log_sum_exp + torch.tensor(2.0).log())


def test_probabilities_are_shares_of_what_each_row_saw() -> None:
    logits, _ = random_row(40)
    logits[1, 2] = NOTHING
    log_sum_exp = logits.logsumexp(-1)
    found = probabilities(logits.clone(), log_sum_exp)
    torch.testing.assert_close(found, logits.softmax(-1).nan_to_num(0.0), rtol=1e-4, atol=1e-6)
    assert not found[1, 2].any()


@pytest.mark.parametrize("part", [slice(0, 3), slice(3, 7), slice(6, 7), slice(0, 7)])
def test_queries_are_turned_once_for_each_stretch_of_a_table(part: slice) -> None:
    whole = PageTable.of_segments(
        [
            PlacedSegment(100, 70, [7, 2, 9, 4, 0]),
            PlacedSegment(0, 16, [1]),
            PlacedSegment(900, 3, [8], 9),
        ]
    )
    table = PageTable(
        whole.rows[part], whole.stretches[part], whole.phases[part], whole.starts[part],
        whole.begins[part], whole.ends[part], whole.stretch_starts,
    )  # fmt: skip
    frequencies = torch.tensor([1.0, 0.01, 0.0], dtype=torch.float64)
    rotations = unit_rotations(whole.stretch_starts, frequencies, inverse=True)
    queries = torch.randn(2, 3, 6)
    turned, of_page = turned_queries(queries, rotations, table)
    assert len(turned) == len(set(table.stretches.tolist()))
    pairs = torch.view_as_complex(torch.unflatten(queries.double(), -1, (-1, 2)))
    for page in range(table.num_pages):
        stretch_start = int(table.starts[page]) - 16 * int(table.phases[page])
        angles = -stretch_start * frequencies
        expected = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles))
        torch.testing.assert_close(turned[of_page[page]], expected.flatten(-2).float())


def test_products_of_pages_are_those_of_their_queries_and_keys() -> None:
    queries, keys = torch.randn(3, 2, 5, 8), torch.randn(4, 2, 16, 8)
    of_page = torch.tensor([0, 0, 2, 1], dtype=torch.int32)
    expected = torch.einsum("phrd,phtd->phrt", queries[of_page.long()], keys)
    torch.testing.assert_close(page_products(queries, of_page, keys), expected)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_logits_are_capped_and_then_masked(softcap: float | None) -> None:
    table = PageTable.of_segments([PlacedSegment(10, 20, [0, 1]), PlacedSegment(50, 4, [2], 3)])
    products = torch.randn(3, 2, 2, 16) * 10
    limits = torch.tensor([[0, 29], [15, 52]], dtype=torch.int32)
    logits = masked_logits(products.clone(), table, limits, softcap)
    visible = table.visible(limits)
    assert logits.shape == (2, 2, 48)
    assert torch.equal(logits == NOTHING, (~visible).expand(2, 2, 48))
    flat = products.permute(1, 2, 0, 3).flatten(2)
    expected = flat if softcap is None else softcap * torch.tanh(flat / softcap)
    seen = visible.expand(2, 2, 48)
    torch.testing.assert_close(logits[seen], expected[seen])
