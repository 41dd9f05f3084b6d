"""What one place holds under a byte budget, and what of it must leave first.

    value a byte = (tokens + FORWARD_TOKENS) / (bytes * idle)

What it would cost to read the segment again, times how likely it is asked for (once in `idle` uses
of the place, as it was so far), over the bytes it takes. The least value leaves first. RAM and disk
share this rule; neither tensors nor files are known here. Not thread-safe: a place has a lock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from agentmem.errors import InvalidInput

FORWARD_TOKENS = 32
"""A forward costs what so many tokens cost, however few it reads (measured: 20 to 40 on a CPU)."""

Item = TypeVar("Item")


def value_per_byte(num_tokens: int, nbytes: int, idle: int) -> float:
    """What a byte of a record is worth; the least leaves first.

    Args:
        num_tokens: what would have to be read again.
        nbytes: what its leaving frees.
        idle: uses of the place since the record was last used, at least 1.
    """
    return (num_tokens + FORWARD_TOKENS) / (max(1, nbytes) * max(1, idle))


@dataclass(slots=True)
class _Entry(Generic[Item]):
    item: Item
    nbytes: int
    num_tokens: int
    used: int


class Shelf(Generic[Item]):
    """Keyed items of one place.

    Args:
        max_bytes: of all items together.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise InvalidInput(f"`max_bytes` must not be negative: got {max_bytes}.")
        self.max_bytes = max_bytes
        self._entries: dict[Hashable, _Entry[Item]] = {}
        self._clock = 0
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(tuple(self._entries))

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    @property
    def nbytes(self) -> int:
        """Bytes of all items."""
        return self._nbytes

    def can_fit(self, nbytes: int) -> bool:
        """Whether so many bytes fit beside what is here."""
        return self._nbytes + nbytes <= self.max_bytes

    def put(self, key: Hashable, item: Item, *, nbytes: int, num_tokens: int) -> None:
        """Place an item; what stood under its key is gone. The caller has made room."""
        self.pop(key)
        self._clock += 1
        self._entries[key] = _Entry(item, nbytes, num_tokens, self._clock)
        self._nbytes += nbytes

    def look(self, key: Hashable) -> Item | None:
        """The item under the key, or None; does not count as use."""
        entry = self._entries.get(key)
        return None if entry is None else entry.item

    def use(self, key: Hashable) -> Item | None:
        """The item under the key, or None; counts as use."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._clock += 1
        entry.used = self._clock
        return entry.item

    def pop(self, key: Hashable) -> Item | None:
        """Take an item out; None where there is none."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._nbytes -= entry.nbytes
        return entry.item

    def least(self) -> Hashable:
        """The key that must leave first; there is at least one."""
        return min(self._entries, key=self._value)

    def by_use(self) -> list[tuple[Hashable, Item, int]]:
        """All keys with their items and bytes, the one used longest ago first."""
        ordered = sorted(self._entries.items(), key=lambda entry: entry[1].used)
        return [(key, entry.item, entry.nbytes) for key, entry in ordered]

    def copy(self) -> Shelf[Item]:
        """A shelf of its own with the same items, by reference."""
        other: Shelf[Item] = Shelf(self.max_bytes)
        other._clock, other._nbytes = self._clock, self._nbytes
        other._entries = {
            key: _Entry(entry.item, entry.nbytes, entry.num_tokens, entry.used)
            for key, entry in self._entries.items()
        }
        return other

    def _value(self, key: Hashable) -> float:
        entry = self._entries[key]
        return value_per_byte(entry.num_tokens, entry.nbytes, self._clock - entry.used + 1)
