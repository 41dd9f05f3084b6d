"""What codes stand for: uniform levels by their formula, free levels as they are given."""

from __future__ import annotations

import pytest
import torch

from agentmem.kernels.codebook import Codebook, uniform_levels

NARROW = {
    1: (-60, 61),
    2: (-110, -30, 29, 127),
    3: (-128, -90, -40, -7, 5, 40, 90, 120),
    4: tuple(range(-120, 120, 15)),
}
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


def test_the_table_holds_every_width_and_zeros_elsewhere() -> None:
    table = Codebook(NARROW, UNITS).table
    assert table.shape == (9, 256) and table.dtype == torch.float32
    for width in range(1, 9):
        values = Codebook(NARROW, UNITS).values(width)
        assert table[width, : 1 << width].tolist() == torch.tensor(values).tolist()
        assert not table[width, 1 << width :].any()
    assert not table[0].any()


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


@pytest.mark.parametrize("width", [0, 3, 9])
def test_a_width_the_codebook_lacks_is_refused_with_those_it_has(width: int) -> None:
    with pytest.raises(ValueError, match=rf"no width {width}.*\[2, 8\]"):
        Codebook({2: NARROW[2]}, {2: 1.0, 8: 1.0}).values(width)


@pytest.mark.parametrize("width", [1, 4])
def test_a_unit_without_levels_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match=f"no width {width}"):
        Codebook({}, {width: 1.0}).values(width)


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
    ],
)
def test_levels_that_do_not_fit_their_width_are_refused(
    width: int, levels: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=f"Levels of width {width}"):
        Codebook({width: levels}, {width: 1.0})
