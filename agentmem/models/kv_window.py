"""What one forward needs to know about the window, computed once and shared by all layers.

`WindowView` holds what changes with the layout: which pages stand where, and the rotations of the
query. `Step` adds what changes with every forward: the positions of the new tokens, and what each
may see. Columns of every mask and probability are ordered [pages of each arena, as in its table]
then [open tail]. Pages in host memory are streamed: layers read them in parts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from agentmem.kernels.code_stream import PAGE_TOKENS
from agentmem.kernels.page_table import PageTable, PlacedSegment
from agentmem.kernels.rotary import unit_rotations
from agentmem.storage.kv_arena import Block, PageArena
from agentmem.storage.kv_format import LayerCodec
from agentmem.storage.kv_stream import PageStream

NEVER = 2**62
"""The position of a slot nobody may see."""
NUM_SINKS = 4
"""First tokens of the window, which draw attention whatever they say: no evidence."""


@dataclass(slots=True)
class Resident:
    """A segment in the window of one cache.

    Args:
        start: position of its first token.
        token_ids: its tokens.
        block: its pages.
        context: content hashes of what was before it in the window when it was computed.
    """

    start: int
    token_ids: tuple[int, ...]
    block: Block
    context: tuple[str, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens it holds."""
        return len(self.token_ids)

    @property
    def end(self) -> int:
        """Position after its last token."""
        return self.start + len(self.token_ids)


@dataclass(slots=True)
class ArenaView:
    """The pages of one arena that a cache reads."""

    arena: PageArena
    version: int
    table: PageTable
    columns: slice
    rotations: dict[int, Tensor]
    """Per frequency group: (stretches, head_dim / 2), complex64, turning the query."""
    stream: PageStream | None = None
    """Brings the pages to the device; None: they are there."""

    def parts(self, layer: int, group: int) -> Iterator[Part]:
        """What a layer reads; a part's pages are there until the next is asked for.

        Args:
            layer: which layer.
            group: of its frequencies.
        """
        codec, rotations = self.arena.codecs[layer], self.rotations[group]
        if self.stream is None:
            slots = slice(0, self.table.num_slots)
            yield Part(codec, self.table, self.arena.layers[layer], rotations, slots)
            return
        for tile, pages in self.stream.tiles(layer):
            slots = slice(tile.pages.start * PAGE_TOKENS, tile.pages.stop * PAGE_TOKENS)
            yield Part(codec, tile.table, pages, rotations[tile.stretches], slots)


class Part(NamedTuple):
    """Some pages of one layer, on the device.

    Args:
        codec: of the layer.
        table: which pages, and where they stand.
        pages: (rows, page_nbytes), uint8.
        rotations: of the table's stretches: (stretches, head_dim / 2), complex64.
        slots: of the arena's table that are the part's.
    """

    codec: LayerCodec
    table: PageTable
    pages: Tensor
    rotations: Tensor
    slots: slice


class WindowView:
    """The sealed segments of a window as the kernels read them.

    Args:
        residents: the segments by key.
        arenas: the pools their blocks lie in.
        frequencies: the distinct frequencies of the model's layers.
    """

    def __init__(
        self,
        residents: Mapping[Hashable, Resident],
        arenas: Sequence[PageArena],
        frequencies: Sequence[Tensor],
        device: torch.device,
    ) -> None:
        self.keys = tuple(residents)
        self.arenas: list[ArenaView] = []
        positions, owners, first = [], [], 0
        for arena in arenas:
            mine = [
                (owner, resident)
                for owner, resident in enumerate(residents.values())
                if resident.block.arena is arena
            ]
            if not mine:
                continue
            if arena.is_host:
                # In the order they lie in, so that they are copied in long runs.
                mine.sort(key=lambda one: one[1].block.rows[0])
            table = PageTable.of_segments(
                [
                    PlacedSegment(one.start, one.num_tokens, one.block.rows, one.block.first_slot)
                    for _, one in mine
                ],
                device,
            )
            pages = torch.tensor([len(resident.block.rows) for _, resident in mine], device=device)
            owner_of = torch.tensor([owner for owner, _ in mine], device=device)
            position = table.positions().masked_fill(~table.filled(), NEVER)
            positions.append(position.flatten())
            owners.append(owner_of.repeat_interleave(pages * PAGE_TOKENS))
            self.arenas.append(
                ArenaView(
                    arena=arena,
                    version=arena.version,
                    table=table,
                    columns=slice(first, first + table.num_slots),
                    rotations={
                        group: unit_rotations(table.stretch_starts, values, inverse=True)
                        for group, values in enumerate(frequencies)
                    },
                    stream=PageStream(arena, table, device) if arena.is_host else None,
                )
            )
            first += table.num_slots
        empty = torch.zeros(0, dtype=torch.int64, device=device)
        self.positions = torch.cat([empty, *positions])
        """(num_slots,), int64; NEVER in padding."""
        self.owners = torch.cat([empty, *owners])
        """(num_slots,), int64: index in `keys`."""
        self.num_slots = first

    @property
    def is_stale(self) -> bool:
        """Whether rows have moved since."""
        return any(view.version != view.arena.version for view in self.arenas)


class Step:
    """One forward: where its tokens go, and what each of its queries may see.

    `num_columns` are those of masks; what is added up by column has `num_padded_columns`, the tail
    in whole pages.

    Args:
        view: the sealed segments.
        tail_start: position of the open tail's first token.
        num_past: tokens in the open tail before this forward.
        num_new: tokens of this forward.
        branches: how many of them belong to each of several continuations, which all begin behind
            the open tail and do not see each other; none where they follow each other.
    """

    def __init__(
        self,
        view: WindowView,
        tail_start: int,
        num_past: int,
        num_new: int,
        device: torch.device,
        branches: Sequence[int] = (),
    ) -> None:
        self.view = view
        self.num_new = num_new
        self.num_past = num_past
        self.num_tail = num_past + num_new
        self.num_columns = view.num_slots + self.num_tail
        self.num_padded_columns = view.num_slots + -(-self.num_tail // PAGE_TOKENS) * PAGE_TOKENS
        self.first_position = tail_start + num_past
        self.branches = tuple(branches)
        self._tail_start = tail_start
        self._tail = torch.arange(tail_start, tail_start + self.num_tail, device=device)
        if self.branches:
            lengths = torch.tensor(self.branches, device=device)
            self._branch_of = torch.arange(len(lengths), device=device).repeat_interleave(lengths)
            self._tail[num_past:] -= (lengths.cumsum(0) - lengths)[self._branch_of]
        self._queries = self._tail[num_past:]
        self._masses: tuple[Tensor, list[Tensor]] | None = None
        self._hidden: dict[int, Tensor] = {}
        self._limits: dict[tuple[int, int, int], Tensor] = {}
        self._tail_hidden: dict[tuple[int, int], Tensor] = {}

    @cached_property
    def tail_table(self) -> PageTable:
        """The tail's tokens as pages, its rows 16 tokens each from the first on."""
        num_pages = -(-self.num_tail // PAGE_TOKENS)
        segment = PlacedSegment(self._tail_start, self.num_tail, range(num_pages))
        return PageTable.of_segments([segment], self._queries.device)

    def split(self, mass: Tensor) -> list[Tensor]:
        """The tail's columns and those of each arena, as views of (num_padded_columns,).

        Every layer of a forward passes the same tensor.
        """
        if self._masses is None or self._masses[0] is not mass:
            views = [mass[view.columns] for view in self.view.arenas]
            self._masses = mass, [mass[self.view.num_slots :], *views]
        return self._masses[1]

    def hidden(self, window: int) -> Tensor:
        """(num_new, num_columns), bool: what each query may not see in a layer of that window."""
        mask = self._hidden.get(window)
        if mask is None:
            positions = torch.cat((self.view.positions, self._tail))
            mask = positions[None, :] > self._queries[:, None]
            if window:
                mask |= positions[None, :] <= self._queries[:, None] - window
            self._hide_other_branches(mask)
            self._hidden[window] = mask
        return mask

    def limits(self, window: int, num_queries: int, groups: int) -> Tensor:
        """(groups * num_queries, 2), int32: the positions [low, high) that rows may see.

        Rows are those of the forward's last queries, once for each query head of a group.
        """
        key = (window, num_queries, groups)
        limits = self._limits.get(key)
        if limits is None:
            high = self._queries[-num_queries:] + 1
            low = (high - window).clamp_min(0) if window else torch.zeros_like(high)
            limits = torch.stack((low, high), 1).to(torch.int32).repeat(groups, 1)
            self._limits[key] = limits
        return limits

    def tail_hidden(self, window: int, num_queries: int) -> Tensor:
        """(num_queries, num_tail), bool: which tokens of the tail the last queries may not see."""
        key = (window, num_queries)
        hidden = self._tail_hidden.get(key)
        if hidden is None:
            queries = self._queries[-num_queries:]
            hidden = self._tail[None, :] > queries[:, None]
            if window:
                hidden |= self._tail[None, :] <= queries[:, None] - window
            self._hide_other_branches(hidden)
            self._tail_hidden[key] = hidden
        return hidden

    def _hide_other_branches(self, hidden: Tensor) -> None:
        """Mark them in a mask whose rows are the last queries, and last columns the new tokens."""
        if self.branches:
            own = self._branch_of
            hidden[:, -self.num_new :] |= own[None, :] != own[-len(hidden) :, None]
