"""What a model's folder must hold: the size and sha256 of every file, written when it was complete.

Knows files only. A folder without a manifest is not one of ours.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from agentmem.errors import ModelCorrupt

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a model: bytes, and sha256 in hex."""

    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a model, and the requirement they came from."""

    source: str
    files: dict[str, FileRecord]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(record.nbytes for record in self.files.values())


def write_manifest(folder: Path, source: str) -> Manifest:
    """Record every file of a folder; the last step of making it."""
    files = {
        path.name: FileRecord(path.stat().st_size, file_sha256(path))
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST
    }
    data = {
        "source": source,
        "files": {
            name: {"nbytes": record.nbytes, "sha256": record.sha256}
            for name, record in files.items()
        },
    }
    (folder / MANIFEST).write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    return Manifest(source, files)


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest; None where there is none.

    Raises:
        ModelCorrupt: it cannot be read.
    """
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_text("utf-8"))
        files = {
            name: FileRecord(int(record["nbytes"]), str(record["sha256"]))
            for name, record in data["files"].items()
        }
        return Manifest(str(data["source"]), files)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelCorrupt(f"{path} is damaged ({error}): run `agentmem setup --force`.") from error


def check_files(folder: Path, manifest: Manifest, *, full: bool = False) -> None:
    """Compare the files with the manifest: sizes, and with `full` every byte.

    Raises:
        ModelCorrupt: a file is missing, truncated or changed; it is named.
    """
    for name, record in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise ModelCorrupt(f"{path} is missing: run `agentmem setup --force`.")
        nbytes = path.stat().st_size
        if nbytes != record.nbytes:
            raise ModelCorrupt(
                f"{path} has {nbytes} bytes, not {record.nbytes}: run `agentmem setup --force`."
            )
        if full and file_sha256(path) != record.sha256:
            raise ModelCorrupt(
                f"{path} was changed (its sha256 differs): run `agentmem setup --force`."
            )


def weights_hash(folder: Path) -> str:
    """The sha256 of a folder's `model.safetensors`: from the manifest, or of the file itself."""
    path = folder / "model.safetensors"
    manifest = read_manifest(folder)
    record = manifest.files.get(path.name) if manifest else None
    if record is not None and record.nbytes == path.stat().st_size:
        return record.sha256
    return file_sha256(path)


def file_sha256(path: Path) -> str:
    """The sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
