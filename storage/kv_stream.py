"""Attention over pages in host memory: tiles are copied to the device while others are read.

Two buffers on the device take turns. A tile's pages are copied into one, each row once and in the
order of the arena, so that few copies do; a table of its own says which row of the buffer a page
lies in. While a tile is attended to, the one that follows is on its way: of the same layer, or the
first of the next. On CUDA copies run on a stream of their own, and two events a buffer keep the two
streams apart; elsewhere they are done at once, on the same path.

Codecs attend to a tile in its buffer as to any pages, and parts are merged by their log-sum-exp:
nothing here knows what pages hold. Not thread-safe, as the arena.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from agentmem.kernels.attention import TILE_TOKENS
from agentmem.kernels.page_table import PageTable
from agentmem.storage.kv_arena import PageArena
from agentmem.storage.kv_copies import copy_stream


class Tile(NamedTuple):
    """Pages that fit into a buffer together.

    Args:
        table: complete in itself; its rows are the buffer's.
        pages: which pages of the whole table they are.
        stretches: which stretches of the whole table its own are.
        runs: the rows of the arena that fill the buffer, as first row and number.
    """

    table: PageTable
    pages: slice
    stretches: slice
    runs: tuple[tuple[int, int], ...]

    @property
    def num_rows(self) -> int:
        """Rows of the buffer."""
        return sum(count for _, count in self.runs)


def tiles_of(
    table: PageTable, device: torch.device, max_tokens: int = TILE_TOKENS
) -> tuple[Tile, ...]:
    """Cut a table of pages in host memory into tiles.

    Args:
        table: on any device; reading it waits for the device.
        device: where the tiles are attended to.
        max_tokens: slots of a tile at most.
    """
    rows, stretches = table.rows.cpu(), table.stretches.tolist()
    tiles = []
    for part, pages in table.tiles(max_tokens):
        distinct, index = torch.unique(rows[pages], return_inverse=True)
        first, last = stretches[pages.start], stretches[pages.stop - 1]
        columns = (
            index.to(torch.int32), part.stretches - first, part.phases, part.starts, part.begins,
            part.ends, table.stretch_starts[first : last + 1],
        )  # fmt: skip
        tiles.append(
            Tile(
                PageTable(*(column.to(device).contiguous() for column in columns)),
                pages,
                slice(first, last + 1),
                _runs(distinct.tolist()),
            )
        )
    return tuple(tiles)


class PageStream:
    """Brings the tiles of one table to a device, layer by layer.

    Args:
        arena: in host memory; the table's blocks stay where they are as long as this is used.
        table: of its pages, on any device.
        device: where they are attended to.
        max_tokens: slots of a tile at most: two tiles of one layer are what the device holds.
    """

    def __init__(
        self,
        arena: PageArena,
        table: PageTable,
        device: torch.device,
        *,
        max_tokens: int = TILE_TOKENS,
    ) -> None:
        self.num_copied_rows = 0
        """Rows of one layer copied to the device so far."""
        self._arena = arena
        self._tiles = tiles_of(table, device, max_tokens)
        num_rows = max(tile.num_rows for tile in self._tiles)
        nbytes = num_rows * max(codec.page_nbytes for codec in arena.codecs)
        self._buffers = [_Buffer(nbytes, device) for _ in range(2)]

    def tiles(self, layer: int) -> Iterator[tuple[Tile, Tensor]]:
        """Each tile with its pages on the device: (num_rows, page_nbytes), uint8.

        They are there until the next tile is asked for.
        """
        for index, tile in enumerate(self._tiles):
            buffer = self._fetch(layer, index, besides=None)
            if index + 1 < len(self._tiles):
                self._fetch(layer, index + 1, besides=buffer)
            else:
                self._fetch((layer + 1) % len(self._arena.codecs), 0, besides=buffer)
            if buffer.fence is not None:
                buffer.fence.wait()
            try:
                yield tile, buffer.pages(tile.num_rows, self._arena.codecs[layer].page_nbytes)
            finally:
                if buffer.fence is not None:
                    buffer.fence.free()

    def _fetch(self, layer: int, index: int, *, besides: _Buffer | None) -> _Buffer:
        """The buffer of a tile, which is on its way now if it was not before."""
        for buffer in self._buffers:
            if buffer.holds == (layer, index):
                return buffer
        # The second pass over a layer's tiles finds its last one where the first pass left it.
        free = [buffer for buffer in self._buffers if buffer is not besides]
        buffer = min(free, key=lambda one: one.filled_at)
        tile, source = self._tiles[index], self._arena.layers[layer]
        target = buffer.pages(tile.num_rows, source.shape[1])
        with nullcontext() if buffer.fence is None else buffer.fence.filling():
            begin = 0
            for row, count in tile.runs:
                target[begin : begin + count].copy_(source[row : row + count], non_blocking=True)
                begin += count
        if buffer.fence is not None:
            self._arena.last_read = buffer.fence.filled
        self.num_copied_rows += tile.num_rows
        buffer.holds = (layer, index)
        buffer.filled_at = self.num_copied_rows
        return buffer


def _runs(rows: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Ascending rows as first row and number of those that follow each other."""
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and row == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((row, 1))
    return tuple(runs)


class _Buffer:
    """Memory on the device that copies fill and attention reads, in turns.

    Attributes:
        fence: keeps the two apart where they run on streams of their own.
        holds: layer and index of the tile that is in it or on its way.
        filled_at: when it was last filled.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        # A normal tensor, also when the caller runs in inference mode: forwards outside of it
        # fill the buffer too.
        with torch.inference_mode(False):
            self._bytes = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self.fence = Fence(self._bytes) if _has_streams(device) else None
        self.holds: tuple[int, int] | None = None
        self.filled_at = 0

    def pages(self, num_rows: int, page_nbytes: int) -> Tensor:
        """Its first bytes as (num_rows, page_nbytes), uint8."""
        return self._bytes[: num_rows * page_nbytes].view(num_rows, page_nbytes)


class Fence:
    """Two events that keep copies into memory on a CUDA device and its readers apart.

    Args:
        memory: just allocated on the current stream.
    """

    def __init__(self, memory: Tensor) -> None:
        self._stream = copy_stream(memory.device)
        self.filled = _event()
        """When the last copies were done."""
        self._freed = _event()
        # Whom the memory is given to next waits for the copies.
        memory.record_stream(self._stream)
        # Who had it before may still be reading it.
        self.free()

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Copies inside run on the copying stream, once nobody reads the memory any more."""
        self._stream.wait_event(self._freed)
        with torch.cuda.stream(self._stream):
            yield
            self.filled.record()

    def wait(self) -> None:
        """Let what is computed from here on wait for the copies; the caller does not."""
        torch.cuda.current_stream(self._stream.device).wait_event(self.filled)

    def free(self) -> None:
        """What is computed from here on does not read the memory."""
        self._freed.record(torch.cuda.current_stream(self._stream.device))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch types its C half


def _has_streams(device: torch.device) -> bool:
    return device.type == "cuda"
