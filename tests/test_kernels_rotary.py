"""Rotary embedding as complex numbers."""

from __future__ import annotations

import pytest
import torch

from agentmem.kernels.rotary import as_channels, as_pairs, ordered_pairs, unit_rotations


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


def test_channels_in_pair_order_are_read_as_they_lie() -> None:
    channels = torch.randn(3, 5, 8)
    pairs = ordered_pairs(channels)
    assert pairs.shape == (3, 5, 4)
    assert torch.equal(pairs.real, channels[..., ::2])
    assert torch.equal(pairs.imag, channels[..., 1::2])
    assert torch.equal(as_channels(pairs), channels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_pairs_of_any_dtype_are_exact(dtype: torch.dtype) -> None:
    states = torch.randn(2, 4).to(dtype)
    pairs = as_pairs(states, torch.arange(4))
    assert pairs.dtype == torch.complex64
    assert torch.equal(as_channels(pairs), states.float())


def test_a_pair_of_frequency_zero_never_turns() -> None:
    turns = unit_rotations(torch.tensor([0, 7, 10**6]), torch.zeros(2, dtype=torch.float64))
    assert torch.equal(turns, torch.ones(3, 2, dtype=torch.complex64))


def test_angles_are_exact_at_large_positions() -> None:
    angle = unit_rotations(torch.tensor([1_000_003]), torch.tensor([1.0], dtype=torch.float64))
    # A float32 angle would already be rounded by 0.03 here, one of bf16 by 4,000.
    expected = torch.tensor(1_000_003.0, dtype=torch.float64)
    assert abs(float(angle.real) - float(expected.cos())) < 1e-6
    assert abs(float(angle.imag) - float(expected.sin())) < 1e-6
