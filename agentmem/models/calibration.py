"""Ask a model which directions of its keys and values matter, by reading calibration texts.

For each text the context is read once, then what comes after it; one backward tells how the
log-probability of sampled tokens moves with each key and value of the context. Only second moments
are kept. Knows nothing of bits or files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from agentmem.errors import InvalidInput, Unsupported
from agentmem.kernels.transform_coding import HeadTransforms, LayerMoments, rotated_mean
from agentmem.models.attached import AttachedModel
from agentmem.models.calibration_reading import Continuations, read_context
from agentmem.models.calibration_sums import LayerSums, turn_back, used_tokens
from agentmem.models.calibration_text import CalibrationText

_ROWS = 128
"""Logits turned into probabilities at a time."""

Transforms = Sequence[tuple[HeadTransforms, HeadTransforms]]
Progress = Callable[[int, int], None]


def _no_progress(done: int, total: int) -> None:
    pass


def collect_moments(
    attached: AttachedModel,
    texts: Sequence[CalibrationText],
    *,
    gradients: bool = True,
    progress: Progress = _no_progress,
) -> tuple[LayerMoments, ...]:
    """Read the texts.

    Args:
        attached: the model.
        texts: what to read.
        gradients: also differentiate: one backward a text.
        progress: told after each text how many are done, and of how many.

    Returns:
        The moments of each layer, on the CPU.

    Raises:
        InvalidInput: there are no texts.
        Unsupported: the model cannot be differentiated.
    """
    if not texts:
        raise InvalidInput("A calibration needs texts: got none.")
    layers = [LayerSums(layer) for layer in attached.layers]
    try:
        for layer in layers:
            layer.find_output()
        for index, text in enumerate(texts):
            _add(attached, text, layers, index if gradients else None)
            progress(index + 1, len(texts))
    finally:
        for layer in layers:
            layer.forget_output()
    return tuple(layer.moments() for layer in layers)


def measure_peaks(
    attached: AttachedModel, texts: Sequence[CalibrationText], transforms: Transforms
) -> Transforms:
    """Read the contexts and note how far keys and values lie out along each direction.

    Returns:
        The transforms with their `peaks`.
    """
    peaks = [
        (torch.zeros_like(keys.spreads), torch.zeros_like(values.spreads))
        for keys, values in transforms
    ]
    for text in texts:
        context = read_context(attached, text.context)
        tokens, starts = used_tokens(len(text.context), attached.device)
        for index, (keys, values) in enumerate(transforms):
            geometry = attached.layers[index]
            local = turn_back(context.keys[index][:, tokens], geometry, starts).cpu()
            centers = rotated_mean(keys.mean, geometry.frequencies.cpu()).transpose(0, 1)
            local = local - centers.repeat(1, len(starts), 1)
            plain = context.values[index][:, tokens].float().cpu() - values.mean[:, None]
            for peak, coded in zip(
                peaks[index], (local @ keys.forward, plain @ values.forward), strict=True
            ):
                torch.maximum(peak, coded.abs().amax(1), out=peak)
    return [
        (replace(keys, peaks=key_peaks), replace(values, peaks=value_peaks))
        for (keys, values), (key_peaks, value_peaks) in zip(transforms, peaks, strict=True)
    ]


def _add(
    attached: AttachedModel, text: CalibrationText, layers: Sequence[LayerSums], seed: int | None
) -> None:  # fmt: skip
    """Count one text; differentiate it where a seed is given."""
    context = read_context(attached, text.context)
    runs = Continuations(attached, len(text.context), text.continuations)
    keys = [one.detach().clone() for one in context.keys]
    values = [one.detach().clone() for one in context.values]
    key_gradients: Sequence[Tensor | None] = [None] * len(layers)
    value_gradients = key_gradients
    if seed is None:
        with torch.no_grad():
            queries = runs.read(keys, values)[1]
    else:
        leaves = [one.requires_grad_(True) for one in (*keys, *values)]
        with torch.enable_grad():
            logits, queries = runs.read(keys, values)
            try:
                gradients = torch.autograd.grad(_sampled_loss(logits, seed), leaves)
            except RuntimeError as error:
                raise Unsupported(
                    f"{type(attached.model).__name__} cannot be differentiated here ({error}): "
                    "calibrate it without gradients."
                ) from error
        key_gradients, value_gradients = gradients[: len(layers)], gradients[len(layers) :]
    tokens, starts = used_tokens(len(text.context), attached.device)
    with torch.no_grad():
        for index, layer in enumerate(layers):
            layer.add(context.keys[index][:, tokens], context.values[index][:, tokens],
                      queries[index], starts)  # fmt: skip
            key_gradient, value_gradient = key_gradients[index], value_gradients[index]
            if key_gradient is not None and value_gradient is not None:
                layer.add_gradients(key_gradient[:, tokens], value_gradient[:, tokens], starts)


def _sampled_loss(logits: Tensor, seed: int) -> Tensor:
    """Minus the log-probability of one sample a token: its gradients square to the Fisher."""
    losses = []
    generator = torch.Generator().manual_seed(seed)
    for begin in range(0, logits.shape[0], _ROWS):
        log_probabilities = logits[begin : begin + _ROWS].float().log_softmax(-1)
        probabilities = log_probabilities.detach().exp().cpu()
        drawn = torch.multinomial(probabilities, 1, generator=generator).to(logits.device)
        losses.append(-log_probabilities.gather(1, drawn).sum())
    return torch.stack(losses).sum()
