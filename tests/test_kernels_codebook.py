"""What codes stand for: uniform levels by their formula, free levels as they are given, by code or
by window."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from agentmem.kernels.codebook import Codebook, uniform_levels

NARROW = {
    1: (-60, 61),
    2: (-110, -30, 29, 127),
    3: (-128, -90, -40, -7, 5, 40, 90, 120),
    4: tuple(range(-120, 120, 15)),
}
BY_WINDOW = {
    width: tuple((7 * window) % 255 - 127 for window in range(16 << width)) for width in NARROW
}
"""In no order."""
UNITS = {1: 0.5, 2: 0.25, 3: 1.0, 4: 0.125, 5: 2.0, 6: 0.01, 7: 3.0, 8: 1.0}


@pytest.mark.parametrize("width", [5, 6, 7])
def test_uniform_levels_lie_in_the_middle_of_their_steps(width: int) -> None:
    levels = uniform_levels(width)
    assert levels == tuple(
        (code << (8 - width)) - 128 + (1 << (7 - width)) for code in range(1 << width)
    )
    assert [-level for level in reversed(levels)] == list(levels)


def test_levels_of_eight_bits_are_all_of_int8() -> None:
    assert uniform_levels(8) == tuple(range(-128, 128))


@pytest.mark.parametrize("width", range(1, 9))
def test_a_code_stands_for_its_level_times_the_unit(width: int) -> None:
    codebook = Codebook(NARROW, UNITS)
    levels = NARROW.get(width) or uniform_levels(width)
    values = codebook.values(width)
    assert values == tuple(level * UNITS[width] for level in levels)
    assert len(values) == 1 << width and list(values) == sorted(values)


@pytest.mark.parametrize("levels", [NARROW, BY_WINDOW])
def test_the_table_holds_the_windows_of_every_width_and_zeros_elsewhere(
    levels: dict[int, tuple[int, ...]],
) -> None:
    codebook = Codebook(levels, UNITS)
    table = codebook.table
    assert table.shape == (9, 256) and table.dtype == torch.float32
    for width in range(1, 9):
        values = [level * UNITS[width] for level in codebook.window_levels(width)]
        assert len(values) == (1 << width + 4 if width <= 4 else 1 << width)
        assert table[width, : len(values)].tolist() == torch.tensor(values).tolist()
        assert not table[width, len(values) :].any()
    assert not table[0].any()


@pytest.mark.parametrize("width", range(1, 9))
def test_where_codes_stand_alone_any_state_below_them_is_the_same(width: int) -> None:
    codebook = Codebook(NARROW, UNITS)
    levels = NARROW.get(width) or uniform_levels(width)
    of_windows = codebook.window_levels(width)
    assert not codebook.is_trellis
    for window, level in enumerate(of_windows):
        assert level == levels[window >> 4 if width <= 4 else window]


@pytest.mark.parametrize("width", range(1, 9))
def test_levels_by_window_are_as_they_are_given_and_wide_ones_uniform(width: int) -> None:
    codebook = Codebook(BY_WINDOW, UNITS)
    assert codebook.is_trellis
    assert codebook.window_levels(width) == (BY_WINDOW.get(width) or uniform_levels(width))


@pytest.mark.parametrize("width", range(1, 9))
def test_codes_that_depend_on_bits_before_them_stand_for_nothing_alone(width: int) -> None:
    codebook = Codebook(BY_WINDOW, UNITS)
    assert sorted(codebook.borders) == [5, 6, 7, 8]
    if width > 4:
        assert codebook.values(width) == Codebook(NARROW, UNITS).values(width)
        return
    with pytest.raises(ValueError, match=f"width {width} depend on the bits before"):
        codebook.values(width)


def test_a_codebook_of_wide_codes_alone_is_no_trellis() -> None:
    assert not Codebook({}, {8: 1.0}).is_trellis


@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("levels", [NARROW, BY_WINDOW])
def test_the_top_is_the_largest_value_of_any_window(
    levels: dict[int, tuple[int, ...]], width: int
) -> None:
    top = Codebook(levels, UNITS).top(width)
    assert top == max(levels.get(width) or uniform_levels(width)) * UNITS[width]


def test_the_table_of_some_widths_holds_only_those() -> None:
    table = Codebook({2: NARROW[2]}, {2: 1.0, 6: 1.0}).table
    assert [width for width in range(9) if table[width].any()] == [2, 6]


@pytest.mark.parametrize("width", range(1, 9))
def test_the_border_between_two_codes_is_as_near_to_one_as_to_the_other(width: int) -> None:
    codebook = Codebook(NARROW, UNITS)
    borders, values = codebook.borders[width], torch.tensor(codebook.values(width))
    assert borders.shape == ((1 << width) - 1,)
    torch.testing.assert_close(borders - values[:-1], values[1:] - borders)
    # Each value lies between the borders of its own code.
    assert torch.bucketize(values, borders).tolist() == list(range(1 << width))


ASKED = (Codebook.values, Codebook.window_levels, Codebook.top)
"""What may be asked of a width."""


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("width", [0, 3, 9])
def test_a_width_the_codebook_lacks_is_refused_with_those_it_has(
    asked: Callable[[Codebook, int], object], width: int
) -> None:
    with pytest.raises(ValueError, match=rf"no width {width}.*\[2, 8\]"):
        asked(Codebook({2: NARROW[2]}, {2: 1.0, 8: 1.0}), width)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("width", [1, 4])
def test_a_unit_without_levels_is_refused(
    asked: Callable[[Codebook, int], object], width: int
) -> None:
    with pytest.raises(ValueError, match=f"no width {width}"):
        asked(Codebook({}, {width: 1.0}), width)


@pytest.mark.parametrize(
    ("width", "levels"),
    [
        (2, (-110, -30, 29)),
        (2, (-110, -30, 29, 60, 90)),
        (2, (-110, 29, -30, 60)),
        (2, (-110, -30, -30, 60)),
        (1, (-129, 0)),
        (1, (0, 128)),
        (2, ()),
        (0, (5,)),
        (-1, ()),
        (5, tuple(range(32))),
        (8, tuple(range(-128, 128))),
        (5, tuple(range(-128, 128)) * 2),
        (2, BY_WINDOW[2][:-1]),
        (2, (*BY_WINDOW[2][:-1], 128)),
        (2, (-129, *BY_WINDOW[2][1:])),
        (2, BY_WINDOW[1]),
    ],
)
def test_levels_that_do_not_fit_their_width_are_refused(
    width: int, levels: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=f"Levels of width {width}"):
        Codebook({width: levels}, {width: 1.0})


def test_levels_by_code_at_one_width_and_by_window_at_another_are_refused() -> None:
    with pytest.raises(ValueError, match="at every width, or at none"):
        Codebook({2: NARROW[2], 3: BY_WINDOW[3]}, {2: 1.0, 3: 1.0})
