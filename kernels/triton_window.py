"""A window's page table as Triton kernels read it: page by stretch and phase, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from agentmem.kernels.code_stream import PAGE_TOKENS
from agentmem.kernels.page_table import PAGES_PER_STRETCH, PageTable


@dataclass(frozen=True, slots=True)
class _Checked:
    """Pages by stretch and phase, and the rows of an arena they need."""

    stretch_pages: Tensor
    capacity: int


_by_table: WeakKeyDictionary[PageTable, _Checked] = WeakKeyDictionary()


def pages_of_stretches(table: PageTable, capacity: int) -> Tensor:
    """(S, 4), int32: index in the table of each stretch's pages by phase, -1 where there is none.

    Made and checked once a table, which waits for the device: all layers of a step share it.

    Args:
        capacity: rows of the arena.

    Raises:
        ValueError: the table points outside the arena, or holds no page table.
    """
    checked = _by_table.get(table)
    if checked is None:
        checked = _check(table)
        _by_table[table] = checked
    if checked.capacity > capacity:
        raise ValueError(
            f"`rows` must be in 0 to {capacity - 1}, the rows of the arena: "
            f"got {checked.capacity - 1}."
        )
    return checked.stretch_pages


def _check(table: PageTable) -> _Checked:
    num_stretches = table.stretch_starts.shape[0]
    device = table.rows.device
    stretch_pages = torch.full(
        (num_stretches, PAGES_PER_STRETCH), -1, dtype=torch.int32, device=device
    )
    if not table.num_pages:
        return _Checked(stretch_pages, 0)
    lengths = table.ends - table.begins
    columns = torch.stack((table.rows, table.stretches, table.phases, table.begins, lengths))
    lowest, highest = torch.stack(columns.aminmax(dim=1)).tolist()
    bounds = (
        ("rows", 0, 2**31 - 1),
        ("stretches", 0, num_stretches - 1),
        ("phases", 0, PAGES_PER_STRETCH - 1),
        ("begins", 0, PAGE_TOKENS - 1),
        ("ends - begins", 1, PAGE_TOKENS),
    )
    for (name, least, most), low, high in zip(bounds, lowest, highest, strict=True):
        if low < least or high > most:
            raise ValueError(f"`{name}` must be in {least} to {most}: got {low} to {high}.")
    pages = torch.arange(table.num_pages, dtype=torch.int32, device=device)
    stretch_pages[table.stretches.long(), table.phases.long()] = pages
    return _Checked(stretch_pages, highest[0] + 1)
