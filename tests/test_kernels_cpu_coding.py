"""Encoding and decoding in C against the eager twin: codes, scales and floats bit for bit."""

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
from agentmem.kernels.codebook import Codebook, uniform_levels
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.packing import Packing
from tests.cpu_kernels import with_kernels
from tests.packed_windows import ALL_WIDTHS, codebook, random_layer, random_states

FRAMES: dict[str, dict[str, Any]] = {
    "q8": {"widths": (8,)},
    "q8 with a center": {"widths": (8,), "centered": True},
    "q4 rotated": {"widths": (5,), "value_widths": (3,), "centered": True, "transformed": True},
    "binary": {"widths": (1,)},
    "binary rotated": {"widths": (1,), "centered": True, "transformed": True},
    "any widths": {"widths": ALL_WIDTHS},
    "keys a trellis": {"widths": ALL_WIDTHS, "trellis": True, "value_trellis": False},
    "values a trellis": {"widths": (1, 2, 3), "trellis": False, "value_trellis": True},
    "klt": {
        "widths": ALL_WIDTHS,
        "token_scales": False,
        "centered": True,
        "transformed": True,
        "trellis": True,
    },  # fmt: skip
}
"""What a layer may be coded in."""


def layer_in(frame: str, *, num_heads: int = 2, head_dim: int = 64, seed: int = 0) -> PackedLayer:
    return random_layer(num_heads, head_dim, seed=seed, **FRAMES[frame])


def check(layer: PackedLayer, keys: Tensor, values: Tensor, phases: Tensor) -> Tensor:
    """Pages and what they decode to are the eager twin's, to the bit; returns the pages."""
    pages = cpu.encode(keys, values, phases, layer)
    assert torch.equal(pages, packed.encode(keys, values, phases, layer))
    check_decoded(layer, pages, phases)
    return pages


def check_decoded(layer: PackedLayer, pages: Tensor, phases: Tensor) -> None:
    found, expected = cpu.decode(pages, phases, layer), packed.decode(pages, phases, layer)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32 and one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@with_kernels
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("num_pages", [0, 1, 3, 40])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_pages_are_those_of_the_eager_twin(frame: str, num_pages: int, head_dim: int) -> None:
    layer = layer_in(frame, num_heads=1 + num_pages % 3, head_dim=head_dim, seed=num_pages)
    keys, values, phases = random_states(layer, num_pages)
    if num_pages:
        keys[-1, 0, 3], values[0, :, 5] = 0, values[0, :, 5] * 1e4
    check(layer, keys, values, phases)


@with_kernels
@settings(deadline=None, max_examples=50)
@given(
    widths=st.lists(st.integers(0, 8), min_size=1, max_size=9),
    token_scales=st.booleans(),
    centered=st.booleans(),
    transformed=st.booleans(),
    trellis=st.booleans(),
    value_trellis=st.booleans(),
    num_heads=st.integers(1, 3),
    head_dim=st.sampled_from([4, 12, 20, 36, 64, 80]),
    num_pages=st.integers(0, 6),
    exponent=st.integers(-9, 3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 1000),
)
def test_any_widths_in_any_frame(
    widths: list[int],
    token_scales: bool,
    centered: bool,
    transformed: bool,
    trellis: bool,
    value_trellis: bool,
    num_heads: int,
    head_dim: int,
    num_pages: int,
    exponent: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    layer = random_layer(
        num_heads, head_dim, seed=seed, widths=widths, token_scales=token_scales,
        centered=centered, transformed=transformed, trellis=trellis, value_trellis=value_trellis,
    )  # fmt: skip
    keys, values, phases = random_states(layer, num_pages, seed=seed)
    keys, values = (keys * 10.0**exponent).to(dtype), (values * 10.0**exponent).to(dtype)
    phases = phases[torch.randperm(num_pages, generator=torch.Generator().manual_seed(seed))]
    check(layer, keys, values, phases)


@with_kernels
@pytest.mark.parametrize("width", range(1, 9))
def test_a_value_between_two_levels_gets_the_code_of_the_lower(width: int) -> None:
    # Uneven units: borders are not what float32 makes of whole numbers.
    book = codebook((width,))
    packing = Packing.uniform(1, 64, width, token_scales=False)
    layer = PackedLayer(packing, book, book)
    border = book.borders[width]
    rows = torch.cat((
        border, border.nextafter(torch.tensor(9e9)), border.nextafter(torch.tensor(-9e9)),
        torch.tensor(book.values(width)), torch.tensor([3e38, -3e38, 0.0, -0.0, 1e-45]),
    ))  # fmt: skip
    states = torch.zeros(1, 1, 16, 64)
    for part in torch.split(rows, 1024):
        states.view(-1)[: len(part)] = part
        pages = check(layer, states, states.flip(-1), torch.zeros(1))
        codes = packing.unpack(pages)[0].flatten()[: len(part)]
        assert torch.equal(codes, torch.bucketize(part, border).byte())


@with_kernels
@pytest.mark.parametrize("widths", [(1, 2, 3), (2, 3), (3, 6, 1)])
def test_of_equal_paths_the_twin_s_is_chosen(widths: tuple[int, ...]) -> None:
    levels = {width: tuple(window % 3 - 1 for window in range(16 << width)) for width in (1, 2, 3)}
    book = Codebook(levels, dict.fromkeys((1, 2, 3, 6), 1.0))
    groups = torch.tensor([widths], dtype=torch.uint8)
    layer = PackedLayer(Packing(groups, groups, token_scales=False), book, book)
    generator = torch.Generator().manual_seed(0)
    shape = (2, 8, 1, 16, 4 * len(widths))
    keys, values = torch.randint(-1, 2, shape, generator=generator).float()
    check(layer, keys, values, torch.zeros(8))


@with_kernels
@pytest.mark.parametrize("narrow", range(1, 5))
def test_values_go_on_from_the_state_that_keys_end_in(narrow: int) -> None:
    book = codebook(range(9), trellis=True)
    keys_end = torch.tensor([[5, narrow]], dtype=torch.uint8)
    values_begin = torch.tensor([[narrow, 5]], dtype=torch.uint8)
    layer = PackedLayer(Packing(keys_end, values_begin, token_scales=False), book, book)
    check(layer, *random_states(layer, 8))


@with_kernels
@pytest.mark.parametrize("width", range(1, 9))
def test_every_byte_of_a_page_is_read(width: int) -> None:
    layer = random_layer(2, 20, widths=(width, 0), token_scales=True)
    generator = torch.Generator().manual_seed(width)
    shape = (3, layer.packing.page_nbytes)
    pages = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    for scales in layer.packing.unpack(pages)[2:]:
        assert scales is not None
    begins = layer.packing.scale_begins.flatten().tolist()
    for begin in begins:
        # Finite scales: a float16 below 0x7c00.
        pages[:, begin + 1 : begin + 32 : 2] &= 0x3F
    check_decoded(layer, pages, torch.arange(3))


@with_kernels
@pytest.mark.parametrize("exponent", [-44, -38, -20, -8, -7, -5, 0, 4, 6])
@pytest.mark.parametrize("frame", ["q8", "binary"])
def test_scales_are_rounded_up_from_the_smallest_to_the_largest(frame: str, exponent: int) -> None:
    layer = layer_in(frame)
    keys, values, phases = random_states(layer, 3)
    keys, values = keys * 10.0**exponent, values * 10.0**exponent
    check(layer, keys, values, phases)


@with_kernels
def test_heads_without_a_single_bit_are_coded_and_decoded() -> None:
    for token_scales in (True, False):
        packing = Packing.uniform(2, 8, 0, token_scales=token_scales)
        book = Codebook({}, {8: 1.0})
        layer = PackedLayer(packing, book, book)
        keys, values, phases = random_states(layer, 3)
        check(layer, keys, values, phases)


@with_kernels
@pytest.mark.parametrize("frame", ["q8", "binary", "klt"])
def test_threads_share_the_pages(frame: str) -> None:
    layer = layer_in(frame, num_heads=3)
    keys, values, phases = random_states(layer, 150)
    alone = check(layer, keys, values, phases)
    decoded = cpu.decode(alone, phases, layer)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert torch.equal(cpu.encode(keys, values, phases, layer), alone)
        torch.testing.assert_close(cpu.decode(alone, phases, layer), decoded)
        values[149, 2, 15, 63] = float("nan")
        with pytest.raises(ValueError, match="NaN or infinity"):
            cpu.encode(keys, values, phases, layer)
    finally:
        torch.set_num_threads(before)


@with_kernels
@pytest.mark.parametrize("frame", FRAMES)
def test_inputs_may_lie_anywhere(frame: str) -> None:
    layer = layer_in(frame)
    keys, values, phases = random_states(layer, 5)
    expected = check(layer, keys, values, phases)
    decoded = cpu.decode(expected, phases, layer)
    for change in _ways_to_lie():
        moved_keys, moved_values = change(keys), change(values)
        strided_phases = phases.long().repeat_interleave(2)[::2]
        assert torch.equal(cpu.encode(moved_keys, moved_values, strided_phases, layer), expected)
        assert torch.equal(moved_keys, keys), "what is coded is left as it was"
    wide = torch.full((10, expected.shape[1] + 3), 255, dtype=torch.uint8)
    wide[::2, 3:] = expected
    for one, other in zip(cpu.decode(wide[::2, 3:], phases, layer), decoded, strict=True):
        assert torch.equal(one, other)


def _ways_to_lie() -> Iterator[Callable[[Tensor], Tensor]]:
    yield lambda states: states.transpose(1, 3).contiguous().transpose(1, 3)
    yield lambda states: states.transpose(0, 1).contiguous().transpose(0, 1)
    yield lambda states: torch.stack((states, states), 1)[:, 1]
    yield lambda states: torch.nn.functional.pad(states, (1, 2))[..., 1:-2]
    yield lambda states: (-states)._neg_view()


@with_kernels
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("frame", ["q8", "klt", "binary"])
def test_what_is_not_finite_is_refused(value: float, part: int, frame: str) -> None:
    layer = layer_in(frame, head_dim=20)
    keys, values, phases = random_states(layer, 2)
    (keys, values)[part][1, 1, 3, 5] = value
    # Before what is too large, as the eager twin has it.
    keys[0, 0, 0, 0] = 1e30 if part == 0 else 0
    with pytest.raises(ValueError, match="finite.*NaN or infinity"):
        cpu.encode(keys, values, phases, layer)


@with_kernels
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("size", [1e7, -2e7, 3e38])
@pytest.mark.parametrize("frame", ["q8", "binary", "any widths"])
def test_values_too_large_for_a_scale_are_refused_as_the_eager_twin_does(
    part: int, size: float, frame: str
) -> None:
    layer = layer_in(frame)
    keys, values, phases = random_states(layer, 2)
    (keys, values)[part][1, 0, 7] = size
    with pytest.raises(ValueError, match="can be packed: got") as expected:
        packed.encode(keys, values, phases, layer)
    with pytest.raises(ValueError) as found:
        cpu.encode(keys, values, phases, layer)
    assert str(found.value) == str(expected.value)


@with_kernels
def test_the_largest_value_that_fits_is_not_refused() -> None:
    book = Codebook({}, {8: 1.0})
    layer = PackedLayer(Packing.uniform(1, 4, 8), book, book)
    states = torch.zeros(1, 1, 16, 4)
    states[0, 0, 0, 0] = 65504.0 * 127
    check(layer, states, states, torch.zeros(1))
    states[0, 0, 0, 0] = torch.tensor(65504.0 * 127).nextafter(torch.tensor(9e9))
    with pytest.raises(ValueError, match=r"got 8.32e\+06"):
        cpu.encode(states, states, torch.zeros(1), layer)


def _wrong_arguments() -> Iterator[tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]]:
    yield "`keys`", lambda a: {"keys": a["keys"][0]}
    yield "`keys`", lambda a: {"keys": a["keys"][:, :1]}
    yield "`keys`", lambda a: {"keys": a["keys"][:, :, 1:]}
    yield "`keys`", lambda a: {"keys": a["keys"].int()}
    yield "`keys`", lambda a: {"keys": a["keys"].to("meta")}
    yield "`values`", lambda a: {"values": a["values"][..., :-4]}
    yield "`values`", lambda a: {"values": a["values"].to(torch.complex64)}
    yield "3 pages, values 2", lambda a: {"values": a["values"][:2]}
    yield "`phases`", lambda a: {"phases": a["phases"][:2]}
    yield "`phases`", lambda a: {"phases": a["phases"].to("meta")}
    yield r"`phases\[1\]` must be 0 to 3: got 4", lambda a: {"phases": torch.tensor([0, 4, 1])}
    yield r"`phases\[0\]` must be 0 to 3: got -1", lambda a: {"phases": torch.tensor([-1, 0, 1])}


@with_kernels
@pytest.mark.parametrize(("name", "change"), list(_wrong_arguments()))
def test_arguments_that_do_not_fit_are_named(
    name: str, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    layer = layer_in("klt")
    keys, values, phases = random_states(layer, 3)
    arguments: dict[str, Any] = {"keys": keys, "values": values, "phases": phases, "layer": layer}
    cpu.encode(**arguments)
    with pytest.raises(ValueError, match=name):
        cpu.encode(**(arguments | change(arguments)))


@with_kernels
def test_pages_that_do_not_fit_are_named() -> None:
    layer = layer_in("klt")
    keys, values, phases = random_states(layer, 3)
    pages = cpu.encode(keys, values, phases, layer)
    for wrong in (pages[:, 1:], pages.char(), pages[0], pages.T.contiguous().T, pages.to("meta")):
        with pytest.raises(ValueError, match="`pages` must be"):
            cpu.decode(wrong, phases, layer)
    with pytest.raises(ValueError, match=r"`phases\[2\]` must be 0 to 3: got 9"):
        cpu.decode(pages, torch.tensor([0, 1, 9]), layer)


@with_kernels
def test_layers_the_kernels_cannot_code_are_refused() -> None:
    wide = random_layer(1, cpu.MAX_HEAD_DIM + 4)
    with pytest.raises(ValueError, match=f"up to {cpu.MAX_HEAD_DIM} channels: got"):
        cpu.encode(*random_states(wide, 1), wide)
    elsewhere = replace(layer_in("klt"), value_mean=torch.zeros(2, 64, device="meta"))
    with pytest.raises(ValueError, match="`value_mean` must be on the CPU: it is on meta"):
        cpu.encode(*random_states(layer_in("klt"), 1), elsewhere)
    for unit in (0.0, 1e-42, float("inf")):
        book = Codebook({}, {8: unit})
        layer = PackedLayer(Packing.uniform(1, 4, 8), book, book)
        with pytest.raises(ValueError, match=f"The unit of width 8 .* got {unit}"):
            cpu.decode(torch.zeros((1, 192), dtype=torch.uint8), torch.zeros(1), layer)
    with pytest.raises(ValueError, match="The codebook has no width 8: it has"):
        book = Codebook({1: (-1, 1)}, {1: 1.0})
        cpu.encode(*random_states(wide, 1), PackedLayer(layer.packing, book, book))


def test_uniform_levels_lie_as_evenly_as_the_kernels_take_for_granted() -> None:
    for width in range(5, 9):
        levels = uniform_levels(width)
        assert len({high - low for low, high in zip(levels, levels[1:], strict=False)}) == 1
