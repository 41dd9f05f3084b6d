"""One pool of pages in one format, for every layer of a model, shared by a cache and its forks.

A `Block` is the pages of one segment: the same rows in every layer. What it leaves free of its
first and last page another block may take, where the format says which bits belong to which slots:
short segments then cost no padding. A block's slots are never written after they are stored, so
forks share blocks by reference; they are free again when nobody holds the block. What is free or
belongs to somebody else are finite numbers: readers mask them.

Where memory runs out in the middle of growing, moving or compacting, every block is as it was.

Knows nothing of positions, keys or tokens. Not thread-safe: a conversation runs on one thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from agentmem.kernels.code_stream import PAGE_TOKENS
from agentmem.storage.kv_copies import Event, to_host
from agentmem.storage.kv_format import Format, LayerCodec, LayerShape, num_pages_for

_GROWTH = 1.25
"""Spare rows an arena allocates when it is full, as a factor."""
_MAX_WASTE = 0.3
"""Share of free rows above which compacting pays: more than growing leaves."""
_WHOLE_PAGE = (1 << PAGE_TOKENS) - 1


class Block:
    """The pages of one segment: rows of an arena. They may be moved; what they say never changes.

    Args:
        arena: where they lie.
        rows: page by page.
        num_tokens: of the segment.
        first_slot: of its first token in its first page.

    Attributes:
        last_used: when, by the clock of whoever chooses what lies where.
    """

    __slots__ = ("__weakref__", "arena", "first_slot", "last_used", "num_tokens", "rows")

    def __init__(self, arena: PageArena, rows: list[int], num_tokens: int, first_slot: int) -> None:
        self.arena = arena
        self.rows = rows
        self.num_tokens = num_tokens
        self.first_slot = first_slot
        self.last_used = 0


class PageArena:
    """Pages of one format for all layers.

    Args:
        format: how pages are encoded.
        shapes: heads and channels of each layer.
        device: where the pages live.

    Attributes:
        is_host: whether it holds in host memory what a device has no room for: readers stream it.
        last_read: of the last copy out of its rows that may still be under way; they are not
            written before.

    Raises:
        Unsupported: the format cannot hold a layer of such a shape.
    """

    def __init__(self, format: Format, shapes: Sequence[LayerShape], device: torch.device) -> None:
        codecs = tuple(format.layer(index, shape) for index, shape in enumerate(shapes))
        self._set_up(format, codecs, device, is_pinned=False)
        self.is_host = False

    def in_host_memory(self) -> PageArena:
        """An empty arena of such pages in host memory, pinned where this one is on CUDA."""
        other = PageArena.__new__(PageArena)
        is_pinned = self.device.type == "cuda"
        other._set_up(self.format, self.codecs, torch.device("cpu"), is_pinned=is_pinned)
        other.is_host = True
        return other

    def _set_up(
        self, format: Format, codecs: Sequence[LayerCodec], device: torch.device, *, is_pinned: bool
    ) -> None:
        self.format = format
        self.device = device
        self.codecs = tuple(codecs)
        self.last_read: Event | None = None
        self.version = 0
        """Changes whenever rows move: what was computed from rows is then stale."""
        self._is_pinned = is_pinned
        self._blocks: weakref.WeakSet[Block] = weakref.WeakSet()
        self._capacity = 0
        self.layers = [self._rows(0, codec.page_nbytes) for codec in self.codecs]
        """(capacity or more, page_nbytes), uint8, for each layer."""
        self.page_nbytes = sum(codec.page_nbytes for codec in self.codecs)
        """Bytes of a page over all layers."""
        below = [codec.slots_below for codec in self.codecs]
        self._slots_below = [one.to(device) for one in below if one is not None]
        self.shares_pages = len(self._slots_below) == len(below)
        """Whether two segments can lie in one page."""

    @property
    def capacity(self) -> int:
        """Rows allocated."""
        return self._capacity

    @property
    def nbytes(self) -> int:
        """Bytes allocated, spare rows included."""
        return sum(pages.numel() for pages in self.layers)

    @property
    def used_nbytes(self) -> int:
        """Bytes of the pages that blocks lie in."""
        return len(self._used()) * self.page_nbytes

    @property
    def num_free(self) -> int:
        """Rows that no block lies in."""
        return self.capacity - len(self._used())

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All that somebody holds, in no order."""
        return tuple(self._blocks)

    def nbytes_of(self, blocks: Iterable[Block]) -> int:
        """Bytes of the pages that blocks lie in, each page counted once."""
        return len({row for block in blocks for row in block.rows}) * self.page_nbytes

    def store(
        self,
        num_tokens: int,
        layers: Iterable[Tensor],
        first_slot: int = 0,
        *,
        max_capacity: int | None = None,
    ) -> Block:
        """Take in the pages of one segment.

        Args:
            num_tokens: of the segment.
            layers: for each layer (num_pages, page_nbytes), uint8, on any device; what `load` gave
                is as good.
            first_slot: of its first token in its first page.
            max_capacity: rows up to which spare ones may be allocated.

        Returns:
            The block; its pages stay as long as somebody holds it.
        """
        used = self._used()
        rows = self._reserve(self._masks(num_tokens, first_slot), used, max_capacity)
        index = torch.tensor(rows, dtype=torch.int64, device=self.device)
        others = [page for page, row in enumerate(rows) if row in used]
        self._wait_for_readers()
        for layer, (pages, new) in enumerate(zip(self.layers, layers, strict=True)):
            # To host memory the copy must have arrived before it is read.
            new = new.to(self.device, non_blocking=self.device.type != "cpu")
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

    def take(self, block: Block, *, max_capacity: int | None = None) -> None:
        """Move another arena's block of the same format here, for all who hold it."""
        source = block.arena
        pages = source.load(block)
        moved = self.store(
            block.num_tokens,
            to_host(pages) if self.is_host else pages,
            block.first_slot,
            max_capacity=max_capacity,
        )
        source._blocks.discard(block)
        self._blocks.discard(moved)
        block.arena, block.rows = self, moved.rows
        self._blocks.add(block)
        source.version += 1

    def tidy(self, max_spare: int | None = None) -> bool:
        """Give free rows back where they are too many; True if rows moved.

        Args:
            max_spare: how many may stay; by default as many as growing leaves.
        """
        used = self._used()
        if max_spare is None:
            max_spare = max(4, int(self.capacity * _MAX_WASTE)) if used else 0
        if max(len(pages) for pages in self.layers) - len(used) <= max_spare:
            return False
        self._wait_for_readers()
        holes = [row for row in range(len(used)) if row not in used]
        movers = sorted(row for row in used if row >= len(used))
        if movers:
            # Into rows nobody uses: until blocks are told, nothing has changed.
            sources = torch.tensor(movers, dtype=torch.int64, device=self.device)
            targets = torch.tensor(holes, dtype=torch.int64, device=self.device)
            for pages in self.layers:
                pages.index_copy_(0, targets, pages.index_select(0, sources))
            place = dict(zip(movers, holes, strict=True))
            for block in self._blocks:
                block.rows = [place.get(row, row) for row in block.rows]
            self.version += 1
        self._capacity = len(used)
        for layer, pages in enumerate(self.layers):
            self.layers[layer] = self._resized(pages, self._capacity)
        return bool(movers)

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

    def _reserve(
        self, masks: Sequence[int], used: dict[int, int], max_capacity: int | None
    ) -> list[int]:
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
            needed = capacity + missing - len(free)
            target = int(capacity * _GROWTH)
            if max_capacity is not None:
                target = min(target, max_capacity)
            self._grow(max(needed, target))
            free += range(capacity, self.capacity)
        unused = iter(free)
        return [next(unused) if row < 0 else row for row in rows]

    def _grow(self, capacity: int) -> None:
        # One layer after the other, so that no more than one is held twice. Where memory runs out
        # some have more rows than the others, which nobody minds.
        for layer, pages in enumerate(self.layers):
            if len(pages) < capacity:
                self.layers[layer] = self._resized(pages, capacity)
        self._capacity = capacity

    def _resized(self, pages: Tensor, capacity: int) -> Tensor:
        # Zeros, not empty memory: a masked NaN would still poison the weighted sum.
        resized = self._rows(capacity, pages.shape[1])
        kept = min(len(pages), capacity)
        resized[:kept] = pages[:kept]
        return resized

    def _rows(self, capacity: int, page_nbytes: int) -> Tensor:
        return torch.zeros(
            (capacity, page_nbytes),
            dtype=torch.uint8,
            device=self.device,
            pin_memory=self._is_pinned,
        )

    def _wait_for_readers(self) -> None:
        if self.last_read is not None:
            self.last_read.synchronize()
            self.last_read = None
