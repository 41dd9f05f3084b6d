"""Layers of a transformers cache, whatever their kind: which can be cut, and copies of the others.

Full attention keeps every token, so its end can be cut off. A recurrent state, or a sliding window
that has moved on, is what it is after its last token: it can only be copied while it is there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from transformers.cache_utils import (
    DummyLayer,
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
)

_CAN_CUT = (DynamicLayer, DummyLayer)
_FULL_ATTENTION = (DynamicLayer, LinearAttentionAndFullAttentionLayer)


def can_cut(layers: Iterable[Any]) -> bool:
    """Whether all layers keep every token, and nothing besides."""
    return all(type(layer) in _CAN_CUT for layer in layers)


def full_attention(layer: Any) -> tuple[Tensor, Tensor] | None:
    """Keys and values of every token, (1, heads, num_tokens, head_dim), where a layer has them."""
    if type(layer) not in _FULL_ATTENTION or layer.keys is None:
        return None
    return layer.keys, layer.values


def twin(layer: Any) -> Any:
    """A copy that shares no tensor that is ever written to."""
    held = full_attention(layer) or ()
    # Those of full attention are replaced by longer ones, never written to.
    shared = {id(tensor): tensor for tensor in held}
    own = {id(tensor): tensor.clone() for tensor in tensors(layer) if id(tensor) not in shared}
    return copy.deepcopy(layer, {**shared, **own})


def state_of(layer: Any) -> Any:
    """A copy without the keys and values of full attention."""
    copied = twin(layer)
    if full_attention(copied) is not None:
        copied.keys = copied.values = None
    return copied


def nbytes(layer: Any) -> int:
    """Bytes of all tensors a layer holds."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(layer))


def tensors(layer: Any) -> Iterator[Tensor]:
    """All tensors a layer holds."""
    for value in vars(layer).values():
        for item in value.values() if isinstance(value, dict) else (value,):
            if isinstance(item, Tensor):
                yield item
