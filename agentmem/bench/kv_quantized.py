"""Contexts in transformers' quantized caches, as quanto and hqq pack them.

The newest 64 tokens are their residual, as agentmem's cache keeps them dense too, and what does not
fill a group beside them. Each backend groups elements along tokens, which errs less than along
channels, its other axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agentmem.bench.kv_contexts import STEP_TOKENS, PackedContext
from agentmem.bench.needles import FRESH_TOKENS, NEWEST_TOKENS, NeedleContext

if TYPE_CHECKING:
    from agentmem.models.attached import AttachedModel

_AXES = {"quanto": -1, "hqq": 0}


class PlainStates:
    """Keys and values of a context in transformers' own dense cache.

    Args:
        attached: the model; its attention falls through to SDPA for them.
        context: what to read.
    """

    def __init__(self, attached: AttachedModel, context: NeedleContext) -> None:
        from transformers import DynamicCache

        self.attached = attached
        cache = DynamicCache(config=attached.model.config)
        begun = perf_counter()
        forward_plain(attached, cache, context.token_ids, 0, 1)
        self.seconds = perf_counter() - begun
        self.layers: list[tuple[Tensor, Tensor]] = [
            (layer.keys, layer.values) for layer in cache.layers
        ]


class QuantizedContext(PackedContext):
    """In transformers' quantized cache, the newest tokens in its residual.

    Args:
        states: of the context.
        backend: "quanto" or "hqq".
        num_bits: of a code.
        group_size: elements that share a scale and a zero.
    """

    def __init__(self, states: PlainStates, backend: str, num_bits: int, group_size: int) -> None:
        self._attached = states.attached
        num_tokens = states.layers[0][0].shape[2]
        self._position = num_tokens
        self.packed_tokens = (num_tokens - NEWEST_TOKENS) // group_size * group_size
        self.dense_tokens = num_tokens - self.packed_tokens
        # Room for everything read after the context, so that nothing is packed again in between.
        residual = self.dense_tokens + FRESH_TOKENS + STEP_TOKENS
        self._cache = quantized_cache(
            states.attached.model.config, backend, num_bits, group_size, residual
        )
        begun = perf_counter()
        # In two steps: the first is quantized whole, whatever the length of the residual.
        for part in (slice(0, self.packed_tokens), slice(self.packed_tokens, None)):
            for index, (keys, values) in enumerate(states.layers):
                self._cache.update(keys[:, :, part], values[:, :, part], index)
        self.prefill_seconds = states.seconds + perf_counter() - begun
        self.packed_bytes = sum(
            quantized_nbytes(backend, states_)
            for layer in self._cache.layers
            for states_ in (layer._quantized_keys, layer._quantized_values)
        )
        # `crop` refuses quantized layers; a forward that stays in the residual replaces only these.
        self._saved = [(one.keys, one.values, one.cumulative_length) for one in self._cache.layers]

    def _forward(self, token_ids: Sequence[int], keep: int) -> Tensor:
        first, self._position = self._position, self._position + len(token_ids)
        return forward_plain(self._attached, self._cache, token_ids, first, keep)

    def _forget(self) -> None:
        for layer, saved in zip(self._cache.layers, self._saved, strict=True):
            layer.keys, layer.values, layer.cumulative_length = saved
        self._position = self._saved[0][2]


def forward_plain(
    attached: AttachedModel, cache: Any, token_ids: Sequence[int], first: int, keep: int
) -> Tensor:
    """Read tokens from position `first` on into a cache of transformers; the last logits."""
    ids = torch.tensor([list(token_ids)], device=attached.device)
    positions = torch.arange(first, first + len(token_ids), device=attached.device)[None]
    with torch.no_grad():
        output = attached.model(
            input_ids=ids, position_ids=positions, use_cache=True, logits_to_keep=keep,
            **{attached.cache_argument: cache},
        )  # fmt: skip
    logits: Tensor = output.logits[0, -keep:]
    return logits


def quantized_cache(
    config: Any, backend: str, num_bits: int, group_size: int, residual_tokens: int
) -> Any:
    """An empty quantized cache of transformers.

    Args:
        config: of the model.
        backend, num_bits, group_size: as `QuantizedContext` takes them.
        residual_tokens: kept dense before they are quantized all at once.

    Raises:
        ImportError: the backend is not installed.
        ValueError: it refuses the model.
    """
    from transformers import QuantizedCache

    axis = _AXES[backend]
    return QuantizedCache(
        backend, config, nbits=num_bits, axis_key=axis, axis_value=axis, q_group_size=group_size,
        residual_length=residual_tokens,
    )  # fmt: skip


def quantized_nbytes(backend: str, states: Any) -> int:
    """Bytes of what a backend quantized: its codes, and two for each scale and each zero."""
    if backend == "quanto":
        codes, others = states._data._data, (states._scale, states._shift)
    else:
        codes, meta = states
        others = (meta["scale"], meta["zero"])
    return int(codes.numel() * codes.element_size() + sum(2 * other.numel() for other in others))


def refusal(config: Any, backend: str, num_bits: int) -> str:
    """Why a backend cannot hold a model's keys and values; empty where it can."""
    try:
        quantized_cache(config, backend, num_bits, STEP_TOKENS, STEP_TOKENS)
    except ImportError:
        return "not installed (pip install '.[baselines]')"
    except ValueError as error:
        return str(error)
    return ""
