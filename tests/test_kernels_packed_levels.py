"""Which levels packed pages are coded by, and that these are what comes back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentmem.kernels.codebook import Codebook
from agentmem.kernels.packed import PackedLayer, decode, encode
from agentmem.kernels.trellis import path_codes
from tests.packed_windows import ALL_WIDTHS, random_layer, random_states
from tests.slow_streams import in_order, last_state, slow_windows

SIDES = {
    "by code": (False, False),
    "a trellis": (True, True),
    "keys a trellis": (True, False),
    "values a trellis": (False, True),
}
"""Whether narrow codes of keys, and of values, depend on the bits before them."""


def plain_values(layer: PackedLayer, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """What (P, H, 16, D) codes of keys and of values stand for, looked up one by one."""
    widths, levels = [], []
    for table, book in (
        (layer.packing.key_widths, layer.key_codebook),
        (layer.packing.value_widths, layer.value_codebook),
    ):
        of_width = {
            width: [level * unit for level in book.window_levels(width)]
            for width, unit in book.units.items()
        }
        of_width[0] = [0.0]
        widths += table.flatten().tolist()
        levels += [of_width[width] for width in table.flatten().tolist()]
    tokens = [
        [levels[channel // 4][window] for channel, window in enumerate(slow_windows(codes, widths))]
        for page in zip(keys.tolist(), values.tolist(), strict=True)
        for codes in in_order(*page)
    ]
    pages, heads, _, head_dim = keys.shape
    found = torch.tensor(tokens).view(pages, 16, 2, heads, head_dim).permute(2, 0, 3, 1, 4)
    return found[0], found[1]


@settings(deadline=None, max_examples=30)
@given(
    kinds=st.sampled_from([(1,), (2,), (3,), (4,), (7,), ALL_WIDTHS, (0, 3)]),
    token_scales=st.booleans(),
    sides=st.sampled_from(list(SIDES)),
    seed=st.integers(0, 1000),
)
def test_what_comes_back_are_the_levels_of_the_windows_in_the_bytes(
    kinds: tuple[int, ...], token_scales: bool, sides: str, seed: int
) -> None:
    of_keys, of_values = SIDES[sides]
    layer = random_layer(
        2, 12, seed=seed, widths=kinds, token_scales=token_scales, trellis=of_keys,
        value_trellis=of_values,
    )  # fmt: skip
    keys, values, phases = random_states(layer, 2, seed=seed)
    records = encode(keys, values, phases, layer)
    key_codes, value_codes, *both_scales = layer.packing.unpack(records)
    for expected, scales, decoded in zip(
        plain_values(layer, key_codes, value_codes),
        both_scales,
        decode(records, phases, layer),
        strict=True,
    ):
        steps = 1.0 if scales is None else scales.float()[..., None]
        torch.testing.assert_close(decoded, expected * steps, rtol=1e-6, atol=1e-6)


def by_token(parts: Tensor) -> Tensor:
    """(P, H, 16, D) as (P * 16, H * D): a token's channels, head by head."""
    return parts.transpose(1, 2).flatten(2).flatten(0, 1)


def nearest_codes(states: Tensor, widths: list[int], book: Codebook) -> Tensor:
    """Of each channel alone."""
    codes = torch.zeros(states.shape, dtype=torch.uint8)
    for channel, width in enumerate(widths):
        if width:
            values = torch.tensor(book.values(width), dtype=torch.float64)
            distances = (states[:, channel].double()[:, None] - values).abs()
            codes[:, channel] = distances.argmin(1).byte()
    return codes


@pytest.mark.parametrize("token_scales", [True, False])
@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("widths", [ALL_WIDTHS, (1,), (3, 0)])
def test_a_trellis_takes_one_path_through_all_heads_and_values_follow_on_keys(
    widths: tuple[int, ...], sides: str, token_scales: bool
) -> None:
    of_keys, of_values = SIDES[sides]
    layer = random_layer(
        3, 16, seed=2, widths=widths, token_scales=token_scales, trellis=of_keys,
        value_trellis=of_values,
    )  # fmt: skip
    keys, values, phases = random_states(layer, 2)
    key_codes, value_codes, *scales = layer.packing.unpack(encode(keys, values, phases, layer))
    coded_keys, coded_values = (
        by_token(states if scale is None else states / scale.float()[..., None])
        for states, scale in zip((keys, values), scales, strict=True)
    )
    key_widths, value_widths = (
        table.repeat_interleave(4, 1).flatten().tolist()
        for table in (layer.packing.key_widths, layer.packing.value_widths)
    )
    expected = (path_codes if of_keys else nearest_codes)(
        coded_keys, key_widths, layer.key_codebook
    )
    assert torch.equal(by_token(key_codes), expected)
    if not of_values:
        expected = nearest_codes(coded_values, value_widths, layer.value_codebook)
        assert torch.equal(by_token(value_codes), expected)
        return
    before = torch.tensor([last_state(token, key_widths[::4]) for token in expected.tolist()])
    expected = path_codes(coded_values, value_widths, layer.value_codebook, before)
    assert torch.equal(by_token(value_codes), expected)
    alone = path_codes(coded_values, value_widths, layer.value_codebook)
    assert not torch.equal(by_token(value_codes), alone), "what came before them had a say"


def possible_values(codebook: Codebook, widths: Tensor) -> Tensor:
    """(H, D, 256), float64: what each channel's codes stand for; infinity where there is none."""
    values = torch.full((*widths.shape, 256), float("inf"), dtype=torch.float64)
    for head, group in torch.cartesian_prod(*map(torch.arange, widths.shape)).tolist():
        width = int(widths[head, group])
        of_codes = codebook.values(width) if width else (0.0,)
        values[head, group, : len(of_codes)] = torch.tensor(of_codes, dtype=torch.float64)
    return values.repeat_interleave(4, 1)


@settings(deadline=None, max_examples=40)
@given(
    widths=st.sampled_from([*((width,) for width in ALL_WIDTHS[1:]), ALL_WIDTHS, (0, 3, 8)]),
    token_scales=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_no_other_code_is_nearer(widths: tuple[int, ...], token_scales: bool, seed: int) -> None:
    layer = random_layer(2, 16, seed=seed, widths=widths, token_scales=token_scales)
    keys, values, phases = random_states(layer, 2, seed=seed)
    records = encode(keys, values, phases, layer)
    _, _, *scales = layer.packing.unpack(records)
    decoded = decode(records, phases, layer)
    of_channels = (
        possible_values(layer.key_codebook, layer.packing.key_widths),
        possible_values(layer.value_codebook, layer.packing.value_widths),
    )
    for states, found, step, possible in zip(
        (keys, values), decoded, scales, of_channels, strict=True
    ):
        steps = torch.ones(states.shape[:-1]) if step is None else step
        scaled = possible[:, None] * steps.double()[..., None, None]
        distances = (states.double()[..., None] - scaled).abs().nan_to_num(float("inf"))
        torch.testing.assert_close(
            (found.double() - states.double()).abs(), distances.amin(-1), rtol=1e-5, atol=1e-6
        )
