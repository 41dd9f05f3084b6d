"""Which pages a window is made of: rows of an arena, and where each stands.

A stretch is up to four consecutive pages of one segment. Keys are rotated by their offset in their
stretch alone, so a query is turned once a stretch, and moving a segment changes integers only.

A segment need not begin at a page's first slot, nor end at its last: the slots before and behind it
are another segment's, which has an entry of its own with the same row. Its first stretch then
begins as many positions before it as slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from agentmem.kernels.code_stream import PAGE_TOKENS

PAGES_PER_STRETCH = 4
STRETCH_TOKENS = PAGES_PER_STRETCH * PAGE_TOKENS


class PlacedSegment(NamedTuple):
    """A segment in a window.

    Args:
        start: position of its first token.
        num_tokens: how many.
        rows: of the arena, page by page.
        first_slot: slot of its first token in its first page.
    """

    start: int
    num_tokens: int
    rows: Sequence[int]
    first_slot: int = 0


@dataclass(frozen=True, eq=False)
class PageTable:
    """The pages of a window in one arena; pages of a stretch follow each other.

    All tensors are int32 on the device of the pages; P pages, S stretches.

    Args:
        rows: (P,): row of the arena.
        stretches: (P,): index of the page's stretch, ascending.
        phases: (P,): index of the page in its stretch, 0 to 3.
        starts: (P,): position of the page's slot 0, whosesoever it is; it may be negative.
        begins: (P,): the entry's first slot.
        ends: (P,): the slot after its last.
        stretch_starts: (S,), int64: position of each stretch's first slot.
    """

    rows: Tensor
    stretches: Tensor
    phases: Tensor
    starts: Tensor
    begins: Tensor
    ends: Tensor
    stretch_starts: Tensor

    @staticmethod
    def of_segments(
        segments: Sequence[PlacedSegment], device: torch.device | None = None
    ) -> PageTable:
        """A table of whole segments."""
        entries: list[tuple[int, int, int, int, int, int]] = []
        stretch_starts: list[int] = []
        for segment in segments:
            slot_zero = segment.start - segment.first_slot
            end = segment.first_slot + segment.num_tokens
            for page, row in enumerate(segment.rows):
                passed = page * PAGE_TOKENS
                phase = page % PAGES_PER_STRETCH
                if phase == 0:
                    stretch_starts.append(slot_zero + passed)
                begin = 0 if page else segment.first_slot
                last = min(PAGE_TOKENS, end - passed)
                entries.append(
                    (row, len(stretch_starts) - 1, phase, slot_zero + passed, begin, last)
                )
        columns = torch.tensor(entries, dtype=torch.int32).view(-1, 6).T.contiguous().to(device)
        rows, stretches, phases, starts, begins, ends = columns.unbind()
        return PageTable(
            rows=rows,
            stretches=stretches,
            phases=phases,
            starts=starts,
            begins=begins,
            ends=ends,
            stretch_starts=torch.tensor(stretch_starts, dtype=torch.int64, device=device),
        )

    @property
    def num_pages(self) -> int:
        """Pages P."""
        return self.rows.shape[0]

    @property
    def num_slots(self) -> int:
        """Token slots, those of others included: 16 a page."""
        return self.num_pages * PAGE_TOKENS

    def positions(self) -> Tensor:
        """(P, 16), int64: position of each slot, those that are not the entry's included."""
        slots = torch.arange(PAGE_TOKENS, device=self.rows.device)
        return self.starts.long()[:, None] + slots

    def filled(self) -> Tensor:
        """(P, 16), bool: which slots are the entry's."""
        slots = torch.arange(PAGE_TOKENS, device=self.rows.device)
        return (slots >= self.begins[:, None]) & (slots < self.ends[:, None])

    def visible(self, limits: Tensor) -> Tensor:
        """(R, P * 16), bool: which slots each query row may see.

        Args:
            limits: (R, 2), int32: positions [low, high).
        """
        positions = self.positions().flatten()
        low, high = limits.long().unbind(1)
        inside = (positions >= low[:, None]) & (positions < high[:, None])
        return inside & self.filled().flatten()

    def tiles(self, max_tokens: int) -> Iterator[tuple[PageTable, slice]]:
        """Parts of at most so many slots, and which pages each holds."""
        size = max(1, max_tokens // PAGE_TOKENS)
        if 0 < self.num_pages <= size:
            yield self, slice(0, self.num_pages)
            return
        for begin in range(0, self.num_pages, size):
            pages = slice(begin, min(begin + size, self.num_pages))
            yield (
                PageTable(
                    self.rows[pages],
                    self.stretches[pages],
                    self.phases[pages],
                    self.starts[pages],
                    self.begins[pages],
                    self.ends[pages],
                    self.stretch_starts,
                ),
                pages,
            )
