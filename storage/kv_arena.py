"""One pool of pages in one format, for every layer of a model, shared by a cache and its forks.

A `Block` is the pages of one segment: the same rows in every layer. Blocks are never written after
they are stored, so forks share them by reference; a block's rows are free again when nobody holds
the block. Rows that are free or belong to somebody else are finite numbers: readers mask them.

Knows nothing of positions, keys or tokens. Not thread-safe: a conversation runs on one thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from agentmem.storage.kv_format import Format, LayerShape, num_pages_for

_GROWTH = 1.25
"""Spare rows an arena allocates when it is full, as a factor."""
_MAX_WASTE = 0.15
"""Share of free rows below the last used one above which compacting pays."""


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

    Raises:
        Unsupported: the format cannot hold a layer of such a shape.
    """

    def __init__(self, format: Format, shapes: Sequence[LayerShape], device: torch.device) -> None:
        self.format = format
        self.device = device
        self.codecs = tuple(format.layer(index, shape) for index, shape in enumerate(shapes))
        self.version = 0
        """Changes whenever rows move: what was computed from rows is then stale."""
        self._blocks: weakref.WeakSet[Block] = weakref.WeakSet()
        self.layers = [
            torch.zeros((0, codec.page_nbytes), dtype=torch.uint8, device=device)
            for codec in self.codecs
        ]
        """(capacity, page_nbytes), uint8, for each layer."""
        self.page_nbytes = sum(codec.page_nbytes for codec in self.codecs)
        """Bytes of a page over all layers."""

    @property
    def capacity(self) -> int:
        """Rows allocated."""
        return self.layers[0].shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes allocated, spare rows included."""
        return self.capacity * self.page_nbytes

    def store(self, num_tokens: int, layers: Iterable[Tensor]) -> Block:
        """Take in the pages of one segment.

        Args:
            num_tokens: of the segment.
            layers: for each layer (num_pages, page_nbytes), uint8.

        Returns:
            The block; its pages stay as long as somebody holds it.
        """
        rows = self._reserve(num_pages_for(num_tokens))
        index = torch.tensor(rows, dtype=torch.int64, device=self.device)
        for pages, new in zip(self.layers, layers, strict=True):
            pages.index_copy_(0, index, new)
        block = Block(self, rows, num_tokens)
        self._blocks.add(block)
        return block

    def load(self, block: Block) -> list[Tensor]:
        """A copy of a block's pages: for each layer (num_pages, page_nbytes), uint8."""
        rows = torch.tensor(block.rows, dtype=torch.int64, device=self.device)
        return [pages.index_select(0, rows) for pages in self.layers]

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
        for index, pages in enumerate(self.layers):
            # Zeros, not empty memory: a masked NaN would still poison the weighted sum.
            grown = torch.zeros((capacity, pages.shape[1]), dtype=torch.uint8, device=self.device)
            grown[: pages.shape[0]] = pages
            self.layers[index] = grown

    def _gather(self, rows: list[int]) -> None:
        index = torch.tensor(rows, dtype=torch.int64, device=self.device)
        for position, pages in enumerate(self.layers):
            self.layers[position] = pages.index_select(0, index)
