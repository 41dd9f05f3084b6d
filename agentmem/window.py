"""The window as the archive has it, and what its KV may not bring back. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable

from agentmem.context import Context
from agentmem.models.base import KVTier
from agentmem.segment import Trust
from agentmem.storage.archive import Archive
from agentmem.storage.rows import StoredSegment, WindowEntry


def load_window(archive: Archive, context: Context, rows: Iterable[WindowEntry]) -> None:
    """Make the window these rows, with the segments as they are stored now."""
    window = list(rows)
    stored = archive.segments([row.segment_id for row in window])
    context.load(window, {one.segment.id: one for one in stored})


def read_again(kv: KVTier | None, context: Context, returning: Iterable[StoredSegment]) -> None:
    """Let the KV of what is below user trust go: it comes back as fenced text, never as KV."""
    for stored in returning:
        outside = stored.segment.id not in context
        if kv is not None and outside and stored.segment.trust < Trust.USER:
            kv.forget(stored.segment.id)
