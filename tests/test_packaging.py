"""The wheel, installed in a new environment and run from an empty folder."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what git would ship: the build leaves folders behind."""
    source = tmp_path_factory.mktemp("source") / "agentmem"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info", "tests", "dist")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", str(target), str(source)],
        check=True,
        capture_output=True,
        text=True,
    )  # fmt: skip
    (built,) = target.glob("agentmem-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a new environment with the wheel; it borrows this one's libraries."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    paths = {"base": str(home), "platbase": str(home)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install",
         "--quiet", "--no-deps", "--no-index", str(wheel)],
        check=True,
        capture_output=True,
        text=True,
    )  # fmt: skip
    # A .pth adds folders at the end of sys.path: the new environment's own agentmem comes first.
    libraries = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (site / "borrowed.pth").write_text("\n".join(libraries) + "\n", encoding="utf-8")
    return home / "bin"


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    """Run a program of the new environment in an empty folder."""

    def _run(name: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(installed / name), *words],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            timeout=120,
        )

    return _run


LINKED = ("kernels", "policies", "storage")


def sources() -> set[str]:
    """Every file of the package, as the wheel names it; what is behind a link is counted once."""
    return {
        ("" if folder == "agentmem" else "agentmem/") + path.relative_to(ROOT).as_posix()
        for folder in ("agentmem", *LINKED)
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not (folder == "agentmem" and path.relative_to(ROOT).parts[1] in LINKED)
    }


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert sources() - held == set()
    for kind in ("py.typed", "prompts/*.md", "models/embedded.txt", "kernels/*.py",
                 "storage/migrations/versions/*.py", "policies/*.py"):  # fmt: skip
        assert fnmatch.filter(held, f"agentmem/{kind}"), f"no {kind}"


def test_the_wheel_holds_nothing_but_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"agentmem"}


def test_the_installed_package_is_the_wheels(run: Run) -> None:
    where = run("python", "-c", "import agentmem.kernels, agentmem; print(agentmem.__file__)")
    assert where.returncode == 0, where.stderr
    assert "environment" in where.stdout and str(ROOT) not in where.stdout


def test_help_answers_from_an_empty_folder(run: Run) -> None:
    done = run("agentmem", "--help")
    assert done.returncode == 0, done.stderr
    assert "chat" in done.stdout and "Exit codes" in done.stdout


def test_a_conversation_and_its_store_work_from_an_empty_folder(run: Run) -> None:
    turns = "".join(f"turn number {number}\n" for number in range(1, 6))
    words = ("--model", "scripted", "--controller", "llm", "--store", "me.db", "--json")
    chat = run("agentmem", "chat", *words, stdin=turns)
    assert chat.returncode == 0, chat.stderr
    events = [json.loads(line) for line in chat.stdout.splitlines()]
    assert events[0]["type"] == "session"
    assert [event["text"] for event in events if event["type"] == "reply"] == ["ok."] * 5
    check = run("agentmem", "db", "check", "--store", "me.db")
    assert check.returncode == 0, check.stdout + check.stderr
