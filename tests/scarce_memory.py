"""Memory that runs out when a test says so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agentmem.storage.kv_arena import PageArena


class Scarce:
    """Lets the allocation of rows fail.

    Attributes:
        num_failures: how many are to fail yet.
        skip: how many are to succeed before.
        on_host: of which arenas: those in host memory, on the device, or all (None).
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.num_failures = 0
        self.skip = 0
        self.on_host: bool | None = False
        original = PageArena._rows

        def rows(arena: PageArena, capacity: int, page_nbytes: int) -> Tensor:
            if self.num_failures and capacity and self.on_host in (arena.is_host, None):
                self.skip -= 1
                if self.skip < 0:
                    self.num_failures -= 1
                    raise torch.OutOfMemoryError("Tried to allocate too much.")
            return original(arena, capacity, page_nbytes)

        patch.setattr(PageArena, "_rows", rows)
