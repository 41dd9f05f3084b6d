"""The C kernels against the eager twin and against plain attention in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentmem.kernels import cpu, packed
from agentmem.kernels.hadamard import hadamard
from agentmem.kernels.page_table import PageTable
from tests.cpu_kernels import with_kernels
from tests.packed_windows import (
    ALL_WIDTHS,
    PackedWindow,
    packed_window,
    plain_attention,
    random_layer,
)

FRAMES: dict[str, dict[str, Any]] = {
    "q8": {"widths": (8,)},
    "q4 with a center": {"widths": (5,), "value_widths": (3,), "centered": True},
    "binary": {"widths": (1,)},
    "any widths": {"widths": ALL_WIDTHS, "token_scales": False},
    "all at once": {"widths": ALL_WIDTHS, "centered": True, "transformed": True, "trellis": True},
    "keys a trellis": {"widths": (3,), "trellis": True, "value_trellis": False},
    "values a trellis": {"widths": (1, 2, 0), "trellis": False, "value_trellis": True},
}
"""What a layer may be coded in."""
BOUNDS = {"q8": 0.001}
"""Error of the attended values over their size. Values of eight bits are weighed by two bytes."""
OTHER_BOUND = 0.02


def window_in(
    frame: str, lengths: list[int], *, num_heads: int = 2, head_dim: int = 64, seed: int = 0
) -> PackedWindow:
    layer = random_layer(num_heads, head_dim, seed=seed, **FRAMES[frame])
    return packed_window(layer, lengths, seed=seed)


def attend(
    window: PackedWindow, queries: Tensor, limits: Tensor, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    return cpu.attend(
        queries, window.rotations, window.table, window.pages, window.layer, limits, softcap
    )


def eager(
    window: PackedWindow, queries: Tensor, limits: Tensor, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    return packed.attend(
        queries, window.rotations, window.table, window.pages, window.layer, limits, softcap
    )


def mass_of(
    window: PackedWindow, queries: Tensor, limits: Tensor, log_sum_exp: Tensor,
    softcap: float | None = None,
) -> Tensor:  # fmt: skip
    return cpu.column_mass(
        queries, window.rotations, window.table, window.pages, window.layer, limits, softcap,
        log_sum_exp,
    )  # fmt: skip


def check(
    window: PackedWindow, queries: Tensor, limits: Tensor, softcap: float | None = None,
    *, bound: float = OTHER_BOUND,
) -> None:  # fmt: skip
    """Values, log-sum-exp and mass are those of plain attention over the decoded tokens."""
    values, log_sum_exp, weights = plain_attention(window, queries, limits, softcap)
    found, found_sum = attend(window, queries, limits, softcap)
    assert found.dtype == found_sum.dtype == torch.float32
    # The mean is exact and may be large: the bound is on the rest.
    sizes = values.clone()
    if window.layer.value_mean is not None:
        sizes -= window.layer.value_mean[:, None].double()
    sizes[log_sum_exp == float("-inf")] = 0
    assert float((found.double() - values).norm()) <= bound * float(sizes.norm())
    torch.testing.assert_close(found_sum.double(), log_sum_exp, rtol=1e-4, atol=5e-3)
    mass = mass_of(window, queries, limits, found_sum, softcap)
    torch.testing.assert_close(
        mass[window.slots].double(), weights.sum((0, 1)), rtol=5e-3, atol=1e-3
    )
    padding = torch.ones_like(mass, dtype=torch.bool)
    padding[window.slots] = False
    assert not mass[padding].any()


@with_kernels
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("num_tokens", [1, 63, 64, 65, 1_000])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_attention_is_that_of_the_decoded_tokens(
    frame: str, num_tokens: int, head_dim: int
) -> None:
    # Every size of group meets every frame, length and head dim; not all four at once.
    place = list(FRAMES).index(frame) + num_tokens + head_dim // 64
    group = (1, 3, 4, 8)[place % 4]
    window = window_in(frame, [num_tokens], num_heads=1 + place % 2, head_dim=head_dim)
    queries, limits = window.queries(group), window.limits(group)
    check(window, queries, limits, bound=BOUNDS.get(frame, OTHER_BOUND))


@with_kernels
@settings(deadline=None, max_examples=60)
@given(
    frame=st.sampled_from(list(FRAMES)),
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=5),
    num_heads=st.integers(1, 3),
    head_dim=st.sampled_from([4, 20, 64, 80]),
    num_rows=st.integers(1, 20),
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


@with_kernels
@pytest.mark.parametrize("frame", FRAMES)
def test_sixteen_queries_of_eight_heads_each_with_limits_of_its_own(frame: str) -> None:
    window = window_in(frame, [200, 34, 34])
    check(window, window.queries(128), window.limits(128), bound=BOUNDS.get(frame, OTHER_BOUND))


@with_kernels
def test_rows_read_values_that_the_first_eight_do_not_see() -> None:
    window = window_in("any widths", [150, 150, 150])
    end = int(window.positions.max()) + 1
    limits = torch.tensor([[0, 100]] * 8 + [[200, end]] * 8, dtype=torch.int32)
    check(window, window.queries(16), limits)


@with_kernels
def test_q8_and_two_bytes_of_weight_equal_the_eager_twin() -> None:
    window = window_in("q8", [700, 34, 300])
    queries, limits = window.queries(4, scale=2.0), window.limits(4)
    torch.testing.assert_close(
        attend(window, queries, limits), eager(window, queries, limits), rtol=1e-3, atol=1e-3
    )


@with_kernels
@pytest.mark.parametrize("widths", [(5, 8), (3, 8)])
def test_codes_of_eight_bits_that_begin_inside_a_word_are_no_bytes_of_the_page(
    widths: tuple[int, int],
) -> None:
    layer = random_layer(3, 20, widths=widths[:1], value_widths=widths[1:], token_scales=False)
    assert layer.packing.stream.first_bits[60] % 32, "values begin inside a word"
    window = packed_window(layer, [150, 34])
    check(window, window.queries(5), window.limits(5))


@with_kernels
def test_a_sliding_window_sees_its_last_tokens_only() -> None:
    window = window_in("q8", [100, 50])
    last = int(window.positions.max())
    high = torch.tensor([last + 1, last - 20, last - 70])
    check(window, window.queries(3), torch.stack((high - 24, high), 1).int(), bound=0.001)


@with_kernels
def test_limits_are_exact_wherever_they_fall_in_pages() -> None:
    window = window_in("q8", [80])
    first, queries = int(window.positions.min()), window.queries(2)
    for begin in range(first + 13, first + 35):
        for length in (1, 16, 17, 33):
            limits = torch.tensor([[begin, begin + length]] * 2, dtype=torch.int32)
            found, found_sum = attend(window, queries, limits)
            values, log_sum_exp, _ = plain_attention(window, queries, limits)
            torch.testing.assert_close(found_sum.double(), log_sum_exp, rtol=0, atol=1e-3)
            torch.testing.assert_close(found.double(), values, rtol=0, atol=0.01)


@with_kernels
def test_a_query_inserted_in_the_middle_sees_nothing_behind_it() -> None:
    window = window_in("q8", [100, 50, 80])
    middle = int(window.positions.median())
    limits = torch.tensor([[0, middle], [0, middle + 1], [0, middle + 40]], dtype=torch.int32)
    check(window, window.queries(3), limits, bound=0.001)


@with_kernels
@pytest.mark.parametrize("softcap", [0.1, 2.0, 50.0])
def test_logits_are_capped(softcap: float) -> None:
    window = window_in("q4 with a center", [40, 70])
    check(window, window.queries(3, scale=10.0), window.limits(3), softcap)


@with_kernels
def test_sharp_attention_does_not_overflow() -> None:
    window = window_in("q8", [40, 70])
    queries, limits = window.queries(3, scale=300.0), window.limits(3)
    found, found_sum = attend(window, queries, limits)
    values, log_sum_exp, _ = plain_attention(window, queries, limits)
    assert float(found_sum.max()) > 500, "exp of such a logit overflows"
    torch.testing.assert_close(found_sum.double(), log_sum_exp, rtol=1e-4, atol=0.01)
    torch.testing.assert_close(found.double(), values, rtol=0, atol=0.05)


@with_kernels
def test_large_queries_at_large_centers_are_not_shortened() -> None:
    window = window_in("q4 with a center", [40, 70])
    queries, limits = window.queries(3, scale=60.0), window.limits(3)
    _, found_sum = attend(window, queries, limits)
    _, log_sum_exp, _ = plain_attention(window, queries, limits)
    assert float(log_sum_exp.max()) > 1000, "16 bits of such a logit are not enough"
    torch.testing.assert_close(found_sum.double(), log_sum_exp, rtol=0, atol=0.02)


@with_kernels
@pytest.mark.parametrize("frame", ["q8", "all at once"])
def test_a_row_that_sees_nothing_gets_zeros_and_adds_no_mass(frame: str) -> None:
    window = window_in(frame, [20, 30])
    end = int(window.positions.max()) + 1
    limits = torch.tensor([[0, end], [end, end + 9], [7, 7], [9, 3]], dtype=torch.int32)
    queries = window.queries(4)
    values, log_sum_exp = attend(window, queries, limits)
    assert bool((log_sum_exp[:, 1:] == float("-inf")).all())
    assert not values[:, 1:].any()
    assert torch.isfinite(values).all() and torch.isfinite(log_sum_exp[:, 0]).all()
    mass = mass_of(window, queries, limits, log_sum_exp)
    alone = mass_of(window, queries[:, :1], limits[:1], log_sum_exp[:, :1])
    torch.testing.assert_close(mass, alone, rtol=5e-3, atol=1e-3)


@with_kernels
def test_a_table_without_pages_is_nothing_seen() -> None:
    window = window_in("all at once", [20])
    empty = replace(window, table=PageTable.of_segments([]), rotations=window.rotations[:0])
    queries, limits = window.queries(2), window.limits(2)
    values, log_sum_exp = attend(empty, queries, limits)
    assert values.shape == queries.shape and not values.any()
    assert bool((log_sum_exp == float("-inf")).all())
    assert mass_of(empty, queries, limits, log_sum_exp).shape == (0,)


@with_kernels
def test_mass_is_one_for_every_row_of_every_head() -> None:
    window = window_in("all at once", [63, 70, 5], num_heads=3)
    queries, limits = window.queries(11), window.limits(11)[:1].repeat(11, 1)
    _, log_sum_exp = attend(window, queries, limits)
    mass = mass_of(window, queries, limits, log_sum_exp)
    assert float(mass.min()) >= 0
    assert float(mass.sum()) == pytest.approx(3 * 11, rel=1e-4)


@with_kernels
def test_a_head_without_a_single_bit_attends_to_the_center_and_gives_the_mean() -> None:
    layer = random_layer(2, 64, widths=(4,), token_scales=False, centered=True)
    for widths in (layer.packing.key_widths, layer.packing.value_widths):
        widths[1] = 0
    window = packed_window(layer, [40, 70])
    check(window, window.queries(3), window.limits(3))


@with_kernels
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("widths", [(4,), ALL_WIDTHS])
def test_a_walsh_hadamard_transform_is_seen_as_one_and_changes_nothing(
    head_dim: int, widths: tuple[int, ...]
) -> None:
    signs = torch.randn(2, head_dim).sign()
    matrix = (signs[:, :, None] * hadamard(head_dim)).contiguous()
    layer = replace(
        random_layer(2, head_dim, widths=widths), key_transform=matrix, query_transform=matrix
    )
    window = packed_window(layer, [40, 70])
    check(window, window.queries(3), window.limits(3))
    nearly = matrix.clone()
    nearly[1, 0, 5] *= 1.1
    other = replace(layer, query_transform=nearly)
    found = attend(replace(window, layer=other), window.queries(3), window.limits(3))
    expected = eager(replace(window, layer=other), window.queries(3), window.limits(3))
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-4)


@with_kernels
def test_threads_share_the_heads_and_splits_of_a_window() -> None:
    window = window_in("q8", [5_000, 34, 3_000], num_heads=1)
    queries, limits = window.queries(2), window.limits(2)
    alone = attend(window, queries, limits)
    mass = mass_of(window, queries, limits, alone[1])
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        torch.testing.assert_close(attend(window, queries, limits), alone, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(mass_of(window, queries, limits, alone[1]), mass)
    finally:
        torch.set_num_threads(before)


@with_kernels
def test_inputs_may_lie_anywhere() -> None:
    window = window_in("all at once", [40, 70])
    queries, limits = window.queries(4), window.limits(4)
    expected = attend(window, queries, limits)
    wide = torch.zeros((len(window.pages), window.pages.shape[1] + 3), dtype=torch.uint8)
    wide[:, 3:] = window.pages
    moved = replace(
        window, pages=wide[:, 3:], rotations=window.rotations.mT.contiguous().mT.conj().conj()
    )
    strided_queries, strided_limits = queries.mT.contiguous().mT, limits.T.contiguous().T
    assert not strided_queries.is_contiguous() and not strided_limits.is_contiguous()
    before = queries.clone()
    assert_equal(attend(moved, strided_queries, strided_limits), expected)
    conjugated = replace(window, rotations=window.rotations.conj().resolve_conj().conj())
    assert conjugated.rotations.is_conj()
    assert_equal(attend(conjugated, queries, limits), expected)
    assert torch.equal(queries, before), "what is asked is left as it was"


def assert_equal(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@with_kernels
def test_queries_that_are_not_finite_give_nan_and_no_nonsense() -> None:
    window = window_in("all at once", [40])
    queries = window.queries(3)
    queries[0, 1, 7] = float("nan")
    values, _ = attend(window, queries, window.limits(1).repeat(3, 1))
    assert torch.isnan(values[0, 1]).all()
    assert torch.isfinite(values[0, [0, 2]]).all() and torch.isfinite(values[1]).all()


@with_kernels
@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("rows", 10, "0 to 10 exclusive"),
        ("rows", -1, "0 to 10 exclusive"),
        ("stretches", 2, "0 to 2 exclusive"),
        ("stretches", -7, "0 to 2 exclusive"),
        ("phases", 4, "0 to 3"),
        ("begins", 16, "0 to 15"),
        ("begins", -1, "0 to 15"),
        ("ends", 17, "at most 16"),
        ("ends", 0, "above `begins`, and at most 16"),
    ],
)
def test_a_table_that_points_outside_is_refused(name: str, value: int, right: str) -> None:
    window = window_in("q8", [40, 30])
    assert len(window.rotations) == 2
    column = getattr(window.table, name).clone()
    column[3] = value
    wrong = replace(window, table=replace(window.table, **{name: column}))
    with pytest.raises(ValueError, match=rf"`table.{name}\[3\]` must be .*{right}: got {value}"):
        attend(wrong, window.queries(2), window.limits(2))
    with pytest.raises(ValueError, match=rf"`table.{name}\[3\]`"):
        mass_of(wrong, window.queries(2), window.limits(2), torch.zeros(2, 2))


def _wrong_arguments() -> Iterator[tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]]:
    yield "`queries`", lambda a: {"queries": a["queries"].double()}
    yield "`queries`", lambda a: {"queries": a["queries"][:1]}
    yield "`queries`", lambda a: {"queries": a["queries"][0]}
    yield "`queries`", lambda a: {"queries": a["queries"].to("meta")}
    yield "`rotations`", lambda a: {"rotations": a["rotations"][:, 1:]}
    yield "`rotations`", lambda a: {"rotations": a["rotations"].to(torch.complex128)}
    yield "`limits`", lambda a: {"limits": a["limits"].long()}
    yield "`limits`", lambda a: {"limits": a["limits"][1:]}
    yield "`pages`", lambda a: {"pages": a["pages"].char()}
    yield "`pages`", lambda a: {"pages": a["pages"][:, 1:]}
    yield "`pages`", lambda a: {"pages": a["pages"].T.contiguous().T}
    yield "`softcap`", lambda a: {"softcap": 0.0}
    yield "`softcap`", lambda a: {"softcap": float("nan")}
    yield (
        "`table.starts`",
        lambda a: {"table": replace(a["table"], starts=a["table"].starts.long())},
    )
    yield "`table.ends`", lambda a: {"table": replace(a["table"], ends=a["table"].ends[:2])}


@with_kernels
@pytest.mark.parametrize(("name", "change"), list(_wrong_arguments()))
def test_arguments_that_do_not_fit_are_named(
    name: str, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    window = window_in("q8", [40, 30])
    arguments: dict[str, Any] = {
        "queries": window.queries(2), "rotations": window.rotations, "table": window.table,
        "pages": window.pages, "layer": window.layer, "limits": window.limits(2), "softcap": 5.0,
    }  # fmt: skip
    cpu.attend(**arguments)
    with pytest.raises(ValueError, match=name):
        cpu.attend(**(arguments | change(arguments)))


@with_kernels
def test_a_head_too_wide_is_refused() -> None:
    layer = random_layer(1, cpu.MAX_HEAD_DIM + 4)
    window = packed_window(layer, [20])
    with pytest.raises(ValueError, match=f"up to {cpu.MAX_HEAD_DIM} channels: got"):
        attend(window, window.queries(1), window.limits(1))
