"""One pool of pages in one format, for every layer of a model, shared by a cache and its forks.

A `Block` is the pages of one segment: the same rows in every layer. What it leaves free of its
first and last page another block may take, where the format says which bits belong to which slots:
short segments then cost no padding. A block's slots are never written after they are stored, so
forks share blocks by reference; they are free again when nobody holds the block. What is free or
belongs to somebody else are finite numbers: readers mask them.

Knows nothing of positions, keys or tokens. Not thread-safe: a conversation runs on one thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from agentmem.kernels.packing import PAGE_TOKENS
from agentmem.storage.kv_format import Format, LayerShape, num_pages_for

_GROWTH = 1.25
"""Spare rows an arena allocates when it is full, as a factor."""
_MAX_WASTE = 0.3
"""Share of free rows above which compacting pays: more than growing leaves."""
_WHOLE_PAGE = (1 << PAGE_TOKENS) - 1


class Block:
    """The pages of one segment: rows of an arena. Immutable but for compaction.

    Args:
        arena: where they lie.
        rows: page by page.
        num_tokens: of the segment.
        first_slot: of its first token in its first page.
    """

    __slots__ = ("__weakref__", "arena", "first_slot", "num_tokens", "rows")

    def __init__(self, arena: PageArena, rows: list[int], num_tokens: int, first_slot: int) -> None:
        self.arena = arena
        self.rows = rows
        self.num_tokens = num_tokens
        self.first_slot = first_slot


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
        below = [codec.slots_below for codec in self.codecs]
        self._slots_below = [one.to(device) for one in below if one is not None]
        self.shares_pages = len(self._slots_below) == len(below)
        """Whether two segments can lie in one page."""

    @property
    def capacity(self) -> int:
        """Rows allocated."""
        return self.layers[0].shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes allocated, spare rows included."""
        return self.capacity * self.page_nbytes

    def nbytes_of(self, blocks: Iterable[Block]) -> int:
        """Bytes of the pages that blocks lie in, each page counted once."""
        return len({row for block in blocks for row in block.rows}) * self.page_nbytes

    def store(self, num_tokens: int, layers: Iterable[Tensor], first_slot: int = 0) -> Block:
        """Take in the pages of one segment.

        Args:
            num_tokens: of the segment.
            layers: for each layer (num_pages, page_nbytes), uint8; what `load` gave is as good.
            first_slot: of its first token in its first page.

        Returns:
            The block; its pages stay as long as somebody holds it.
        """
        used = self._used()
        rows = self._reserve(self._masks(num_tokens, first_slot), used)
        index = torch.tensor(rows, dtype=torch.int64, device=self.device)
        others = [page for page, row in enumerate(rows) if row in used]
        for layer, (pages, new) in enumerate(zip(self.layers, layers, strict=True)):
            if len(new) < len(rows):
                new = torch.cat((new, new[:1]))
            if others:
                mine = self._bits(layer, num_tokens, first_slot)[others]
                theirs = pages.index_select(0, index[others]) & ~mine
                new = new.index_copy(
                    0, torch.tensor(others, device=self.device), theirs | (new[others] & mine)
                )
            pages.index_copy_(0, index, new)
        block = Block(self, rows, num_tokens, first_slot)
        self._blocks.add(block)
        return block

    def load(self, block: Block) -> list[Tensor]:
        """A copy of a block's pages: for each layer (num_pages, page_nbytes), uint8.

        They are as many as its tokens need, and a ring: of a block that begins late in its first
        page, the last tokens lie before the first. Slots that are not the block's are 0 where
        pages are shared.
        """
        index = torch.tensor(block.rows, dtype=torch.int64, device=self.device)
        copies = [pages.index_select(0, index) for pages in self.layers]
        if not self.shares_pages:
            return copies
        num_pages = num_pages_for(block.num_tokens)
        for layer, copy in enumerate(copies):
            copy &= self._bits(layer, block.num_tokens, block.first_slot)
            if len(copy) > num_pages:
                copy[0] |= copy[-1]
                copies[layer] = copy[:-1]
        return copies

    def tidy(self) -> bool:
        """Give free rows back where they are too many; True if rows moved."""
        used = self._used()
        if not used:
            if self.capacity:
                self._gather([])
            return False
        if self.capacity - len(used) <= max(4, int(self.capacity * _MAX_WASTE)):
            return False
        kept = sorted(used)
        place = {row: index for index, row in enumerate(kept)}
        self._gather(kept)
        for block in self._blocks:
            block.rows = [place[row] for row in block.rows]
        self.version += 1
        return True

    def _masks(self, num_tokens: int, first_slot: int) -> list[int]:
        """The slots a segment takes of each of its pages, as bits."""
        num_pages = num_pages_for(num_tokens, first_slot)
        if not self.shares_pages:
            return [_WHOLE_PAGE] * num_pages
        bits = ((1 << num_tokens) - 1) << first_slot
        return [(bits >> page * PAGE_TOKENS) & _WHOLE_PAGE for page in range(num_pages)]

    def _bits(self, layer: int, num_tokens: int, first_slot: int) -> Tensor:
        """(num_pages, page_nbytes), uint8: the bits of a layer's pages that a segment lies in."""
        below = self._slots_below[layer]
        num_pages = num_pages_for(num_tokens, first_slot)
        bits = below[PAGE_TOKENS].repeat(num_pages, 1)
        bits[-1] = below[first_slot + num_tokens - (num_pages - 1) * PAGE_TOKENS]
        bits[0] &= ~below[first_slot]
        return bits

    def _used(self) -> dict[int, int]:
        """The slots in use of each row that has any, as bits."""
        used: dict[int, int] = {}
        for block in self._blocks:
            masks = self._masks(block.num_tokens, block.first_slot)
            for row, mask in zip(block.rows, masks, strict=True):
                used[row] = used.get(row, 0) | mask
        return used

    def _reserve(self, masks: Sequence[int], used: dict[int, int]) -> list[int]:
        """A row for each page: one in use that has the slots free, or a free one."""
        rows: list[int] = []
        for mask in masks:
            # A segment's own pages do not meet in a row, which is written once.
            fitting = [row for row, taken in used.items() if not taken & mask and row not in rows]
            fullest = max(fitting, key=lambda row: used[row].bit_count(), default=-1)
            rows.append(fullest)
        missing = rows.count(-1)
        free = [row for row in range(self.capacity) if row not in used]
        if len(free) < missing:
            capacity = self.capacity
            target = max(capacity + missing - len(free), int(capacity * _GROWTH))
            self._grow(target)
            free += range(capacity, target)
        unused = iter(free)
        return [next(unused) if row < 0 else row for row in rows]

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
