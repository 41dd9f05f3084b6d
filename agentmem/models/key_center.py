"""Where a model's keys lie off zero: the mean of its un-rotated keys, per layer and head.

Codes with one scale a token spend their range on it, so packed formats store keys less this center,
and attention adds the query's product with it again. At four bits every model gains: on
SmolLM2-135M keys keep a fifth of their energy. At eight bits only where the center is large (Qwen2
adds the same large vector to every key, by its bias): it costs time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from agentmem.kernels.page_table import STRETCH_TOKENS
from agentmem.kernels.rotary import as_channels, as_pairs, ordered_pairs, unit_rotations
from agentmem.models.rope_probe import LayerGeometry

_NUM_TOKENS = 68
_NUM_SKIPPED = 4
"""First tokens, whose keys are unlike all others."""
_LARGE = 32.0
"""Largest channel of the center over the spread of the keys around it. Above, one step of an int8
code would be a quarter of that spread."""


@dataclass(frozen=True, eq=False)
class KeyCenter:
    """The mean key of one layer.

    Args:
        by_offset: (STRETCH_TOKENS, num_kv_heads, head_dim), float32, in pair order: as it stands at
            each offset of a stretch.
        is_large: whether it dwarfs what is around it.
    """

    by_offset: Tensor
    is_large: bool


class _RecordingCache(Cache):  # type: ignore[misc]  # transformers is untyped
    def __init__(self) -> None:
        super().__init__(layers=[])
        self.keys: dict[int, Tensor] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.keys[layer_idx] = key_states[0]
        return key_states, value_states


def key_centers(
    model: nn.Module, cache_argument: str, layers: Sequence[LayerGeometry]
) -> list[KeyCenter]:
    """Read tokens from all over the vocabulary and average their keys, layer by layer."""
    config: Any = model.config
    vocabulary = int(config.get_text_config(decoder=True).vocab_size)
    device = next(model.parameters()).device
    ids = torch.arange(1, _NUM_TOKENS + 1, device=device) * (vocabulary - 1) // (_NUM_TOKENS + 1)
    positions = torch.arange(_NUM_TOKENS, device=device)
    cache = _RecordingCache()
    with torch.no_grad():
        model(
            input_ids=ids[None],
            position_ids=positions[None],
            use_cache=True,
            **{cache_argument: cache},
        )
    centers: list[KeyCenter] = []
    for index, layer in enumerate(layers):
        back = unit_rotations(positions, layer.frequencies, inverse=True)
        keys = as_channels(as_pairs(cache.keys[index], layer.pair_order) * back)[:, _NUM_SKIPPED:]
        center = keys.mean(1)
        spread = (keys - center[:, None]).square().mean().sqrt()
        is_large = float(center.abs().max()) > _LARGE * float(spread)
        offsets = torch.arange(STRETCH_TOKENS, device=device)
        turns = unit_rotations(offsets, layer.frequencies)
        turned = as_channels(ordered_pairs(center) * turns[:, None])
        centers.append(KeyCenter(turned, is_large))
    return centers
