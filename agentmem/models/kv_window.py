"""What one forward needs to know about the window, computed once and shared by all layers.

`WindowView` holds what changes with the layout: where each page starts, which slots of which pages
hold visible tokens, the rotations of the query. `Step` adds what changes with every forward: the
positions of the new tokens, and the masks. Columns of every mask and probability are ordered
[pages of each arena, row by row] then [open tail].
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentmem.kernels.rotary import unit_rotations
from agentmem.storage.kv_arena import Block, PageArena
from agentmem.storage.kv_format import PAGE_TOKENS

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
    """The rows of one arena that a cache reads: all up to the last one it uses."""

    arena: PageArena
    version: int
    num_rows: int
    starts: Tensor
    """(num_rows,), int64: position of each page's first token."""
    columns: slice
    rotations: dict[int, Tensor]
    """Per frequency group: (num_rows, 1, 1, head_dim / 2), complex64, turning the query."""


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
            num_rows = 1 + max(max(resident.block.rows) for _, resident in mine)
            starts = torch.zeros(num_rows, dtype=torch.int64)
            filled = torch.zeros(num_rows, dtype=torch.int64)
            owner_of = torch.full((num_rows,), len(self.keys), dtype=torch.int64)
            for owner, resident in mine:
                rows = torch.tensor(resident.block.rows)
                offsets = torch.arange(len(resident.block.rows)) * PAGE_TOKENS
                starts[rows] = resident.start + offsets
                filled[rows] = (resident.num_tokens - offsets).clamp_max(PAGE_TOKENS)
                owner_of[rows] = owner
            slots = torch.arange(PAGE_TOKENS)
            position = starts[:, None] + slots
            position[slots >= filled[:, None]] = NEVER
            positions.append(position.flatten())
            owners.append(owner_of.repeat_interleave(PAGE_TOKENS))
            starts = starts.to(device)
            self.arenas.append(
                ArenaView(
                    arena=arena,
                    version=arena.version,
                    num_rows=num_rows,
                    starts=starts,
                    columns=slice(first, first + num_rows * PAGE_TOKENS),
                    rotations={
                        group: unit_rotations(starts, values, inverse=True)[:, None, None, :]
                        for group, values in enumerate(frequencies)
                    },
                )
            )
            first += num_rows * PAGE_TOKENS
        empty = torch.zeros(0, dtype=torch.int64)
        self.positions = torch.cat([empty, *positions]).to(device)
        """(num_slots,), int64; NEVER where no token of this window lies."""
        self.owners = torch.cat([empty, *owners]).to(device)
        """(num_slots,), int64: index in `keys`, or their number where nobody's."""
        self.num_slots = first

    @property
    def is_stale(self) -> bool:
        """Whether rows have moved since."""
        return any(view.version != view.arena.version for view in self.arenas)


class Step:
    """One forward: where its tokens go, and what each of its queries may see.

    Args:
        view: the sealed segments.
        tail_start: position of the open tail's first token.
        num_past: tokens in the open tail before this forward.
        num_new: tokens of this forward.
    """

    def __init__(
        self, view: WindowView, tail_start: int, num_past: int, num_new: int, device: torch.device
    ) -> None:
        self.view = view
        self.num_new = num_new
        self.num_past = num_past
        self.num_tail = num_past + num_new
        self.num_columns = view.num_slots + self.num_tail
        self.first_position = tail_start + num_past
        tail = torch.arange(tail_start, tail_start + self.num_tail, device=device)
        self._positions = torch.cat((view.positions, tail))
        self._queries = tail[num_past:]
        self._hidden: dict[int, Tensor] = {}
        self._bias: dict[tuple[int, int], Tensor] = {}

    def hidden(self, window: int) -> Tensor:
        """(num_new, num_columns), bool: what each query may not see in a layer of that window."""
        mask = self._hidden.get(window)
        if mask is None:
            mask = self._positions[None, :] > self._queries[:, None]
            if window:
                mask |= self._positions[None, :] <= self._queries[:, None] - window
            self._hidden[window] = mask
        return mask

    def bias(self, window: int, num_queries: int) -> Tensor:
        """(num_queries, num_columns), float32, 0 or -inf, for the last queries of the forward."""
        key = (window, num_queries)
        bias = self._bias.get(key)
        if bias is None:
            hidden = self.hidden(window)[-num_queries:]
            bias = torch.zeros(hidden.shape, device=hidden.device)
            bias.masked_fill_(hidden, float("-inf"))
            self._bias[key] = bias
        return bias
