"""A linear transform per head after which few bits a channel suffice, and which channel gets them.

    z = (x - mean) @ forward        x = z @ inverse + mean        E[z z^T] = 1

From second moments of what is coded and a metric of what an error costs, `forward` is a
Karhunen-Loeve transform in that metric: channels come uncorrelated, and an error of one in channel
i of z costs `importances[i]`. Bits are then handed out by water-filling: the next bit goes wherever
it saves most, over all keys and values of a model. Based on KVTC, arXiv 2511.01815, with the metric
of OSCAR, arXiv 2605.17757, replaced by a mix with the Fisher information. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentmem.kernels.rotary import as_channels, ordered_pairs, unit_rotations

STRETCH_TOKENS = 64
"""Tokens by whose offset keys are rotated."""
_FISHER_SHARE = 0.7
"""Of the metric; the rest is what queries, or the output projection, make of an error."""
_WEIGHT_EXPONENT = 0.75
"""Fisher information differs a thousandfold between heads, and its estimate is noisy: it is drawn
towards the mean."""
_RIDGE = 0.05
"""Of the metric's mean, added to every direction: none is free."""
_SMALLEST_SHARE = 1e-12
"""Of a head's largest variance, and of the mean weight: nothing is divided by less."""
_SMALLEST_SPREAD = 1e-6
"""Absolute: below, states are as good as constant."""
CODING_ERRORS = (1.0, 0.363, 0.1175, 0.0345, 0.0095, 0.0035, 0.00095, 0.00035, 0.00009)
"""Mean squared error of a unit Gaussian at 0 to 8 bits, as its codebooks code it."""


@dataclass(frozen=True, slots=True)
class LayerMoments:
    """What a calibration learns of one layer. All float64, keys and queries in pair order.

    Keys are block-local: rotated by their offset in their stretch alone; queries are turned back to
    the start of the stretch they look at.

    Args:
        frequencies: (head_dim / 2,), radians per position.
        key_means: (STRETCH_TOKENS, num_kv_heads, head_dim): mean of the keys at each offset.
        key_products: (num_kv_heads, head_dim, head_dim): E[k k^T].
        value_mean: (num_kv_heads, head_dim).
        value_products: (num_kv_heads, head_dim, head_dim): E[v v^T].
        query_products: the same shape: E[q q^T] over the queries of each key head.
        output_products: the same shape: W W^T of the output projection, summed over query heads.
        key_fisher: the same shape: E[g g^T] of the gradients of sampled log-probabilities.
        value_fisher: the same for values.
    """

    frequencies: Tensor
    key_means: Tensor
    key_products: Tensor
    value_mean: Tensor
    value_products: Tensor
    query_products: Tensor
    output_products: Tensor
    key_fisher: Tensor | None
    value_fisher: Tensor | None


@dataclass(frozen=True, slots=True)
class HeadTransforms:
    """The transforms of one layer's keys or values.

    Args:
        mean: (num_heads, head_dim), float32: of values; of keys before they are rotated.
        directions: (num_heads, head_dim, head_dim), float32: unit columns.
        spreads: (num_heads, head_dim), float32: standard deviation along each direction.
        importances: (num_heads, head_dim), float32, descending: what is lost by coding a channel
            with no bits.
    """

    mean: Tensor
    directions: Tensor
    spreads: Tensor
    importances: Tensor

    @property
    def forward(self) -> Tensor:
        """(num_heads, head_dim, head_dim), float32: states less their mean to z."""
        return self.directions / self.spreads[:, None, :]

    @property
    def inverse(self) -> Tensor:
        """(num_heads, head_dim, head_dim), float32: z to states less their mean."""
        inverse: Tensor = torch.linalg.inv(self.directions.double())
        return (inverse * self.spreads[:, :, None]).float()


def rotated_mean(mean: Tensor, frequencies: Tensor) -> Tensor:
    """The mean of un-rotated keys as it stands at each offset of a stretch.

    Args:
        mean: (num_heads, head_dim), pair order.
        frequencies: (head_dim / 2,), float64.

    Returns:
        (STRETCH_TOKENS, num_heads, head_dim), float32.
    """
    turns = unit_rotations(torch.arange(STRETCH_TOKENS, device=mean.device), frequencies)
    return as_channels(ordered_pairs(mean.float()) * turns[:, None, :])


def fit_transforms(
    moments: Sequence[LayerMoments],
) -> list[tuple[HeadTransforms, HeadTransforms]]:
    """The transforms of keys and of values, layer by layer."""
    key_metrics = _metrics(
        [layer.key_fisher for layer in moments], [layer.query_products for layer in moments]
    )
    value_metrics = _metrics(
        [layer.value_fisher for layer in moments], [layer.output_products for layer in moments]
    )
    transforms = []
    for layer, key_metric, value_metric in zip(moments, key_metrics, value_metrics, strict=True):
        mean, covariance = _center_keys(layer)
        keys = _fit(mean, covariance, key_metric)
        outer = layer.value_mean[:, :, None] * layer.value_mean[:, None, :]
        values = _fit(layer.value_mean, layer.value_products - outer, value_metric)
        transforms.append((keys, values))
    return transforms


def water_fill(
    importances: Sequence[Tensor], average_bits: float, group_channels: int = 4
) -> list[Tensor]:
    """Widths of groups of neighbouring channels, where the bits of a model save most.

    Args:
        importances: of each layer's keys or values, (num_heads, head_dim); a layer may be absent,
            and heads may differ in size.
        average_bits: bits a channel over everything.
        group_channels: channels of one width.

    Returns:
        For each of `importances` (num_heads, head_dim / group_channels), uint8, 0 to 8.
    """
    errors = torch.tensor(CODING_ERRORS, dtype=torch.float64)
    saved_per_bit = errors[:-1] - errors[1:]
    groups = [one.double().reshape(one.shape[0], -1, group_channels).sum(-1) for one in importances]
    flat = torch.cat([one.flatten() for one in groups])
    savings = (flat[:, None] * saved_per_bit).flatten()
    num_bits = round(average_bits * flat.numel())
    chosen = torch.zeros(savings.shape, dtype=torch.uint8)
    chosen[savings.argsort(descending=True, stable=True)[:num_bits]] = 1
    widths = chosen.view(-1, len(saved_per_bit)).sum(1).to(torch.uint8)
    parts = torch.split(widths, [one.numel() for one in groups])
    return [part.view(one.shape) for part, one in zip(parts, groups, strict=True)]


def _center_keys(layer: LayerMoments) -> tuple[Tensor, Tensor]:
    """Mean of the un-rotated keys, and covariance of the block-local keys around it."""
    offsets = torch.arange(STRETCH_TOKENS)
    angles = offsets.double()[:, None, None] * layer.frequencies
    turns = torch.complex(angles.cos(), angles.sin())
    pairs = torch.view_as_complex(layer.key_means.reshape(*turns.shape[:1], -1, turns.shape[-1], 2))
    mean = (pairs * turns.conj()).mean(0)
    centers = torch.view_as_real(mean * turns).flatten(-2)
    crossed = torch.einsum("ohd,ohe->hde", layer.key_means, centers) / STRETCH_TOKENS
    outer = torch.einsum("ohd,ohe->hde", centers, centers) / STRETCH_TOKENS
    covariance = layer.key_products - crossed - crossed.transpose(1, 2) + outer
    return torch.view_as_real(mean).flatten(-2), covariance


def _metrics(fishers: Sequence[Tensor | None], others: Sequence[Tensor]) -> list[Tensor]:
    present = [fisher for fisher in fishers if fisher is not None]
    weights = [_mean_diagonal(fisher) for fisher in present]
    mean = torch.cat(weights).mean().clamp_min(torch.finfo(torch.float64).tiny)
    metrics = []
    for fisher, weight, other in zip(present, weights, others, strict=True):
        weight = weight.clamp_min(_SMALLEST_SHARE * mean)
        drawn = mean * (weight / mean) ** _WEIGHT_EXPONENT
        shape = _FISHER_SHARE * fisher / weight[:, None, None]
        shape = shape + (1 - _FISHER_SHARE) * other / _mean_diagonal(other)[:, None, None]
        metrics.append(drawn[:, None, None] * shape)
    return metrics


def _fit(mean: Tensor, covariance: Tensor, metric: Tensor) -> HeadTransforms:
    size = covariance.shape[-1]
    ridge = _RIDGE * _mean_diagonal(metric)[:, None, None]
    values, vectors = torch.linalg.eigh(metric + ridge * torch.eye(size, dtype=metric.dtype))
    root = (vectors * values.clamp_min(0).sqrt()[:, None, :]) @ vectors.transpose(1, 2)
    variances, axes = torch.linalg.eigh(root @ covariance @ root)
    variances, axes = variances.flip(-1), axes.flip(-1)
    variances = variances.clamp_min(0)
    variances = variances.clamp_min(_SMALLEST_SHARE * variances[:, :1])
    columns = root @ axes
    lengths = columns.norm(dim=1)
    return HeadTransforms(
        mean.float(),
        (columns / lengths[:, None, :]).float(),
        (variances.sqrt() / lengths).clamp_min(_SMALLEST_SPREAD).float(),
        variances.float(),
    )


def _mean_diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).mean(-1)
