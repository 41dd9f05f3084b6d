"""What a local model tells about the KV of its parts: the `KVTier` over a segment cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeGuard

from agentmem.models.base import KVUsage, PartKey
from agentmem.models.segment_cache import SegmentCache
from agentmem.segment import State


class LocalKV:
    """The KV tier of one conversation.

    Args:
        cache: holds the KV.
        on_forget: called with the key of a part that is deleted.
    """

    def __init__(self, cache: SegmentCache, on_forget: Callable[[PartKey], None]) -> None:
        self._cache = cache
        self._on_forget = on_forget

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

    def usage(self) -> KVUsage:
        """Bytes held, and where each part lives."""
        states: dict[PartKey, State] = {
            key: state for key, state in self._cache.states().items() if is_part(key)
        }
        return KVUsage(
            window_bytes=self._cache.nbytes,
            parked_ram_bytes=self._cache.parking.nbytes,
            states=states,
        )


def is_part(key: object) -> TypeGuard[PartKey]:
    """Whether the key names a part of the caller's, not something a template adds."""
    return isinstance(key, int) or (isinstance(key, str) and not key.startswith("~"))
