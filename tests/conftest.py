"""What every test gets without asking: a temporary home, no network, fixed seeds.

The model files come from agentmem's own cache, found before the home is replaced.
"""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Every run tries the same examples: a run that fails can be run again.
settings.register_profile("seeded", derandomize=True)
settings.load_profile("seeded")

# Before anything imports a hub client, a tokenizer or torch: they read these once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["PIP_NO_INDEX"] = "1"
os.environ["PYTHONUTF8"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
for _name in [name for name in os.environ if name.startswith("AGENTMEM_")]:
    if _name != "AGENTMEM_MODELS_HOME":
        del os.environ[_name]

from agentmem.errors import ModelNotFound  # noqa: E402, the lines above come first
from agentmem.models.setup import ModelName, model_dir, models_home  # noqa: E402

MODELS_HOME = models_home()
KERNELS = MODELS_HOME.parent / "kernels"
LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")


class NetworkBlocked(RuntimeError):
    """A test reached for the network. Not an OSError: nothing may take it for a failed host."""


def _refuse_foreign(host: object) -> None:
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else str(host or "")
    if name and not name.startswith(LOOPBACK):
        raise NetworkBlocked(f"Tests reach loopback only: got {name!r}.")


@pytest.fixture(scope="session", autouse=True)
def _no_network() -> Iterator[None]:
    """Let sockets connect to loopback and Unix addresses only."""
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex
    getaddrinfo = socket.getaddrinfo

    def checked_connect(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple):
            _refuse_foreign(address[0])
        connect(self, address)

    def checked_connect_ex(self: socket.socket, address: Any) -> int:
        if isinstance(address, tuple):
            _refuse_foreign(address[0])
        return connect_ex(self, address)

    def checked_getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse_foreign(host)
        return getaddrinfo(host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", checked_connect)
        patch.setattr(socket.socket, "connect_ex", checked_connect_ex)
        patch.setattr(socket, "getaddrinfo", checked_getaddrinfo)
        yield


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own; every XDG folder is inside it. It is not inside `tmp_path`."""
    path = tmp_path_factory.mktemp("home")
    # Kernels are compiled once, not in every home.
    KERNELS.mkdir(parents=True, exist_ok=True)
    (path / "cache" / "agentmem").mkdir(parents=True)
    (path / "cache" / "agentmem" / "kernels").symlink_to(KERNELS)
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("AGENTMEM_MODELS_HOME", raising=False)
    for kind in ("CACHE", "CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(path / kind.lower()))
    return path


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Fix the seeds of whatever is loaded, and keep torch on one thread."""
    random.seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)
        torch.set_num_threads(1)


def _model_dir(name: ModelName) -> Path:
    try:
        return model_dir(name, home=MODELS_HOME)
    except ModelNotFound as error:
        pytest.fail(f"{error} `make test` does it before the tests.", pytrace=False)


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The embedded chat model: SmolLM2-135M-Instruct as bf16 safetensors."""
    return _model_dir("smollm2")


@pytest.fixture(scope="session")
def minilm_dir() -> Path:
    """The embedded embedder: all-MiniLM-L6-v2."""
    return _model_dir("minilm")


@pytest.fixture
def embedded_models(monkeypatch: pytest.MonkeyPatch, smollm2_dir: Path, minilm_dir: Path) -> Path:
    """Let this test, and processes it starts, see the embedded models in spite of its home."""
    monkeypatch.setenv("AGENTMEM_MODELS_HOME", str(MODELS_HOME))
    return MODELS_HOME


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU on a machine without one."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if not needing:
        return
    import torch

    if not torch.cuda.is_available():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note every skipped test but those marked `gpu`."""
    if report.skipped and not hasattr(report, "wasxfail") and "gpu" not in report.keywords:
        _skipped.append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note every skipped file."""
    if report.skipped:
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skipped test is a failed run: nobody would see what was not tested."""
    if os.environ.get("CI") and _skipped and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the skipped tests that fail the run."""
    if os.environ.get("CI"):
        for nodeid in _skipped:
            terminalreporter.write_line(f"SKIPPED IN CI, which fails the run: {nodeid}", red=True)
