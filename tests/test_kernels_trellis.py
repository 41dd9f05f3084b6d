"""Paths through the trellis: against every path there is, and against plain Python in float64."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentmem.kernels.code_stream import CodeStream
from agentmem.kernels.codebook import Codebook
from agentmem.kernels.trellis import REACH, path_codes, state_after
from tests.packed_windows import codebook
from tests.slow_streams import stream_bits

EVERY_WIDTH = codebook(range(9), trellis=True)
LLOYD_MAX = {1: 0.3634, 2: 0.1175, 3: 0.0345, 4: 0.0095}
"""Mean squared error of the best levels by code for a Gaussian of unit variance, by width."""


def random_states(num_tokens: int, widths: Sequence[int], *, seed: int = 0) -> Tensor:
    """Some beyond the largest level."""
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn((num_tokens, 4 * len(widths)), generator=generator)


def by_channel(widths: Sequence[int]) -> list[int]:
    """Of groups of four channels."""
    return [width for width in widths for _ in range(4)]


def within_reach(states: Tensor, widths: Sequence[int], book: Codebook) -> Tensor:
    """States in float64, cut off where the search cuts them off."""
    tops = [REACH * book.top(width) if width in range(1, 5) else torch.inf for width in widths]
    ends = torch.tensor(tops, dtype=torch.float64).repeat_interleave(4)
    return states.double().clamp(-ends, ends)


def decoded(codes: Tensor, widths: tuple[int, ...], book: Codebook) -> Tensor:
    """(num_tokens, head_dim), float64: what codes stand for, read out of the packed bytes."""
    stream, num_tokens = CodeStream(widths), len(codes)
    pages = torch.nn.functional.pad(codes, (0, 0, 0, -num_tokens % 16)).view(-1, 16, codes.shape[1])
    windows = stream.windows(stream.pack(pages)).flatten(0, 1)[:num_tokens].long()
    return book.table.double()[stream.channel_widths, windows]


def cost(values: Tensor, states: Tensor, widths: Sequence[int]) -> Tensor:
    """Over the last axis, float64: squares of errors times 2 ** width; codes above 4 bits are free.

    Theirs is that of the nearest level whatever the path.
    """
    weights = torch.tensor([2.0**width if width in range(1, 5) else 0.0 for width in widths])
    return ((values - states) * weights.double().repeat_interleave(4)).square().sum(-1)


def every_stream(state: Tensor, widths: tuple[int, ...], book: Codebook) -> tuple[Tensor, Tensor]:
    """All codes a token may get, in the order of their streams as numbers, and their values.

    Returns:
        (num_streams, head_dim), int64 and float64.
    """
    streams, first_bit = torch.zeros(1, dtype=torch.int64), 0
    for value, width in zip(state.tolist(), by_channel(widths), strict=True):
        choice = torch.arange(1 << width)
        if width > 4:
            levels = torch.tensor(book.values(width), dtype=torch.float64)
            choice = (levels - value).abs().argmin()[None]
        streams = (streams + (choice[:, None] << first_bit)).flatten()
        first_bit += width
    codes, values, first_bit = [], [], 0
    for width in by_channel(widths):
        codes.append(streams >> first_bit & ((1 << width) - 1))
        # Four zeros go before every stream.
        narrow = 0 < width <= 4
        windows = (streams << 4) >> first_bit & ((16 << width) - 1) if narrow else codes[-1]
        values.append(book.table.double()[width][windows])
        first_bit += width
    return torch.stack(codes, 1), torch.stack(values, 1)


TINY = [(1,), (2,), (3,), (1, 1), (2, 1), (1, 0, 2), (1, 5, 1), (7, 2), (5, 1, 6, 1)]
"""Widths of heads so small that every path can be tried."""


@pytest.mark.parametrize("widths", TINY)
def test_no_path_of_all_there_are_is_better(widths: tuple[int, ...]) -> None:
    states = random_states(6, widths)
    codes = path_codes(states, by_channel(widths), EVERY_WIDTH)
    coded = within_reach(states, widths, EVERY_WIDTH)
    found = cost(decoded(codes, widths, EVERY_WIDTH), coded, widths)
    for token, state in enumerate(coded):
        best = cost(every_stream(state, widths, EVERY_WIDTH)[1], state, widths).min()
        assert float(found[token]) == pytest.approx(float(best), rel=1e-5)


@pytest.mark.parametrize("widths", TINY)
def test_of_equal_paths_it_is_the_one_whose_stream_is_the_lowest_number(
    widths: tuple[int, ...],
) -> None:
    levels = {width: tuple(window % 3 - 1 for window in range(16 << width)) for width in (1, 2, 3)}
    book = Codebook(levels, dict.fromkeys((1, 2, 3, 5, 6, 7, 8), 1.0))
    generator = torch.Generator().manual_seed(0)
    states = torch.randint(-1, 2, (6, 4 * len(widths)), generator=generator).float()
    found = path_codes(states, by_channel(widths), book)
    num_ties = 0
    for token, state in enumerate(states.double()):
        codes, values = every_stream(state, widths, book)
        costs = cost(values, state, widths)
        best = (costs == costs.min()).nonzero()[:, 0]
        num_ties += len(best) > 1
        assert found[token].tolist() == codes[best[0]].tolist()
    assert num_ties, "there was something to choose"


def slow_path(state: list[float], widths: Sequence[int], book: Codebook) -> tuple[float, list[int]]:
    """The least cost and its codes: from each state on, the best way there so far."""
    ways: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for channel, value in enumerate(state):
        width = widths[channel // 4]
        if not width:
            ways = {before: (total, [*codes, 0]) for before, (total, codes) in ways.items()}
            continue
        values = [level * book.units[width] for level in book.window_levels(width)]
        reached: dict[int, tuple[float, list[int]]] = {}
        for before, (total, codes) in ways.items():
            if width > 4:
                code = min(range(1 << width), key=lambda code: abs(values[code] - value))
                steps = [(code, code >> (width - 4), 0.0)]
            else:
                steps = [
                    (
                        code,
                        (code << 4 | before) >> width,
                        ((values[code << 4 | before] - value) * 2**width) ** 2,
                    )
                    for code in range(1 << width)
                ]
            for code, after, error in steps:
                if after not in reached or total + error < reached[after][0]:
                    reached[after] = (total + error, [*codes, code])
        ways = reached
    return min(ways.values())


@settings(deadline=None, max_examples=25)
@given(widths=st.lists(st.integers(0, 8), min_size=1, max_size=12), seed=st.integers(0, 1000))
def test_paths_through_any_widths_are_those_of_plain_python(widths: list[int], seed: int) -> None:
    states = random_states(3, widths, seed=seed)
    codes = path_codes(states, by_channel(widths), EVERY_WIDTH)
    assert codes.dtype == torch.uint8 and codes.shape == states.shape
    coded = within_reach(states, widths, EVERY_WIDTH)
    found = cost(decoded(codes, tuple(widths), EVERY_WIDTH), coded, widths)
    for token, state in enumerate(coded.tolist()):
        best, best_codes = slow_path(state, widths, EVERY_WIDTH)
        assert float(found[token]) == pytest.approx(best, rel=1e-5, abs=1e-5)
        wide = [channel for channel in range(len(state)) if widths[channel // 4] not in range(1, 5)]
        assert [codes[token, c].item() for c in wide] == [best_codes[c] for c in wide]


def test_where_levels_depend_on_no_state_each_code_is_that_of_the_nearest() -> None:
    widths = (1, 4, 0, 3, 6, 2)
    plain = codebook(range(9))
    repeated = Codebook({width: plain.window_levels(width) for width in range(1, 5)}, plain.units)
    assert repeated.is_trellis
    states = random_states(40, widths)
    codes = path_codes(states, by_channel(widths), repeated)
    for channel, width in enumerate(CodeStream(widths).channel_widths.tolist()):
        nearest = (
            torch.bucketize(states[:, channel].contiguous(), plain.borders[width])
            if width
            else torch.zeros(40, dtype=torch.int64)
        )
        assert torch.equal(codes[:, channel].long(), nearest)


def test_a_token_s_codes_are_its_own_wherever_it_stands() -> None:
    widths = (1, 2, 3, 4, 0, 7, 2, 1)
    channels, states = by_channel(widths), random_states(48, widths)
    codes = path_codes(states, channels, EVERY_WIDTH)
    order = torch.randperm(48, generator=torch.Generator().manual_seed(1))
    assert torch.equal(path_codes(states[order], channels, EVERY_WIDTH), codes[order])
    for token in (0, 17, 47):
        alone = path_codes(states[token : token + 1], channels, EVERY_WIDTH)
        assert torch.equal(alone, codes[token : token + 1])
    strided = states.T.contiguous().T
    assert torch.equal(path_codes(strided, channels, EVERY_WIDTH), codes)
    assert path_codes(states[:0], channels, EVERY_WIDTH).shape == (0, 32)


def test_a_head_without_bits_has_no_codes() -> None:
    assert not path_codes(random_states(5, (0, 0)), by_channel((0, 0)), EVERY_WIDTH).any()


@pytest.mark.parametrize("size", [1e30, 3.4e38])
def test_what_lies_far_out_is_coded_as_if_it_lay_within_reach(size: float) -> None:
    widths = (1, 2, 3, 4, 8, 2)
    channels, states = by_channel(widths), random_states(64, widths)
    far = torch.rand(states.shape, generator=torch.Generator().manual_seed(2)) < 0.2
    states = torch.where(far, states.sign() * size, states)
    cut = within_reach(states, widths, EVERY_WIDTH)
    cut[:, 16:20] = cut[:, 16:20].clamp(-100, 100)
    codes = path_codes(states, channels, EVERY_WIDTH)
    assert torch.equal(codes, path_codes(cut.float(), channels, EVERY_WIDTH))


def gaussian_book(width: int) -> Codebook:
    """Levels by window for a Gaussian: a few rounds of paths, then means of what took each window.

    They begin as quantiles in an order in which neighbours of a path lie apart.
    """
    stream, num_windows = CodeStream((width,) * 8), 16 << width
    generator = torch.Generator().manual_seed(0)
    states = torch.randn((1024, 32), generator=generator)
    ranks = torch.arange(num_windows) * 13 % num_windows
    levels = torch.special.ndtri((ranks + 0.5) / num_windows)
    for _ in range(6):
        book = rounded_book(width, levels)
        codes = path_codes(states, stream.channel_widths.tolist(), book).view(-1, 16, 32)
        windows = stream.windows(stream.pack(codes)).flatten().long()
        sums = torch.zeros(num_windows).index_add_(0, windows, states.flatten())
        levels = sums / windows.bincount(minlength=num_windows).clamp_min(1)
    return rounded_book(width, levels)


def rounded_book(width: int, levels: Tensor) -> Codebook:
    """Levels as integers, the largest 127."""
    unit = float(levels.abs().max()) / 127
    return Codebook({width: tuple((levels / unit).round().int().tolist())}, {width: unit})


@pytest.fixture(scope="module")
def gaussian_books() -> dict[int, Codebook]:
    return {width: gaussian_book(width) for width in LLOYD_MAX}


@pytest.mark.parametrize(("width", "share"), [(1, 0.9), (2, 0.8), (3, 0.75), (4, 0.75)])
def test_a_gaussian_loses_clearly_less_than_to_the_best_levels_by_code(
    gaussian_books: dict[int, Codebook], width: int, share: float
) -> None:
    book, widths = gaussian_books[width], (width,) * 16
    states = torch.randn((512, 64), generator=torch.Generator().manual_seed(1))
    codes = path_codes(states, by_channel(widths), book)
    error = float((decoded(codes, widths, book) - states).square().mean())
    # Nothing of so many bits loses less than 4 ** -width.
    assert 4.0**-width < error < share * LLOYD_MAX[width]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("width", LLOYD_MAX)
def test_an_outlier_is_coded_far_out_and_costs_the_others_little(
    gaussian_books: dict[int, Codebook], width: int, sign: int
) -> None:
    book, widths = gaussian_books[width], (width,) * 4
    states = torch.randn((256, 16), generator=torch.Generator().manual_seed(3))
    states[:, 7] = sign * 1e30
    values = decoded(path_codes(states, by_channel(widths), book), widths, book)
    # Of one bit the largest level of a side may cost its neighbours more than it saves.
    assert bool((sign * values[:, 7] > (0.2 if width == 1 else 0.7) * book.top(width)).all())
    errors = (values - states).index_fill(1, torch.tensor([7]), 0.0)
    assert float(errors.square().mean()) < 3 * LLOYD_MAX[width]


@settings(deadline=None, max_examples=60)
@given(widths=st.lists(st.integers(0, 8), max_size=4), seed=st.integers(0, 1000))
def test_the_state_after_codes_is_the_last_four_bits_of_their_stream(
    widths: list[int], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    tops = torch.tensor([1 << width for width in by_channel(widths)], dtype=torch.int64)
    codes = (torch.randint(0, 256, (5, len(tops)), generator=generator) % tops).to(torch.uint8)
    for row, state in zip(codes.tolist(), state_after(codes, by_channel(widths)), strict=True):
        last = [0, 0, 0, 0, *stream_bits(row, widths)][-4:]
        assert int(state) == sum(bit << place for place, bit in enumerate(last))


def test_a_path_goes_on_from_the_state_it_is_given() -> None:
    widths = (2, 5, 1, 3, 4, 2)
    states = random_states(40, widths)
    first, second = by_channel(widths[:3]), by_channel(widths[3:])
    before = path_codes(states[:, :12], first, EVERY_WIDTH)
    after = path_codes(states[:, 12:], second, EVERY_WIDTH, state_after(before, first))
    values = decoded(torch.cat((before, after), 1), widths, EVERY_WIDTH)
    coded = within_reach(states, widths, EVERY_WIDTH)
    found = cost(values[:, 12:], coded[:, 12:], widths[3:])
    from_zeros = torch.cat((before, path_codes(states[:, 12:], second, EVERY_WIDTH)), 1)
    wrong = cost(decoded(from_zeros, widths, EVERY_WIDTH)[:, 12:], coded[:, 12:], widths[3:])
    assert bool((found <= wrong * (1 + 1e-5)).all())
    assert float((found < 0.9 * wrong).double().mean()) > 0.5
