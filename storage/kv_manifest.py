"""What a clean close says of a session's KV files. Without it they are worth nothing.

One line of checksum, one of JSON. Whatever is wrong with it, there is no manifest: the archive is
the truth, and the conversation goes on from its text. Knows nothing of tensors.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from agentmem.storage.new_file import new_file, write_all

logger = logging.getLogger(__name__)

_VERSION = 1


@dataclass(frozen=True, slots=True)
class SavedRecord:
    """One record that a clean close left.

    Args:
        key: a segment's id, or the name of what is not a segment.
        file: its file's name.
        nbytes: the file's size.
        token_ids: what it holds.
        rendering: what a prompt must show under the key for these to be its tokens; whoever encodes
            prompts knows the form.
    """

    key: int | str
    file: str
    nbytes: int
    token_ids: tuple[int, ...]
    rendering: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The records that may be taken up when the session is opened again.

    Args:
        owner: whose they are.
        fingerprint: of model, tokenizer, template and format.
        records: the one used longest ago first.
        attention: for each of the last turns, what each key was given: probability mass, and
            queries that could see it.
        change: the archive's newest change when they were written.
    """

    owner: str
    fingerprint: str
    records: tuple[SavedRecord, ...] = ()
    attention: tuple[tuple[tuple[int | str, float, int], ...], ...] = ()
    change: int = 0

    def before(self, segment_id: int) -> Manifest:
        """Only the segments older than that one: nothing else can be sure not to have seen it."""

        def is_older(key: int | str) -> bool:
            return isinstance(key, int) and key < segment_id

        return replace(
            self,
            records=tuple(record for record in self.records if is_older(record.key)),
            attention=tuple(
                tuple(one for one in turn if is_older(one[0])) for turn in self.attention
            ),
        )


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write it in place of the one that is there, if any.

    Raises:
        OSError: it cannot be written.
    """
    text = json.dumps({"version": _VERSION, **asdict(manifest)}, separators=(",", ":")).encode()
    with new_file(path) as fd:
        write_all(fd, hashlib.sha256(text).hexdigest().encode() + b"\n" + text)


def read_manifest(path: Path) -> Manifest | None:
    """A manifest as it was written; None where it is missing or damaged."""
    try:
        digest, _, text = path.read_bytes().partition(b"\n")
        if hashlib.sha256(text).hexdigest().encode() != digest:
            raise ValueError("its checksum does not fit")
        fields = json.loads(text)
        if fields.pop("version") != _VERSION:
            raise ValueError("another version wrote it")
        records = [{**one, "token_ids": tuple(one["token_ids"])} for one in fields.pop("records")]
        attention = (tuple(tuple(one) for one in turn) for turn in fields.pop("attention"))
        return Manifest(
            records=tuple(SavedRecord(**one) for one in records),
            attention=tuple(attention),
            **fields,
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("The KV manifest %s is of no use: %s. Text is read again.", path, error)
        return None
