"""Runs the `agentmem` command: in this process for speed, in another for signals and streams."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentmem.cli.main import main

ROOT = Path(__file__).parent.parent
SCRIPTED = {"AGENTMEM_MODEL": "scripted", "AGENTMEM_EMBEDDER": "hash"}


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    stdout: str
    stderr: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """Every line of stdout as the JSON object it must be."""
        rows = [json.loads(line) for line in self.stdout.splitlines()]
        assert all(isinstance(row, dict) and "type" in row for row in rows)
        return rows

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        """The events of one type."""
        return [event for event in self.events if event["type"] == kind]


def run_cli(*words: str | Path, stdin: str | bytes = b"", columns: int = 200) -> Ran:
    """Run a command in this process, with streams of its own, on a screen of so many columns."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    out, err = (
        io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in ("stdout", "stderr")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))
        patch.setattr("sys.stdout", out)
        patch.setattr("sys.stderr", err)
        patch.setenv("COLUMNS", str(columns))
        code = main([str(word) for word in words])
    stdout, stderr = (stream.detach() for stream in (out, err))
    assert isinstance(stdout, io.BytesIO) and isinstance(stderr, io.BytesIO)
    return Ran(code, stdout.getvalue().decode(), stderr.getvalue().decode())


def start_cli(*words: str | Path, **environment: str) -> subprocess.Popen[bytes]:
    """Start a command in another process, with pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "agentmem", *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **SCRIPTED, "PYTHONPATH": str(ROOT), **environment},
    )
