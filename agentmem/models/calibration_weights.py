"""Compare a model's layers without gradients: disturb one at a time, and see what it predicts.

For models too large to differentiate. Disturbances are other tokens' keys and values, made small:
they lie where keys and values lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from agentmem.kernels.rotary import as_channels, ordered_pairs, unit_rotations
from agentmem.kernels.transform_coding import STRETCH_TOKENS, LayerMoments, relative_cost
from agentmem.models.attached import AttachedModel
from agentmem.models.calibration_reading import Continuations, read_context
from agentmem.models.calibration_sums import turn_back, used_tokens
from agentmem.models.calibration_text import CalibrationText
from agentmem.models.rope_probe import LayerGeometry

_SIZE = 0.2
"""Of a disturbance, over the spread of what is disturbed: far above rounding, and still so small
that twice the size moves predictions four times as far."""


def measure_weights(
    attached: AttachedModel,
    texts: Sequence[CalibrationText],
    moments: Sequence[LayerMoments],
    progress: Callable[[int, int], None],
) -> tuple[LayerMoments, ...]:
    """Two forwards a layer and text.

    Args:
        attached: the model.
        texts: one or two will do.
        moments: of its layers.
        progress: told after each layer of each text how many are done, and of how many.

    Returns:
        The moments with their `key_weight` and `value_weight`: nats an error of one costs.
    """
    weights = torch.zeros((len(moments), 2), dtype=torch.float64)
    for number, text in enumerate(texts):
        context = read_context(attached, text.context)
        runs = Continuations(attached, len(text.context), text.continuations)
        tokens, starts = used_tokens(len(text.context), attached.device)
        generator = torch.Generator().manual_seed(number)
        expected = _predictions(runs, context.keys, context.values)
        for index, (layer, one) in enumerate(zip(attached.layers, moments, strict=True)):
            keys, values = list(context.keys), list(context.values)
            local = turn_back(keys[index][:, tokens], layer, starts)
            noise = _noise(local, generator)
            keys[index] = keys[index].clone()
            keys[index][:, tokens] += _turn_on(noise, layer, starts).to(keys[index].dtype)
            moved = _distance(expected, _predictions(runs, keys, values))
            weights[index, 0] += moved / relative_cost(noise, one.query_products)
            noise = _noise(values[index][:, tokens].float(), generator)
            values[index] = values[index].clone()
            values[index][:, tokens] += noise.to(values[index].dtype)
            moved = _distance(expected, _predictions(runs, context.keys, values))
            weights[index, 1] += moved / relative_cost(noise, one.output_products)
            progress(number * len(moments) + index + 1, len(texts) * len(moments))
    weights = weights.clamp_min(0) / len(texts)
    return tuple(
        replace(one, key_weight=float(keys), value_weight=float(values))
        for one, (keys, values) in zip(moments, weights.tolist(), strict=True)
    )


def _noise(states: Tensor, generator: torch.Generator) -> Tensor:
    """Other stretches' tokens of the same offset, less their mean, in the states' shape."""
    stretches = states.reshape(states.shape[0], -1, STRETCH_TOKENS, states.shape[2])
    order = torch.randperm(stretches.shape[1], generator=generator).to(states.device)
    mixed = (stretches - stretches.mean(1, keepdim=True))[:, order]
    return _SIZE * mixed.reshape(states.shape)


def _turn_on(local: Tensor, layer: LayerGeometry, starts: Tensor) -> Tensor:
    """Block-local states in pair order as the model has them at their positions."""
    turns = unit_rotations(starts, layer.frequencies).repeat_interleave(STRETCH_TOKENS, 0)
    rotated = as_channels(ordered_pairs(local) * turns)
    return rotated.index_select(-1, layer.pair_order.argsort())


def _predictions(
    runs: Continuations, keys: Sequence[Tensor], values: Sequence[Tensor]
) -> Tensor:  # fmt: skip
    with torch.no_grad():
        return runs.read(keys, values)[0].float().log_softmax(-1)


def _distance(expected: Tensor, found: Tensor) -> float:
    """Mean Kullback-Leibler divergence of two (n, vocab_size) log-probabilities, in nats."""
    return float((expected.exp() * (expected - found)).sum(-1).mean())
