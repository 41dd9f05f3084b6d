"""Where the KV records of one session lie as files.

    STORE.kv/<hash of the user's name>/<session id>/<key>.<serial>.kv    one file a record
                                                   /manifest             after a clean close only

The archive is the truth and these files are derived: any of them may be missing or damaged, and
its text is read again. Only who holds the session writes here; who forgets may delete at any time.
Folders and files are for the owner alone (0700, 0600). Knows names, nothing of tensors or SQL.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agentmem.errors import StoreError
from agentmem.storage.kv_manifest import Manifest, read_manifest, write_manifest
from agentmem.storage.new_file import make_folder

logger = logging.getLogger(__name__)

_MANIFEST = "manifest"
_RECORD = re.compile(r"(-?\d+|s[0-9a-f]{32})\.(\d+)\.kv")


class KVFolder:
    """The folder of one session; it is made when something is written.

    Args:
        path: of the folder.
        owner: says whose records are valid here.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path
        self.owner = owner

    def file_name(self, key: int | str, serial: int) -> str:
        """The name of a record's file. No two serials share one, and no text escapes the folder."""
        return f"{key if isinstance(key, int) else 's' + _hash(key)[:32]}.{serial}.kv"

    def last_serial(self) -> int:
        """The largest serial of the files here; 0 where there are none."""
        matches = map(_RECORD.fullmatch, _names(self.path))
        return max((int(match[2]) for match in matches if match), default=0)

    @property
    def nbytes(self) -> int:
        """Bytes of all files here."""
        return sum(_size(self.path / name) for name in _names(self.path))

    def create(self) -> None:
        """Make the folder where it is missing.

        Raises:
            StoreError: it cannot be made.
        """
        try:
            make_folder(self.path)
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def delete(self, name: str) -> bool:
        """Delete a file; False where there is none, or it cannot be deleted."""
        return _unlink(self.path / name)

    def sweep(self, keep: Collection[str] = ()) -> int:
        """Delete all files but these: what killed writers left, and what nobody may use.

        Returns:
            How many there were.
        """
        removed = sum(_unlink(self.path / name) for name in _names(self.path) if name not in keep)
        if removed and not keep:
            with suppress(OSError):  # what is not ours to delete may still be in it
                self.path.rmdir()
        return removed

    def write(self, manifest: Manifest) -> None:
        """Say that the session was closed cleanly.

        Raises:
            StoreError: it cannot be written.
        """
        self.create()
        try:
            write_manifest(self.path / _MANIFEST, manifest)
        except OSError as error:
            raise _cannot_write(self.path, error) from error

    def forget(self, first: int) -> int:
        """Delete the records that may have seen a segment.

        Ids grow with time, so these are its own and those of greater ids, and all that are not of
        segments: texts that recall brought back, what a template adds, files half written. Where
        the session is open, it reads them again from text.

        Args:
            first: the segment's id.

        Returns:
            How many files that were.

        Raises:
            StoreError: one of them cannot be deleted.
        """
        removed = 0
        for name in _names(self.path):
            match = _RECORD.fullmatch(name)
            is_older = match is not None and match[1][0] != "s" and int(match[1]) < first
            if name != _MANIFEST and not is_older:
                removed += self._delete_surely(name)
        # It holds the tokens of every record it names.
        manifest = read_manifest(self.path / _MANIFEST)
        kept = None if manifest is None else manifest.before(first)
        if kept is None or kept != manifest:
            self._delete_surely(_MANIFEST)
            if kept is not None:
                with suppress(StoreError):  # without one the rest is only read again
                    self.write(kept)
        return removed

    def remove(self) -> int:
        """Delete everything, for the session is no more; how many files that were.

        Raises:
            StoreError: one of them cannot be deleted.
        """
        removed = sum(self._delete_surely(name) for name in _names(self.path))
        with suppress(OSError):
            self.path.rmdir()
        return removed

    def _delete_surely(self, name: str) -> bool:
        try:
            (self.path / name).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(
                f"The KV file {self.path / name} cannot be deleted: {error.strerror or error}. "
                "Make its folder writable."
            ) from error
        return True

    def take(self) -> Manifest | None:
        """What the last clean close said, once: from here on the files are in use.

        Returns:
            Records whose files are there; None where there was no clean close, or the files are not
            this session's.
        """
        manifest = read_manifest(self.path / _MANIFEST)
        if not _unlink(self.path / _MANIFEST) or manifest is None or manifest.owner != self.owner:
            return None
        there = set(_names(self.path))
        return replace(
            manifest, records=tuple(record for record in manifest.records if record.file in there)
        )

    def make_room(self, max_bytes: int) -> int:
        """Let whole folders of the user's other sessions go, the longest unused first.

        Returns:
            Bytes that remain for this one: at least half of `max_bytes`.
        """
        others = {
            path: KVFolder(path, "").nbytes
            for path in _folders(self.path.parent)
            if path != self.path
        }
        for path in sorted(others, key=_last_used):
            if sum(others.values()) <= max_bytes // 2:
                break
            KVFolder(path, "").sweep()
            others[path] = 0
        return max_bytes - sum(others.values())


def user_folder(store: Path, user: str) -> Path:
    """The folder of one user of a store. The name is hashed: it may be any text."""
    return store.with_name(f"{store.name}.kv") / _hash(user)[:32]


def session_folder(store: Path, user: str, session_id: int, created: float) -> KVFolder:
    """The folder of one session.

    Args:
        created: when the session was made: another store at this path may have sessions of the same
            ids.
    """
    owner = _hash(f"{session_id} {created!r} {user}")
    return KVFolder(user_folder(store, user) / str(session_id), owner)


def forget_kv(user: Path, first: int) -> int:
    """Delete, in all sessions of a user, what may have seen a segment; see `KVFolder.forget`.

    Args:
        user: the user's folder.
        first: the segment's id.

    Returns:
        How many files that were.
    """
    return sum(KVFolder(folder, "").forget(first) for folder in _folders(user))


def _cannot_write(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"The KV folder {path} cannot be written: {error.strerror or error}. Conversations go on "
        "from their text; free space, or make the folder writable."
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _folders(user: Path) -> list[Path]:
    return [user / name for name in _names(user) if name.isdecimal()]


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        logger.warning("The KV folder %s cannot be read: %s.", folder, error)
        return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _last_used(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _unlink(path: Path) -> bool:
    """Delete a file; False where there is none, or it cannot be deleted."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        logger.warning("The KV file %s cannot be deleted: %s.", path, error)
        return False
    return True
