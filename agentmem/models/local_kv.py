"""What a local model tells about the KV of its parts: the `KVTier` over a segment cache."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeGuard

from agentmem.errors import Unsupported
from agentmem.models.base import KVUsage, PartKey
from agentmem.models.segment_cache import SegmentCache
from agentmem.models.segment_window import SegmentWindow
from agentmem.segment import Precision, State
from agentmem.storage.kv_disk import KVDisk
from agentmem.storage.kv_manifest import Manifest, SavedRecord

logger = logging.getLogger(__name__)


class LocalKV:
    """The KV tier of one conversation.

    Args:
        window: its window.
        cache: holds the window's KV.
        on_forget: called with the key of a part that is deleted.

    Attributes:
        disk: where KV that leaves memory is kept, between `resume` and `suspend`.
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
        self.disk: KVDisk | None = None

    @property
    def format(self) -> str:
        """What parts outside the newest turn are packed into, with its parameters."""
        return self._cache.packed_format

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

    def keep_as(self, key: PartKey, precision: Precision | None) -> None:
        """Store the part at this precision from the next prompt on; None is the tier's own."""
        try:
            self._cache.keep_as(key, precision)
        except Unsupported as error:
            logger.warning("Part %r is kept as every other: %s", key, error)

    def forget(self, key: PartKey) -> None:
        """Delete the part's KV wherever it lives."""
        if self._cache.has(key):
            self._cache.drop(key)
        self._on_forget(key)

    def resume(self, disk: KVDisk, manifest: Manifest | None) -> list[SavedRecord]:
        """Park on this disk what leaves memory, and begin with what a clean close left there.

        Returns:
            The records that can be brought back.
        """
        records = () if manifest is None else manifest.records
        disk.take_up(records)
        self.disk = self._cache.parking.disk = disk
        if manifest is not None:
            turns = manifest.attention
            self._cache.evidence.take_up(
                {key: (mass, queries) for key, mass, queries in turn} for turn in turns
            )
        return [record for record in records if disk.has(record.key)]

    def suspend(self, renderings: Mapping[PartKey, str]) -> Manifest | None:
        """Take everything out of the window and leave it on the disk; None where there is none.

        Args:
            renderings: of the parts' ids; what has none is of no use later.
        """
        disk, self.disk = self.disk, None
        if disk is None:
            return None
        observed = self._cache.evidence.observed()
        self.window.park()
        self._cache.parking.flush()
        self._cache.parking.disk = None
        return Manifest(
            disk.folder.owner,
            disk.model,
            disk.leave(renderings),
            tuple(
                tuple((key, *seen) for key, seen in turn.items() if isinstance(key, int | str))
                for turn in observed
            ),
        )

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
            window_host_bytes=self._cache.host_nbytes,
            parked_ram_bytes=self._cache.parking.nbytes,
            parked_disk_bytes=self._cache.parking.disk_nbytes,
            states=states,
        )


def is_part(key: object) -> TypeGuard[PartKey]:
    """Whether the key names a part of the caller's, not something a template adds."""
    return isinstance(key, int) or (isinstance(key, str) and not key.startswith("~"))
