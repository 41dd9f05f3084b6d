"""The device script, in Triton's interpreter: it runs, and would see a wrong kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BREAK_A_SCALE = """
from agentmem.kernels import triton_attention
attend = triton_attention.attend
def off(*arguments):
    values, log_sum_exp = attend(*arguments)
    return values * 1.05, log_sum_exp
triton_attention.attend = off
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"}
    return subprocess.run(
        [sys.executable, "-W", "ignore::RuntimeWarning", "-c", code],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_the_device_script_runs_without_a_device_and_finds_every_kernel_right() -> None:
    done = run("from agentmem.bench import device; raise SystemExit(device.main(['--quick']))")
    assert done.returncode == 0, done.stderr + done.stdout
    result = json.loads(done.stdout)
    assert result["all_right"] is True
    kernels = {row["kernel"] for row in result["checks"]}
    assert kernels == {
        "attend", "log_sum_exp", "column_mass", "merge", "prefill", "encode", "gather", "scatter",
        "decode", "bounds", "binary",
    }  # fmt: skip
    assert {row["format"] for row in result["attention"]} == {"q8", "q4", "klt", "binary"}
    assert all(row["same_bits"] for row in result["pages"])
    assert "checking q8" in done.stderr


def test_the_device_script_sees_a_wrong_kernel() -> None:
    done = run(
        BREAK_A_SCALE + "import torch\nfrom agentmem.bench import device\n"
        "rows = device.check('q8', 64, 3, torch.device('cpu'), True)\n"
        "print([row['kernel'] for row in rows if not row['right']])"
    )
    assert done.returncode == 0, done.stderr
    assert "attend" in done.stdout


def test_without_a_device_or_the_interpreter_it_says_what_would_run() -> None:
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "agentmem.bench.device"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2 and not done.stdout
    assert "TRITON_INTERPRET=1" in done.stderr
