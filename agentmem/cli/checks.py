"""What `agentmem doctor` looks at: each check says what is wrong and the one command to mend it.

A check never raises for what it finds. Only what is broken fails; what could be better warns.
"""

from __future__ import annotations

import importlib
import platform
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agentmem.errors import AgentmemError, ModelError, StoreError

if TYPE_CHECKING:
    from agentmem import ChatModel
    from agentmem.config import Settings

Status = Literal["ok", "warn", "fail"]
LOW_DISK_BYTES = 2**30
FULL_DISK_BYTES = 32 * 2**20
ENDPOINT_SECONDS = 5.0
LOCK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Check:
    """One row: what was looked at, how it is, and what to do about it.

    Args:
        exit_code: what the command exits with if this failed: 4 model, 5 store, 1 other.
    """

    name: str
    status: Status
    message: str
    fix: str = ""
    exit_code: int = 1


def check_python() -> Iterator[Check]:
    """The interpreter."""
    yield Check("python", "ok", f"{platform.python_version()} on {platform.machine()}")


def check_torch() -> Iterator[Check]:
    """Torch imports, and what it computes on."""
    try:
        torch = importlib.import_module("torch")
    except (ImportError, OSError) as error:
        yield Check("torch", "fail", f"cannot be imported: {error}", "pip install 'torch>=2.9,<3'")
        return
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"
    yield Check(
        "torch", "ok", f"{torch.__version__} on {device}, {torch.get_num_threads()} threads"
    )


def check_faiss() -> Iterator[Check]:
    """FAISS imports, and only one of its wheels is installed: they share a folder."""
    wheels = [
        f"{distribution.name} {distribution.version}"
        for distribution in metadata.distributions()
        if (distribution.name or "").lower().replace("_", "-").startswith("faiss-")
    ]
    try:
        version = importlib.import_module("faiss").__version__
    except (ImportError, OSError) as error:
        yield Check("faiss", "fail", f"cannot be imported: {error}", "pip install faiss-cpu")
        return
    if len(set(wheels)) > 1:
        yield Check(
            "faiss",
            "warn",
            f"{' and '.join(sorted(set(wheels)))} are both installed and overwrite each other",
            "pip uninstall -y faiss-cpu faiss-gpu && pip install faiss-cpu",
        )
    else:
        yield Check("faiss", "ok", version)


def check_store(path: Path, user: str) -> Iterator[Check]:
    """The store opens, can be written and is whole; one that does not exist yet is fine."""
    from agentmem import Store

    if not path.exists():
        yield Check("store", "ok", f"none yet at {path}")
        return
    try:
        with Store.open(path, create=False, lock_seconds=LOCK_SECONDS) as store:
            with store.for_user(user).write():
                pass  # takes the write lock, which reading does not
            findings = store.check()
    except StoreError as error:
        yield Check("store", "fail", str(error), _store_fix(error, path), error.exit_code)
        return
    yield Check("store", "ok", str(path))
    for finding in findings:
        title = f"store {finding.name}"
        yield Check(title, finding.status, finding.message, finding.fix, StoreError.exit_code)


def _store_fix(error: StoreError, path: Path) -> str:
    fixes = {
        "StoreLocked": f"fuser -v {path}.lock",
        "SchemaNewer": "git pull && make setup",
        "StoreCorrupt": f"mv {path} {path}.damaged",
        "StoreReadOnly": f"chmod u+w {path} {path.parent}",
        "StoreFull": f"df -h {path.parent}",
    }
    return fixes.get(error.code, f"ls -la {path}")


def check_model_files(needed: Collection[str]) -> Iterator[Check]:
    """The embedded models are whole and unchanged; one that is not needed may be missing."""
    from agentmem.models.setup import EMBEDDED, models_home, verify

    for name, model in EMBEDDED.items():
        title = f"files of {name}"
        try:
            verify(name, full=True)
        except ModelError as error:
            missing = error.code == "ModelNotFound"
            fix = "agentmem setup" if missing else "agentmem setup --force"
            status: Status = "warn" if missing and name not in needed else "fail"
            yield Check(title, status, str(error), fix, error.exit_code)
        else:
            yield Check(title, "ok", f"{model.title} in {models_home() / name}")


def check_model(settings: Settings) -> Iterator[Check]:
    """The model loads and answers, and whether it has a KV tier, or why not."""
    from agentmem import Agent

    title = f"model {settings.model}"
    with tempfile.TemporaryDirectory(prefix="agentmem-doctor-") as folder:
        arguments = settings.agent_arguments() | {
            "store": Path(folder) / "doctor.db",
            "embedder": "hash",
            "max_new_tokens": 8,
        }
        try:
            with Agent(**arguments) as agent:
                reply = agent.chat("Say ok.")
                yield Check(title, "ok", f"answers, {reply.usage.completion_tokens} tokens")
                yield from check_kv(agent.model)
        except AgentmemError as error:
            yield Check(title, "fail", str(error), _model_fix(error), error.exit_code)


def check_kv(model: ChatModel) -> Iterator[Check]:
    """Whether what left the window comes back as KV; reading it again as text is slower, not wrong.

    A local model proves this on itself when it is loaded, and says why where it cannot.
    """
    problem = getattr(model, "template_problem", "")
    if problem:
        fix = "agentmem chat --recall text"
        yield Check("template", "warn", f"not supported part by part: {problem}", fix)
    if model.capabilities.has_kv:
        yield Check("kv", "ok", "segments keep their keys and values; they return without prefill")
        yield from check_kv_proof(model)
        if kernels := getattr(model, "kernels", ""):
            yield Check("kernels", "ok", kernels)
        if places := _kv_in_words(model):
            yield Check("kv places", "ok", places)
    elif reason := getattr(model, "kv_problem", ""):
        message = f"none, the window is read as text: {reason}"
        yield Check("kv", "warn", message, "agentmem chat --recall text")
    else:
        yield Check("kv", "ok", "none: this kind of model is only sent text")


def check_kv_proof(model: ChatModel) -> Iterator[Check]:
    """The self-test of the KV tier, and a reply from KV against one from text, on the model."""
    prove = getattr(model, "prove_kv", None)
    if prove is None:
        return
    fix = "agentmem chat --recall text"
    try:
        proof = prove()
    except ModelError as error:
        yield Check("kv self-test", "fail", str(error), fix, error.exit_code)
        return
    off = f"logits are at most {proof.self_test_error:.1e} off a dense forward's"
    yield Check("kv self-test", "ok", f"dropped, moved and brought back, {off}")
    count, equal = len(proof.from_text), proof.num_equal
    same = f"{equal} of {count} greedy tokens are those of text prefill"
    if equal == count:
        yield Check("kv greedy", "ok", same)
        return
    parts = f"{same}, then {proof.from_kv[equal]} where text says {proof.from_text[equal]}"
    yield Check("kv greedy", "fail", parts, fix, ModelError.exit_code)


def _kv_in_words(model: ChatModel) -> str:
    """How much KV is where; empty without a KV tier."""
    from agentmem.cli.render import nbytes

    if model.kv is None:
        return ""
    held = model.kv.usage()
    return (
        f"{nbytes(held.window_bytes)} in the window, {nbytes(held.window_host_bytes)} of them in "
        f"host memory; {nbytes(held.parked_ram_bytes)} parked in memory, "
        f"{nbytes(held.parked_disk_bytes)} on disk"
    )


def _model_fix(error: AgentmemError) -> str:
    fixes = {
        "ModelNotFound": "agentmem setup",
        "ModelCorrupt": "agentmem setup --force",
        "ModelUnavailable": "agentmem doctor --model local",
        "DeviceFull": "agentmem chat --budget 1024",
        "Unsupported": "agentmem chat --model local",
        "BudgetTooSmall": "agentmem chat --budget 2048",
    }
    return fixes.get(error.code, "")


def check_folders() -> Iterator[Check]:
    """Data, cache, settings and state folders can be written."""
    from agentmem import folders

    for name, folder in [
        ("data folder", folders.data_dir()),
        ("cache folder", folders.cache_dir()),
        ("settings folder", folders.config_dir()),
        ("state folder", folders.state_dir()),
    ]:
        yield check_folder(name, folder)


def check_folder(name: str, folder: Path) -> Check:
    """The folder, or the nearest one above it that exists, takes a file."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        fix = f"sudo chown -R $USER {existing}"
        if not existing.is_dir():
            fix = f"mv {existing} {existing}.old"
        reason = f"{folder} cannot be written: {existing}: {error.strerror}"
        return Check(name, "fail", reason, fix, exit_code=5 if name == "data folder" else 1)
    return Check(name, "ok", str(folder))


def check_disk(folder: Path) -> Iterator[Check]:
    """There is room for more."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    message = f"{free / 1e9:.1f} GB free at {folder}"
    fix = f"du -sh {folder}/* | sort -h"
    if free < FULL_DISK_BYTES:
        yield Check("disk", "fail", message, fix, exit_code=5)
    elif free < LOW_DISK_BYTES:
        yield Check("disk", "warn", message, fix)
    else:
        yield Check("disk", "ok", message)


def check_endpoint(base_url: str | None) -> Iterator[Check]:
    """The server answers anything at all; only asked where there is one in the settings."""
    if base_url is None:
        return
    url = base_url.rstrip("/") + "/models"
    try:
        with urllib.request.urlopen(url, timeout=ENDPOINT_SECONDS) as answer:
            yield Check("endpoint", "ok", f"{url} answers {answer.status}")
    except urllib.error.HTTPError as error:
        error.close()
        needs_key = error.code in (401, 403)
        fix = "export OPENAI_API_KEY=..." if needs_key else f"curl -i {url}"
        yield Check("endpoint", "warn", f"{url} answers {error.code}", fix)
    except (OSError, ValueError) as error:
        yield Check("endpoint", "fail", f"{url} does not answer: {error}", f"curl -i {url}", 4)


def run_checks(settings: Settings, store: Path) -> Iterator[Check]:
    """Every check in order; the model that the settings name is loaded last."""
    yield from check_python()
    yield from check_torch()
    yield from check_faiss()
    yield from check_folders()
    yield from check_disk(store.parent)
    yield from check_store(store, settings.user)
    needed = {"smollm2"} if settings.model == "local" else set()
    needed |= {"minilm"} if settings.embedder == "minilm" else set()  # "auto" does without
    files = list(check_model_files(needed))
    yield from files
    yield from check_endpoint(settings.base_url)
    if not any(check.status == "fail" for check in files):
        yield from check_model(settings)
