"""What one would run instead of our kernels: PyTorch's SDPA, transformers' QuantizedCache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from agentmem.bench.kernels_row import Shape
from agentmem.bench.kernels_window import FormatWindow
from agentmem.bench.kv_quantized import quantized_cache, quantized_nbytes, refusal
from agentmem.bench.timing import time_once
from agentmem.kernels.rotary import as_channels, ordered_pairs

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SCREENING_CALLS = 3
_HOPELESS = 2.0
"""Times the fastest, after which a way is not called again."""
_GROUP_SIZE, _RESIDUAL_TOKENS = 64, 128

Attend = Callable[[], Tensor]
"""Attended values, (H, R, D), in the dtype of the keys."""


def sdpa_ways(
    queries: Tensor, keys: Tensor, values: Tensor, dtype: torch.dtype
) -> dict[str, Attend]:
    """All ways to give SDPA one token's grouped query heads.

    Args:
        queries: (H, R, D), scaled: R query heads to each key head.
        keys, values: (H, T, D).
    """
    heads, rows, head_dim = queries.shape
    packed = queries[None].to(dtype)
    held_keys, held_values = keys[None].to(dtype), values[None].to(dtype)
    apart = packed.view(1, heads * rows, 1, head_dim)

    def as_rows() -> Tensor:
        return scaled_dot_product_attention(packed, held_keys, held_values, scale=1.0)[0]

    def grouped() -> Tensor:
        attended = scaled_dot_product_attention(
            apart, held_keys, held_values, scale=1.0, enable_gqa=True
        )
        return attended.view(heads, rows, head_dim)

    def expanded() -> Tensor:
        # As transformers' `repeat_kv` does it in every step.
        repeated = [
            held[:, :, None].expand(-1, -1, rows, -1, -1).reshape(1, heads * rows, -1, head_dim)
            for held in (held_keys, held_values)
        ]
        attended = scaled_dot_product_attention(apart, repeated[0], repeated[1], scale=1.0)
        return attended.view(heads, rows, head_dim)

    return {"rows": as_rows, "grouped": grouped, "expanded": expanded}


def best_sdpa(queries: Tensor, keys: Tensor, values: Tensor) -> dict[str, Attend]:
    """The fastest way in each dtype, by its name: "float32 rows"."""
    best = {}
    for name, dtype in _DTYPES.items():
        ways = sdpa_ways(queries, keys, values, dtype)
        once = {way: min(time_once(call)[1], time_once(call)[1]) for way, call in ways.items()}
        limit = _HOPELESS * min(once.values())
        again = {
            way: min(time_once(ways[way])[1] for _ in range(_SCREENING_CALLS))
            for way, seconds in once.items()
            if seconds <= limit
        }
        fastest = min(again, key=again.__getitem__)
        best[f"{name} {fastest}"] = ways[fastest]
    return best


def on_dequantized_copy(window: FormatWindow, queries: Tensor) -> Attend:
    """Every step: all pages decoded, keys turned to their positions, then SDPA."""
    table = window.table
    turns = window.rotations.conj().index_select(0, table.stretches)[:, None, None]
    filled = table.filled().flatten()
    hidden = None if bool(filled.all()) else filled[None, None, None]

    def attend() -> Tensor:
        keys, values = window.decode()
        keys = as_channels(ordered_pairs(keys) * turns).transpose(0, 1).flatten(1, 2)
        values = values.transpose(0, 1).flatten(1, 2)
        return scaled_dot_product_attention(
            queries[None], keys[None], values[None], attn_mask=hidden, scale=1.0
        )[0]

    return attend


class QuantizedStep:
    """One layer of transformers' quantized cache: each step dequantizes it, then SDPA.

    Args:
        shape: of the layer.
        queries: (H, R, D), scaled.
        keys, values: (H, T, D).
        num_bits: of quanto's codes.

    `refusal_of` says whether it can be made.
    """

    def __init__(
        self, shape: Shape, queries: Tensor, keys: Tensor, values: Tensor, num_bits: int
    ) -> None:
        self._queries = queries[None]
        self._cache: Any = quantized_cache(
            _config_of(shape), "quanto", num_bits, _GROUP_SIZE, _RESIDUAL_TOKENS
        )
        self._cache.update(keys[None], values[None], 0)
        layer = self._cache.layers[0]
        self._saved = (layer.keys, layer.values, layer.cumulative_length)
        self._new = torch.zeros(1, shape.kv_heads, 1, shape.head_dim)
        self.nbytes = sum(
            quantized_nbytes("quanto", states)
            for states in (layer._quantized_keys, layer._quantized_values)
        )

    def __call__(self) -> Tensor:
        layer = self._cache.layers[0]
        layer.keys, layer.values, layer.cumulative_length = self._saved
        keys, values = self._cache.update(self._new, self._new, 0)
        return scaled_dot_product_attention(self._queries, keys, values, scale=1.0)[0]


def refusal_of(shape: Shape, num_bits: int) -> str:
    """Why there is no `QuantizedStep` of such a layer; empty where there is."""
    return refusal(_config_of(shape), "quanto", num_bits)


def _config_of(shape: Shape) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        num_hidden_layers=1, num_attention_heads=shape.query_heads,
        num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim,
        hidden_size=shape.query_heads * shape.head_dim,
    )  # fmt: skip
