"""Ask a model which directions of its keys and values matter, by reading calibration texts.

For each text the context is read once; its keys and values then become leaves of a second forward
over what comes after it, and one backward tells how the log-probability of sampled tokens moves
with each of them. Only second moments are kept. Attention is recorded through the model's own
layers: a cache hands them the leaves, no model is patched. Knows nothing of bits or formats.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from agentmem.errors import Unsupported
from agentmem.kernels.rotary import as_channels, as_pairs, ordered_pairs, unit_rotations
from agentmem.kernels.transform_coding import STRETCH_TOKENS, LayerMoments
from agentmem.models import kv_attention
from agentmem.models.attached import AttachedModel
from agentmem.models.calibration_text import RECENT_TOKENS, SKIPPED_TOKENS, CalibrationText
from agentmem.models.rope_probe import LayerGeometry


class _ContextCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """Keeps what a context's forward computes: (heads, num_tokens, head_dim) a layer."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.keys[layer_idx], self.values[layer_idx] = key_states[0], value_states[0]
        return key_states, value_states


class _LeafCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """Lets continuations attend to a context's keys and values, and records their queries."""

    def __init__(self, context: _ContextCache, positions: Tensor, owners: Tensor) -> None:
        super().__init__(layers=[])
        self._length = next(iter(context.keys.values())).shape[1]
        self.keys = {index: keys.detach().clone() for index, keys in context.keys.items()}
        self.values = {index: values.detach().clone() for index, values in context.values.items()}
        self.queries: dict[int, Tensor] = {}
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
        return True

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[_LeafHandle, _LeafHandle]:
        handle = _LeafHandle(
            self,
            layer_idx,
            torch.cat((self.keys[layer_idx][None], key_states), 2),
            torch.cat((self.values[layer_idx][None], value_states), 2),
        )
        return handle, handle

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return kv_attention.OwnedLength(self._length + query_length), 0

    def mask(self, window: int) -> Tensor:
        """(num_queries, num_tokens), bool: what each query sees in a layer of that window."""
        if not window:
            return self._mask
        queries = self._positions[self._length :]
        return self._mask & (self._positions[None, :] > queries[:, None] - window)


class _LeafHandle:
    """What the model's attention gets in place of keys and values."""

    def __init__(self, cache: _LeafCache, layer: int, keys: Tensor, values: Tensor) -> None:
        self._cache, self._layer = cache, layer
        self._keys, self._values = keys, values

    def attend(self, module: nn.Module, query: Tensor, call: dict[str, Any]) -> Tensor:
        self._cache.queries[self._layer] = query[0].detach()
        mask = self._cache.mask(int(call.get("sliding_window") or 0))[None, None]
        return kv_attention.attention(module, query, self._keys, self._values, mask, **call)[0]


def collect_moments(
    attached: AttachedModel,
    texts: Sequence[CalibrationText],
    *,
    fisher: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[LayerMoments, ...]:
    """Read the texts.

    Args:
        attached: the model.
        texts: what to read; contexts longer than STRETCH_TOKENS + 68 tokens.
        fisher: also differentiate: one backward a text.
        progress: told after each text how many are done, and of how many.

    Returns:
        The moments of each layer, on the CPU.

    Raises:
        Unsupported: the model cannot be differentiated.
    """
    layers = [_LayerSums(layer) for layer in attached.layers]
    for layer in layers:
        layer.find_output()
    try:
        for index, text in enumerate(texts):
            _read(attached, text, layers, fisher, index)
            progress(index + 1, len(texts))
    finally:
        for layer in layers:
            layer.forget_output()
    return tuple(layer.moments(fisher) for layer in layers)


def _read(
    attached: AttachedModel,
    text: CalibrationText,
    layers: Sequence[_LayerSums],
    fisher: bool,
    seed: int,
) -> None:
    device = attached.device
    context = _ContextCache()
    length = len(text.context)
    with torch.no_grad():
        _forward(attached, text.context, torch.arange(length, device=device), context, 1)
    runs = [run for run in text.continuations if run]
    ids = [token for run in runs for token in run]
    owners = torch.tensor([i for i, run in enumerate(runs) for _ in run], device=device)
    positions = torch.tensor([length + i for run in runs for i in range(len(run))], device=device)
    cache = _LeafCache(context, positions, owners)
    leaves = [*cache.keys.values(), *cache.values.values()]
    gradients: Sequence[Tensor | None] = [None] * len(leaves)
    if fisher:
        for leaf in leaves:
            leaf.requires_grad_(True)
        with torch.enable_grad():
            logits = _forward(attached, ids, positions, cache, 0)
            loss = _sampled_loss(logits, seed)
            try:
                gradients = torch.autograd.grad(loss, leaves)
            except RuntimeError as error:
                raise Unsupported(
                    f"{type(attached.model).__name__} cannot be differentiated here ({error}): "
                    "calibrate it without gradients."
                ) from error
    else:
        with torch.no_grad():
            _forward(attached, ids, positions, cache, 1)
    used = (length - SKIPPED_TOKENS - RECENT_TOKENS) // STRETCH_TOKENS * STRETCH_TOKENS
    tokens = slice(SKIPPED_TOKENS, SKIPPED_TOKENS + used)
    starts = torch.arange(SKIPPED_TOKENS, tokens.stop, STRETCH_TOKENS, device=device)
    with torch.no_grad():
        for index, layer in enumerate(layers):
            layer.add(
                context.keys[index][:, tokens],
                context.values[index][:, tokens],
                cache.queries[index],
                starts,
                _part(gradients[index], tokens),
                _part(gradients[len(layers) + index], tokens),
            )


def _part(gradient: Tensor | None, tokens: slice) -> Tensor | None:
    return None if gradient is None else gradient[:, tokens]


def _forward(
    attached: AttachedModel, ids: Iterable[int], positions: Tensor, cache: Cache, keep: int
) -> Tensor:
    model = attached.model
    options = {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        options["logits_to_keep"] = keep
    output = model(
        input_ids=torch.tensor([list(ids)], device=positions.device),
        position_ids=positions[None],
        use_cache=True,
        **{attached.cache_argument: cache},
        **options,
    )
    logits: Tensor = output.logits[0]
    return logits


def _sampled_loss(logits: Tensor, seed: int) -> Tensor:
    """Minus the log-probability of one sample a token: its gradients square to the Fisher."""
    losses = []
    generator = torch.Generator().manual_seed(seed)
    for begin in range(0, logits.shape[0], 128):
        rows = logits[begin : begin + 128]
        log_probabilities = rows.float().log_softmax(-1)
        drawn = torch.multinomial(
            log_probabilities.detach().exp().cpu(), 1, generator=generator
        ).to(rows.device)
        losses.append(-log_probabilities.gather(1, drawn).sum())
    return torch.stack(losses).sum()


class _LayerSums:
    """Running sums of one layer, all in pair order, keys turned back to their stretch's start."""

    def __init__(self, geometry: LayerGeometry) -> None:
        self._geometry = geometry
        heads, head_dim = geometry.num_kv_heads, geometry.head_dim
        square = (heads, head_dim, head_dim)
        float64: dict[str, Any] = {"dtype": torch.float64, "device": geometry.pair_order.device}
        self._num_tokens = 0
        self._num_queries = 0
        self._key_sums = torch.zeros((STRETCH_TOKENS, heads, head_dim), **float64)
        self._key_products = torch.zeros(square, **float64)
        self._key_fisher = torch.zeros(square, **float64)
        self._value_sums = torch.zeros((heads, head_dim), **float64)
        self._value_products = torch.zeros(square, **float64)
        self._value_fisher = torch.zeros(square, **float64)
        self._query_products = torch.zeros(square, **float64)
        self._output: nn.Linear | None = None
        self._hooks: list[Any] = []

    def find_output(self) -> None:
        """Watch which projection the attention's result goes through: the last one that fits."""
        geometry = self._geometry
        width = geometry.num_query_heads * geometry.head_dim

        def note(module: nn.Module, arguments: Any) -> None:
            assert isinstance(module, nn.Linear)
            self._output = module

        for module in geometry.module.modules():
            if isinstance(module, nn.Linear) and module.in_features == width:
                self._hooks.append(module.register_forward_pre_hook(note))

    def forget_output(self) -> None:
        """Take the hooks off again."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def add(
        self,
        keys: Tensor,
        values: Tensor,
        queries: Tensor,
        starts: Tensor,
        key_gradients: Tensor | None,
        value_gradients: Tensor | None,
    ) -> None:
        """Count one text.

        Args:
            keys, values: (num_kv_heads, num_tokens, head_dim), whole stretches.
            queries: (num_query_heads, num_queries, head_dim), rotated.
            starts: (num_tokens / STRETCH_TOKENS,): positions at which the stretches start.
            key_gradients, value_gradients: as keys and values, or None.
        """
        geometry = self._geometry
        local = self._turn_back(keys, starts)
        self._num_tokens += local.shape[1]
        by_stretch = local.reshape(local.shape[0], -1, STRETCH_TOKENS, local.shape[2])
        self._key_sums += by_stretch.sum(1).transpose(0, 1).double()
        self._key_products += _products(local)
        self._value_sums += values.double().sum(1)
        self._value_products += _products(values)
        if key_gradients is not None and value_gradients is not None:
            self._key_fisher += _products(self._turn_back(key_gradients, starts))
            self._value_fisher += _products(value_gradients)
        heads, head_dim = geometry.num_kv_heads, geometry.head_dim
        ordered = queries.float().index_select(-1, geometry.pair_order)
        products = _products(ordered.reshape(heads, -1, head_dim)) / queries.shape[1]
        turns = unit_rotations(starts, geometry.frequencies, inverse=True)
        for turn in turns:
            self._query_products += _turned(products.float(), turn).double() / len(turns)
        self._num_queries += queries.shape[0] // heads

    def moments(self, has_fisher: bool) -> LayerMoments:
        """What was summed, as means."""
        geometry, count = self._geometry, self._num_tokens
        return LayerMoments(
            frequencies=geometry.frequencies.cpu(),
            key_means=(self._key_sums * STRETCH_TOKENS / count).cpu(),
            key_products=(self._key_products / count).cpu(),
            value_mean=(self._value_sums / count).cpu(),
            value_products=(self._value_products / count).cpu(),
            query_products=(self._query_products / self._num_queries).cpu(),
            output_products=self._output_products().cpu(),
            key_fisher=(self._key_fisher / count).cpu() if has_fisher else None,
            value_fisher=(self._value_fisher / count).cpu() if has_fisher else None,
        )

    def _turn_back(self, states: Tensor, starts: Tensor) -> Tensor:
        geometry = self._geometry
        turns = unit_rotations(starts, geometry.frequencies, inverse=True)
        turns = turns.repeat_interleave(STRETCH_TOKENS, 0)
        return as_channels(as_pairs(states, geometry.pair_order) * turns)

    def _output_products(self) -> Tensor:
        """(num_kv_heads, head_dim, head_dim): how values of a head show in the layer's result."""
        geometry = self._geometry
        heads, head_dim = geometry.num_kv_heads, geometry.head_dim
        weight = None if self._output is None else self._output.weight.detach()
        if weight is None or not weight.is_floating_point():
            return torch.eye(head_dim, dtype=torch.float64).repeat(heads, 1, 1)
        by_head = weight.double().T.reshape(heads, -1, head_dim, weight.shape[0])
        return torch.einsum("hgdo,hgeo->hde", by_head, by_head)


def _products(rows: Tensor) -> Tensor:
    """(heads, n, d) -> (heads, d, d), float64: sum of outer products."""
    rows = rows.float()
    return (rows.transpose(1, 2) @ rows).double()


def _turned(products: Tensor, turn: Tensor) -> Tensor:
    """Second moments (heads, d, d) of vectors after their pairs are multiplied by `turn`."""
    once = as_channels(ordered_pairs(products) * turn)
    return as_channels(ordered_pairs(once.transpose(1, 2).contiguous()) * turn)
