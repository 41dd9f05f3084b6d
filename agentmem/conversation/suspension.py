"""The KV of a session between two processes: taken up when it is opened, left when it is closed.

Only a clean close leaves something, and only the next opening may use it: after a kill the session
goes on from its text. The archive is the truth: what was forgotten meanwhile, and all that may have
seen it, is not taken up; nor is anything by an archive that is older than the KV.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from agentmem.errors import StoreError
from agentmem.memory import Memory
from agentmem.models.base import ChatModel
from agentmem.storage.archive import Archive
from agentmem.storage.kv_manifest import Manifest
from agentmem.storage.rows import SessionRow

logger = logging.getLogger(__name__)


class Suspension:
    """What one session leaves for the next process.

    Args:
        archive: the truth.
        session: whose KV it is; the caller holds its lease.
        model: answers in it.
        max_bytes: of KV on disk, for all sessions of the user; 0 keeps none.

    Attributes:
        memory: the session's, once there is one.
    """

    def __init__(
        self, archive: Archive, session: SessionRow, model: ChatModel, max_bytes: int
    ) -> None:
        self.memory: Memory | None = None
        self._archive = archive
        self._folder = archive.kv_folder(session)
        self._model = model
        self._max_bytes = max_bytes

    def resume(self) -> None:
        """Let the model go on from what the last clean close left, if it has a KV tier."""
        if self._model.kv is None:
            return
        if not self._max_bytes:
            self._folder.sweep()
            return
        room = self._folder.make_room(self._max_bytes)
        manifest = self._folder.take()
        self._model.resume(self._folder, manifest and self._valid(manifest), room)

    def suspend(self) -> None:
        """Leave the session's KV for the next process. What cannot be left is read again there."""
        try:
            change = self._archive.last_change()
            if self.memory is not None:
                self.memory.forgetting.follow()
            manifest = self._model.suspend(self.memory.context.prompt() if self.memory else ())
            if manifest is None or not manifest.records:
                return
            self._folder.write(replace(manifest, change=change))
            # Somebody may have forgotten it while it was being written.
            if gone := self._forgotten_since(change):
                self._folder.forget(min(gone))
        except StoreError as error:
            logger.warning("The session's KV is not kept: %s", error)

    def _valid(self, manifest: Manifest) -> Manifest | None:
        """What of it the archive, as it is now, still stands for."""
        if manifest.change > self._archive.last_change():
            logger.warning("The KV in %s is newer than its store: not used.", self._folder.path)
            return None
        gone = self._forgotten_since(manifest.change)
        return manifest.before(min(gone)) if gone else manifest

    def _forgotten_since(self, change: int) -> Sequence[int]:
        changes = self._archive.changes(change)
        return [change.segment_id for change in changes if change.op == "forget"]
