"""What packing pages loses: hand-made rows, bounds, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentmem.kernels.codebook import Codebook
from agentmem.kernels.packed import PackedLayer, decode, encode
from agentmem.kernels.packing import Packing
from tests.packed_windows import ALL_WIDTHS, codebook, random_layer, random_states

Q8_CODES = Codebook({}, {8: 1.0})


def q8_layer(num_heads: int, head_dim: int) -> PackedLayer:
    return PackedLayer(Packing.uniform(num_heads, head_dim, 8), Q8_CODES, Q8_CODES)


def page_of(rows: list[list[float]]) -> Tensor:
    """One page of one head that begins with these tokens; the others are 0."""
    page = torch.zeros((1, 1, 16, len(rows[0])))
    page[0, 0, : len(rows)] = torch.tensor(rows)
    return page


def test_codes_and_scales_of_hand_made_rows() -> None:
    rows = page_of([[127.0, -63.6, 1.0, 0.4], [0.0, 0.0, 0.0, 0.0], [-2.54, 1.27, 0.0, 0.02]])
    layer = q8_layer(1, 4)
    records = encode(rows, rows.flip(-1), torch.zeros(1), layer)
    keys, values, key_scales, value_scales = layer.packing.unpack(records)
    assert key_scales is not None and value_scales is not None
    expected = [[127, -64, 1, 0], [0, 0, 0, 0], [-127, 63, 0, 1]]
    # Codes count from the lowest level, -128.
    assert (keys[0, 0, :3].int() - 128).tolist() == expected
    assert (values[0, 0, :3].flip(-1).int() - 128).tolist() == expected
    assert key_scales[0, 0, :2].tolist() == [1.0, 0.0] and key_scales.dtype == torch.float16
    assert torch.equal(key_scales, value_scales)


def test_a_scale_is_rounded_up_so_that_no_code_overflows() -> None:
    # 1.0001 / 127 lies between two fp16 numbers; rounding down would need code 127.03.
    layer = q8_layer(1, 4)
    rows = page_of([[1.0001, -1.0001, 0.0, 0.0]])
    codes, _, scales, _ = layer.packing.unpack(encode(rows, rows, torch.zeros(1), layer))
    assert scales is not None and float(scales[0, 0, 0]) >= 1.0001 / 127
    assert (codes[0, 0, 0].int() - 128).tolist() == [127, -127, 0, 0]


@settings(deadline=None, max_examples=50)
@given(
    exponent=st.integers(-9, 6),
    outlier=st.sampled_from([0.0, 1e3]),
    head_dim=st.sampled_from([4, 12, 64]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_q8_is_at_most_half_a_scale_off(
    exponent: int, outlier: float, head_dim: int, dtype: torch.dtype, seed: int
) -> None:
    layer = q8_layer(2, head_dim)
    keys, values, phases = random_states(layer, 2, seed=seed)
    keys, values = keys * 10.0**exponent, values * 10.0**exponent
    keys[0, 0, 0, 0] += outlier
    keys, values = keys.to(dtype), values.to(dtype)
    records = encode(keys, values, phases, layer)
    _, _, key_scales, value_scales = layer.packing.unpack(records)
    pairs = zip(
        (keys, values), decode(records, phases, layer), (key_scales, value_scales), strict=True
    )
    for states, decoded, scales in pairs:
        assert scales is not None
        # A few units in the last place for the multiplication itself.
        bound = scales.float()[..., None] / 2 + states.float().abs() * 1e-6
        assert bool(((decoded - states.float()).abs() <= bound).all())


@pytest.mark.parametrize("token_scales", [True, False])
def test_what_the_codes_can_say_comes_back_out_of_any_frame(token_scales: bool) -> None:
    """Decoding is the exact inverse: what was decoded once is coded and decoded the same again."""
    layer = random_layer(
        2, 12, widths=(8,), token_scales=token_scales, centered=True, transformed=True
    )
    keys, values, phases = random_states(layer, 5)
    decoded = decode(encode(keys, values, phases, layer), phases, layer)
    again = decode(encode(*decoded, phases, layer), phases, layer)
    for states, once, twice in zip((keys, values), decoded, again, strict=True):
        torch.testing.assert_close(twice, once, rtol=0, atol=0.3 if token_scales else 1e-4)
        assert 0 < float((once - states).abs().max()) < 0.6


def test_the_center_taken_off_is_that_of_the_offset_in_the_stretch() -> None:
    layer = replace(q8_layer(2, 8), center=1000 + torch.arange(64.0 * 2 * 8).view(64, 2, 8))
    assert layer.center is not None
    keys = torch.randn((6, 2, 16, 8))
    phases = torch.tensor([0, 1, 2, 3, 0, 2], dtype=torch.int32)
    for page, phase in enumerate(phases.tolist()):
        keys[page] += layer.center[16 * phase : 16 * phase + 16].transpose(0, 1)
    records = encode(keys, keys, phases, layer)
    torch.testing.assert_close(decode(records, phases, layer)[0], keys, rtol=0, atol=0.05)
    plain = q8_layer(2, 8)
    lost = decode(encode(keys, keys, phases, plain), phases, plain)[0] - keys
    assert float(lost.abs().max()) > 1, "without a center its size is lost to the keys"


def test_channels_without_bits_become_the_center_and_the_mean() -> None:
    layer = random_layer(1, 8, widths=(8,), centered=True)
    packing = Packing(torch.tensor([[8, 0]]).byte(), torch.tensor([[0, 8]]).byte())
    layer = replace(layer, packing=packing)
    assert layer.center is not None and layer.value_mean is not None
    keys, values, phases = random_states(layer, 4)
    decoded = decode(encode(keys, values, phases, layer), phases, layer)
    center = layer.center.view(4, 16, 1, 8).transpose(1, 2)
    assert torch.equal(decoded[0][..., 4:], center[..., 4:])
    assert torch.equal(decoded[1][..., :4], layer.value_mean[:, None, :4].expand(4, 1, 16, 4))
    torch.testing.assert_close(decoded[0][..., :4], keys[..., :4], rtol=0, atol=0.2)


@pytest.mark.parametrize("token_scales", [True, False])
def test_a_layer_may_have_no_bits_at_all(token_scales: bool) -> None:
    packing = Packing.uniform(2, 8, 0, token_scales=token_scales)
    layer = PackedLayer(packing, Q8_CODES, Q8_CODES)
    keys, values, phases = random_states(layer, 3)
    for decoded in decode(encode(keys, values, phases, layer), phases, layer):
        assert decoded.shape == keys.shape and not decoded.any()


@pytest.mark.parametrize("trellis", [False, True])
@pytest.mark.parametrize("frame", [False, True])
def test_pages_are_decoded_in_any_order(frame: bool, trellis: bool) -> None:
    layer = random_layer(
        2, 16, widths=ALL_WIDTHS, token_scales=False, centered=frame, transformed=frame,
        trellis=trellis,
    )  # fmt: skip
    keys, values, phases = random_states(layer, 9)
    records = encode(keys, values, phases, layer)
    order = torch.tensor([8, 0, 3, 3, 5, 1])
    for part, expected in zip(
        decode(records[order], phases[order], layer), decode(records, phases, layer), strict=True
    ):
        torch.testing.assert_close(part, expected[order])


@pytest.mark.parametrize("num_pages", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("trellis", [False, True])
def test_no_pages_and_every_dtype_keep_their_shape(
    num_pages: int, dtype: torch.dtype, trellis: bool
) -> None:
    layer = random_layer(3, 20, widths=(3, 8), centered=True, transformed=True, trellis=trellis)
    keys, values, phases = random_states(layer, num_pages)
    keys, values = keys.to(dtype), values.to(dtype)
    records = encode(keys, values, phases, layer)
    assert records.shape == (num_pages, layer.packing.page_nbytes)
    for decoded in decode(records, phases, layer):
        assert decoded.shape == keys.shape and decoded.dtype == torch.float32


@pytest.fixture
def _every_warning() -> Iterator[None]:
    """Let torch say every time what it otherwise says once."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.mark.usefixtures("_every_warning")
@pytest.mark.parametrize("token_scales", [True, False])
@pytest.mark.parametrize("framed", [True, False])
@pytest.mark.parametrize("trellis", [True, False])
def test_states_are_coded_wherever_they_lie(
    trellis: bool, framed: bool, token_scales: bool
) -> None:
    layer = random_layer(
        2, 16, widths=ALL_WIDTHS, token_scales=token_scales, centered=framed, transformed=framed,
        trellis=trellis,
    )  # fmt: skip
    keys, values, phases = random_states(layer, 3)
    expected = encode(keys, values, phases, layer)
    strided_keys, strided_values = (
        states.transpose(1, 3).contiguous().transpose(1, 3) for states in (keys, values)
    )
    strided_phases = phases.repeat_interleave(2)[::2]
    assert not strided_keys.is_contiguous() and not strided_phases.is_contiguous()
    assert torch.equal(encode(strided_keys, strided_values, strided_phases, layer), expected)
    assert torch.equal(keys, random_states(layer, 3)[0]), "what is coded is left as it was"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("token_scales", [True, False])
@pytest.mark.parametrize("trellis", [True, False])
def test_what_is_not_finite_is_refused(
    value: float, part: int, token_scales: bool, trellis: bool
) -> None:
    layer = random_layer(2, 8, widths=(8, 3), token_scales=token_scales, trellis=trellis)
    keys, values, phases = random_states(layer, 2)
    (keys, values)[part][1, 1, 3, 5] = value
    with pytest.raises(ValueError, match="finite.*NaN or infinity"):
        encode(keys, values, phases, layer)


def test_values_too_large_for_a_scale_are_refused_with_the_value() -> None:
    keys, values, phases = random_states(q8_layer(1, 4), 1)
    keys[0, 0, 7, 2] = -1e7
    with pytest.raises(ValueError, match=r"up to 8.32e\+06 can be packed: got 1e\+07"):
        encode(keys, values, phases, q8_layer(1, 4))


def test_finite_values_are_never_called_infinite() -> None:
    keys, values, phases = random_states(q8_layer(1, 4), 1)
    keys[:] = 3e38
    with pytest.raises(ValueError, match=r"got 3e\+38"):
        encode(keys, values, phases, q8_layer(1, 4))


def test_large_values_are_clipped_where_tokens_have_no_scales() -> None:
    book = codebook((4,))
    layer = PackedLayer(Packing.uniform(1, 4, 4, token_scales=False), book, book)
    rows = page_of([[1e30, -1e30, 0.0, 0.0]])
    decoded = decode(encode(rows, rows, torch.zeros(1), layer), torch.zeros(1), layer)[0]
    values = torch.tensor(book.values(4))
    assert decoded[0, 0, 0, :2].tolist() == [float(values[-1]), float(values[0])]
