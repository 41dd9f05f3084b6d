"""Where the pages of windows lie: on the model's device, and in host memory what exceeds a budget.

Each format has an arena in either place, and all arenas on the device share one ceiling. A block is
stored on the device; those of the least value a byte (see kv_shelf.py) make room for it in host
memory, and come back when there is room. Pages move as bytes: what a block says never changes.

Where the device's memory runs out, blocks move to host memory until half of what the arenas took is
free; that is their ceiling from then on.

Caches share places with their forks. Knows nothing of positions or models. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from agentmem.errors import DeviceFull, InvalidInput
from agentmem.storage.kv_arena import Block, PageArena
from agentmem.storage.kv_format import num_pages_for
from agentmem.storage.kv_shelf import value_per_byte

Result = TypeVar("Result")


class Places:
    """Pages on a device under a byte budget, and in host memory.

    Args:
        arenas: one for each format, on the device.
        max_bytes: of these arenas together; 0: no ceiling.

    Attributes:
        max_bytes: None where there is no ceiling.
    """

    def __init__(self, arenas: Sequence[PageArena], max_bytes: int = 0) -> None:
        if max_bytes < 0:
            raise InvalidInput(f"`max_bytes` must not be negative: got {max_bytes}.")
        self.max_bytes = max_bytes or None
        self._device = tuple(arenas)
        self._host = tuple(arena.in_host_memory() for arena in arenas)
        self._clock = 0

    def add(self, arena: PageArena) -> None:
        """Take in one more format: an arena on the device, still empty."""
        self._device += (arena,)
        self._host += (arena.in_host_memory(),)

    @property
    def arenas(self) -> tuple[PageArena, ...]:
        """All arenas, those on the device first."""
        return (*self._device, *self._host)

    @property
    def device_nbytes(self) -> int:
        """Bytes allocated on the device, spare rows included."""
        return sum(arena.nbytes for arena in self._device)

    @property
    def host_nbytes(self) -> int:
        """Bytes allocated in host memory, spare rows included."""
        return sum(arena.nbytes for arena in self._host)

    def nbytes_of(self, blocks: Iterable[Block], *, in_host_memory: bool | None = None) -> int:
        """Bytes of the pages that blocks lie in, of one place or of both."""
        blocks = list(blocks)
        return sum(
            arena.nbytes_of(block for block in blocks if block.arena is arena)
            for arena in self.arenas
            if in_host_memory in (None, arena.is_host)
        )

    def store(
        self, arena: PageArena, num_tokens: int, layers: Sequence[Tensor], first_slot: int = 0
    ) -> Block:
        """Take in the pages of one segment, on the device if they fit.

        Args:
            arena: of their format, on the device.
            num_tokens, layers, first_slot: as `PageArena.store`.
        """
        self._clock += 1
        fits = self._make_way(arena, num_pages_for(num_tokens, first_slot))
        target = arena if fits else self._host[self._device.index(arena)]
        block = target.store(
            num_tokens, layers, first_slot, max_capacity=self._max_capacity(target)
        )
        block.last_used = self._clock
        return block

    def tidy(self) -> None:
        """Give spare rows back, and bring to the device what there is room for."""
        for arena in self._device:
            arena.tidy()
        away = [block for arena in self._host for block in arena.blocks]
        for block in sorted(away, key=self._value, reverse=True):
            arena = self._device[self._host.index(block.arena)]
            needed = len(block.rows) * arena.page_nbytes
            if self.max_bytes is None or self._used_nbytes() + needed <= self.max_bytes:
                self._make_way(arena, len(block.rows))
                arena.take(block, max_capacity=self._max_capacity(arena))
        for arena in self._host:
            arena.tidy()

    def make_room(self) -> bool:
        """Halve what the device holds, and the ceiling with it; False where it holds nothing."""
        before = self.device_nbytes
        if used := self._used_nbytes():
            self.max_bytes = used // 2
            self._move_down_to(self.max_bytes)
        for arena in self._device:
            arena.tidy(0)
        return self.device_nbytes < before

    def _make_way(self, arena: PageArena, num_pages: int) -> bool:
        """Move blocks down until so many pages fit on the device; False where they never do."""
        if self.max_bytes is None:
            return True
        needed = num_pages * arena.page_nbytes
        if needed > self.max_bytes:
            return False
        self._move_down_to(self.max_bytes - needed)
        missing = max(0, num_pages - arena.num_free) * arena.page_nbytes
        if self.device_nbytes + missing > self.max_bytes:
            for other in self._device:
                other.tidy(0)
        return True

    def _move_down_to(self, max_bytes: int) -> None:
        """Move blocks to host memory, the least valuable first, until the rest are so few bytes."""
        while self._used_nbytes() > max_bytes:
            block = min(
                (block for arena in self._device for block in arena.blocks), key=self._value
            )
            self._host[self._device.index(block.arena)].take(block)

    def _used_nbytes(self) -> int:
        """Bytes on the device that blocks lie in."""
        return sum(arena.used_nbytes for arena in self._device)

    def _max_capacity(self, arena: PageArena) -> int | None:
        """Rows an arena can have under the ceiling."""
        if self.max_bytes is None or arena.is_host:
            return None
        return arena.capacity + (self.max_bytes - self.device_nbytes) // arena.page_nbytes

    def _value(self, block: Block) -> tuple[float, int]:
        idle = self._clock - block.last_used + 1
        nbytes = len(block.rows) * block.arena.page_nbytes
        return value_per_byte(block.num_tokens, nbytes, idle), block.last_used


def with_room(attempt: Callable[[], Result], make_room: Callable[[], bool]) -> Result:
    """Run what allocates on a device; where its memory runs out, make room and run it once more.

    Args:
        attempt: leaves everything as it was where it fails.
        make_room: False where there is none to be made.

    Raises:
        DeviceFull: it failed twice, or nothing can be moved.
    """
    try:
        return attempt()
    except torch.OutOfMemoryError as error:
        reason = str(error)
    # Outside of the handler: the error's traceback holds what the attempt had allocated.
    try:
        if make_room():
            return attempt()
    except torch.OutOfMemoryError as error:
        reason = str(error)
    raise DeviceFull(
        f"The device has no memory left, also after what could be moved to host memory was: "
        f"{reason.splitlines()[0] if reason else 'out of memory'} Use a smaller `max_tokens` or "
        "`kv_bytes` in the budget, a smaller KV format or a smaller model."
    )
