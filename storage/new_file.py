"""Files that appear whole or not at all, for the owner alone. Knows nothing of what is in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMPORARY = ".tmp"
"""What the name of a file that is still being written ends with."""
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def new_file(path: Path) -> Iterator[int]:
    """Write a file in place of the one of that name, if any: a descriptor to write into.

    The bytes are not flushed to the platter, so after a power loss the file may be damaged: this is
    for readers who hold it against a checksum and can do without it.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, _FLAGS, 0o600)
    try:
        try:
            yield fd
        finally:
            # Closing may be what tells that the disk is full.
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of it: a single `write` may take less.

    Raises:
        OSError: the disk is full, or fails.
    """
    view = memoryview(data)
    while view.nbytes:
        view = view[os.write(fd, view) :]


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, each for the owner alone (0700).

    Raises:
        OSError: it cannot be made.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        with suppress(FileExistsError):  # another session made it meanwhile
            path.mkdir(mode=0o700)
