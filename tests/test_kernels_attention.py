"""Paged attention against plain attention over the same tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agentmem.kernels.attention import (
    OnlineSoftmax,
    mix_pages,
    mix_pages_int8,
    page_logits,
    page_logits_int8,
)
from agentmem.kernels.quantize import QuantizedRows, dequantize_int8, quantize_int8
from agentmem.kernels.rotary import as_channels, as_pairs, unit_rotations

SHAPES = [(1, 1, 1, 16, 64), (5, 3, 3, 16, 64), (7, 2, 8, 4, 96), (3, 1, 4, 16, 128)]


def _strided(tensor: Tensor) -> Tensor:
    """The same numbers in memory that is not contiguous."""
    wide = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] * 2, dtype=tensor.dtype)
    wide[..., ::2] = tensor
    return wide[..., ::2]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_page_logits_are_products_of_queries_and_keys(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    pages, heads, rows, tokens, channels = shape
    queries = torch.randn(pages, heads, rows, channels)
    keys = _strided(torch.randn(pages, heads, tokens, channels).to(dtype))
    logits = torch.empty(heads, rows, pages, tokens)
    page_logits(queries, keys, logits.permute(2, 0, 1, 3))
    expected = torch.einsum("phrd,phtd->hrpt", queries, keys.float())
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_int8_logits_and_values_equal_those_of_the_dequantized_pages(
    shape: tuple[int, ...],
) -> None:
    pages, heads, rows, tokens, channels = shape
    queries = torch.randn(pages, heads, rows, channels)
    keys = quantize_int8(torch.randn(pages, heads, tokens, channels))
    keys = QuantizedRows(_strided(keys.codes), _strided(keys.scales))
    logits = torch.empty(heads, rows, pages, tokens)
    page_logits_int8(queries, keys.codes, keys.scales, logits.permute(2, 0, 1, 3))
    expected = torch.einsum("phrd,phtd->hrpt", queries, dequantize_int8(keys))
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-4)

    values = quantize_int8(torch.randn(heads, pages, tokens, channels))
    weights = logits.flatten(2).softmax(-1)
    found = mix_pages_int8(weights, values.codes, values.scales)
    dense = dequantize_int8(values)
    torch.testing.assert_close(found, mix_pages(weights, dense), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found, weights @ dense.flatten(1, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("with_sinks", [False, True])
def test_online_softmax_over_tiles_equals_softmax_over_the_whole_row(with_sinks: bool) -> None:
    heads, rows, channels = 2, 5, 16
    logits = torch.randn(heads, rows, 40) * 20
    logits[:, 1, :16] = float("-inf")
    values = torch.randn(heads, 40, channels)
    sinks = torch.randn(heads, rows) if with_sinks else None
    softmax = OnlineSoftmax(heads, rows, channels, torch.device("cpu"), sinks)
    for begin, end in ((0, 16), (16, 17), (17, 40)):
        softmax.fold(logits[..., begin:end].clone(), values[:, begin:end], slice(None))
    columns = logits if sinks is None else torch.cat((logits, sinks[..., None]), -1)
    expected = columns.softmax(-1)[..., :40] @ values
    torch.testing.assert_close(softmax.result(), expected, rtol=1e-5, atol=1e-5)


def test_a_query_that_sees_nothing_gets_zeros_and_no_nan() -> None:
    softmax = OnlineSoftmax(1, 1, 4, torch.device("cpu"))
    softmax.fold(torch.full((1, 1, 3), float("-inf")), torch.randn(1, 3, 4), slice(None))
    assert softmax.result().tolist() == [[[0.0, 0.0, 0.0, 0.0]]]


def test_turning_the_query_back_is_turning_the_key_on() -> None:
    frequencies = torch.tensor([1.0, 0.1, 0.003, 0.0], dtype=torch.float64)
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    query, key = as_pairs(torch.randn(8), order), as_pairs(torch.randn(8), order)
    start = torch.tensor([123_457])
    turned_key = as_channels(key * unit_rotations(start, frequencies)[0])
    turned_query = as_channels(query * unit_rotations(start, frequencies, inverse=True)[0])
    torch.testing.assert_close(as_channels(query) @ turned_key, turned_query @ as_channels(key))


def test_pair_order_puts_the_two_channels_of_a_pair_side_by_side() -> None:
    order = torch.tensor([0, 2, 1, 3])
    assert as_channels(as_pairs(torch.tensor([1.0, 2.0, 3.0, 4.0]), order)).tolist() == [1, 3, 2, 4]


def test_angles_are_exact_at_large_positions() -> None:
    angle = unit_rotations(torch.tensor([1_000_003]), torch.tensor([1.0], dtype=torch.float64))
    # A float32 angle would already be rounded by 0.03 here, one of bf16 by 4,000.
    expected = torch.tensor(1_000_003.0, dtype=torch.float64)
    assert abs(float(angle.real) - float(expected.cos())) < 1e-6
    assert abs(float(angle.imag) - float(expected.sin())) < 1e-6
