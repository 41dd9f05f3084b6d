"""Calibrated transforms: they invert, keep products, decorrelate, and bits go where they save."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentmem.kernels.code_stream import WORD_WIDTHS
from agentmem.kernels.gaussian_codebook import CODEBOOK
from agentmem.kernels.rotary import as_channels, ordered_pairs, unit_rotations
from agentmem.kernels.transform_coding import (
    ERRORS,
    STRETCH_TOKENS,
    HeadTransforms,
    LayerMoments,
    fit_transforms,
    rotated_mean,
    water_fill,
)

HEADS, DIM, COUNT = 2, 16, 64 * 30


def frequencies(head_dim: int = DIM) -> Tensor:
    """Radians per position; the last pair is not rotated."""
    values = 10_000.0 ** (-torch.arange(head_dim // 2, dtype=torch.float64) / (head_dim // 2))
    values[-1] = 0.0
    return values


def mixed(generator: torch.Generator, heads: int = HEADS, head_dim: int = DIM) -> Tensor:
    """A random matrix a head whose directions differ a hundredfold."""
    scales = torch.logspace(0, -2, head_dim, dtype=torch.float64)
    return torch.randn((heads, head_dim, head_dim), generator=generator).double() * scales[:, None]


def sampled(seed: int, heads: int = HEADS, head_dim: int = DIM) -> tuple[LayerMoments, Tensor, Any]:
    """Moments of random keys and values, the block-local keys, and the values."""
    generator = torch.Generator().manual_seed(seed)
    shape = (heads, COUNT, head_dim)
    mean = torch.randn((heads, 1, head_dim), generator=generator) * 3
    keys = (
        mean + torch.randn(shape, generator=generator) @ mixed(generator, heads, head_dim).float()
    )
    offsets = torch.arange(COUNT) % STRETCH_TOKENS
    local = as_channels(ordered_pairs(keys) * unit_rotations(offsets, frequencies(head_dim)))
    local = local.double()
    values = torch.randn(shape, generator=generator).double() @ mixed(generator, heads, head_dim)
    values = values + 1.0

    def products(rows: Tensor) -> Tensor:
        return rows.transpose(1, 2) @ rows / rows.shape[1]

    moments = LayerMoments(
        frequencies=frequencies(head_dim),
        key_means=local.reshape(heads, -1, STRETCH_TOKENS, head_dim).mean(1).transpose(0, 1),
        key_products=products(local),
        value_mean=values.mean(1),
        value_products=products(values),
        query_products=products(mixed(generator, heads, head_dim)),
        output_products=products(mixed(generator, heads, head_dim)),
        key_fisher=products(mixed(generator, heads, head_dim)) * 10.0**-seed,
        value_fisher=products(mixed(generator, heads, head_dim)) * 10.0**-seed,
    )
    return moments, local, values


def centered_keys(moments: LayerMoments, local: Tensor, keys: HeadTransforms) -> Tensor:
    centers = rotated_mean(keys.mean, moments.frequencies).transpose(0, 1).double()
    return local - centers.repeat(1, COUNT // STRETCH_TOKENS, 1)


@pytest.mark.parametrize("head_dim", [8, 16, 64])
def test_the_transform_inverts(head_dim: int) -> None:
    moments, _, values = sampled(1, head_dim=head_dim)
    for transform in fit_transforms([moments])[0]:
        product = transform.forward.double() @ transform.inverse.double()
        assert torch.allclose(product, torch.eye(head_dim).double(), atol=1e-4)
    coded = (values.float() - transform.mean[:, None]) @ transform.forward
    back = coded @ transform.inverse + transform.mean[:, None]
    assert float((back - values).norm() / values.norm()) < 1e-5


def test_transformed_queries_have_the_products_of_the_keys_less_their_center() -> None:
    moments, local, _ = sampled(2)
    keys = fit_transforms([moments])[0][0]
    centered = centered_keys(moments, local, keys)
    queries = torch.randn((HEADS, 7, DIM)).double()
    coded = centered @ keys.forward.double()
    found = (queries @ keys.inverse.double().transpose(1, 2)) @ coded.transpose(1, 2)
    expected = queries @ centered.transpose(1, 2)
    assert float((found - expected).norm() / expected.norm()) < 1e-5


def test_groups_come_uncorrelated_with_a_variance_of_one_and_the_costliest_first() -> None:
    moments, local, values = sampled(3)
    keys, coded_values = fit_transforms([moments])[0]
    same_group = torch.kron(torch.eye(DIM // 4), torch.ones(4, 4)).bool()
    for transform, centered in (
        (keys, centered_keys(moments, local, keys)),
        (coded_values, values - moments.value_mean[:, None]),
    ):
        coded = centered @ transform.forward.double()
        covariance = coded.transpose(1, 2) @ coded / COUNT
        between = covariance.masked_fill(same_group, 0.0)
        assert float(between.abs().max()) < 1e-3
        variances = covariance.diagonal(dim1=1, dim2=2).reshape(HEADS, -1, 4)
        assert torch.allclose(variances, torch.ones(1).double(), atol=1e-3)
        assert bool((transform.importances.diff(dim=-1) <= 0).all())


def test_an_error_of_one_in_a_channel_costs_its_importance() -> None:
    # Without gradients, and with an output projection that treats all directions alike, an error
    # costs its square, and the ridge of 5 % on top.
    moments, _, _ = sampled(3)
    plain = replace(
        moments,
        key_fisher=None,
        value_fisher=None,
        output_products=torch.eye(DIM).double().repeat(HEADS, 1, 1),
        value_weight=2.0,
    )
    values = fit_transforms([plain])[0][1]
    costs = 2.0 * 1.05 * values.inverse.double().square().sum(-1)
    assert torch.allclose(costs, values.importances.double(), rtol=1e-4)


def test_layers_that_matter_more_get_more_bits_without_gradients_too() -> None:
    moments, _, _ = sampled(3)
    plain = replace(moments, key_fisher=None, value_fisher=None)
    pairs = fit_transforms([plain, replace(plain, key_weight=100.0, value_weight=0.01)])
    widths = water_fill([(keys.importances, values.importances) for keys, values in pairs], 2.0)
    keys, values, dear_keys, cheap_values = (
        float(width.float().mean()) for layer in widths for width in layer
    )
    assert dear_keys > keys + 1 and cheap_values <= values - 1


def test_wide_codes_reach_the_peaks_that_were_seen_and_narrow_ones_stay() -> None:
    moments, _, _ = sampled(3)
    values = fit_transforms([moments])[0][1]
    values = replace(values, peaks=torch.full((HEADS, DIM), 20.0))
    widths = torch.tensor([[8, 6, 4, 0]] * HEADS, dtype=torch.uint8)
    fitted = values.fitted_to(widths)
    top = torch.tensor([CODEBOOK.top(8)] * 4 + [CODEBOOK.top(6)] * 4)
    assert bool((fitted.peaks[:, :8] <= top).all()) and bool((fitted.peaks[:, :8] > 18 / 4.5).all())
    assert torch.equal(fitted.spreads[:, 8:], values.spreads[:, 8:])
    assert torch.allclose(
        fitted.forward @ fitted.inverse, torch.eye(DIM).expand(HEADS, -1, -1), atol=1e-4
    )


def test_the_center_of_keys_is_their_mean_before_they_were_rotated() -> None:
    moments, local, _ = sampled(4)
    mean = fit_transforms([moments])[0][0].mean
    offsets = torch.arange(COUNT) % STRETCH_TOKENS
    turns = unit_rotations(offsets, moments.frequencies, inverse=True)
    expected = as_channels(ordered_pairs(local.float()) * turns).mean(1)
    assert torch.allclose(mean, expected, atol=1e-4)


def quantized_loss(average_bits: float) -> float:
    """Weighted error of two unlike layers coded by a uniform quantizer at these widths."""
    layers = [sampled(seed) for seed in (0, 2)]
    transforms = fit_transforms([moments for moments, _, _ in layers])
    widths = water_fill(
        [(keys.importances, values.importances) for keys, values in transforms], average_bits
    )
    total = 0.0
    for (_, _, values), (_, part), (_, width) in zip(layers, transforms, widths, strict=True):
        coded = (values - part.mean.double()[:, None]) @ part.forward.double()
        levels = 2.0 ** width.double().repeat_interleave(4, 1)[:, None]
        step = 8.0 / levels
        rounded = ((coded / step).floor() + 0.5).clamp(-levels / 2, levels / 2 - 0.5) * step
        rounded = torch.where(levels == 1, 0.0, rounded)
        error = (rounded - coded).square().mean(1)
        total += float((error * part.importances.double()).sum())
    return total


def test_more_bits_lose_less() -> None:
    losses = [quantized_loss(bits) for bits in (1.0, 1.5, 2.0, 3.0, 4.0)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 20


@settings(deadline=None, max_examples=50)
@given(
    average=st.floats(1.0, 4.0),
    shapes=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([4, 16, 64])), min_size=1, max_size=5
    ),
    seed=st.integers(0, 100),
)
def test_widths_average_to_what_was_asked_over_all_layers(
    average: float, shapes: list[tuple[int, int]], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    layers = [tuple(torch.rand((2, *shape), generator=generator) ** 8 + 1e-9) for shape in shapes]
    widths = water_fill([(keys, values) for keys, values in layers], average)
    flat = torch.cat([width.flatten() for layer in widths for width in layer]).float()
    for layer, (heads, dim) in zip(widths, shapes, strict=True):
        for width in layer:
            assert width.shape == (heads, dim // 4)
            assert width.dtype == torch.uint8 and int(width.max()) <= 8
        assert sum(int(width.sum()) for width in layer) % WORD_WIDTHS == 0, "a word is half empty"
    assert abs(float(flat.sum()) - average * len(flat)) <= WORD_WIDTHS / 2 + 1e-3


def test_the_next_bits_go_where_they_save_most() -> None:
    # Two layers, one ten times as important: with bits for one word in all, it goes to that one.
    important, other = water_fill([(torch.full((1, 8), 10.0),) * 2, (torch.ones(1, 8),) * 2], 1.0)
    assert [width.tolist() for width in important] == [[[2, 2]], [[2, 2]]]
    assert [width.tolist() for width in other] == [[[0, 0]], [[0, 0]]]
    # Within a layer, to the groups that matter, of keys or of values.
    keys, values = torch.tensor([[1e3] * 4 + [1e-4] * 4]), torch.tensor([[1.0] * 4 + [1e-4] * 4])
    ((of_keys, of_values),) = water_fill([(keys, values)], 2.0)
    assert of_keys.tolist() == [[7, 0]] and of_values.tolist() == [[1, 0]]


def test_a_width_is_never_more_than_8_however_important_the_channels() -> None:
    ((keys, values),) = water_fill([(torch.full((1, 4), 1e9), torch.full((1, 4), 1e-9))], 4.0)
    assert keys.tolist() == [[8]] and values.tolist() == [[0]]


def test_a_head_that_never_varies_is_transformed_without_nan() -> None:
    moments, _, _ = sampled(5)
    zero = torch.zeros_like(moments.value_products)
    still = replace(moments, value_products=zero, value_mean=torch.zeros_like(moments.value_mean))
    values = fit_transforms([still])[0][1]
    for tensor in (values.forward, values.inverse, values.importances):
        assert bool(torch.isfinite(tensor).all())


def test_each_bit_counts_less_than_the_one_before() -> None:
    saved = [low - high for low, high in zip(ERRORS[1:], ERRORS, strict=False)]
    assert saved == sorted(saved)
