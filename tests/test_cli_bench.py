"""`agentmem bench`: rows on stdout, progress on stderr, a file that is taken up again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli_run import run_cli

SMALL = ("--model", "scripted", "--turns", "70", "--facts", "6", "--budget", "300",
         "--system", "window", "--out", "rows.json")  # fmt: skip


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_recall_writes_a_row_a_system_and_a_file_that_is_taken_up_again(folder: Path) -> None:
    first = run_cli("bench", "recall", *SMALL, "--json")
    assert first.code == 0, first
    (row,) = first.events
    assert (row["type"], row["bench"], row["system"], row["via"]) == (
        "row", "recall", "window", "off",
    )  # fmt: skip
    assert 0 <= row["in_window"] <= 1 and row["peak_prompt_tokens"] <= 300
    assert first.stderr and "measured before" not in first.stderr
    data = json.loads((folder / "rows.json").read_text())
    assert set(data) == {"bench", "command", "machine", "versions", "rows"}
    again = run_cli("bench", "recall", *SMALL)
    assert again.code == 0 and "window" in again.stdout
    assert "window: measured before" in again.stderr


def test_summaries_writes_a_row_a_system_and_a_table() -> None:
    small = ("bench", "summaries", "--quick", "--model", "scripted", "--stretches", "2",
             "--system", "extract", "--system", "whole", "--out", "rows.json")  # fmt: skip
    first = run_cli(*small, "--json")
    assert first.code == 0, first
    assert [(row["bench"], row["system"], row["stretches"]) for row in first.events] == [
        ("summaries", "extract", 2), ("summaries", "whole", 2),
    ]  # fmt: skip
    again = run_cli(*small)
    assert again.code == 0 and "extract" in again.stdout and "stretch 1" not in again.stderr


def test_an_unknown_system_is_a_usage_error() -> None:
    ran = run_cli("bench", "recall", "--model", "scripted", "--system", "magic", "--json")
    assert (ran.code, ran.events[0]["code"]) == (2, "InvalidInput")
