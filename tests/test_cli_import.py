"""`agentmem import`, `audit` and `forget --origin`: what they print and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli_run import SCRIPTED, run_cli


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own with a note in it, and one conversation in the store."""
    monkeypatch.chdir(tmp_path)
    for name, value in SCRIPTED.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "notes.md").write_text("Herons nest in Aldermoor.\n")
    run_cli("chat", stdin="My locker code is 58291.\n")
    return tmp_path


def test_a_file_is_imported_once_and_found(folder: Path) -> None:
    (first,) = run_cli("import", "notes.md", "--json").events
    assert (first["type"], first["segments"], first["repeated"]) == ("imported", 1, False)
    assert first["trusted"] is False and first["file"] == "notes.md"
    (again,) = run_cli("import", "notes.md", "--json").events
    assert (again["segments"], again["repeated"]) == (0, True)
    (hit, *_) = run_cli("search", "herons", "--json").events
    assert (hit["origin"], hit["state"]) == ("import", "archived")
    assert "import-" in run_cli("import", "notes.md").stdout


def test_a_store_that_is_not_there_yet_is_made(folder: Path) -> None:
    run_cli("export", "me.jsonl")
    ran = run_cli("import", "me.jsonl", "--trusted", "--store", "new.db", "--json")
    assert (ran.code, ran.events[0]["sessions"], ran.events[0]["turns"]) == (0, ["default"], 1)
    shown = run_cli("show", "--store", "new.db", "--json").events
    assert [row["origin"] for row in shown] == ["system", "user", "assistant"]


def test_a_trusted_export_that_was_changed_is_imported_as_data_and_that_is_said(
    folder: Path,
) -> None:
    run_cli("export", "me.jsonl")
    file = folder / "me.jsonl"
    file.write_text(file.read_text().replace("58291", "00000"))
    ran = run_cli("import", "me.jsonl", "--trusted", "--json")
    assert ran.code == 0 and not ran.events[0]["trusted"]
    assert ran.stderr == "The hash in the manifest does not hold: imported as external text.\n"
    rows = run_cli("audit", "--origin", "import", "--json").events
    assert {row["trust"] for row in rows} == {"external"}


def test_a_faulty_file_is_one_line_of_error(folder: Path) -> None:
    for name, content, message in (
        ("bad.jsonl", '{"role": "user", "content": "x"}\n{', "bad.jsonl, line 2: "),
        ("a.pdf", "x", "got '.pdf'"),
    ):
        (folder / name).write_text(content)
        ran = run_cli("import", name)
        assert ran.code == 2 and message in ran.stderr and ran.stderr.count("\n") == 1
        (fault,) = run_cli("import", name, "--json").events
        assert (fault["type"], fault["code"]) == ("error", "InvalidInput")


def test_an_audit_says_what_came_from_where(folder: Path) -> None:
    run_cli("import", "notes.md")
    rows = run_cli("audit", "--json").events
    assert [(row["from"], row["trust"], row["session"][:7]) for row in rows] == [
        ("system", "system", "default"),
        ("user", "user", "default"),
        ("assistant", "user", "default"),
        ("import:notes.md", "external", "import-"),
    ]
    assert rows[-1]["source"].endswith(" notes.md") and rows[-1]["parents"] == []
    lines = run_cli("audit", "--origin", "import:notes.md").stdout.splitlines()
    assert lines[0].split()[:5] == ["id", "from", "trust", "kind", "state"]
    assert len(lines) == 2 and "import:notes.md" in lines[1] and "external" in lines[1]
    assert run_cli("audit", "--origin", "everybody").code == 2


def test_forgetting_an_origin_needs_yes_and_gives_a_receipt(folder: Path) -> None:
    run_cli("import", "notes.md")
    refused = run_cli("forget", "--origin", "import:notes.md", "--json")
    assert (refused.code, refused.events[0]["code"]) == (2, "InvalidInput")
    (receipt,) = run_cli("forget", "--origin", "import:notes.md", "--yes", "--now", "--json").events
    assert (receipt["origin"], receipt["segments"], receipt["made_of_it"]) == (
        "import:notes.md", [4], [],
    )  # fmt: skip
    assert receipt["purged"] is True
    assert run_cli("audit", "--origin", "import", "--json").events == []
    assert run_cli("import", "notes.md", "--json").events[0]["segments"] == 1


def test_forget_takes_one_thing_to_forget() -> None:
    for words in (["3", "--origin", "user"], ["--all", "--origin", "user"], ["3", "--all"], []):
        assert run_cli("forget", *words, "--yes").code == 2


def test_an_unknown_origin_is_refused_with_those_there_are() -> None:
    ran = run_cli("forget", "--origin", "system", "--yes")
    assert ran.code == 2 and "user, assistant, tool, import, summary" in ran.stderr
    assert len(run_cli("show", "--json").events) == 3


def test_an_export_names_the_source_of_what_was_imported(folder: Path) -> None:
    run_cli("import", "notes.md")
    rows = [json.loads(line) for line in run_cli("export", "-").stdout.splitlines()]
    sources = [row["source"] for row in rows if row["type"] == "segment"]
    assert sources[:3] == ["", "", ""] and sources[3].endswith(" notes.md")
