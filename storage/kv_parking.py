"""Records of segments that left the window: in RAM, and below it on disk, each under its budget.

When RAM is full its record of least value moves down to the disk; from a full disk the least
valuable vanishes. The text is in the archive: losing a record costs a prefill, nothing else.

Threads may park and fetch at once. Those that change something wait for each other, disk included;
looking and fetching wait for no write to the disk.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable, Iterator
from typing import Protocol

from agentmem.errors import StoreError, Unsupported
from agentmem.storage.kv_record import KVRecord
from agentmem.storage.kv_shelf import Shelf

logger = logging.getLogger(__name__)

USUAL_PARKED_BYTES = 32 * 2**20
"""In RAM where nobody says; for a large model more."""


class Disk(Protocol):
    """What is under the records in RAM: a disk, or a fork's view of one."""

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        ...

    def __iter__(self) -> Iterator[Hashable]: ...

    def has(self, key: Hashable) -> bool:
        """Whether there is a record of the key; does not count as use."""
        ...

    def token_ids(self, key: Hashable) -> tuple[int, ...] | None:
        """A record's tokens, without reading its file; None where there is none."""
        ...

    def put(self, key: Hashable, record: KVRecord) -> tuple[Hashable, ...]:
        """Keep a record; returns keys whose records are gone now, its own if it was not kept."""
        ...

    def get(self, key: Hashable) -> KVRecord | None:
        """The record, read and checked; None where there is none. Counts as use.

        Raises:
            StoreCorrupt, Unsupported, StoreError: it was of no use, and is gone now.
        """
        ...

    def forget(self, key: Hashable) -> bool:
        """Delete a record; False where there is none."""
        ...

    def clear(self) -> None:
        """Delete all records."""
        ...

    def view(self) -> Disk:
        """The same records, to be read only."""
        ...


class Parking:
    """Keyed records in RAM and on disk.

    Args:
        max_bytes: of all records in RAM together.
        disk: takes what RAM cannot hold; without one it is let go.

    Attributes:
        num_damaged: records on disk that turned out to be of no use.
    """

    def __init__(self, max_bytes: int = USUAL_PARKED_BYTES, disk: Disk | None = None) -> None:
        self.disk = disk
        self.num_damaged = 0
        self._ram: Shelf[KVRecord] = Shelf(max_bytes)
        self._lock = threading.Lock()
        self._changes = threading.RLock()

    @property
    def max_bytes(self) -> int:
        """Bytes of all records in RAM together at most."""
        return self._ram.max_bytes

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Hashable]:
        with self._lock:
            here = tuple(self._ram)
        below = () if self.disk is None else tuple(self.disk)
        return iter(dict.fromkeys((*here, *below)))

    @property
    def nbytes(self) -> int:
        """Bytes of all records in RAM."""
        return self._ram.nbytes

    @property
    def disk_nbytes(self) -> int:
        """Bytes of all records on disk."""
        return 0 if self.disk is None else self.disk.nbytes

    def has(self, key: Hashable) -> bool:
        """Whether a record is filed under the key; does not count as use."""
        with self._lock:
            if key in self._ram:
                return True
        return self.disk is not None and self.disk.has(key)

    def token_ids(self, key: Hashable) -> tuple[int, ...] | None:
        """A record's tokens, or None; nothing is read from the disk, and it is no use."""
        with self._lock:
            record = self._ram.look(key)
        if record is not None:
            return record.token_ids
        return None if self.disk is None else self.disk.token_ids(key)

    def put(self, key: Hashable, record: KVRecord) -> tuple[Hashable, ...]:
        """File a record, replacing one of the same key.

        Returns:
            Keys whose records are gone now; the key itself where it could not be kept.
        """
        nbytes = record.nbytes
        with self._changes:
            self.forget(key)
            if nbytes > self.max_bytes:
                return (key,) if self.disk is None else self.disk.put(key, record)
            gone: list[Hashable] = []
            while not self._ram.can_fit(nbytes):
                gone += self._move_down(self._ram.least())
            with self._lock:
                self._ram.put(key, record, nbytes=nbytes, num_tokens=record.num_tokens)
        return tuple(gone)

    def get(self, key: Hashable) -> KVRecord | None:
        """The record under the key, or None; counts as use.

        One on disk that turns out to be damaged or foreign is gone then: `has` may have said yes
        and this still be None.
        """
        with self._lock:
            record = self._ram.use(key)
        if record is not None or self.disk is None:
            return record
        try:
            return self.disk.get(key)
        except (StoreError, Unsupported) as error:
            logger.warning("%s", error)
            self.num_damaged += 1
            return None

    def forget(self, key: Hashable) -> bool:
        """Let a record go, wherever it is; False where there is none."""
        with self._changes:
            with self._lock:
                was_here = self._ram.pop(key) is not None
            was_below = self.disk is not None and self.disk.forget(key)
        return was_here or was_below

    def clear(self) -> None:
        """Let everything go, wherever it is."""
        with self._changes:
            with self._lock:
                for key in self._ram:
                    self._ram.pop(key)
            if self.disk is not None:
                self.disk.clear()

    def flush(self) -> tuple[Hashable, ...]:
        """Move everything down to the disk, the record used longest ago first.

        Returns:
            Keys whose records are gone now.
        """
        gone: list[Hashable] = []
        with self._changes:
            for key, _, _ in self._ram.by_use():
                gone += self._move_down(key)
        return tuple(gone)

    def copy(self) -> Parking:
        """A parking of its own with the same records, by reference: records never change.

        It reads the same disk and never writes or deletes there: what it cannot hold in RAM is let
        go.
        """
        with self._changes:
            other = Parking(self.max_bytes, None if self.disk is None else self.disk.view())
            with self._lock:
                other._ram = self._ram.copy()
        return other

    def _move_down(self, key: Hashable) -> tuple[Hashable, ...]:
        """Move a record from RAM to the disk. It can be fetched all the while."""
        record = self._ram.look(key)
        assert record is not None, "only who holds `_changes` takes records out"
        gone = (key,) if self.disk is None else self.disk.put(key, record)
        with self._lock:
            self._ram.pop(key)
        return gone
