"""Attention over dense keys and values in C against plain attention in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentmem.kernels import cpu_dense
from agentmem.kernels.attention import merge
from agentmem.kernels.cpu_dense import DenseSource, DenseStates
from agentmem.kernels.page_table import PageTable, PlacedSegment
from agentmem.kernels.rotary import as_channels, ordered_pairs, unit_rotations
from tests.cpu_kernels import with_kernels

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Window:
    """Segments in scattered pages, the other rows NaN and the padding large; and a tail of rows."""

    def __init__(
        self, lengths: list[int], num_tail: int, *, heads: int = 2, head_dim: int = 64,
        dtype: torch.dtype = torch.float32, seed: int = 0,
    ) -> None:  # fmt: skip
        self.generator = torch.Generator().manual_seed(seed)
        self.heads, self.head_dim, self.dtype = heads, head_dim, dtype
        num_pages = sum(-(-length // 16) for length in lengths)
        rows = torch.randperm(num_pages + 3, generator=self.generator).tolist()
        segments, position = [], 3
        for length in lengths:
            count = -(-length // 16)
            segments.append(PlacedSegment(position, length, rows[:count]))
            rows, position = rows[count:], position + length + 5
        self.table = PageTable.of_segments(segments)
        states = torch.full((num_pages + 3, 2, heads, 16, head_dim), float("nan"))
        filled = self.table.filled()[:, None, None, :, None]
        drawn = self.normal(num_pages, 2, heads, 16, head_dim)
        states[self.table.rows.long()] = torch.where(filled, drawn, 1e4)
        self.states = states.to(dtype)
        self.pages = self.states.flatten(1).view(torch.uint8)
        frequencies = 100.0 ** -torch.linspace(0, 1, head_dim // 2, dtype=torch.float64)
        self.rotations = unit_rotations(self.table.stretch_starts, frequencies, inverse=True)
        count = -(-num_tail // 16)
        self.tail_table = PageTable.of_segments([PlacedSegment(position, num_tail, range(count))])
        # A part of a larger buffer, as a cache has it.
        buffer = self.normal(2, heads, num_tail + 40, head_dim).to(dtype)
        self.tail = buffer[:, :, 7 : 7 + num_tail]
        self.end = position + num_tail

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def queries(self, num_rows: int) -> Tensor:
        drawn: Tensor = self.normal(self.heads, num_rows, self.head_dim)
        return drawn.mul_(2 / self.head_dim**0.5)

    def limits(self, num_rows: int) -> Tensor:
        """Any part of the window, also nothing."""
        draw = torch.randint(0, self.end + 9, (num_rows, 2), generator=self.generator)
        draw[0] = torch.tensor([0, self.end])
        return draw.to(torch.int32)

    def sources(
        self, queries: Tensor, limits: Tensor, softcap: float | None = None
    ) -> list[DenseSource]:
        paged = DenseStates.of_pages(self.pages, self.heads, self.head_dim, self.dtype)
        tail = DenseStates.of_rows(self.tail[0], self.tail[1])
        return [
            DenseSource(queries, self.rotations, self.table, paged, limits, softcap),
            DenseSource(queries, None, self.tail_table, tail, limits, softcap),
        ]

    def expected(
        self, queries: Tensor, limits: Tensor, softcap: float | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Values, log-sum-exp and the probability of each slot, pages then tail, in float64."""
        pages = self.states[self.table.rows.long()].double()
        turns = self.rotations.conj()[self.table.stretches.long()][:, None, None]
        turned = as_channels(ordered_pairs(pages[:, 0].float()) * turns).double()
        filled = self.table.filled().flatten()
        keys = torch.cat((turned.transpose(0, 1).flatten(1, 2), self.tail[0].double()), 1)
        values = torch.cat(
            (pages[:, 1].transpose(0, 1).flatten(1, 2), self.tail[1].double()), 1
        )  # fmt: skip
        num_tail = self.tail.shape[2]
        seen = torch.cat(
            (self.table.visible(limits), self.tail_table.visible(limits)[:, :num_tail]), 1
        )
        logits = queries.double() @ keys.mT
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        logits = logits.masked_fill(~seen, float("-inf"))
        log_sum_exp = logits.logsumexp(-1)
        weights = (logits - log_sum_exp.clamp_min(-1e300)[..., None]).exp()
        assert not weights[..., : len(filled)][..., ~filled].any()
        return weights @ values, log_sum_exp, weights.sum((0, 1))


def check(window: Window, num_rows: int, softcap: float | None = None) -> None:
    queries, limits = window.queries(num_rows), window.limits(num_rows)
    values, log_sum_exp, weights = window.expected(queries, limits, softcap)
    sources = window.sources(queries, limits, softcap)
    found, found_sum = cpu_dense.attend(sources)
    torch.testing.assert_close(found.double(), values, rtol=1e-4, atol=5e-5)
    torch.testing.assert_close(found_sum.double(), log_sum_exp, rtol=1e-5, atol=5e-5)
    masses = [torch.ones(window.table.num_slots), torch.ones(window.tail_table.num_slots + 5)]
    cpu_dense.add_column_mass(sources, masses, found_sum)
    num_tail = window.tail.shape[2]
    mass = torch.cat((masses[0], masses[1][:num_tail])) - 1
    torch.testing.assert_close(mass.double(), weights, rtol=1e-3, atol=1e-5)
    assert (masses[1][num_tail:] == 1).all()


@with_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [16, 48, 64, 128, 256])
def test_attention_is_that_of_the_same_tokens(dtype: torch.dtype, head_dim: int) -> None:
    check(Window([40, 1, 130, 64], 21, head_dim=head_dim, dtype=dtype), num_rows=5)


@with_kernels
@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=5),
    num_tail=st.integers(1, 70),
    heads=st.integers(1, 3),
    head_dim=st.sampled_from([16, 64, 80]),
    num_rows=st.integers(1, 20),
    softcap=st.sampled_from([None, 0.5, 30.0]),
    seed=st.integers(0, 1000),
)
def test_attention_of_any_window(
    lengths: list[int], num_tail: int, heads: int, head_dim: int, num_rows: int,
    softcap: float | None, seed: int,
) -> None:  # fmt: skip
    window = Window(lengths, num_tail, heads=heads, head_dim=head_dim, seed=seed)
    check(window, num_rows, softcap)


@with_kernels
def test_a_long_window_is_shared_by_threads_with_the_same_result() -> None:
    window = Window([3000, 40], 1500)
    queries, limits = window.queries(4), window.limits(4)
    alone = cpu_dense.attend(window.sources(queries, limits))
    torch.set_num_threads(3)
    try:
        check(window, 4)
        together = cpu_dense.attend(window.sources(queries, limits))
    finally:
        torch.set_num_threads(1)
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@with_kernels
def test_sources_and_parts_merge_as_they_do_in_pytorch() -> None:
    window = Window([50], 9)
    queries, limits = window.queries(6), window.limits(6)
    limits[2] = 0
    paged, tail = window.sources(queries, limits)
    apart = [cpu_dense.attend([paged]), cpu_dense.attend([tail])]
    others = [(torch.randn(2, 6, 64), torch.randn(2, 6) * 20) for _ in range(2)]
    nothing = (torch.zeros(2, 6, 64), torch.full((2, 6), float("-inf")))
    for parts in ([], others, [nothing], [nothing, *others]):
        found = cpu_dense.attend([paged, tail], parts)
        for one, other in zip(found, merge([*apart, *parts]), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    # A row that sees nothing at all is 0 and -inf.
    values, log_sum_exp = cpu_dense.attend([paged, tail], [nothing])
    assert not values[:, 2].any() and (log_sum_exp[:, 2] == float("-inf")).all()


def changed(table: PageTable, **columns: list[int]) -> PageTable:
    given = {
        name: torch.tensor(columns[name], dtype=torch.int32)
        if name in columns else getattr(table, name)
        for name in ("rows", "stretches", "phases", "starts", "begins", "ends")
    }  # fmt: skip
    return PageTable(**given, stretch_starts=table.stretch_starts)


@with_kernels
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"rows": [0, 6]}, r"`table.rows\[1\]` must be of a row that is there: got 6"),
        ({"rows": [-1, 0]}, r"`table.rows\[0\]`.*got -1"),
        ({"ends": [16, 17]}, r"`table.ends\[1\]` must be .*at most 16: got 17"),
        ({"begins": [0, -1]}, r"`table.begins\[1\]` must be 0 to 15: got -1"),
        ({"stretches": [0, 1]}, r"`table.stretches\[1\]` must be the index.*got 1"),
    ],
)
def test_a_table_that_points_outside_is_an_error_and_no_fault(
    columns: dict[str, list[int]], message: str
) -> None:
    window = Window([20], 4)
    window.table = changed(window.table, **columns)
    queries, limits = window.queries(1), window.limits(1)
    sources = window.sources(queries, limits)[::-1]
    with pytest.raises(ValueError, match=message):
        cpu_dense.attend(sources)
    masses = [torch.zeros(16), torch.zeros(32)]
    with pytest.raises(ValueError, match=message):
        cpu_dense.add_column_mass(sources, masses, torch.zeros(2, 1))
    assert not masses[1].any()


@with_kernels
def test_tokens_behind_the_last_row_are_not_read() -> None:
    window = Window([20], 20)
    table = changed(window.tail_table, ends=[16, 5])
    states = DenseStates.of_rows(window.tail[0], window.tail[1])
    source = DenseSource(window.queries(1), None, table, states, window.limits(1))
    with pytest.raises(ValueError, match=r"`table.rows\[1\]`"):
        cpu_dense.attend([source])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queries": torch.zeros(2, 3, 32)}, "`queries` must be"),
        ({"queries": torch.zeros(2, 3, 64).double()}, "`queries` must be"),
        ({"limits": torch.zeros(4, 2, dtype=torch.int32)}, "`limits` must be"),
        ({"rotations": torch.zeros(1, 32)}, "`rotations` must be"),
        ({"softcap": 0.0}, "`softcap` must be above 0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    window = Window([20], 4)
    states = DenseStates.of_pages(window.pages, 2, 64, torch.float32)
    given: dict[str, Any] = {
        "queries": window.queries(3), "rotations": window.rotations, "table": window.table,
        "states": states, "limits": window.limits(3), "softcap": None,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        DenseSource(**given | changes)


def test_states_that_do_not_fit_are_refused() -> None:
    window = Window([20], 4)
    with pytest.raises(ValueError, match=r"`pages` must be \(capacity, 4096\)"):
        DenseStates.of_pages(window.pages, 1, 32, torch.float32)
    with pytest.raises(ValueError, match="alike"):
        DenseStates.of_rows(window.tail[0], window.tail[1].double())
    with pytest.raises(ValueError, match="in one piece"):
        DenseStates.of_rows(window.tail[0][..., ::2], window.tail[1][..., ::2])
    odd = DenseStates.of_rows(torch.zeros(2, 4, 20), torch.zeros(2, 4, 20))
    table = PageTable.of_segments([PlacedSegment(0, 4, [0])])
    with pytest.raises(ValueError, match="a multiple of 16 channels, at most 256"):
        DenseSource(torch.zeros(2, 1, 20), None, table, odd, torch.zeros(1, 2, dtype=torch.int32))


@with_kernels
def test_sources_of_different_shapes_and_too_many_are_refused() -> None:
    window = Window([20], 4)
    paged, tail = window.sources(window.queries(3), window.limits(3))
    (other, _) = window.sources(window.queries(2), window.limits(2))
    part = cpu_dense.attend([tail])
    for sources, parts, message in (
        ([paged, other], [], "one shape"),
        ([], [], "1 to 4 sources"),
        ([tail] * 5, [], "1 to 4 sources"),
        ([tail], [part] * 9, "At most 8 parts"),
        ([tail], [(part[0][:, :2], part[1])], "`parts` must be"),
    ):
        with pytest.raises(ValueError, match=message):
            cpu_dense.attend(sources, parts)
    with pytest.raises(ValueError, match="of 16 slots or more"):
        cpu_dense.add_column_mass([tail], [torch.zeros(15)], torch.zeros(2, 3))
