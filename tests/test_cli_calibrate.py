"""`agentmem calibrate`: once a model, kept beside the models, found again by what the model is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentmem.errors import ModelNotFound
from agentmem.models.attached import attach
from agentmem.models.calibrate import calibration_path, load_calibration
from agentmem.models.loading import load
from tests.cli_run import run_cli
from tests.tiny_models import save_tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model as a user would have it."""
    return save_tiny_model(tmp_path / "tiny")


def test_a_calibration_is_made_once_and_found_by_the_model_itself(folder: Path) -> None:
    attached = attach(load(f"hf:{folder}").model)
    with pytest.raises(ModelNotFound, match="run `agentmem calibrate"):
        load_calibration(attached)
    first = run_cli("calibrate", f"hf:{folder}", "--texts", "1", "--json")
    (row,) = first.events
    assert first.code == 0 and row["type"] == "calibration" and row["is_new"]
    assert row["path"] == str(calibration_path(attached.fingerprint))
    assert Path(row["path"]).stat().st_size == row["nbytes"]
    assert "read 1 of 1 texts" in first.stderr
    found = load_calibration(attached)
    assert found.fingerprint == attached.fingerprint == row["fingerprint"]
    again = run_cli("calibrate", f"hf:{folder}", "--texts", "1")
    assert again.stdout.strip() == row["path"] and "read" not in again.stderr
    attached.detach()


def test_a_damaged_calibration_is_made_anew(folder: Path) -> None:
    command = ("calibrate", f"hf:{folder}", "--texts", "1", "--no-gradients", "--json")
    path = Path(run_cli(*command).events[0]["path"])
    whole = {name: tensor.clone() for name, tensor in load_file(path).items()}
    path.write_bytes(path.read_bytes()[:-100])
    assert run_cli(*command).events[0]["is_new"]
    assert all(torch.equal(tensor, whole[name]) for name, tensor in load_file(path).items())
    assert not run_cli(*command).events[0]["is_new"]


def test_no_such_model_is_told_in_one_line(tmp_path: Path) -> None:
    ran = run_cli("calibrate", f"hf:{tmp_path / 'none'}", "--json")
    assert ran.code == 4 and ran.of_type("error")[0]["code"] == "ModelNotFound"
