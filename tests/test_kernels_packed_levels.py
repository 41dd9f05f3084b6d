"""Which levels packed pages are coded by, and that these are what comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentmem.kernels.codebook import Codebook
from agentmem.kernels.packed import PackedLayer, decode, encode
from agentmem.kernels.trellis import path_codes, state_after
from tests.packed_windows import ALL_WIDTHS, random_layer, random_states
from tests.slow_streams import slow_windows


def plain_values(codes: tuple[Tensor, Tensor], layer: PackedLayer) -> list[Tensor]:
    """What codes (P, H, 16, D) of keys and of values stand for, looked up one by one."""
    sides = list(
        zip(
            codes,
            (layer.packing.key_widths, layer.packing.value_widths),
            (layer.key_codebook, layer.value_codebook),
            strict=True,
        )
    )
    widths = [width for _, of_side, _ in sides for width in of_side.flatten().tolist()]
    by_token = torch.cat([part.transpose(1, 2).flatten(2) for part, _, _ in sides], 2)
    windows = torch.tensor(
        [[slow_windows(token, widths) for token in page] for page in by_token.tolist()]
    )
    values = []
    for (part, of_side, book), found in zip(sides, windows.chunk(2, 2), strict=True):
        table = {
            width: [level * unit for level in book.window_levels(width)]
            for width, unit in book.units.items()
        }
        table[0] = [0.0]
        channels = of_side.flatten().repeat_interleave(4).tolist()
        looked_up = [
            [[table[width][window] for width, window in zip(channels, token, strict=True)]
             for token in page]
            for page in found.tolist()
        ]  # fmt: skip
        values.append(torch.tensor(looked_up).view(part.transpose(1, 2).shape).transpose(1, 2))
    return values


@settings(deadline=None, max_examples=20)
@given(
    kinds=st.sampled_from([(1,), (2,), (3,), (4,), (7,), ALL_WIDTHS, (0, 3)]),
    token_scales=st.booleans(),
    trellis=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_what_comes_back_are_the_levels_of_the_windows_in_the_bytes(
    kinds: tuple[int, ...], token_scales: bool, trellis: bool, seed: int
) -> None:
    layer = random_layer(2, 12, seed=seed, widths=kinds, token_scales=token_scales, trellis=trellis)
    keys, values, phases = random_states(layer, 2, seed=seed)
    records = encode(keys, values, phases, layer)
    key_codes, value_codes, *scales = layer.packing.unpack(records)
    plain = plain_values((key_codes, value_codes), layer)
    for expected, of_side, found in zip(plain, scales, decode(records, phases, layer), strict=True):
        scaled = expected if of_side is None else expected * of_side.float()[..., None]
        torch.testing.assert_close(found, scaled, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("token_scales", [True, False])
@pytest.mark.parametrize(("keys_trellis", "values_trellis"), [(1, 1), (0, 1), (1, 0)])
def test_codes_of_a_trellis_are_one_path_through_all_heads_from_where_keys_end(
    token_scales: bool, keys_trellis: bool, values_trellis: bool
) -> None:
    layers = [
        random_layer(3, 16, widths=ALL_WIDTHS, token_scales=token_scales, trellis=trellis)
        for trellis in (False, True)
    ]
    layer = replace(layers[keys_trellis], value_codebook=layers[values_trellis].value_codebook)
    states = random_states(layer, 2)
    records = encode(*states, layer)
    *codes, key_scales, value_scales = layer.packing.unpack(records)
    before = None
    for part, found, scales, groups, book in zip(
        states[:2],
        codes,
        (key_scales, value_scales),
        (layer.packing.key_widths, layer.packing.value_widths),
        (layer.key_codebook, layer.value_codebook),
        strict=True,
    ):
        assert found is not None
        widths = groups.flatten().repeat_interleave(4).tolist()
        coded = part if scales is None else part / scales.float()[..., None]
        by_token, stream = (one.transpose(1, 2).reshape(-1, len(widths)) for one in (coded, found))
        if book.is_trellis:
            assert torch.equal(stream, path_codes(by_token, widths, book, before))
        before = state_after(stream, widths)


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
