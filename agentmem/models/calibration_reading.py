"""How a calibration reads with a model: a context once, then what comes after it, again and again.

The context's keys and values are leaves of the second forward: they can be differentiated, or
replaced. A cache hands them to the model's own layers through the attention registered with
transformers; no model is patched.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from agentmem.models import kv_attention
from agentmem.models.attached import AttachedModel


def read_context(attached: AttachedModel, token_ids: Sequence[int]) -> ContextCache:
    """Read tokens from position 0 on."""
    cache = ContextCache()
    positions = torch.arange(len(token_ids), device=attached.device)
    with torch.no_grad():
        _forward(attached, token_ids, positions, cache, 1)
    return cache


class Continuations:
    """Runs of tokens, each directly behind the same context.

    Args:
        attached: the model.
        context_tokens: where they start.
        runs: token ids; none is empty.
    """

    def __init__(
        self, attached: AttachedModel, context_tokens: int, runs: Sequence[Sequence[int]]
    ) -> None:  # fmt: skip
        self._attached = attached
        self.token_ids = [token for run in runs for token in run]
        device = attached.device
        self._owners = torch.tensor(
            [owner for owner, run in enumerate(runs) for _ in run], device=device
        )
        self._positions = torch.tensor(
            [context_tokens + index for run in runs for index in range(len(run))], device=device
        )

    def read(
        self, keys: Sequence[Tensor], values: Sequence[Tensor]
    ) -> tuple[Tensor, dict[int, Tensor]]:  # fmt: skip
        """Read them over these keys and values of the context; gradients flow if enabled.

        Returns:
            (n, vocab_size): logits of each token's successor; and the queries of each layer,
            (num_query_heads, n, head_dim), rotated.
        """
        cache = LeafCache(keys, values, self._positions, self._owners)
        logits = _forward(self._attached, self.token_ids, self._positions, cache, 0)
        return logits, cache.queries


def _forward(
    attached: AttachedModel, token_ids: Sequence[int], positions: Tensor, cache: Cache, keep: int
) -> Tensor:
    model = attached.model
    options = {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        options["logits_to_keep"] = keep
    output = model(
        input_ids=torch.tensor([list(token_ids)], device=positions.device),
        position_ids=positions[None],
        use_cache=True,
        **{attached.cache_argument: cache},
        **options,
    )
    logits: Tensor = output.logits[0]
    return logits


class ContextCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """Keeps what a context's forward computes: (heads, num_tokens, head_dim) a layer."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Note one layer's tokens; layers come in order."""
        self.keys.append(key_states[0])
        self.values.append(value_states[0])
        return key_states, value_states


class LeafCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """Lets continuations attend to a context's keys and values, and records their queries.

    Args:
        keys, values: of each layer, (heads, num_tokens, head_dim).
        positions: (n,): of the continuations' tokens.
        owners: (n,): which continuation each is of; they do not see each other.
    """

    def __init__(
        self,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        positions: Tensor,
        owners: Tensor,
    ) -> None:
        super().__init__(layers=[])
        self.keys, self.values = keys, values
        self.queries: dict[int, Tensor] = {}
        self._length = keys[0].shape[1]
        self._positions = torch.cat(
            (torch.arange(self._length, device=positions.device), positions)
        )
        self._mask = torch.cat(
            (
                torch.ones((len(owners), self._length), dtype=torch.bool, device=owners.device),
                (owners[:, None] == owners) & (positions[:, None] >= positions),
            ),
            1,
        )

    def __bool__(self) -> bool:
        # `cache or DynamicCache()` must keep ours.
        return True

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[_LeafHandle, _LeafHandle]:
        """One layer's new tokens behind the context's."""
        handle = _LeafHandle(
            self,
            layer_idx,
            torch.cat((self.keys[layer_idx][None], key_states), 2),
            torch.cat((self.values[layer_idx][None], value_states), 2),
        )
        return handle, handle

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens of the context."""
        return self._length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Of a cache of ours, so that the model makes no mask: the handle has its own."""
        return kv_attention.OwnedLength(self._length + query_length), 0

    def mask(self, window: int) -> Tensor:
        """(num_queries, num_tokens), bool: what each query sees in a layer of that window."""
        if not window:
            return self._mask
        queries = self._positions[self._length :]
        return self._mask & (self._positions[None, :] > queries[:, None] - window)


class _LeafHandle:
    """What the model's attention gets in place of keys and values."""

    def __init__(self, cache: LeafCache, layer: int, keys: Tensor, values: Tensor) -> None:
        self._cache, self._layer = cache, layer
        self._keys, self._values = keys, values

    def attend(self, module: nn.Module, query: Tensor, call: dict[str, Any]) -> Tensor:
        """As the model's own attention would, behind a mask of ours."""
        self._cache.queries[self._layer] = query[0].detach()
        mask = self._cache.mask(int(call.get("sliding_window") or 0))[None, None]
        return kv_attention.attention(module, query, self._keys, self._values, mask, **call)[0]
