"""Every example is short, and runs."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run_example(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> str:
    """Run an example as a program in this process; what it printed."""
    path = ROOT / "examples" / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(path), *words])
    runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr().out


def test_the_four_examples_are_here() -> None:
    names = {path.stem for path in EXAMPLES}
    assert names == {"sdk", "langchain_model", "long_running", "custom_policy"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_to_run_it(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    assert len(lines) < 40
    assert lines[0].startswith('"""')


def test_the_sdk_example(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = run_example("sdk", capsys, monkeypatch, "--model", "scripted")
    assert shown.count("assistant: ok.") == 2
    assert "of 1024 tokens are in use" in shown
    assert "found segment" in shown and "locker code" in shown
    assert "dropped by user" in shown
    assert "undone: bring_back" in shown
    assert "forgotten: {'segment': " in shown


def test_the_custom_policy_keeps_the_code_and_drops_the_rain(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = run_example("custom_policy", capsys, monkeypatch, "--model", "scripted")
    *drops, window = shown.splitlines()
    assert drops and all(line.startswith("drop (") for line in drops)
    assert "My code is 58291." in window
    assert "It rains in A." not in window and "It rains in J." in window


def test_the_langchain_model_calls_its_tool_and_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, embedded_models: Path
) -> None:
    shown = run_example("langchain_model", capsys, monkeypatch)
    assert shown.splitlines() == [
        "It has 21 degrees.",
        "['core_block', 'turn', 'tool_exchange', 'turn']",
    ]


def test_the_long_running_assistant_goes_on_in_another_process(
    tmp_path: Path,
) -> None:
    def run(*words: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "long_running.py"), "--model", "scripted",
             "--store", str(tmp_path / "assistant.db"), *words],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        return done.stdout.splitlines()

    assert run("--stop-after", "2") == ["0 tasks were begun before", "1. ok.", "2. ok."]
    assert run() == [
        "2 tasks were begun before",
        "1. (done before) ok.",
        "2. (done before) ok.",
        "3. ok.",
        "4. ok.",
    ]
