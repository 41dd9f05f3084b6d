"""What a local model tells about the KV of its parts: the `KVTier` over a segment cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

from agentmem.models.base import KVUsage, PartKey
from agentmem.models.segment_cache import SegmentCache
from agentmem.models.segment_window import SegmentWindow
from agentmem.segment import State
from agentmem.storage.kv_disk import KVDisk
from agentmem.storage.kv_manifest import SavedRecord


class LocalKV:
    """The KV tier of one conversation.

    Args:
        window: its window.
        cache: holds the window's KV.
        on_forget: called with the key of a part that is deleted.
    """

    def __init__(
        self,
        window: SegmentWindow,
        cache: SegmentCache,
        on_forget: Callable[[PartKey], None],
    ) -> None:
        self.window = window
        self._cache = cache
        self._on_forget = on_forget
        self._disk: KVDisk | None = None

    @property
    def format(self) -> str:
        """What parts outside the newest turn are packed into."""
        return self._cache.format

    @property
    def dense_bytes_per_token(self) -> int:
        """Bytes a token takes in a dense bf16 cache."""
        return self._cache.dense_bytes_per_token

    def has(self, key: PartKey) -> bool:
        """Whether the part can be in the next prompt without prefill."""
        return self._cache.has(key)

    def attention(self) -> Mapping[PartKey, float]:
        """Attention mass per token each part received from the queries of the last turns."""
        mass = self._cache.attention_mass()
        return {key: value for key, value in mass.items() if is_part(key)}

    def forget(self, key: PartKey) -> None:
        """Delete the part's KV wherever it lives."""
        if self._cache.has(key):
            self._cache.drop(key)
        self._on_forget(key)

    def resume(self, disk: KVDisk, records: Sequence[SavedRecord]) -> list[SavedRecord]:
        """Park on this disk what leaves memory, beginning with these records.

        Returns:
            Those that can be brought back.
        """
        disk.take_up(records)
        self._disk = self._cache.parking.disk = disk
        return [record for record in records if disk.has(record.key)]

    def suspend(self, renderings: Mapping[PartKey, str]) -> tuple[SavedRecord, ...]:
        """Move everything parked to the disk and leave it there; nothing where there is none.

        Args:
            renderings: of the parts' ids; what has none is of no use later.
        """
        disk, self._disk = self._disk, None
        if disk is None:
            return ()
        self._cache.parking.flush()
        self._cache.parking.disk = None
        return disk.leave(renderings)

    def clear(self) -> None:
        """Let everything go that is parked; on a disk too, unless it was left there."""
        self._cache.parking.clear()

    def usage(self) -> KVUsage:
        """Bytes held, and where each part lives."""
        states: dict[PartKey, State] = {
            key: state for key, state in self._cache.states().items() if is_part(key)
        }
        return KVUsage(
            window_bytes=self._cache.nbytes,
            parked_ram_bytes=self._cache.parking.nbytes,
            parked_disk_bytes=self._cache.parking.disk_nbytes,
            states=states,
        )


def is_part(key: object) -> TypeGuard[PartKey]:
    """Whether the key names a part of the caller's, not something a template adds."""
    return isinstance(key, int) or (isinstance(key, str) and not key.startswith("~"))
