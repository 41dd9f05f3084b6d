"""Records of segments that left the window, kept in RAM under a byte budget.

When the budget is full, the record with the most idle bytes goes first: its size times how long
nobody asked for it. The text is in the archive: losing a record costs a prefill, nothing else.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from agentmem.errors import InvalidInput
from agentmem.storage.kv_record import KVRecord


@dataclass(slots=True)
class _Entry:
    record: KVRecord
    nbytes: int
    used: int


class Parking:
    """Keyed records in RAM.

    Args:
        max_bytes: of all records together; a record larger than that is not kept.
    """

    def __init__(self, max_bytes: int = 256 * 2**20) -> None:
        if max_bytes < 0:
            raise InvalidInput(f"`max_bytes` must not be negative: got {max_bytes}.")
        self.max_bytes = max_bytes
        self._entries: dict[Hashable, _Entry] = {}
        self._clock = 0
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(tuple(self._entries))

    @property
    def nbytes(self) -> int:
        """Bytes of all records."""
        return self._nbytes

    def has(self, key: Hashable) -> bool:
        """Whether a record is filed under the key; does not count as use."""
        return key in self._entries

    def put(self, key: Hashable, record: KVRecord) -> tuple[Hashable, ...]:
        """File a record, replacing one of the same key.

        Returns:
            Keys whose records had to go; the key itself where the record is larger than the budget.
        """
        self.forget(key)
        nbytes = record.nbytes
        if nbytes > self.max_bytes:
            return (key,)
        self._clock += 1
        evicted = []
        while self._nbytes + nbytes > self.max_bytes:
            victim = max(self._entries, key=self._idle_bytes)
            self.forget(victim)
            evicted.append(victim)
        self._entries[key] = _Entry(record, nbytes, self._clock)
        self._nbytes += nbytes
        return tuple(evicted)

    def get(self, key: Hashable) -> KVRecord | None:
        """The record under the key, or None; counts as use."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._clock += 1
        entry.used = self._clock
        return entry.record

    def forget(self, key: Hashable) -> bool:
        """Let a record go; False where there is none."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._nbytes -= entry.nbytes
        return True

    def copy(self) -> Parking:
        """A parking of its own with the same records, by reference: records never change."""
        other = Parking(self.max_bytes)
        other._clock, other._nbytes = self._clock, self._nbytes
        other._entries = {
            key: _Entry(entry.record, entry.nbytes, entry.used)
            for key, entry in self._entries.items()
        }
        return other

    def _idle_bytes(self, key: Hashable) -> int:
        entry = self._entries[key]
        return (self._clock - entry.used) * entry.nbytes
