"""Deleting for good: from every tier, with all that was made of what is forgotten.

There is no undo. No session is leased for it: what others forgot is followed, by each open session
before it commits what it says, and the KV of whatever may have seen it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from agentmem.context import Context
from agentmem.errors import InvalidInput
from agentmem.models.base import KVTier
from agentmem.storage.archive import Archive
from agentmem.storage.rows import SessionRow
from agentmem.window import load_window

_AT_ONCE = 500
"""Segments forgotten in one transaction: others want to write too."""


class Forgetting:
    """Forgets for one session, whatever sessions the segments are of.

    Args:
        archive: the truth.
        session: whose window must let go of them.
        context: that window.
        kv: the model's KV tier, where it has one.
        let_go: without one, drops what the model keeps of what it read.
    """

    def __init__(
        self,
        archive: Archive,
        session: SessionRow,
        context: Context,
        *,
        kv: KVTier | None,
        let_go: Callable[[], None],
    ) -> None:
        self._archive = archive
        self._session = session
        self._context = context
        self._kv = kv
        self._let_go = let_go
        self._seen = archive.last_change()

    def forget(self, segment_id: int) -> dict[str, Any]:
        """Delete a segment from every tier, with what could quote it; a receipt.

        Summaries made of it go with it. The KV of every later segment may have seen it and goes
        too: it is computed again from text at its next use.
        """
        stored = self._archive.segment(segment_id)
        if stored.segment.is_system_prompt and self._is_used(segment_id):
            raise InvalidInput(f"Segment {segment_id} is the system prompt: it always stays.")
        # A document's stub quotes its parts: it is forgotten as a whole.
        part = stored.segment.kind == "document_part" and bool(stored.segment.parents)
        gone = self._descendants({stored.segment.parents[0] if part else segment_id})
        return {
            "segment": segment_id,
            "made_of_it": sorted(gone - {segment_id}),
            **self._forget(gone),
        }

    def _is_used(self, segment_id: int) -> bool:
        """Whether it stands in this window or another session's."""
        held = self._archive.held_elsewhere(self._session.id, [segment_id])
        return segment_id in self._context or bool(held)

    def forget_all(self, segment_ids: Collection[int]) -> dict[str, Any]:
        """Delete segments of any sessions from every tier, with all that was made of them."""
        gone = self._descendants(set(segment_ids))
        return {
            "segments": sorted(segment_ids),
            "made_of_it": sorted(gone.difference(segment_ids)),
            **self._forget(gone),
        }

    def _forget(self, gone: set[int]) -> dict[str, Any]:
        kept = [row for row in self._context.snapshot() if row.segment_id not in gone]
        num_files = num_backups = 0
        newest_first = sorted(gone, reverse=True)
        # What was made of a segment is newer: whenever this is broken off, nothing outlives it.
        for start in range(0, len(newest_first), _AT_ONCE):
            with self._archive.write() as transaction:
                transaction.set_window(self._session.id, kept)
                for one in newest_first[start : start + _AT_ONCE]:
                    transaction.forget(one)
            num_files += transaction.num_kv_files
            num_backups += transaction.num_backups
        dropped_kv = self.follow()
        load_window(self._archive, self._context, kept)
        return {"kv_records": dropped_kv, "kv_files": num_files, "upgrade_backups": num_backups}

    def follow(self) -> int:
        """Let window and model forget what the archive did since it was last asked, by whomever.

        Returns:
            How many parts of its KV tier that were. The KV of every later segment may have seen
            one that is forgotten, and so may what is not a segment's.
        """
        changes = self._archive.changes(self._seen)
        gone = [change.segment_id for change in changes if change.op == "forget"]
        self._seen = max([self._seen, *(change.sn for change in changes)])
        if not gone:
            return 0
        self._context.remove(gone)
        if self._kv is None:
            self._let_go()
            return 0
        held = self._kv.usage().states
        later = {k for k in held if isinstance(k, str) or k >= min(gone)}
        for key in later | set(gone) | {f"recall:{one}" for one in gone}:
            self._kv.forget(key)
        return len(later)

    def _descendants(self, segment_ids: set[int]) -> set[int]:
        """Segments and all that was made of them, in any session: parts, summaries."""
        return segment_ids | self._archive.descendants(segment_ids)
