"""One pool of pages in one format, for every layer of a model, shared by a cache and its forks.

A `Block` is the pages of one segment: the same rows in every layer. Blocks are never written after
they are stored, so forks share them by reference; a block's rows are free again when nobody holds
the block. Rows that are free or belong to somebody else are finite numbers: readers mask them.

Knows nothing of positions, keys or tokens. Not thread-safe: a conversation runs on one thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentmem.storage.kv_format import (
    PAGE_TOKENS,
    Format,
    Pages,
    num_pages_for,
    page_dim,
    pages_nbytes,
    take_pages,
)

_GROWTH = 1.25
"""Spare rows an arena allocates when it is full, as a factor."""
_MAX_WASTE = 0.15
"""Share of free rows below the last used one above which compacting pays."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Heads and channels of one layer's keys and values."""

    num_kv_heads: int
    head_dim: int


class Block:
    """The pages of one segment: rows of an arena. Immutable but for compaction."""

    __slots__ = ("__weakref__", "arena", "num_tokens", "rows")

    def __init__(self, arena: PageArena, rows: list[int], num_tokens: int) -> None:
        self.arena = arena
        self.rows = rows
        self.num_tokens = num_tokens

    @property
    def nbytes(self) -> int:
        """Bytes of its pages over all layers, scales and padding included."""
        return len(self.rows) * self.arena.page_nbytes


class PageArena:
    """Pages of one format for all layers.

    Args:
        format: how pages are encoded.
        shapes: heads and channels of each layer.
        device: where the pages live.
        centers: for each layer what to take off its keys before they are encoded,
            (num_kv_heads, PAGE_TOKENS, head_dim), or None; given as None where no layer has one.
    """

    def __init__(
        self,
        format: Format,
        shapes: Sequence[LayerShape],
        device: torch.device,
        centers: Sequence[Tensor | None] | None = None,
    ) -> None:
        self.format = format
        self.shapes = tuple(shapes)
        self.device = device
        self.centers = tuple(centers or [None] * len(self.shapes))
        self.version = 0
        """Changes whenever rows move: what was computed from rows is then stale."""
        self._blocks: weakref.WeakSet[Block] = weakref.WeakSet()
        self.layers: list[Pages] = [self._empty(shape) for shape in self.shapes]
        self.page_nbytes = sum(
            pages_nbytes(self.format.encode(zeros, zeros))
            for zeros in (
                torch.zeros((1, shape.num_kv_heads, PAGE_TOKENS, shape.head_dim), device=device)
                for shape in self.shapes
            )
        )

    @property
    def capacity(self) -> int:
        """Rows allocated."""
        field = next(iter(self.layers[0]))
        return self.layers[0][field].shape[page_dim(field)]

    @property
    def nbytes(self) -> int:
        """Bytes allocated, spare rows included."""
        return sum(pages_nbytes(pages) for pages in self.layers)

    def store(self, num_tokens: int, layers: Iterable[Pages]) -> Block:
        """Take in the encoded pages of one segment, one entry a layer.

        Returns:
            The block; its pages stay as long as somebody holds it.
        """
        rows = self._reserve(num_pages_for(num_tokens))
        index = torch.tensor(rows, dtype=torch.int64, device=self.device)
        for pages, new in zip(self.layers, layers, strict=True):
            for name, field in pages.items():
                field.index_copy_(page_dim(name), index, new[name])
        block = Block(self, rows, num_tokens)
        self._blocks.add(block)
        return block

    def encode(self, layer: int, keys: Tensor, values: Tensor) -> Pages:
        """One layer's pages in this arena's format; shapes as in `Format.encode`."""
        center = self.centers[layer]
        return self.format.encode(keys if center is None else keys - center, values)

    def decode(self, layer: int, pages: Pages) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer's pages, float32."""
        keys, values = self.format.decode(pages)
        center = self.centers[layer]
        return keys if center is None else keys + center, values

    def logits(self, layer: int, pages: Pages, queries: Tensor, out: Tensor) -> None:
        """Products of queries and one layer's keys; shapes as in `Format.logits`."""
        self.format.logits(pages, queries, out)
        center = self.centers[layer]
        if center is not None:
            num_pages, num_heads, rows, head_dim = queries.shape
            by_head = queries.transpose(0, 1).reshape(num_heads, num_pages * rows, head_dim)
            offsets = torch.bmm(by_head, center.transpose(1, 2))
            out += offsets.view(num_heads, num_pages, rows, PAGE_TOKENS).transpose(0, 1)

    def load(self, block: Block) -> list[Pages]:
        """A copy of a block's pages, one entry a layer."""
        rows = torch.tensor(block.rows, dtype=torch.int64, device=self.device)
        return [take_pages(pages, rows) for pages in self.layers]

    def tidy(self) -> bool:
        """Close the gaps between used rows where they cost too much; True if rows moved."""
        used = self._used()
        if not used:
            if self.capacity:
                self._gather([])
            return False
        span = max(used) + 1
        if span - len(used) <= max(4, int(span * _MAX_WASTE)):
            return False
        kept = sorted(used)
        place = {row: index for index, row in enumerate(kept)}
        self._gather(kept)
        for block in self._blocks:
            block.rows = [place[row] for row in block.rows]
        self.version += 1
        return True

    def _used(self) -> set[int]:
        return {row for block in self._blocks for row in block.rows}

    def _reserve(self, num_pages: int) -> list[int]:
        used = self._used()
        free = [row for row in range(self.capacity) if row not in used]
        if len(free) < num_pages:
            capacity = self.capacity
            target = max(capacity + num_pages - len(free), int(capacity * _GROWTH))
            self._grow(target)
            free += range(capacity, target)
        return free[:num_pages]

    def _grow(self, capacity: int) -> None:
        for pages in self.layers:
            for name, field in pages.items():
                shape = list(field.shape)
                dim = page_dim(name)
                shape[dim] = capacity
                # Zeros, not empty memory: a masked NaN would still poison the weighted sum.
                grown = torch.zeros(shape, dtype=field.dtype, device=self.device)
                grown.narrow(dim, 0, field.shape[dim]).copy_(field)
                pages[name] = grown

    def _gather(self, rows: list[int]) -> None:
        index = torch.tensor(rows, dtype=torch.int64, device=self.device)
        for position, pages in enumerate(self.layers):
            self.layers[position] = take_pages(pages, index)

    def _empty(self, shape: LayerShape) -> Pages:
        zeros = torch.zeros(
            (0, shape.num_kv_heads, PAGE_TOKENS, shape.head_dim), device=self.device
        )
        return self.format.encode(zeros, zeros)
