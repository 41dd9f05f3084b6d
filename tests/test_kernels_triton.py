"""Triton's kernels against the eager ones: each test of triton_cases.py, in a process of its own.

Triton decides when it is first imported whether it interprets its kernels; were that this process,
nothing else in it could compile one.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

CASES = Path(__file__).parent / "triton_cases.py"
ROOT = CASES.parent.parent


def case_names() -> list[str]:
    """The test functions of the file, read and not imported."""
    tree = ast.parse(CASES.read_text("utf-8"))
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if name.startswith("test_")]


def run_cases(report: Path, *, interpreted: bool) -> dict[str, list[str]]:
    """Faults of each test function; an empty list where all its cells passed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": str(int(interpreted))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(CASES), "-q", f"--junitxml={report}"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=540,
    )  # fmt: skip
    if not report.exists():
        pytest.fail(f"The cases did not run:\n{done.stdout}\n{done.stderr}", pytrace=False)
    faults: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        found = faults.setdefault(str(case.get("name")).partition("[")[0], [])
        found.extend(
            f"{case.get('name')}\n{fault.text}"
            for fault in case
            if fault.tag in ("failure", "error", "skipped")
        )
    return faults


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return run_cases(tmp_path_factory.mktemp("triton") / "report.xml", interpreted=True)


@pytest.mark.parametrize("name", case_names())
def test_interpreted(name: str, interpreted: dict[str, list[str]]) -> None:
    faults = interpreted.get(name, ["It did not run."])
    if faults:
        pytest.fail("\n\n".join(faults[:3]), pytrace=False)


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path) -> None:
    faults = run_cases(tmp_path / "report.xml", interpreted=False)
    failed = [fault for found in faults.values() for fault in found]
    if failed or not faults:
        pytest.fail("\n\n".join(failed[:3] or ["Nothing ran."]), pytrace=False)
