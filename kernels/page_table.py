"""Which pages a window is made of: rows of an arena, and where each stands.

A stretch is up to four consecutive pages of one segment. Keys are rotated by their offset in their
stretch alone, so a query is turned once a stretch, and moving a segment changes integers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from agentmem.kernels.packing import PAGE_TOKENS

PAGES_PER_STRETCH = 4
STRETCH_TOKENS = PAGES_PER_STRETCH * PAGE_TOKENS


@dataclass(frozen=True, eq=False)
class PageTable:
    """The pages of a window in one arena; pages of a stretch follow each other.

    All tensors are int32 on the device of the pages; P pages, S stretches.

    Args:
        rows: (P,): row of the arena.
        stretches: (P,): index of the page's stretch, ascending.
        phases: (P,): index of the page in its stretch, 0 to 3.
        starts: (P,): position of the page's first token.
        counts: (P,): tokens in it, 1 to 16.
        stretch_starts: (S,), int64: position of each stretch's first token.
    """

    rows: Tensor
    stretches: Tensor
    phases: Tensor
    starts: Tensor
    counts: Tensor
    stretch_starts: Tensor

    @staticmethod
    def of_segments(
        segments: list[tuple[int, int, list[int]]], device: torch.device | None = None
    ) -> PageTable:
        """A table of whole segments.

        Args:
            segments: position of the first token, number of tokens and rows of each.
        """
        rows, stretches, phases, starts, counts, stretch_starts = [], [], [], [], [], []
        for start, num_tokens, segment_rows in segments:
            for page, row in enumerate(segment_rows):
                phase = page % PAGES_PER_STRETCH
                if phase == 0:
                    stretch_starts.append(start + page * PAGE_TOKENS)
                rows.append(row)
                stretches.append(len(stretch_starts) - 1)
                phases.append(phase)
                starts.append(start + page * PAGE_TOKENS)
                counts.append(min(PAGE_TOKENS, num_tokens - page * PAGE_TOKENS))
        columns = torch.tensor([rows, stretches, phases, starts, counts], dtype=torch.int32)
        columns = columns.view(5, len(rows)).to(device)
        return PageTable(
            rows=columns[0],
            stretches=columns[1],
            phases=columns[2],
            starts=columns[3],
            counts=columns[4],
            stretch_starts=torch.tensor(stretch_starts, dtype=torch.int64, device=device),
        )

    @property
    def num_pages(self) -> int:
        """Pages P."""
        return self.rows.shape[0]

    @property
    def num_slots(self) -> int:
        """Token slots, padding included: 16 a page."""
        return self.num_pages * PAGE_TOKENS

    def positions(self) -> Tensor:
        """(P, 16), int64: position of each slot, padding included."""
        slots = torch.arange(PAGE_TOKENS, device=self.rows.device)
        return self.starts.long()[:, None] + slots

    def filled(self) -> Tensor:
        """(P, 16), bool: which slots hold a token."""
        slots = torch.arange(PAGE_TOKENS, device=self.rows.device)
        return slots < self.counts[:, None]

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
                    self.counts[pages],
                    self.stretch_starts,
                ),
                pages,
            )
