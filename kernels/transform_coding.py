"""A linear transform per head after which few bits a channel suffice, and which channel gets them.

    z = (x - mean) @ forward        x = z @ inverse + mean        E[z_i^2] = 1 within a group

From second moments of what is coded and a metric of what an error costs, `forward` is a
Karhunen-Loeve transform in that metric: groups of four channels come uncorrelated, and an error of
one in channel i of z costs `importances[i]`. Bits are then handed out by water-filling: the next
bit goes wherever it saves most, over all keys and values of a model. Related to KVTC, arXiv
2511.01815, and OSCAR, arXiv 2605.17757; the metric is Fisher information mixed with what queries
and the output projection see. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agentmem.kernels.code_stream import GROUP_CHANNELS, MAX_WIDTH, WORD_WIDTHS
from agentmem.kernels.codebook import UNIFORM_WIDTHS
from agentmem.kernels.gaussian_codebook import CODEBOOK
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
_MIXING = torch.tensor(
    [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], dtype=torch.float64
).div(2)
"""Channels of a group are mixed: one whose values have long tails would need a wider code alone."""
_PEAK_MARGIN = 1.1
"""Other texts have higher peaks."""
_SMALLEST_SHARE = 1e-12
"""Of a head's largest variance, and of the mean weight: nothing is divided by less."""
_SMALLEST_SPREAD = 1e-6
"""Absolute: below, states are as good as constant."""
ERRORS = (1.0, 0.3973, 0.1435, 0.0454, 0.0126, 0.0061, 0.0019, 0.0006, 0.0002)
"""By which bits are handed out: over the variance, what the best codes alone lose at 0 to 8 bits. A
trellis loses less at 1 to 4; to count on it takes bits from the channels that need most."""


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
        key_fisher: the same shape: E[g g^T] of the gradients of sampled log-probabilities; None
            where there are no gradients.
        value_fisher: the same for values.
        key_weight: what an error of one in a key costs by another measure, where there are no
            gradients.
        value_weight: the same for values, on the same scale.
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
    key_weight: float = 1.0
    value_weight: float = 1.0


@dataclass(frozen=True, slots=True)
class HeadTransforms:
    """The transforms of one layer's keys or values.

    Args:
        mean: (num_heads, head_dim), float32: of values; of keys before they are rotated.
        directions: (num_heads, head_dim, head_dim), float32: unit columns.
        spreads: (num_heads, head_dim), float32: standard deviation along each direction.
        importances: (num_heads, head_dim), float32, descending: what is lost by coding a channel
            with no bits.
        peaks: (num_heads, head_dim), float32: largest |z| seen along each direction; 0: not looked.
    """

    mean: Tensor
    directions: Tensor
    spreads: Tensor
    importances: Tensor
    peaks: Tensor

    @property
    def forward(self) -> Tensor:
        """(num_heads, head_dim, head_dim), float32: states less their mean to z."""
        return self.directions / self.spreads[:, None, :]

    @property
    def inverse(self) -> Tensor:
        """(num_heads, head_dim, head_dim), float32: z to states less their mean."""
        inverse: Tensor = torch.linalg.inv(self.directions.double())
        return (inverse * self.spreads[:, :, None]).float()

    def fitted_to(self, widths: Tensor) -> HeadTransforms:
        """The same with wider spreads where wide uniform codes would cut peaks off.

        Few channels have such codes, and they are those whose largest values are attended to. An
        error of one then costs more, but cutting off costs most.

        Args:
            widths: (num_heads, head_dim / 4), uint8.
        """
        reach = torch.full((MAX_WIDTH + 1,), torch.inf)
        for width in UNIFORM_WIDTHS:
            reach[width] = CODEBOOK.top(width)
        by_channel = reach[widths.long().repeat_interleave(GROUP_CHANNELS, 1)]
        stretch = (_PEAK_MARGIN * self.peaks / by_channel).clamp_min(1.0)
        return replace(
            self,
            spreads=self.spreads * stretch,
            importances=self.importances * stretch.square(),
            peaks=self.peaks / stretch,
        )


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
        [(layer.key_fisher, layer.query_products, layer.key_weight) for layer in moments]
    )
    value_metrics = _metrics(
        [(layer.value_fisher, layer.output_products, layer.value_weight) for layer in moments]
    )
    transforms = []
    for layer, key_metric, value_metric in zip(moments, key_metrics, value_metrics, strict=True):
        mean, covariance = _center_keys(layer)
        keys = _fit(mean, covariance, key_metric)
        outer = layer.value_mean[:, :, None] * layer.value_mean[:, None, :]
        values = _fit(layer.value_mean, layer.value_products - outer, value_metric)
        transforms.append((keys, values))
    return transforms


def relative_cost(errors: Tensor, products: Tensor) -> float:
    """What errors of a layer cost, in a metric whose mean over directions is one in every head.

    Args:
        errors: (num_heads, num_tokens, head_dim).
        products: (num_heads, head_dim, head_dim): the metric.

    Returns:
        Mean over tokens, summed over heads.
    """
    shape = products / _mean_diagonal(products).clamp_min(_SMALLEST_SHARE)[:, None, None]
    errors = errors.double().cpu()
    return float(((errors @ shape) * errors).sum() / max(1, errors.shape[1]))


def water_fill(
    importances: Sequence[tuple[Tensor, Tensor]], average_bits: float
) -> list[tuple[Tensor, Tensor]]:
    """Widths of groups of neighbouring channels, where the bits of a model save most.

    Bits are handed out to layers in whole words of a token's stream, so that none is left empty.

    Args:
        importances: of each layer's keys and values, (num_heads, head_dim); layers may differ in
            size.
        average_bits: bits a channel over everything.

    Returns:
        For each of `importances` (num_heads, head_dim / 4), uint8, 0 to 8.
    """
    errors = torch.tensor(ERRORS, dtype=torch.float64)
    saved_per_bit = errors[:-1] - errors[1:]
    order, words = [], []
    for layer in importances:
        groups = torch.cat([one.double().reshape(-1, GROUP_CHANNELS).sum(-1) for one in layer])
        # Each bit of a group saves less than the one before, so that none is chosen without it.
        savings, places = (
            (groups[:, None] * saved_per_bit).flatten().sort(descending=True, stable=True)
        )
        order.append(places)
        words.append(savings.view(-1, WORD_WIDTHS).sum(-1))
    flat = torch.cat(words)
    num_groups = flat.numel() * WORD_WIDTHS // MAX_WIDTH
    chosen = torch.zeros(flat.shape, dtype=torch.uint8)
    num_words = round(average_bits * num_groups / WORD_WIDTHS)
    chosen[flat.argsort(descending=True, stable=True)[:num_words]] = 1
    widths = []
    for layer, mine, part in zip(
        importances, order, torch.split(chosen, [len(one) for one in words]), strict=True
    ):
        bits = torch.zeros_like(mine, dtype=torch.uint8)
        bits[mine] = part.repeat_interleave(WORD_WIDTHS)
        of_groups = bits.view(-1, MAX_WIDTH).sum(-1, dtype=torch.uint8)
        keys, values = (part.view(len(layer[0]), -1) for part in of_groups.chunk(2))
        widths.append((keys, values))
    return widths


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


def _metrics(layers: Sequence[tuple[Tensor | None, Tensor, float]]) -> list[Tensor]:
    """What errors cost, from each layer's Fisher, second opinion, and weight without a Fisher."""
    weights = [
        torch.full(other.shape[:1], weight, dtype=torch.float64)
        if fisher is None
        else _mean_diagonal(fisher)
        for fisher, other, weight in layers
    ]
    mean = torch.cat(weights).mean().clamp_min(torch.finfo(torch.float64).tiny)
    metrics = []
    for (fisher, other, _), of_heads in zip(layers, weights, strict=True):
        scale = of_heads.clamp_min(_SMALLEST_SHARE * mean)[:, None, None]
        shape = other / _mean_diagonal(other).clamp_min(_SMALLEST_SHARE)[:, None, None]
        if fisher is not None:
            shape = _FISHER_SHARE * fisher / scale + (1 - _FISHER_SHARE) * shape
        metrics.append(mean * (scale / mean) ** _WEIGHT_EXPONENT * shape)
    return metrics


def _fit(mean: Tensor, covariance: Tensor, metric: Tensor) -> HeadTransforms:
    size = covariance.shape[-1]
    ridge = _RIDGE * _mean_diagonal(metric)[:, None, None]
    values, vectors = torch.linalg.eigh(metric + ridge * torch.eye(size, dtype=metric.dtype))
    root = (vectors * values.clamp_min(0).sqrt()[:, None, :]) @ vectors.transpose(1, 2)
    costs, axes = torch.linalg.eigh(root @ covariance @ root)
    costs, axes = costs.flip(-1).clamp_min(0), axes.flip(-1)
    columns = root @ (axes @ torch.kron(torch.eye(size // GROUP_CHANNELS), _MIXING))
    # Mixed channels of a group share its costs evenly, and so what a code of one width does.
    by_group = costs.reshape(len(costs), -1, GROUP_CHANNELS).mean(-1)
    importances = by_group.clamp_min(_SMALLEST_SHARE * by_group[:, :1])
    importances = importances.repeat_interleave(GROUP_CHANNELS, 1)
    lengths = columns.norm(dim=1)
    return HeadTransforms(
        mean.float(),
        (columns / lengths[:, None, :]).float(),
        (importances.sqrt() / lengths).clamp_min(_SMALLEST_SPREAD).float(),
        importances.float(),
        torch.zeros_like(importances, dtype=torch.float32),
    )


def _mean_diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).mean(-1)
