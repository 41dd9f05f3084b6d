"""A file to import, as bytes, lines and JSON: bounded, and every fault names its line.

It is opened once, must be a regular file and is read as data: no path in it is ever followed. Knows
nothing of what the lines mean.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn

from agentmem.errors import InvalidInput
from agentmem.storage.text import normalize_text

MAX_FILE_BYTES = 2**30
MAX_SEGMENT_BYTES = 2**20
MAX_LINE_BYTES = 64 * 2**20
"""A turn of an export holds a whole message; JSON may escape what it says."""
MAX_DEPTH = 16
_BLOCK_BYTES = 2**20


class ImportLines:
    """One file, read from its beginning as often as asked; a context manager.

    Args:
        path: a regular file.

    Raises:
        InvalidInput: it cannot be opened, is something else, or larger than 1 GiB.
    """

    def __init__(self, path: str | Path) -> None:
        self.name = normalize_text(os.path.basename(path))
        # Without O_NONBLOCK a named pipe would wait for a writer.
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InvalidInput(f"{os.fspath(path)!r} cannot be read: {reason}.") from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidInput(f"{self.name} must be a regular file: it is none.")
            if status.st_size > MAX_FILE_BYTES:
                raise InvalidInput(
                    f"{self.name} has {status.st_size:,} bytes; at most {MAX_FILE_BYTES:,} are "
                    "imported. Split it."
                )
            self._file: IO[bytes] = os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise
        self._begin()

    def __enter__(self) -> ImportLines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def fault(self, number: int, message: str) -> InvalidInput:
        """The error for a line."""
        return InvalidInput(f"{self.name}, line {number}: {message}")

    @property
    def sha256(self) -> str:
        """The hash, in hex, of what was read since reading last began."""
        return self._digest.hexdigest()

    def sha256_behind_first_line(self) -> str:
        """The hash, in hex, of all but the first line."""
        self._begin()
        self._file.readline(MAX_LINE_BYTES)
        while block := self._file.read(_BLOCK_BYTES):
            self._took(block)
        return self.sha256

    def objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Number and JSON object of every line that is not blank."""
        self._begin()
        number = 0
        while line := self._file.readline(MAX_LINE_BYTES + 1):
            number += 1
            self._took(line)
            if len(line) > MAX_LINE_BYTES:
                raise self.fault(number, f"it has more than {MAX_LINE_BYTES:,} bytes.")
            if line.strip():
                yield number, self._object(number, line)

    def texts(self) -> Iterator[tuple[int, str]]:
        """The file as UTF-8 text in blocks, each with the number of its first line."""
        self._begin()
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        number = 1
        while True:
            block = self._file.read(_BLOCK_BYTES)
            self._took(block)
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                at = number + error.object[: error.start].count(b"\n")
                raise self.fault(at, f"it must be UTF-8 text: {error.reason}.") from error
            if text:
                yield number, text
            if not block:
                return
            number += text.count("\n")

    def _object(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            value = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise self.fault(number, f"it must be one JSON object: {error!s:.120}.") from error
        if not isinstance(value, dict):
            kind = type(value).__name__
            raise self.fault(number, f"it must be one JSON object: got a {kind}.")
        if _is_deeper(value, MAX_DEPTH):
            raise self.fault(number, f"it is nested more than {MAX_DEPTH} deep.")
        return value

    def _begin(self) -> None:
        self._file.seek(0)
        self._digest, self._nbytes = hashlib.sha256(), 0

    def _took(self, data: bytes) -> None:
        self._digest.update(data)
        self._nbytes += len(data)
        # The file may have grown since it was opened.
        if self._nbytes > MAX_FILE_BYTES:
            raise InvalidInput(f"{self.name} has more than {MAX_FILE_BYTES:,} bytes.")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _is_deeper(value: object, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    if levels == 0:
        return True
    inside = value.values() if isinstance(value, dict) else value
    return any(_is_deeper(item, levels - 1) for item in inside)
