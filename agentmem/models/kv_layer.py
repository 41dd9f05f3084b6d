"""One layer of a segment cache: its open tail, and attention over tail and pages.

Few queries (a decoded token, the end of a prompt) turn the query once a stretch and leave packed
pages as they are. Many queries turn the keys instead, one tile of pages at a time, so that their
cost is shared. Both give the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from agentmem.kernels.attention import TILE_TOKENS, OnlineSoftmax, merge
from agentmem.kernels.backend import attends_dense_in_c
from agentmem.kernels.code_stream import PAGE_TOKENS
from agentmem.kernels.cpu_dense import DenseStates
from agentmem.kernels.rotary import as_channels, as_pairs, ordered_pairs
from agentmem.models.kv_rows import attend_rows, sink_part
from agentmem.models.kv_window import Step
from agentmem.models.rope_probe import LayerGeometry
from agentmem.storage.kv_format import pad_to_pages

MAX_ROW_QUERIES = 16
"""Queries up to which turning the query is cheaper than turning the keys. Also those of a prompt's
end whose attention is observed."""
_QUERY_CHUNK = 128
"""Queries folded at a time against one tile: bounds the logits held."""


class SegmentLayer:
    """Keys and values of one layer. It does not know its cache: no cycle keeps a fork alive.

    Args:
        index: which layer.
        geometry: its shapes and rotation.
        group: index of its frequencies among the model's distinct ones.
    """

    # What transformers asks of a cache's layers.
    is_compileable = False
    is_croppable = True
    is_sliding = False
    supports_early_init = False

    def __init__(self, index: int, geometry: LayerGeometry, group: int) -> None:
        self.index = index
        self.geometry = geometry
        self.group = group
        self.tail_keys: Tensor | None = None
        """(num_kv_heads, capacity, head_dim), as they arrived: rotated by their position."""
        self.tail_values: Tensor | None = None
        self._tail_states: tuple[int, DenseStates | None] | None = None
        """The tail from an index on, for C; None in it where C does not attend to it."""

    def append(self, keys: Tensor, values: Tensor, begin: int) -> None:
        """Write new tokens to the tail at index `begin`.

        Args:
            keys: (num_kv_heads, num_tokens, head_dim).
            values: the same shape.
        """
        end = begin + keys.shape[1]
        if self.tail_keys is None or self.tail_values is None or end > self.tail_keys.shape[1]:
            self._grow(keys, end)
        assert self.tail_keys is not None and self.tail_values is not None
        self.tail_keys[:, begin:end] = keys
        self.tail_values[:, begin:end] = values

    def take_tail(self, begin: int, end: int, rotations: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [begin, end) of the tail as pages.

        Args:
            begin, end: indices in the tail.
            rotations: (end - begin, head_dim / 2), complex64, by which the start of each token's
                stretch is taken out of its key.

        Returns:
            Keys in pair order, and values: (num_pages, num_kv_heads, PAGE_TOKENS, head_dim).
        """
        assert self.tail_keys is not None and self.tail_values is not None
        pairs = as_pairs(self.tail_keys[:, begin:end], self.geometry.pair_order) * rotations
        return pad_to_pages(as_channels(pairs)), pad_to_pages(self.tail_values[:, begin:end])

    def copy_tail(self, other: SegmentLayer, begin: int, end: int) -> None:
        """Take over a copy of another layer's tail."""
        if other.tail_keys is None or other.tail_values is None or end <= begin:
            return
        self.append(other.tail_keys[:, begin:end], other.tail_values[:, begin:end], 0)

    def attend(
        self, query: Tensor, step: Step, tail_begin: int, call: dict[str, Any], mass: Tensor | None
    ) -> Tensor:
        """Attention of new queries over the window.

        Args:
            query: (1, num_query_heads, num_new, head_dim), rotated by the queries' positions.
            step: what this forward may see.
            tail_begin: index of the tail's first token.
            call: scaling, softcap and s_aux as the model passes them.
            mass: (num_padded_columns,), float32; the observed queries' probabilities are added to
                it. None: not observed.

        Returns:
            (1, num_new, num_query_heads, head_dim), the query's dtype.
        """
        geometry = self.geometry
        num_new = query.shape[2]
        scaling = call.get("scaling")
        states = query[0].float() * (geometry.head_dim**-0.5 if scaling is None else scaling)
        tail = slice(tail_begin, tail_begin + step.num_tail)
        # Branches are asked of packed pages as decoded tokens are, however many they are.
        early = 0 if step.branches else max(0, num_new - MAX_ROW_QUERIES)
        late = attend_rows(self, states[:, early:] if early else states, step, tail, call, mass)
        if early:
            late = torch.cat((self._attend_tiles(states[:, :early], step, tail, call), late), 1)
        return late.transpose(0, 1)[None].to(query.dtype)

    def _attend_tiles(
        self, states: Tensor, step: Step, tail: slice, call: dict[str, Any]
    ) -> Tensor:
        """Many queries: turn the keys to their positions, tile by tile."""
        assert self.tail_keys is not None and self.tail_values is not None
        geometry = self.geometry
        heads, num_queries = geometry.num_kv_heads, states.shape[1]
        groups = geometry.num_query_heads // heads
        states = states.view(heads, groups, num_queries, geometry.head_dim)
        sinks, softcap = call.get("s_aux"), call.get("softcap")
        hidden = step.hidden(geometry.window)
        chunks = []
        for first in range(0, num_queries, _QUERY_CHUNK):
            last = min(first + _QUERY_CHUNK, num_queries)
            rows = groups * (last - first)
            softmax = OnlineSoftmax(heads, rows, geometry.head_dim, states.device)
            chunks.append((first, last, softmax))
        ordered = as_channels(as_pairs(states, geometry.pair_order))

        def fold(
            source: Tensor, keys: Tensor, values: Tensor, columns: slice, causal: bool
        ) -> None:
            for first, last, softmax in chunks:
                # The tail's tokens after a chunk's last query are hidden from all of it.
                stop = min(keys.shape[1], step.num_past + last - (columns.start - num_slots))
                seen = stop if causal else keys.shape[1]
                if seen <= 0:
                    continue
                logits = torch.bmm(
                    source[:, :, first:last].reshape(heads, -1, geometry.head_dim),
                    keys[:, :seen].transpose(1, 2),
                )
                if softcap is not None:
                    logits.div_(softcap).tanh_().mul_(softcap)
                masked = hidden[first:last, columns.start : columns.start + seen]
                logits.view(heads, groups, last - first, seen).masked_fill_(masked, float("-inf"))
                softmax.fold(logits, values[:, :seen])

        num_slots = step.view.num_slots
        for view in step.view.arenas:
            for piece in view.parts(self.index, self.group):
                first_column = view.columns.start + piece.slots.start
                for tile, which in piece.table.tiles(TILE_TOKENS):
                    pages = piece.pages.index_select(0, tile.rows)
                    keys, values = piece.codec.decode(pages, tile.phases)
                    turns = piece.rotations.index_select(0, tile.stretches).conj()
                    keys = as_channels(ordered_pairs(keys) * turns[:, None, None])
                    begin = first_column + which.start * PAGE_TOKENS
                    fold(
                        ordered, keys.transpose(0, 1).flatten(1, 2),
                        values.transpose(0, 1).flatten(1, 2),
                        slice(begin, begin + tile.num_slots), False,
                    )  # fmt: skip
        for offset in range(0, step.num_tail, TILE_TOKENS):
            width = min(TILE_TOKENS, step.num_tail - offset)
            part = slice(tail.start + offset, tail.start + offset + width)
            columns = slice(num_slots + offset, num_slots + offset + width)
            fold(
                states, self.tail_keys[:, part].float(), self.tail_values[:, part].float(),
                columns, True,
            )  # fmt: skip
        mixed = []
        for first, last, softmax in chunks:
            parts = [(softmax.result(), softmax.log_sum_exp())]
            if sinks is not None:
                parts.append(sink_part(sinks, heads, last - first, geometry.head_dim))
            mixed.append(merge(parts)[0].view(heads, groups, last - first, geometry.head_dim))
        return torch.cat(mixed, 2).view(geometry.num_query_heads, num_queries, geometry.head_dim)

    def _grow(self, like: Tensor, needed: int) -> None:
        heads, _, head_dim = like.shape
        capacity = max(64, needed + needed // 4)
        # Normal tensors, also when the caller runs in inference mode: the tail is written again
        # by forwards that do not.
        with torch.inference_mode(False):
            keys = torch.zeros((heads, capacity, head_dim), dtype=like.dtype, device=like.device)
            values = torch.zeros_like(keys)
        if self.tail_keys is not None and self.tail_values is not None:
            keys[:, : self.tail_keys.shape[1]] = self.tail_keys
            values[:, : self.tail_values.shape[1]] = self.tail_values
        self.tail_keys, self.tail_values = keys, values
        self._tail_states = None

    def states_from(self, begin: int) -> DenseStates | None:
        """The tail from an index on as C attends to it; None where eager PyTorch does."""
        if self._tail_states is None or self._tail_states[0] != begin:
            assert self.tail_keys is not None and self.tail_values is not None
            keys, values = self.tail_keys[:, begin:], self.tail_values[:, begin:]
            in_c = attends_dense_in_c(keys.device, self.geometry.head_dim, keys.dtype)
            self._tail_states = begin, DenseStates.of_rows(keys, values) if in_c else None
        return self._tail_states[1]
