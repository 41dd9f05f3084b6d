"""Commands on what is remembered: search, show, why, decisions, forgetting, sessions, export."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest
from prompt_toolkit.history import FileHistory

from agentmem.cli.options import open_archive
from agentmem.cli.typed import history_file
from tests.cli_run import SCRIPTED, run_cli, start_cli


@pytest.fixture(autouse=True)
def conversation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder, and a conversation of two turns: segments 2 and 4 are the user's."""
    monkeypatch.chdir(tmp_path)
    for name, value in SCRIPTED.items():
        monkeypatch.setenv(name, value)
    ran = run_cli("chat", stdin="My locker code is 58291.\nIt rains \x1b[2J\u202etoday.\n")
    assert ran.code == 0, ran
    return tmp_path


def states() -> dict[int, str]:
    """The state of every segment."""
    return {row["id"]: row["state"] for row in run_cli("show", "--json").events}


def test_search_finds_the_nearest_first() -> None:
    hits = run_cli("search", "locker code", "--json").of_type("hit")
    assert (hits[0]["id"], hits[0]["turn"], hits[0]["state"]) == (2, 1, "live")
    assert set(hits[0]["scores"]) == {"vector", "words"}
    assert [hit["score"] for hit in hits] == sorted((h["score"] for h in hits), reverse=True)
    assert len(run_cli("search", "code", "-k", "1", "--json").events) == 1


def test_search_shows_a_table_with_hostile_text_escaped() -> None:
    lines = run_cli("search", "rains today").stdout.splitlines()
    assert lines[0].split() == ["id", "score", "state", "turn", "from", "text"]
    assert lines[1].split(maxsplit=5)[5] == r"It rains \x1b[2J\u202etoday."


def test_facts_are_listed_with_the_time_in_which_they_held() -> None:
    run_cli("chat", stdin="Scratch that, my locker code is 77310 now.\n")
    newer, older = run_cli("facts", "locker code", "--json").of_type("fact")
    assert (newer["value"], newer["valid_to"]) == ("77310", None)
    assert (older["value"], older["valid_to"]) == ("58291", newer["valid_from"])
    lines = run_cli("facts").stdout.splitlines()
    assert lines[0].split() == ["id", "turn", "held", "segments", "value", "statement"]
    assert "until" in run_cli("search", "58291").stdout
    exported = [json.loads(line) for line in run_cli("export", "-").stdout.splitlines()]
    assert [row["value"] for row in exported if row["type"] == "fact"] == ["58291", "77310"]


def test_show_lists_and_shows_one_in_full() -> None:
    lines = run_cli("show").stdout.splitlines()
    assert lines[0].split() == ["id", "turn", "kind", "from", "state", "text"]
    assert lines[2].split() == ["2", "1", "turn", "user", "live", "My", "locker", "code", "is",
                                "58291."]  # fmt: skip
    head, text = run_cli("show", "4").stdout.splitlines()
    assert head.startswith("segment 4 · turn · from user · trust user · turn 2 · live · ")
    assert text == r"It rains \x1b[2J\u202etoday."
    (segment,) = run_cli("show", "4", "--json").events
    assert segment["text"] == "It rains \x1b[2J\u202etoday."


def test_a_made_up_segment_is_a_typed_error() -> None:
    for words in (["show", "999"], ["why", "999"], ["drop", "999"], ["forget", "999"]):
        ran = run_cli(*words, "--json")
        assert (ran.code, ran.events[0]["code"]) == (2, "SegmentNotFound"), words
    assert run_cli("undo", "999").code == run_cli("sessions", "show", "nosuch").code == 2


def test_decisions_are_listed_with_the_ids_that_undo_takes() -> None:
    run_cli("drop", "2")
    run_cli("keep", "4")
    assert [row["action"] for row in run_cli("decisions", "--json").events] == ["keep", "drop"]
    assert [row["id"] for row in run_cli("decisions", "--segment", "2", "--json").events] == [1]
    assert len(run_cli("decisions", "-n", "1", "--json").events) == 1
    lines = run_cli("decisions").stdout.splitlines()
    assert lines[0].split() == ["id", "turn", "action", "by", "segments", "reason"]
    assert lines[2].split()[0] == "1" and lines[2].split()[2:5] == ["drop", "user", "2"]


def test_what_is_in_the_window_to_stay_cannot_be_restored() -> None:
    ran = run_cli("restore", "2")
    assert ran.code == 2 and "is in the window already, to stay" in ran.stderr
    assert run_cli("decisions", "--json").events == []


def test_a_name_with_a_line_break_stays_on_its_line() -> None:
    run_cli("chat", "--session", "two\nlines", stdin="Hello.\n")
    listed = run_cli("sessions", "list").stdout.splitlines()
    assert len(listed) == 3 and listed[2].startswith(r"two\nlines")


def test_drop_why_undo_and_restore() -> None:
    (dropped,) = run_cli("drop", "2", "--json").events
    assert (dropped["type"], dropped["action"], dropped["segments"]) == ("decision", "drop", [2])
    assert (dropped["source"], dropped["valid"]) == ("user", True)
    assert dropped["tokens_after"] < dropped["tokens_before"]
    assert states()[2] == "archived"
    (why,) = run_cli("why", "2", "--json").events
    assert why["decisions"][0]["id"] == dropped["id"]
    assert "dropped by user" in run_cli("why", "2").stdout
    (undone,) = run_cli("undo", str(dropped["id"]), "--json").events
    assert undone["segments"] == [2] and states()[2] == "live"
    run_cli("drop", "2", "3")
    assert run_cli("restore", "2").stdout.startswith("bring_back 2 (decision ")
    assert states()[2] == "live" and states()[3] == "archived"


def test_undo_takes_the_newest_and_says_when_there_is_none() -> None:
    assert run_cli("undo", "--json").events[0]["code"] == "InvalidInput"
    run_cli("drop", "2")
    assert run_cli("undo").code == 0
    assert states()[2] == "live"


def test_pin_keep_and_unpin() -> None:
    assert run_cli("pin", "2", "--json").events[0]["action"] == "pin"
    assert run_cli("show", "2", "--json").events[0]["pinned"] is True
    assert run_cli("keep", "2", "--json").events[0]["action"] == "keep"
    assert run_cli("unpin", "2", "--json").events == [{"type": "unpin", "segments": [2]}]
    assert run_cli("show", "2", "--json").events[0]["pinned"] is False


def test_what_is_dropped_by_command_is_out_of_the_next_turns_window() -> None:
    run_cli("drop", "2")
    run_cli("chat", "--recall", "off", stdin="next\n")
    assert states()[2] == "archived"
    assert run_cli("search", "locker", "--json").events[0]["id"] == 2


def test_stats_count_turns_and_segments() -> None:
    (stats,) = run_cli("stats", "--json").events
    assert (stats["type"], stats["turns"], stats["session"]) == ("stats", 2, "default")
    assert sum(stats["segments"].values()) == 5
    assert stats["store_bytes"] > 4096
    assert "turns" in run_cli("stats").stdout


def test_looking_works_while_a_conversation_is_under_way() -> None:
    holder = start_cli("chat", "--json")
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        for words in (["search", "locker"], ["show"], ["why", "2"], ["stats"], ["sessions", "list"],
                      ["export", "-"], ["db", "check"]):  # fmt: skip
            assert run_cli(*words).code == 0, words
        busy = run_cli("drop", "2", "--json")
        assert (busy.code, busy.events[0]["code"]) == (5, "SessionBusy")
    finally:
        holder.communicate(timeout=60)


# Forgetting


def test_forget_deletes_and_gives_a_receipt(conversation: Path) -> None:
    (receipt,) = run_cli("forget", "2", "--now", "--json").events
    assert receipt["type"] == "receipt" and receipt["segment"] == 2 and receipt["purged"] is True
    assert run_cli("show", "2").code == 2
    assert all(hit["id"] != 2 for hit in run_cli("search", "locker", "--json").events)
    data = Path(os.environ["XDG_DATA_HOME"])
    left = [path for path in data.rglob("*") if path.is_file() and b"58291" in path.read_bytes()]
    assert left == []


def test_forgetting_takes_what_was_typed_out_of_the_history_of_the_prompt(home: Path) -> None:
    file = history_file()
    file.parent.mkdir(parents=True)
    prompt = FileHistory(str(file))
    for line in ("My locker code is 58291.", "/why 2", "What is\nmy code?"):
        prompt.store_string(line)
    (receipt,) = run_cli("forget", "2", "--json").events
    assert receipt["typed_lines"] == 1
    assert list(prompt.load_history_strings()) == ["What is\nmy code?", "/why 2"]
    (receipt,) = run_cli("forget", "--all", "--yes", "--json").events
    assert receipt["typed_lines"] == 2 and not file.exists()


def test_forgetting_in_another_session_finds_its_session() -> None:
    run_cli("chat", "--session", "work", stdin="The door code is 4711.\n")
    (hit, *_) = run_cli("search", "door code", "--json").events
    assert run_cli("forget", hit["id"]).code == 0
    shown = run_cli("show", "--session", "work", "--json").events
    assert all("4711" not in row["text"] for row in shown)


def test_forget_all_needs_yes_and_leaves_other_users_alone() -> None:
    run_cli("chat", "--user", "ann", stdin="I am Ann.\n")
    refused = run_cli("forget", "--all", "--json")
    assert (refused.code, refused.events[0]["code"]) == (2, "InvalidInput")
    before = run_cli("export", "-", "--user", "ann").stdout
    (receipt,) = run_cli("forget", "--all", "--yes", "--json").events
    assert receipt["sessions"] == ["default"] and receipt["segments"] == 5
    assert run_cli("sessions", "list", "--json").events == []
    assert run_cli("export", "-", "--user", "ann").stdout == before


# Sessions


def test_sessions_are_listed_shown_and_removed() -> None:
    run_cli("chat", "--session", "work", stdin="Only work.\n")
    listed = run_cli("sessions", "list", "--json").events
    assert [(row["session"], row["turns"]) for row in listed] == [("default", 2), ("work", 1)]
    assert run_cli("sessions", "list").stdout.splitlines()[1].split()[:2] == ["default", "2"]
    assert "Only work." in run_cli("sessions", "show", "work").stdout
    assert run_cli("sessions", "show", "nosuch").code == 2
    (removed,) = run_cli("sessions", "rm", "work", "--yes", "--json").events
    assert (removed["session"], removed["segments"]) == ("work", 3)
    assert [row["session"] for row in run_cli("sessions", "list", "--json").events] == ["default"]


def test_a_new_conversation_sets_the_old_one_aside() -> None:
    run_cli("chat", "--new", stdin="fresh\n")
    assert len(run_cli("sessions", "list", "--json").events) == 2
    assert run_cli("search", "locker", "--json").events[0]["text"] == "My locker code is 58291."


# Export


def test_export_has_a_manifest_that_counts_and_hashes_the_rest(conversation: Path) -> None:
    run_cli("drop", "2")
    ran = run_cli("export", "out.jsonl", "--json")
    assert ran.code == 0, ran
    first, _, rest = (conversation / "out.jsonl").read_bytes().partition(b"\n")
    manifest = json.loads(first)
    assert (manifest["type"], manifest["user"]) == ("manifest", "default")
    assert manifest["sha256"] == hashlib.sha256(rest).hexdigest()
    rows = [json.loads(line) for line in rest.splitlines()]
    kinds = [row["type"] for row in rows]
    assert {f"{kind}s": kinds.count(kind) for kind in set(kinds)} == manifest["counts"]
    log = [row for row in rows if row["type"] == "recording"]
    with open_archive(None, None) as archive:
        stored = archive.recordings(archive.session("default", create=False).id)
    assert [row["id"] for row in log] == [row.id for row in stored]
    assert manifest["counts"] == {
        "sessions": 1, "turns": 2, "segments": 5, "decisions": 1, "facts": 1,
        "recordings": len(log),
    }  # fmt: skip
    assert rows[0]["window"] == [1, 3, 4, 5]
    assert [row["text"] for row in rows if row["type"] == "turn"][0] == "My locker code is 58291."
    assert rows[-2 - len(log)]["action"] == "drop" and rows[-1]["type"] == "fact"
    # The log says what was said by naming the turn; the last of it is the act.
    assert ["do", "drop", [2]] in log[-1]["records"]
    assert "58291" not in json.dumps(log)
    assert stat.S_IMODE((conversation / "out.jsonl").stat().st_mode) == 0o600


def test_export_to_stdout_is_the_same_and_nothing_else(conversation: Path) -> None:
    run_cli("export", "out.jsonl")
    ran = run_cli("export", "-")
    assert ran.stdout == (conversation / "out.jsonl").read_text()
    assert ran.stderr == ""


def test_export_replaces_a_file_only_if_told(conversation: Path) -> None:
    file = conversation / "out.jsonl"
    file.write_text("mine")
    refused = run_cli("export", "out.jsonl", "--json")
    assert (refused.code, refused.events[0]["code"]) == (2, "InvalidInput")
    assert file.read_text() == "mine"
    assert run_cli("export", "out.jsonl", "--force").code == 0
    assert file.read_text() != "mine"


def test_an_export_that_fails_leaves_nothing(
    conversation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agentmem.cli.export.os.fsync", fail)
    ran = run_cli("export", "out.jsonl")
    assert ran.code == 1 and "No space left" in ran.stderr
    assert list(conversation.iterdir()) == []


def test_export_into_a_folder_that_does_not_exist_is_one_line() -> None:
    ran = run_cli("export", "no/such/out.jsonl")
    assert ran.code == 2 and ran.stderr.startswith("error: ") and ran.stderr.count("\n") == 1
    assert "no/such is no folder" in ran.stderr


# The store's file


def test_a_backup_is_a_store(conversation: Path) -> None:
    assert run_cli("db", "backup", "copy.db").code == 0
    assert run_cli("search", "locker", "--store", "copy.db", "--json").events[0]["id"] == 2
    assert run_cli("db", "backup", "copy.db").code == 2
    assert run_cli("db", "check", "--store", "copy.db").code == 0


def test_check_fails_on_damage(conversation: Path) -> None:
    run_cli("db", "backup", "copy.db")
    damaged = conversation / "copy.db"
    damaged.write_bytes(damaged.read_bytes().replace(b"58291", b"00000"))
    ran = run_cli("db", "check", "--store", "copy.db", "--json")
    assert ran.code == 5
    failed = [row["name"] for row in ran.events if row["status"] == "fail"]
    assert failed == ["hashes"]


def test_upgrade_of_a_current_store_changes_nothing() -> None:
    assert run_cli("db", "upgrade").code == 0
    assert run_cli("db", "check").code == 0
