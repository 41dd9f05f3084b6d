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
from tests.slow_streams import last_state

EVERY_WIDTH = codebook(range(9), trellis=True)


def random_states(num_tokens: int, widths: Sequence[int], *, seed: int = 0) -> Tensor:
    """Some beyond the largest level."""
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn((num_tokens, 4 * len(widths)), generator=generator)


def random_befores(num_tokens: int, *, seed: int = 0) -> Tensor:
    """Any state."""
    return torch.randint(0, 16, (num_tokens,), generator=torch.Generator().manual_seed(seed))


def by_channel(widths: Sequence[int]) -> list[int]:
    """Widths of groups of four as those of their channels."""
    return [width for width in widths for _ in range(4)]


def within_reach(states: Tensor, widths: Sequence[int], book: Codebook) -> Tensor:
    """States in float64, cut off where the search cuts them off."""
    tops = [REACH * book.top(width) if width in range(1, 5) else torch.inf for width in widths]
    ends = torch.tensor(tops, dtype=torch.float64).repeat_interleave(4)
    return states.double().clamp(-ends, ends)


def decoded(
    codes: Tensor, widths: Sequence[int], book: Codebook, before: Tensor | None = None
) -> Tensor:
    """(num_tokens, num_channels), float64: what codes stand for, read out of the packed bytes.

    The state before them is four codes of one bit.
    """
    num_tokens, stream = len(codes), CodeStream((1, *widths))
    state = torch.zeros(num_tokens, dtype=torch.int64) if before is None else before
    codes = torch.cat(((state[:, None] >> torch.arange(4) & 1).byte(), codes), 1)
    pages = torch.nn.functional.pad(codes, (0, 0, 0, -num_tokens % 16)).view(-1, 16, codes.shape[1])
    windows = stream.windows(stream.pack(pages)).flatten(0, 1)[:num_tokens].long()
    return book.table.double()[stream.channel_widths, windows][:, 4:]


def cost(values: Tensor, states: Tensor, widths: Sequence[int]) -> Tensor:
    """Over the last axis, float64: squares of errors times 2 ** width; codes above 4 bits are free.

    Theirs is that of the nearest level whatever the path.
    """
    weights = torch.tensor([2.0**width if width in range(1, 5) else 0.0 for width in widths])
    return ((values - states) * weights.double().repeat_interleave(4)).square().sum(-1)


def every_stream(
    state: Tensor, widths: Sequence[int], book: Codebook, before: int
) -> tuple[Tensor, Tensor]:
    """All codes a token may get, in the order of their streams as numbers, and their values.

    Args:
        before: the four bits that go before every stream.

    Returns:
        (num_streams, num_channels), int64 and float64.
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
        narrow = 0 < width <= 4
        whole = streams << 4 | before
        windows = whole >> first_bit & ((16 << width) - 1) if narrow else codes[-1]
        values.append(book.table.double()[width][windows])
        first_bit += width
    return torch.stack(codes, 1), torch.stack(values, 1)


TINY = [(1,), (2,), (3,), (1, 1), (2, 1), (1, 0, 2), (1, 5, 1), (7, 2), (5, 1, 6, 1)]
"""Widths of so few channels that every path can be tried."""


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("widths", TINY)
def test_no_path_of_all_there_are_is_better(widths: tuple[int, ...], follows: bool) -> None:
    states, before = random_states(6, widths), random_befores(6) if follows else None
    codes = path_codes(states, by_channel(widths), EVERY_WIDTH, before)
    coded = within_reach(states, widths, EVERY_WIDTH)
    found = cost(decoded(codes, widths, EVERY_WIDTH, before), coded, widths)
    for token, state in enumerate(coded):
        begin = 0 if before is None else int(before[token])
        best = cost(every_stream(state, widths, EVERY_WIDTH, begin)[1], state, widths).min()
        assert float(found[token]) == pytest.approx(float(best), rel=1e-5)


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("widths", TINY)
def test_of_equal_paths_it_is_the_one_whose_stream_is_the_lowest_number(
    widths: tuple[int, ...], follows: bool
) -> None:
    levels = {width: tuple(window % 3 - 1 for window in range(16 << width)) for width in (1, 2, 3)}
    book = Codebook(levels, dict.fromkeys((1, 2, 3, 5, 6, 7, 8), 1.0))
    generator = torch.Generator().manual_seed(0)
    states = torch.randint(-1, 2, (6, 4 * len(widths)), generator=generator).float()
    before = random_befores(6) if follows else torch.zeros(6, dtype=torch.int64)
    found = path_codes(states, by_channel(widths), book, before)
    num_ties = 0
    for token, state in enumerate(states.double()):
        codes, values = every_stream(state, widths, book, int(before[token]))
        costs = cost(values, state, widths)
        best = (costs == costs.min()).nonzero()[:, 0]
        num_ties += len(best) > 1
        assert found[token].tolist() == codes[best[0]].tolist()
    assert num_ties, "there was something to choose"


def slow_path(
    state: list[float], widths: Sequence[int], book: Codebook, begin: int
) -> tuple[float, list[int]]:
    """The least cost and its codes: from each state on, the best way there so far."""
    ways: dict[int, tuple[float, list[int]]] = {begin: (0.0, [])}
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
    states, before = random_states(3, widths, seed=seed), random_befores(3, seed=seed)
    codes = path_codes(states, by_channel(widths), EVERY_WIDTH, before)
    assert codes.dtype == torch.uint8 and codes.shape == states.shape
    coded = within_reach(states, widths, EVERY_WIDTH)
    found = cost(decoded(codes, widths, EVERY_WIDTH, before), coded, widths)
    for token, state in enumerate(coded.tolist()):
        best, best_codes = slow_path(state, widths, EVERY_WIDTH, int(before[token]))
        assert float(found[token]) == pytest.approx(best, rel=1e-5, abs=1e-5)
        wide = [channel for channel in range(len(state)) if widths[channel // 4] not in range(1, 5)]
        assert [codes[token, c].item() for c in wide] == [best_codes[c] for c in wide]


def test_where_levels_depend_on_no_state_each_code_is_that_of_the_nearest() -> None:
    widths = (1, 4, 0, 3, 6, 2)
    plain = codebook(range(9))
    repeated = Codebook({width: plain.window_levels(width) for width in range(1, 5)}, plain.units)
    assert repeated.is_trellis
    states = random_states(40, widths)
    codes = path_codes(states, by_channel(widths), repeated, random_befores(40))
    for channel, width in enumerate(by_channel(widths)):
        nearest = (
            torch.bucketize(states[:, channel].contiguous(), plain.borders[width])
            if width
            else torch.zeros(40, dtype=torch.int64)
        )
        assert torch.equal(codes[:, channel].long(), nearest)


def test_a_token_s_codes_are_its_own_wherever_it_stands() -> None:
    groups = (1, 2, 3, 4, 0, 7, 2, 1)
    widths, states, before = by_channel(groups), random_states(48, groups), random_befores(48)
    codes = path_codes(states, widths, EVERY_WIDTH, before)
    order = torch.randperm(48, generator=torch.Generator().manual_seed(1))
    assert torch.equal(path_codes(states[order], widths, EVERY_WIDTH, before[order]), codes[order])
    for token in (0, 17, 47):
        alone = slice(token, token + 1)
        found = path_codes(states[alone], widths, EVERY_WIDTH, before[alone])
        assert torch.equal(found, codes[alone])
    strided = states.T.contiguous().T
    assert torch.equal(path_codes(strided, widths, EVERY_WIDTH, before), codes)
    assert path_codes(states[:0], widths, EVERY_WIDTH, before[:0]).shape == (0, 32)


def test_a_path_that_follows_nothing_begins_in_the_state_of_zeros() -> None:
    widths, states = by_channel((2, 1)), random_states(40, (2, 1))
    codes = path_codes(states, widths, EVERY_WIDTH)
    zeros = torch.zeros(40, dtype=torch.int64)
    assert torch.equal(path_codes(states, widths, EVERY_WIDTH, zeros), codes)
    assert not torch.equal(path_codes(states, widths, EVERY_WIDTH, zeros + 5), codes)


def test_channels_without_bits_have_no_codes() -> None:
    assert not path_codes(random_states(5, (0, 0)), [0] * 8, EVERY_WIDTH).any()


def random_codes(num_tokens: int, widths: Sequence[int], *, seed: int = 0) -> Tensor:
    """Any codes of groups of these widths, (num_tokens, num_channels), uint8."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (num_tokens, 4 * len(widths)), generator=generator)
    return (codes % (1 << torch.tensor(by_channel(widths)))).byte()


@settings(deadline=None, max_examples=60)
@given(
    widths=st.lists(st.sampled_from([0, 0, *range(9)]), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
)
def test_the_state_after_a_stream_is_its_last_four_bits(widths: list[int], seed: int) -> None:
    codes = random_codes(16, widths, seed=seed)
    found = state_after(codes, by_channel(widths))
    assert found.dtype == torch.int64
    assert found.tolist() == [last_state(token, widths) for token in codes.tolist()]
    # It is what a code that follows is read with.
    stream = CodeStream((*widths, 1))
    followed = torch.nn.functional.pad(codes, (0, 4))[None]
    windows = stream.windows(stream.pack(followed))[0, :, -4]
    assert windows.tolist() == found.tolist()


@pytest.mark.parametrize(
    ("codes", "widths", "state"),
    [
        ([0b1, 0b0, 0b1], [1, 1, 1], 0b1010),  # a zero from before the stream, lowest
        ([0b11, 0b10], [2, 2], 0b1011),
        ([0b111, 0b01], [3, 2], 0b0111),
        ([0b10110_01], [7], 0b1011),
        ([0b11, 0b1001, 0], [2, 4, 0], 0b1001),
        ([0, 0], [0, 0], 0),
        ([], [], 0),
    ],
)
def test_states_after_streams_of_hand(codes: list[int], widths: list[int], state: int) -> None:
    rows = torch.tensor([codes, codes], dtype=torch.uint8)
    assert state_after(rows, widths).tolist() == [state, state]


@settings(deadline=None, max_examples=25)
@given(widths=st.lists(st.integers(0, 8), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_a_path_cut_in_two_is_read_as_one_stream(widths: list[int], seed: int) -> None:
    cut, states = len(widths) // 2, random_states(16, widths, seed=seed)
    first = path_codes(states[:, : 4 * cut], by_channel(widths[:cut]), EVERY_WIDTH)
    before = state_after(first, by_channel(widths[:cut]))
    second = path_codes(states[:, 4 * cut :], by_channel(widths[cut:]), EVERY_WIDTH, before)
    apart = [
        decoded(first, widths[:cut], EVERY_WIDTH),
        decoded(second, widths[cut:], EVERY_WIDTH, before),
    ]
    together = decoded(torch.cat((first, second), 1), widths, EVERY_WIDTH)
    assert torch.equal(together, torch.cat(apart, 1))


@pytest.mark.parametrize("size", [1e30, 3.4e38])
def test_what_lies_far_out_is_coded_as_if_it_lay_within_reach(size: float) -> None:
    widths = (1, 2, 3, 4, 8, 2)
    states = random_states(64, widths)
    far = torch.rand(states.shape, generator=torch.Generator().manual_seed(2)) < 0.2
    states = torch.where(far, states.sign() * size, states)
    cut = within_reach(states, widths, EVERY_WIDTH)
    cut[:, 16:20] = cut[:, 16:20].clamp(-100, 100)
    codes = path_codes(states, by_channel(widths), EVERY_WIDTH)
    assert torch.equal(codes, path_codes(cut.float(), by_channel(widths), EVERY_WIDTH))
