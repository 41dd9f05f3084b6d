"""int8 rows: hand-made tables, the error bound, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.kernels.quantize import QuantizedRows, dequantize_int8, quantize_int8


def test_codes_and_scales_of_hand_made_rows() -> None:
    rows = torch.tensor([[127.0, -63.5, 1.0, 0.4], [0.0, 0.0, 0.0, 0.0], [-2.54, 1.27, 0.0, 0.02]])
    found = quantize_int8(rows)
    assert found.scales[:2].tolist() == [1.0, 0.0]
    assert found.codes.tolist() == [[127, -64, 1, 0], [0, 0, 0, 0], [-127, 63, 0, 1]]
    assert found.codes.dtype == torch.int8 and found.scales.dtype == torch.float16


def test_a_scale_is_rounded_up_so_that_no_code_overflows() -> None:
    # 1.0001 / 127 lies between two fp16 numbers; rounding down would need code 127.03.
    found = quantize_int8(torch.tensor([[1.0001, -1.0001]]))
    assert float(found.scales[0]) >= 1.0001 / 127
    assert found.codes.tolist() == [[127, -127]]


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 8), (5, 123), (1, 1), (2, 3, 16, 64)])
def test_odd_and_empty_shapes_keep_their_shape(shape: tuple[int, ...]) -> None:
    rows = torch.randn(shape)
    found = quantize_int8(rows)
    assert found.codes.shape == shape and found.scales.shape == shape[:-1]
    assert dequantize_int8(found).shape == shape


@settings(deadline=None, max_examples=60)
@given(
    exponent=st.integers(-9, 6),
    outlier=st.sampled_from([0.0, 1e3]),
    width=st.sampled_from([1, 3, 64]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_no_value_is_more_than_half_a_scale_off(
    exponent: int, outlier: float, width: int, dtype: torch.dtype, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn((7, width), generator=generator) * 10.0**exponent
    rows[0, 0] += outlier
    rows = rows.to(dtype)
    found = quantize_int8(rows)
    error = (dequantize_int8(found) - rows.float()).abs()
    # A few units in the last place for the multiplication itself.
    bound = found.scales.float()[:, None] / 2 + rows.float().abs() * 1e-6
    assert bool((error <= bound).all())
    assert int(found.codes.abs().max()) <= 127


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_refused(value: float) -> None:
    rows = torch.ones(2, 8)
    rows[1, 3] = value
    with pytest.raises(ValueError, match="finite"):
        quantize_int8(rows)


def test_values_too_large_for_a_scale_are_refused_with_the_value() -> None:
    with pytest.raises(ValueError, match=r"got 1e\+07"):
        quantize_int8(torch.full((1, 4), 1e7))


def test_dequantizing_multiplies_each_row_by_its_own_scale() -> None:
    rows = QuantizedRows(
        torch.tensor([[1, -2], [3, 4]], dtype=torch.int8), torch.tensor([0.5, 2.0]).half()
    )
    assert dequantize_int8(rows).tolist() == [[0.5, -1.0], [6.0, 8.0]]
