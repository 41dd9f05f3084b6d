"""A window's page table as Triton kernels read it: page by stretch and phase."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from agentmem.kernels.page_table import PAGES_PER_STRETCH, PageTable

_by_table: WeakKeyDictionary[PageTable, Tensor] = WeakKeyDictionary()


def pages_of_stretches(table: PageTable) -> Tensor:
    """(S, 4), int32: index in the table of each stretch's pages by phase, -1 where there is none.

    Made once a table: every layer of a step reads the same one.
    """
    found = _by_table.get(table)
    if found is None:
        shape = (table.stretch_starts.shape[0], PAGES_PER_STRETCH)
        found = torch.full(shape, -1, dtype=torch.int32, device=table.rows.device)
        pages = torch.arange(table.num_pages, dtype=torch.int32, device=table.rows.device)
        found[table.stretches.long(), table.phases.long()] = pages
        _by_table[table] = found
    return found
