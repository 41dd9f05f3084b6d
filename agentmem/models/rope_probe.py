"""Find out how a model rotates its keys by asking it: two one-token forwards.

A token alone in its context gets the same hidden states at any position, so the keys of the two
forwards differ by the rotation alone. Which channels form a pair (halves or interleaved), how many
are rotated, and with which of the model's own frequencies, is what explains both keys. Nothing is
assumed from the model's name, and what nothing explains is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, get_layer_types_and_kwargs

from agentmem.errors import Unsupported
from agentmem.kernels.rotary import as_pairs

_PROBE_POSITION = 997
_TOLERANCE = 2e-3
"""Relative. Wrong pairs or frequencies are off by order 1; bf16 keys alone by 4e-3 / sqrt(n)."""
_LOW_PRECISION_TOLERANCE = 3e-2
_KNOWN_LAYERS = {"full_attention", "sliding_attention"}
_CHANGING_ROPE = {"dynamic", "longrope"}


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """One attention layer's shapes and rotation.

    Args:
        module: the attention module.
        num_query_heads, num_kv_heads, head_dim: its shapes.
        pair_order: (head_dim,), int64: channels in pair order.
        frequencies: (head_dim / 2,), float64: radians per position of each pair; 0 if not rotated.
        window: sliding window in tokens, the query included; 0 where the layer sees everything.
    """

    module: nn.Module
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    pair_order: Tensor
    frequencies: Tensor
    window: int

    @property
    def convention(self) -> str:
        """In words, for fingerprints and people."""
        rotated = int((self.frequencies != 0).sum())
        if not rotated:
            return "none"
        kind = "interleaved" if int(self.pair_order[1]) == 1 else "half"
        return f"{kind} {rotated}/{self.frequencies.numel()}"


class _ProbeHandle:
    """Records what one layer's attention is called with; the only token attends to itself."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        self.key = key
        self.value = value
        self.module: nn.Module | None = None
        self.num_query_heads = 0
        self.call: dict[str, Any] = {}

    def attend(self, module: nn.Module, query: Tensor, call: dict[str, Any]) -> Tensor:
        self.module, self.call, self.num_query_heads = module, call, query.shape[1]
        groups = query.shape[1] // self.value.shape[1]
        return self.value.repeat_interleave(groups, dim=1).transpose(1, 2).contiguous()


class _ProbeCache(Cache):  # type: ignore[misc]  # transformers is untyped
    def __init__(self) -> None:
        super().__init__(layers=[])
        self.handles: dict[int, _ProbeHandle] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[_ProbeHandle, _ProbeHandle]:
        handle = self.handles[layer_idx] = _ProbeHandle(key_states, value_states)
        return handle, handle


def refuse_by_config(config: Any) -> None:
    """Refuse what the configuration already says we cannot do.

    Raises:
        Unsupported: with the reason.
    """
    name = getattr(config, "model_type", "this model")
    if getattr(config, "is_encoder_decoder", False):
        raise Unsupported(f"{name} is an encoder-decoder: a segment cache needs a decoder.")
    if getattr(config, "kv_lora_rank", None):
        raise Unsupported(f"{name} uses latent attention (MLA): its cache holds no heads to page.")
    if getattr(config, "num_kv_shared_layers", 0):
        raise Unsupported(f"{name} shares keys and values between layers.")
    for parameters in _rope_parameters(config):
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        if kind in _CHANGING_ROPE:
            raise Unsupported(
                f"{name} uses {kind} RoPE: its frequencies change with the length, so keys of two "
                "regimes would meet in one cache."
            )
        if parameters.get("mrope_section"):
            raise Unsupported(f"{name} uses multi-dimensional RoPE: positions are not one number.")
    strange = sorted(set(get_layer_types_and_kwargs(config)[0]) - _KNOWN_LAYERS)
    if strange:
        raise Unsupported(
            f"{name} has layers of type {', '.join(strange)}: only full and sliding attention "
            "layers can drop and move segments."
        )


def probe(model: nn.Module, cache_argument: str, token_id: int = 5) -> tuple[LayerGeometry, ...]:
    """Ask the model for the geometry of every layer; its attention must be ours already.

    Args:
        model: a causal language model.
        cache_argument: what its forward calls the cache.
        token_id: any token.

    Raises:
        Unsupported: a layer cannot be explained.
    """
    config: Any = model.config
    text_config = config.get_text_config(decoder=True)
    limit = int(getattr(text_config, "max_position_embeddings", 0) or _PROBE_POSITION + 1)
    position = min(_PROBE_POSITION, limit - 1)
    first = _forward(model, cache_argument, token_id, 0)
    second = _forward(model, cache_argument, token_id, position)
    num_layers = int(text_config.num_hidden_layers)
    if sorted(first) != list(range(num_layers)):
        raise Unsupported(
            f"{text_config.model_type}: {len(first)} of {num_layers} layers keep keys and "
            "values in a cache; all must."
        )
    candidates = list(_inverse_frequencies(model))
    types, kwargs = get_layer_types_and_kwargs(text_config)
    layers = []
    for index in range(num_layers):
        handle = first[index]
        if handle.module is None:
            raise Unsupported(
                f"{text_config.model_type}: layer {index} does not use the attention interface."
            )
        window = int(kwargs[index].get("sliding_window") or 0)
        passed = int(handle.call.get("sliding_window") or 0)
        if types[index] == "full_attention" and passed:
            raise Unsupported(
                f"{text_config.model_type}: layer {index} sees everything by its configuration, "
                f"but attends to a window of {passed}."
            )
        if handle.key.shape != handle.value.shape:
            raise Unsupported(
                f"{text_config.model_type}: layer {index} has keys {tuple(handle.key.shape)} and "
                f"values {tuple(handle.value.shape)}; they must have the same heads and channels."
            )
        order, frequencies = _explain(
            handle.key[0, :, 0].float(), second[index].key[0, :, 0].float(), position, candidates,
            _TOLERANCE if handle.key.dtype == torch.float32 else _LOW_PRECISION_TOLERANCE,
            f"{text_config.model_type}, layer {index}",
        )  # fmt: skip
        layers.append(
            LayerGeometry(
                module=handle.module,
                num_query_heads=handle.num_query_heads,
                num_kv_heads=handle.key.shape[1],
                head_dim=handle.key.shape[3],
                pair_order=order,
                frequencies=frequencies,
                window=window,
            )
        )
    return tuple(layers)


def _forward(
    model: nn.Module, cache_argument: str, token_id: int, position: int
) -> dict[int, _ProbeHandle]:
    cache = _ProbeCache()
    device = next(model.parameters()).device
    with torch.no_grad():
        model(
            input_ids=torch.tensor([[token_id]], device=device),
            position_ids=torch.tensor([[position]], device=device),
            use_cache=True,
            **{cache_argument: cache},
        )
    return cache.handles


def _explain(
    unrotated: Tensor, rotated: Tensor, position: int, candidates: list[Tensor], tolerance: float,
    where: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The pair order and frequencies that turn one key into the other: keys (heads, head_dim)."""
    head_dim = unrotated.shape[1]
    if head_dim % 2:
        raise Unsupported(f"{where}: {head_dim} channels a head; an even number is needed.")
    device = unrotated.device
    identity = torch.arange(head_dim, device=device)
    scale = unrotated.norm()
    if float((rotated - unrotated).norm()) <= 1e-6 * float(scale):
        return identity, torch.zeros(head_dim // 2, dtype=torch.float64, device=device)
    best, found = float("inf"), None
    for frequencies in candidates:
        num_pairs = frequencies.numel()
        if num_pairs * 2 > head_dim:
            continue
        # The model multiplies position and frequency in float32: so must the comparison.
        angles = (float(position) * frequencies.float()).double().to(device)
        turns = torch.complex(angles.cos(), angles.sin()).to(torch.complex64)
        for order in _pair_orders(identity, num_pairs):
            before, after = as_pairs(unrotated, order), as_pairs(rotated, order)
            expected = before.clone()
            expected[:, :num_pairs] *= turns
            error = float((after - expected).abs().norm() / scale)
            if error < best:
                padded = torch.zeros(head_dim // 2, dtype=torch.float64, device=device)
                padded[:num_pairs] = frequencies.double().to(device)
                best, found = error, (order, padded)
    if found is None or best > tolerance:
        raise Unsupported(
            f"{where}: no rotation of the model's own frequencies explains its keys (closest is "
            f"{best:.1e} off, {tolerance:.0e} is allowed)."
        )
    return found


def _pair_orders(identity: Tensor, num_pairs: int) -> Iterator[Tensor]:
    """Halves of the rotated channels, then neighbours; channels beyond them keep their place."""
    rotated, rest = identity[: 2 * num_pairs], identity[2 * num_pairs :]
    halves = torch.stack((rotated[:num_pairs], rotated[num_pairs:]), 1).flatten()
    yield torch.cat((halves, rest))
    yield identity


def _inverse_frequencies(model: nn.Module) -> Iterator[Tensor]:
    """Every distinct vector of frequencies the model holds."""
    seen: list[Tensor] = []
    for module in model.modules():
        for name, value in [*module.named_buffers(recurse=False), *vars(module).items()]:
            if not (name.endswith("inv_freq") and isinstance(value, Tensor) and value.dim() == 1):
                continue
            if not any(value.shape == other.shape and torch.equal(value, other) for other in seen):
                seen.append(value)
                yield value


def _rope_parameters(config: Any) -> Iterator[dict[str, Any]]:
    """The RoPE settings: one dict, or one a layer type."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(parameters, dict):
        return
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    yield from nested or [parameters]
