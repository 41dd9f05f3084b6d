"""Every test has a home of its own and no network, and in CI none is skipped unseen."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agentmem.models.setup import models_home
from tests.conftest import NetworkBlocked

ROOT = Path(__file__).parents[1]


def test_the_home_is_temporary_and_holds_only_compiled_kernels(home: Path, tmp_path: Path) -> None:
    assert Path.home() == home
    assert os.listdir(home) == ["cache"]
    assert os.listdir(home / "cache" / "agentmem") == ["kernels"]
    assert not list(tmp_path.iterdir())
    assert models_home().is_relative_to(home)
    for kind in ("CACHE", "CONFIG", "DATA", "STATE"):
        assert Path(os.environ[f"XDG_{kind}_HOME"]).is_relative_to(home)


@pytest.mark.parametrize("host", ["example.org", "192.0.2.1", "2001:db8::1"])
def test_no_socket_leaves_the_machine(host: str) -> None:
    with pytest.raises(NetworkBlocked, match=host):
        socket.create_connection((host, 80), timeout=1)
    with socket.socket() as raw, pytest.raises(NetworkBlocked):
        raw.connect_ex((host, 80))


def test_loopback_is_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(("localhost", server.getsockname()[1])).close()


@pytest.mark.parametrize(
    ("mark", "ci", "code"), [("skip", "true", 1), ("skip", "", 0), ("gpu", "true", 0)]
)
def test_in_ci_a_skipped_test_fails_the_run(tmp_path: Path, mark: str, ci: str, code: int) -> None:
    mark_gpu = "@pytest.mark.gpu\n" if mark == "gpu" else ""
    text = f"import pytest\n{mark_gpu}@pytest.mark.skip\ndef test_left_out(): pass\n"
    (tmp_path / "test_sample.py").write_text(text + "def test_done(): pass\n", "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs one\n", "utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", str(tmp_path)],
        env={**os.environ, "CI": ci, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == code, result.stdout + result.stderr
    assert ("SKIPPED IN CI" in result.stdout) == (code == 1)
