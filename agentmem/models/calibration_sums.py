"""Running sums over what a calibration sees of one layer: the moments its transforms are made of.

All in pair order, keys turned back to the start of their stretch. Knows nothing of texts or models
but the layer's geometry.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from agentmem.errors import InvalidInput
from agentmem.kernels.rotary import as_channels, as_pairs, ordered_pairs, unit_rotations
from agentmem.kernels.transform_coding import STRETCH_TOKENS, LayerMoments
from agentmem.models.calibration_text import RECENT_TOKENS, SKIPPED_TOKENS
from agentmem.models.rope_probe import LayerGeometry


class LayerSums:
    """Running sums of one layer, all in pair order, keys turned back to their stretch's start."""

    def __init__(self, geometry: LayerGeometry) -> None:
        self._geometry = geometry
        heads, head_dim = geometry.num_kv_heads, geometry.head_dim
        square = (heads, head_dim, head_dim)
        float64: dict[str, Any] = {"dtype": torch.float64, "device": geometry.pair_order.device}
        self._num_tokens = 0
        self._num_queries = 0
        self._has_fisher = False
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

    def add(self, keys: Tensor, values: Tensor, queries: Tensor, starts: Tensor) -> None:
        """Count one text.

        Args:
            keys, values: (num_kv_heads, num_tokens, head_dim), whole stretches.
            queries: (num_query_heads, num_queries, head_dim), rotated.
            starts: (num_tokens / STRETCH_TOKENS,): positions at which the stretches start.
        """
        geometry = self._geometry
        local = turn_back(keys, geometry, starts)
        self._num_tokens += local.shape[1]
        by_stretch = local.reshape(local.shape[0], -1, STRETCH_TOKENS, local.shape[2])
        self._key_sums += by_stretch.sum(1).transpose(0, 1).double()
        self._key_products += _products(local)
        self._value_sums += values.double().sum(1)
        self._value_products += _products(values)
        heads, head_dim = geometry.num_kv_heads, geometry.head_dim
        ordered = queries.float().index_select(-1, geometry.pair_order)
        products = _products(ordered.reshape(heads, -1, head_dim)) / queries.shape[1]
        turns = unit_rotations(starts, geometry.frequencies, inverse=True)
        for turn in turns:
            self._query_products += _turned(products.float(), turn).double() / len(turns)
        self._num_queries += queries.shape[0] // heads

    def add_gradients(self, keys: Tensor, values: Tensor, starts: Tensor) -> None:
        """Count the gradients of the text that was added last.

        Args:
            keys, values: (num_kv_heads, num_tokens, head_dim): with respect to them.
            starts: as before.
        """
        self._has_fisher = True
        self._key_fisher += _products(turn_back(keys, self._geometry, starts))
        self._value_fisher += _products(values)

    def moments(self) -> LayerMoments:
        """What was summed, as means."""
        geometry, count = self._geometry, self._num_tokens
        has_fisher = self._has_fisher
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

    def _output_products(self) -> Tensor:
        """(num_kv_heads, head_dim, head_dim): how values of a head show in the layer's result."""
        geometry = self._geometry
        heads, head_dim = geometry.num_kv_heads, geometry.head_dim
        weight = None if self._output is None else self._output.weight.detach()
        if weight is None or not weight.is_floating_point():
            return torch.eye(head_dim, dtype=torch.float64).repeat(heads, 1, 1)
        by_head = weight.double().T.reshape(heads, -1, head_dim, weight.shape[0])
        return torch.einsum("hgdo,hgeo->hde", by_head, by_head)


def used_tokens(context_tokens: int, device: torch.device) -> tuple[slice, Tensor]:
    """Which tokens of a context count, and the positions at which their stretches start.

    Raises:
        InvalidInput: there is no whole stretch of them.
    """
    num_stretches = (context_tokens - SKIPPED_TOKENS - RECENT_TOKENS) // STRETCH_TOKENS
    if num_stretches < 1:
        least = SKIPPED_TOKENS + RECENT_TOKENS + STRETCH_TOKENS
        raise InvalidInput(
            f"A calibration context needs {least} tokens at least: got {context_tokens}."
        )
    starts = SKIPPED_TOKENS + torch.arange(num_stretches, device=device) * STRETCH_TOKENS
    return slice(SKIPPED_TOKENS, SKIPPED_TOKENS + num_stretches * STRETCH_TOKENS), starts


def turn_back(states: Tensor, geometry: LayerGeometry, starts: Tensor) -> Tensor:
    """Whole stretches of keys, or of what goes with keys, rotated by their offset alone.

    Args:
        states: (num_kv_heads, num_tokens, head_dim), rotated by position.
        geometry: of their layer.
        starts: (num_tokens / STRETCH_TOKENS,): positions of the stretches.

    Returns:
        The same shape, float32, in pair order.
    """
    turns = unit_rotations(starts, geometry.frequencies, inverse=True)
    turns = turns.repeat_interleave(STRETCH_TOKENS, 0)
    return as_channels(as_pairs(states, geometry.pair_order) * turns)


def _products(rows: Tensor) -> Tensor:
    """(heads, n, d) -> (heads, d, d), float64: sum of outer products."""
    rows = rows.float()
    return (rows.transpose(1, 2) @ rows).double()


def _turned(products: Tensor, turn: Tensor) -> Tensor:
    """Second moments (heads, d, d) of vectors once their pairs are multiplied by `turn`."""
    once = as_channels(ordered_pairs(products) * turn)
    return as_channels(ordered_pairs(once.transpose(1, 2).contiguous()) * turn)
