"""KV records on disk, under a byte budget: one folder, one session.

What the folder holds is known from what was put there or taken up; files nobody knows are swept.
When the budget is full the record of least value goes, and so does one that cannot be written: its
text is in the archive. Knows nothing of where records come from or go to.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentmem.errors import StoreError, Unsupported
from agentmem.storage.kv_file import Owner, RecordFile, read_record
from agentmem.storage.kv_folder import KVFolder
from agentmem.storage.kv_manifest import SavedRecord
from agentmem.storage.kv_record import KVRecord
from agentmem.storage.kv_shelf import Shelf

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    key: int | str
    path: Path
    token_ids: tuple[int, ...]


class KVDisk:
    """The records of one session on disk. Threads may use it at once.

    Args:
        folder: whose it is and where.
        model: fingerprint of model, tokenizer, template and format; others' records are refused.
        max_bytes: of all files together; a larger record is not kept.

    Attributes:
        num_failed: records that were not kept because the disk was full or failed.
    """

    def __init__(self, folder: KVFolder, *, model: str, max_bytes: int) -> None:
        self.folder = folder
        self.model = model
        self.num_failed = 0
        self._owner = Owner(folder.owner, model)
        self._shelf: Shelf[_Held] = Shelf(max_bytes)
        self._serial = folder.last_serial()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._shelf)

    def __iter__(self) -> Iterator[Hashable]:
        with self._lock:
            return iter(self._shelf)

    @property
    def max_bytes(self) -> int:
        """Bytes of all files together at most."""
        return self._shelf.max_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return self._shelf.nbytes

    def has(self, key: Hashable) -> bool:
        """Whether there is a record of the key; does not count as use."""
        with self._lock:
            return key in self._shelf

    def token_ids(self, key: Hashable) -> tuple[int, ...] | None:
        """A record's tokens, without reading its file; None where there is none."""
        with self._lock:
            file = self._shelf.look(key)
        return None if file is None else file.token_ids

    def put(self, key: Hashable, record: KVRecord) -> tuple[Hashable, ...]:
        """Keep a record in a file of its own, replacing the one of its key.

        Returns:
            Keys whose records are gone now; the key itself where it was not kept: the record is
            larger than the budget, the disk is full, or the key is neither a number nor a text.
        """
        if not isinstance(key, int | str):
            return (key,)
        file = RecordFile(key, record, self._owner)
        with self._lock:
            self._drop(key)
            if file.nbytes > self.max_bytes:
                return (key,)
            gone = []
            while not self._shelf.can_fit(file.nbytes):
                gone.append(self._shelf.least())
                self._drop(gone[-1])
            self._serial += 1
            path = self.folder.path / self.folder.file_name(key, self._serial)
            if not self._write(file, path):
                return (*gone, key)
            held = _Held(key, path, record.token_ids)
            self._shelf.put(key, held, nbytes=file.nbytes, num_tokens=record.num_tokens)
        return tuple(gone)

    def get(self, key: Hashable) -> KVRecord | None:
        """The record, read and checked; None where there is none. Counts as use.

        Raises:
            StoreCorrupt, Unsupported, StoreError: it was of no use, and its file is deleted.
        """
        with self._lock:
            held = self._shelf.use(key)
        if held is None:
            return None
        try:
            return read_record(held.path, held.key, self._owner)
        except FileNotFoundError:
            self._drop_same(key, held)
            return None
        except (StoreError, Unsupported):
            self._drop_same(key, held)
            raise

    def forget(self, key: Hashable) -> bool:
        """Delete a record; False where there is none."""
        with self._lock:
            return self._drop(key)

    def view(self) -> KVDiskView:
        """The records that are here now, to be read only."""
        with self._lock:
            return KVDiskView(self._shelf.copy(), self._owner)

    def take_up(self, records: Iterable[SavedRecord]) -> None:
        """Begin with records that a clean close left; everything else in the folder is swept."""
        with self._lock:
            for saved in records:
                held = _Held(saved.key, self.folder.path / saved.file, saved.token_ids)
                tokens = len(saved.token_ids)
                self._shelf.put(saved.key, held, nbytes=saved.nbytes, num_tokens=tokens)
            while not self._shelf.can_fit(0):
                self._shelf.pop(self._shelf.least())
            self.folder.sweep({held.path.name for _, held, _ in self._shelf.by_use()})

    def leave(self, renderings: Mapping[int | str, str]) -> tuple[SavedRecord, ...]:
        """The records for a manifest, the one used longest ago first.

        Args:
            renderings: what the tokens of each key are of; a record without one is of no use later
                and is deleted.
        """
        saved = []
        with self._lock:
            for key, held, nbytes in self._shelf.by_use():
                if held.key not in renderings:
                    self._drop(key)
                    continue
                rendering = renderings[held.key]
                name = held.path.name
                saved.append(SavedRecord(held.key, name, nbytes, held.token_ids, rendering))
        return tuple(saved)

    def clear(self) -> None:
        """Delete all records."""
        with self._lock:
            for key in self._shelf:
                self._shelf.pop(key)
            self.folder.sweep()

    def _drop_same(self, key: Hashable, held: _Held) -> None:
        """Delete a record, unless another one took its place while it was being read."""
        with self._lock:
            if self._shelf.look(key) is held:
                self._drop(key)

    def _drop(self, key: Hashable) -> bool:
        held = self._shelf.pop(key)
        if held is not None:
            self.folder.delete(held.path.name)
        return held is not None

    def _write(self, file: RecordFile, path: Path) -> bool:
        """Write a file; a disk that is full or fails only costs the record."""
        try:
            self.folder.create()  # each time: another session may have had to make room
            file.write(path)
        except StoreError as error:
            self.num_failed += 1
            # Every record that follows will fail as well: said once.
            level = logging.WARNING if self.num_failed == 1 else logging.DEBUG
            logger.log(level, "%s The conversation goes on without it.", error)
            return False
        return True


class KVDiskView:
    """A fork's view of a disk: it reads what was there when it was made, and changes nothing.

    What the disk lets go meanwhile is gone here too.
    """

    def __init__(self, shelf: Shelf[_Held], owner: Owner) -> None:
        self._shelf = shelf
        self._owner = owner

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._shelf)

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return self._shelf.nbytes

    def has(self, key: Hashable) -> bool:
        """Whether there is a record of the key."""
        return key in self._shelf

    def token_ids(self, key: Hashable) -> tuple[int, ...] | None:
        """A record's tokens; None where there is none."""
        held = self._shelf.look(key)
        return None if held is None else held.token_ids

    def put(self, key: Hashable, record: KVRecord) -> tuple[Hashable, ...]:
        """Not kept: returns the key."""
        self.forget(key)
        return (key,)

    def get(self, key: Hashable) -> KVRecord | None:
        """The record, read and checked; None where there is none.

        Raises:
            StoreCorrupt, Unsupported, StoreError: it is of no use; its file is the disk's to
                delete.
        """
        held = self._shelf.look(key)
        if held is None:
            return None
        try:
            return read_record(held.path, held.key, self._owner)
        except FileNotFoundError:
            self.forget(key)
            return None
        except (StoreError, Unsupported):
            self.forget(key)
            raise

    def forget(self, key: Hashable) -> bool:
        """See a record no more; its file stays."""
        return self._shelf.pop(key) is not None

    def clear(self) -> None:
        """See no record any more."""
        for key in self._shelf:
            self._shelf.pop(key)

    def view(self) -> KVDiskView:
        """A view of its own."""
        return KVDiskView(self._shelf.copy(), self._owner)
