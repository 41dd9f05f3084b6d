"""Triton's kernels against the eager ones, cell by cell.

Not collected by itself: whether Triton interprets its kernels is decided when it is first imported,
so test_kernels_triton.py runs this file in a process of its own, in the interpreter where there is
no GPU.
"""

from __future__ import annotations

import itertools
import random
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from agentmem.kernels import (
    packed,
    triton_attention,
    triton_binary,
    triton_bounds,
    triton_decode,
    triton_encode,
    triton_mass,
    triton_proof,
    triton_rows,
)
from agentmem.kernels.codebook import Codebook
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.packing import Packing
from agentmem.kernels.page_table import PageTable, PlacedSegment
from agentmem.kernels.triton_launch import INTERPRETED
from tests.packed_windows import (
    ALL_WIDTHS,
    PackedWindow,
    packed_window,
    plain_attention,
    random_layer,
    random_states,
)

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
FRAMES: dict[str, dict[str, Any]] = {
    "q8": {"widths": (8,)},
    "q8 with a center": {"widths": (8,), "centered": True},
    "q4": {"widths": (5,), "value_widths": (3,), "transformed": True, "centered": True},
    "two bits": {"widths": (2,)},
    "binary": {"widths": (1,), "transformed": True},
    "any widths": {"widths": ALL_WIDTHS, "transformed": True},
    "klt": {
        "widths": ALL_WIDTHS, "token_scales": False, "transformed": True, "centered": True,
        "trellis": True,
    },
}  # fmt: skip
"""What a layer may be coded in."""
HEAD_DIMS = (64, 96, 128, 256)
GROUPS = (1, 3, 4, 8)
LENGTHS = ((1,), (63,), (64,), (65,), (129, 40, 17))
SOFTCAPS = (None, 2.0)


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of everything that matters to attention."""

    frame: str
    head_dim: int
    group: int
    lengths: tuple[int, ...]
    softcap: float | None


def pairwise_cells() -> list[Cell]:
    """Few cells in which every pair of two settings occurs."""
    axes = (tuple(FRAMES), HEAD_DIMS, GROUPS, LENGTHS, SOFTCAPS)
    draw = random.Random(0)

    def pairs(cell: tuple[Any, ...]) -> set[tuple[int, Any, int, Any]]:
        return {
            (one, cell[one], other, cell[other])
            for one, other in itertools.combinations(range(len(axes)), 2)
        }

    missing = {pair for cell in itertools.product(*axes) for pair in pairs(cell)}
    cells = []
    while missing:
        best: tuple[Any, ...] = max(
            (tuple(draw.choice(axis) for axis in axes) for _ in range(60)),
            key=lambda cell: len(pairs(cell) & missing),
        )
        if pairs(best) & missing:
            cells.append(Cell(*best))
            missing -= pairs(best)
    return cells


CELLS = pairwise_cells()


@pytest.fixture(autouse=True)
def _numpy_may_divide_by_zero() -> Any:
    # The interpreter computes lanes that are masked away with numpy, which warns.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton.*")
        yield


def moved(window: PackedWindow) -> tuple[torch.Tensor, PageTable, torch.Tensor]:
    """Rotations, table and pages of a window on the device the kernels run on."""
    table = PageTable.of_segments(window.segments, DEVICE)
    return window.rotations.to(DEVICE), table, window.pages.to(DEVICE)


def window_of(cell: Cell) -> PackedWindow:
    layer = random_layer(1, cell.head_dim, **FRAMES[cell.frame])
    return packed_window(layer, cell.lengths)


def attend(
    window: PackedWindow, queries: torch.Tensor, limits: torch.Tensor, softcap: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    rotations, table, pages = moved(window)
    values, log_sum_exp = triton_attention.attend(
        queries.to(DEVICE), rotations, table, pages, window.layer, limits.to(DEVICE), softcap
    )
    return values.cpu(), log_sum_exp.cpu()


def mass_of(
    window: PackedWindow, queries: torch.Tensor, limits: torch.Tensor, softcap: float | None,
    log_sum_exp: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    rotations, table, pages = moved(window)
    return triton_mass.column_mass(
        queries.to(DEVICE), rotations, table, pages, window.layer, limits.to(DEVICE), softcap,
        log_sum_exp.to(DEVICE),
    ).cpu()  # fmt: skip


def check(
    window: PackedWindow, queries: torch.Tensor, limits: torch.Tensor, softcap: float | None = None
) -> None:
    """Values, log-sum-exp and mass are those of plain attention, within float16 operands."""
    values, log_sum_exp, weights = plain_attention(window, queries, limits, softcap)
    found, found_sum = attend(window, queries, limits, softcap)
    # A logit is off by 2 ** -11 of what it is made of, centers included, which reach 40 here.
    largest = float(values.abs().max().clamp_min(1e-9))
    assert float((found - values).abs().max()) <= 5e-3 * largest
    torch.testing.assert_close(found_sum.double(), log_sum_exp, rtol=0, atol=8e-3)
    mass = mass_of(window, queries, limits, softcap, found_sum)
    torch.testing.assert_close(
        mass[window.slots].double(), weights.sum((0, 1)), rtol=1e-2, atol=1e-4
    )
    padding = torch.ones_like(mass, dtype=torch.bool)
    padding[window.slots] = False
    assert not mass[padding].any()


def test_few_cells_cover_every_pair_of_settings() -> None:
    assert len(CELLS) <= 80
    assert {(cell.frame, cell.head_dim) for cell in CELLS} == {
        *itertools.product(FRAMES, HEAD_DIMS)
    }


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_attention_and_mass_are_those_of_the_decoded_tokens(cell: Cell) -> None:
    window = window_of(cell)
    check(window, window.queries(cell.group), window.limits(cell.group), cell.softcap)


@pytest.mark.parametrize("num_rows", [16, 21, 70])
def test_prefill_attends_with_many_rows(num_rows: int) -> None:
    window = packed_window(random_layer(2, 64, **FRAMES["q4"]), [40, 30])
    check(window, window.queries(num_rows), window.limits(num_rows))


def test_a_row_that_sees_nothing_gets_zeros_and_adds_no_mass() -> None:
    window = packed_window(random_layer(1, 64, **FRAMES["klt"]), [20, 30])
    end = int(window.positions.max()) + 1
    limits = torch.tensor([[0, end], [end, end + 9], [7, 7], [-9, 3]], dtype=torch.int32)
    queries = window.queries(4)
    values, log_sum_exp = attend(window, queries, limits)
    nothing = log_sum_exp == float("-inf")
    assert nothing[:, 1:3].all() and not nothing[:, 0].any()
    assert not values[nothing].any()
    mass = mass_of(window, queries, limits, None, log_sum_exp)
    assert bool(torch.isfinite(mass).all())
    check(window, queries, limits)


def test_a_table_without_pages_is_nothing_seen() -> None:
    window = packed_window(random_layer(1, 64), [20])
    empty = PageTable.of_segments([], DEVICE)
    queries, limits = window.queries(2).to(DEVICE), window.limits(2).to(DEVICE)
    rotations, _, pages = moved(window)
    values, log_sum_exp = triton_attention.attend(
        queries, rotations[:0], empty, pages, window.layer, limits
    )
    assert values.shape == queries.shape and not values.any()
    assert bool((log_sum_exp == float("-inf")).all())
    mass = triton_mass.column_mass(
        queries, rotations[:0], empty, pages, window.layer, limits, None, log_sum_exp
    )
    assert mass.shape == (0,)


def test_sharp_attention_does_not_overflow() -> None:
    window = packed_window(random_layer(1, 64), [40, 70])
    queries, limits = window.queries(3, scale=300.0), window.limits(3)
    _, log_sum_exp, _ = plain_attention(window, queries, limits)
    values, found = attend(window, queries, limits)
    assert float(found.max()) > 500, "exp of such a logit overflows"
    assert bool(torch.isfinite(values).all())
    torch.testing.assert_close(found.double(), log_sum_exp, rtol=2e-3, atol=0)


def test_a_query_of_zeros_sees_all_alike() -> None:
    window = packed_window(random_layer(1, 64), [40])
    limits = torch.tensor([[0, 10_000]], dtype=torch.int32)
    values, log_sum_exp = attend(window, torch.zeros(1, 1, 64), limits)
    torch.testing.assert_close(values[0, 0].double(), window.values[0].mean(0), rtol=0, atol=1e-2)
    torch.testing.assert_close(log_sum_exp, torch.tensor([[40.0]]).log())


def test_part_of_a_table_attends_like_the_whole_with_the_rest_out_of_sight() -> None:
    window = packed_window(random_layer(1, 64, **FRAMES["q4"]), [200])
    rotations, table, pages = moved(window)
    parts = []
    queries = window.queries(3).to(DEVICE)
    limits = torch.tensor([[0, 10_000]] * 3, dtype=torch.int32, device=DEVICE)
    for tile, _ in table.tiles(96):
        parts.append(triton_attention.attend(queries, rotations, tile, pages, window.layer, limits))
    values, log_sum_exp = triton_attention.merge(parts)
    whole = attend(window, window.queries(3), limits.cpu())
    torch.testing.assert_close(values.cpu(), whole[0], rtol=0, atol=2e-3)
    torch.testing.assert_close(log_sum_exp.cpu(), whole[1], rtol=0, atol=1e-3)


@pytest.mark.parametrize("num_parts", [1, 2, 5])
def test_merged_parts_are_what_the_eager_merge_gives(num_parts: int) -> None:
    from agentmem.kernels.attention import merge

    parts = [(torch.randn(2, 3, 96), torch.randn(2, 3) * 9) for _ in range(num_parts)]
    for index, (values, log_sum_exp) in enumerate(parts):
        log_sum_exp[0, 0] = float("-inf")
        values[0, 0] = 0
        if index:
            log_sum_exp[1, 2] = float("-inf")
    found = triton_attention.merge([(one.to(DEVICE), two.to(DEVICE)) for one, two in parts])
    for one, two in zip(found, merge(parts), strict=True):
        torch.testing.assert_close(one.cpu(), two)


def layers() -> list[tuple[str, PackedLayer]]:
    heads = {"klt": 1}
    return [
        *(
            (f"{name}, {head_dim} channels", random_layer(heads.get(name, 2), head_dim, **frame))
            for (name, frame), head_dim in zip(
                FRAMES.items(), (64, 256, 128, 64, 96, 64, 64), strict=True
            )
        ),
        ("a trellis with scales", random_layer(1, 32, widths=(4, 1, 3, 2, 5), trellis=True)),
        ("a trellis of one bit", random_layer(1, 24, widths=(1,), trellis=True)),
    ]


@pytest.mark.parametrize(
    ("name", "layer"), layers(), ids=lambda one: one if str is type(one) else ""
)
def test_pages_are_encoded_byte_for_byte_and_decoded_alike(name: str, layer: PackedLayer) -> None:
    keys, values, phases = random_states(layer, 3)
    keys[0, 0, 3] = 0
    values[1, :, 5] *= 1e4
    expected = packed.encode(keys, values, phases, layer)
    found = triton_encode.encode(keys.to(DEVICE), values.to(DEVICE), phases.to(DEVICE), layer)
    if INTERPRETED:
        assert torch.equal(found, expected)
    decoded = triton_decode.decode(expected.to(DEVICE), phases.to(DEVICE), layer)
    for one, other in zip(decoded, packed.decode(expected, phases, layer), strict=True):
        torch.testing.assert_close(one.cpu(), other)


def test_of_paths_that_cost_the_same_the_one_of_lower_earlier_bits_is_taken() -> None:
    levels = {width: (-60,) * (8 << width) + (60,) * (8 << width) for width in (1, 2)}
    book = Codebook(levels, dict.fromkeys(levels, 0.1))
    widths = torch.tensor([[1, 2, 0, 1]], dtype=torch.uint8)
    layer = PackedLayer(Packing(widths, widths, token_scales=False), book, book)
    # Everything is as far from one level as from the other, but for a few channels.
    torch.manual_seed(0)
    states = (torch.randn(1, 1, 16, 16) * 3).round().div(4, rounding_mode="trunc")
    phases = torch.zeros(1, dtype=torch.int32)
    expected = packed.encode(states, -states, phases, layer)
    found = triton_encode.encode(states.to(DEVICE), -states.to(DEVICE), phases.to(DEVICE), layer)
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 1e30])
@pytest.mark.parametrize("of_values", [False, True])
def test_what_no_scale_can_hold_is_refused(bad: float, of_values: bool) -> None:
    layer = random_layer(1, 64)
    states = list(random_states(layer, 2))
    states[of_values][1, 0, 7, 9] = bad
    keys, values, phases = (one.to(DEVICE) for one in states)
    with pytest.raises(ValueError, match="finite|can be packed"):
        triton_encode.encode(keys, values, phases, layer)


def test_records_are_copied_whole_to_any_rows() -> None:
    pages = torch.randint(0, 256, (9, 4176), dtype=torch.uint8, device=DEVICE)
    rows = torch.tensor([3, 1, 8], dtype=torch.int32, device=DEVICE)
    records = triton_rows.gather_rows(pages, rows)
    assert torch.equal(records, pages[rows.long()])
    target = torch.zeros_like(pages)
    triton_rows.scatter_rows(records, target, rows)
    assert torch.equal(target[rows.long()], records)
    untouched = [row for row in range(9) if row not in (1, 3, 8)]
    assert not target[untouched].any()


@pytest.mark.parametrize("frame", ["q8 with a center", "q4", "klt"])
def test_no_logit_is_above_its_page_bound(frame: str) -> None:
    window = packed_window(random_layer(2, 64, **FRAMES[frame]), [50, 70, 3])
    rotations, table, pages = moved(window)
    num_rows = 3
    queries = window.queries(num_rows)
    limits = torch.tensor([[0, 10_000], [60, 90], [0, 0]], dtype=torch.int32)
    slots = torch.zeros(pages.shape[0], dtype=torch.int32, device=DEVICE)
    # A page that two segments share has two entries, and the slots of both.
    slots.index_add_(0, table.rows.long(), (1 << table.ends) - (1 << table.begins))
    bounds = triton_bounds.page_bounds(pages, slots, window.layer)
    found = triton_bounds.logit_bounds(
        queries.to(DEVICE), rotations, table, bounds, window.layer, limits.to(DEVICE)
    ).cpu()
    logits = queries.double() @ window.keys.mT
    low, high = limits.long()[:, :1], limits.long()[:, 1:]
    seen = (window.positions >= low) & (window.positions < high)
    logits = logits.masked_fill(~seen, float("-inf"))
    of_page = window.slots // 16
    for page in range(table.num_pages):
        highest = logits[..., of_page == page].amax(-1)
        assert bool((found[..., page] >= highest - 1e-3).all())
        assert torch.equal(found[..., page] == float("-inf"), highest == float("-inf"))
    # A bound that is always far off would be honest too.
    visible = found > float("-inf")
    assert float(found[visible].max()) < 6 * float(logits[logits > float("-inf")].abs().max())


@pytest.mark.parametrize("head_dim", [64, 96, 256])
def test_binary_scores_are_products_of_signs(head_dim: int) -> None:
    layer = random_layer(2, head_dim, **FRAMES["binary"])
    window = packed_window(layer, [40, 70])
    rotations, table, pages = moved(window)
    queries = window.queries(3)
    found = triton_binary.binary_scores(queries.to(DEVICE), rotations, table, pages, layer).cpu()
    packing = layer.packing
    codes, _, scales, _ = packing.unpack(window.pages.index_select(0, window.table.rows))
    assert scales is not None and layer.query_transform is not None
    from agentmem.kernels.attention import page_products, turned_queries

    turned, of_page = turned_queries(queries, window.rotations, window.table)
    asked = turned @ layer.query_transform
    signs = codes.float() * 2 - 1
    products = page_products((asked >= 0).float() * 2 - 1, of_page, signs)
    slots = window.table.filled()
    expected = products * scales.float()[:, :, None, :]
    expected = expected.masked_fill(~slots[:, None, None], float("-inf")).amax(-1)
    # A query within rounding of 0 in some channel may have either sign there.
    off = (found - expected.permute(1, 2, 0)).abs() / scales.float().amax()
    assert float(off.max()) <= 4
    assert float((off > 1e-3).float().mean()) < 0.3


@pytest.mark.parametrize("head_dim", [64, 96])
def test_the_kernels_prove_themselves_on_the_device(head_dim: int) -> None:
    assert triton_proof.why_unavailable.__wrapped__(DEVICE, head_dim) is None


@pytest.mark.parametrize("kernel", ["encode", "decode", "attend", "column_mass"])
def test_a_kernel_that_is_wrong_on_the_device_is_not_used(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(triton_proof, kernel)

    def wrong(*asked: Any) -> Any:
        found = right(*asked)
        if isinstance(found, tuple):
            return (found[0].roll(1, -1), *found[1:])
        return found.roll(1, -1)

    monkeypatch.setattr(triton_proof, kernel, wrong)
    why = triton_proof.why_unavailable.__wrapped__(DEVICE, 64)
    assert why is not None and kernel.replace("_", " ") in why and "allowed" in why

    def failing(*asked: Any) -> Any:
        raise RuntimeError("no such instruction\nand more")

    monkeypatch.setattr(triton_proof, kernel, failing)
    why = triton_proof.why_unavailable.__wrapped__(DEVICE, 64)
    assert why == "Triton's kernels fail there: RuntimeError: no such instruction"


def test_a_table_that_points_outside_is_refused() -> None:
    window = packed_window(random_layer(1, 64), [20])
    _, _, pages = moved(window)
    outside = PageTable.of_segments([PlacedSegment(0, 20, [0, pages.shape[0]])], DEVICE)
    queries, limits = window.queries(1).to(DEVICE), window.limits(1).to(DEVICE)
    rotations = window.rotations.to(DEVICE)
    with pytest.raises(ValueError, match="rows of the arena"):
        triton_attention.attend(queries, rotations, outside, pages, window.layer, limits)


def test_heads_too_large_are_refused() -> None:
    layer = random_layer(1, 260)
    with pytest.raises(ValueError, match="at most 256 channels: got 260"):
        triton_decode.decode(
            torch.zeros(1, layer.packing.page_nbytes).byte(), torch.zeros(1), layer
        )
