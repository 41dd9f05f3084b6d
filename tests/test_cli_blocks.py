"""`agentmem blocks`, and core memory in exports and checks."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.cli_run import SCRIPTED, run_cli


@pytest.fixture(autouse=True)
def conversation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a store of one turn."""
    monkeypatch.chdir(tmp_path)
    for name, value in {**SCRIPTED, "AGENTMEM_STORE": str(tmp_path / "me.db")}.items():
        monkeypatch.setenv(name, value)
    assert run_cli("chat", stdin="My name is Ann.\n").code == 0
    return tmp_path


def test_blocks_are_listed_set_and_taken_back() -> None:
    assert [b["label"] for b in run_cli("blocks", "--json").events] == [
        "human",
        "instructions",
        "persona",
    ]
    (block,) = run_cli("blocks", "human", "--set", "Name: \x1b[2JAnn", "--json").events
    assert (block["text"], block["version"]) == ("Name: \x1b[2JAnn", 1)
    head, text = run_cli("blocks", "human").stdout.splitlines()
    assert head.startswith("human (what is known of the user): ") and head.endswith("version 1")
    assert text == r"Name: \x1b[2JAnn"
    run_cli("blocks", "human", "--set", "Name: Bob")
    (block,) = run_cli("blocks", "human", "--undo", "--json").events
    assert (block["text"], block["version"]) == ("Name: \x1b[2JAnn", 3)
    edits = run_cli("blocks", "human", "--history", "--json").events
    assert [(e["operation"], e["maker"], e["restored"]) for e in edits] == [
        ("rewrite", "user", None),
        ("rewrite", "user", None),
        ("undo", "user", 1),
    ]
    lines = run_cli("blocks", "human", "--history").stdout.splitlines()
    assert lines[4].startswith("3 undo by user, turn 1, ")
    assert lines[4].endswith(": Undo of version 2.")


def test_a_block_of_any_name_is_made_by_setting_it() -> None:
    (block,) = run_cli("blocks", "pets", "--set", "Rex", "--json").events
    assert (block["label"], block["text"]) == ("pets", "Rex")
    assert "pets" in [b["label"] for b in run_cli("blocks", "--json").events]


@pytest.mark.parametrize(
    "words",
    [
        ["--set", "x"],
        ["--history"],
        ["human", "--undo", "--set", "x"],
        ["human", "--undo"],
        ["nosuch"],
        ["human", "--set", ""],
        ["human", "--set", "word " * 400],
        ["No Label", "--set", "x"],
    ],
)
def test_a_wrong_edit_is_a_usage_error(words: list[str]) -> None:
    ran = run_cli("blocks", *words)
    assert (ran.code, ran.stdout) == (2, "") and ran.stderr.startswith("error: ")


def test_the_next_conversation_sees_it() -> None:
    run_cli("blocks", "human", "--set", "Name: Ann")
    run_cli("chat", "--session", "other", stdin="Hello\n")
    kinds = [e["kind"] for e in run_cli("show", "--session", "other", "--json").events]
    assert kinds == ["core_block", "turn", "turn"], "it is filed where it was written"
    run_cli("chat", "--session", "other", "--memory-tools", "--budget", "8000", stdin="Hello\n")
    (manifest, *rows) = map(json.loads, run_cli("export", "-").stdout.splitlines())
    (other,) = [r for r in rows if r["type"] == "session" and r["session"] == "other"]
    (block,) = [r for r in rows if r["type"] == "block"]
    (edit,) = [r for r in rows if r["type"] == "block_edit"]
    assert block["segment"] == edit["segment"] == other["window"][1]
    assert (edit["session"], edit["version"], block["version"]) == ("default", 1, 1)
    assert manifest["counts"]["blocks"] == manifest["counts"]["block_edits"] == 1


def test_a_flag_that_asks_too_much_exits_3() -> None:
    ran = run_cli("chat", "--memory-tools", "--budget", "600", stdin="Hello\n")
    assert ran.code == 3 and "The memory tools take" in ran.stderr


def test_a_version_that_leads_to_no_block_is_found_by_the_check(conversation: Path) -> None:
    run_cli("blocks", "human", "--set", "Name: Ann")
    assert run_cli("db", "check").code == 0
    with sqlite3.connect(conversation / "me.db") as store:
        store.execute("UPDATE block_edits SET segment_id = 2")
        store.execute("INSERT INTO passage_tags VALUES (1, 'home', 2)")
    store.close()
    ran = run_cli("db", "check", "--json")
    (finding,) = [f for f in ran.events if f.get("name") == "core memory"]
    assert finding["status"] == "fail"
    assert "human 1, tags of segment 2" in finding["message"]
