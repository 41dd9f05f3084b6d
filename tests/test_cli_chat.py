"""`agentmem chat` and `ask` without a terminal: events, order, faults, signals, kills."""

from __future__ import annotations

import io
import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentmem import Agent, ScriptedModel
from agentmem.cli.piped import PipedChat
from agentmem.models.base import Delta, Options, Part
from agentmem.models.embed import HashEmbedder
from tests.cli_run import SCRIPTED, run_cli, start_cli


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The scripted model, and an empty current folder."""
    monkeypatch.chdir(tmp_path)
    for name, value in SCRIPTED.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def script(folder: Path, *lines: object) -> str:
    """A model that plays these replies."""
    path = folder / "script.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"scripted:{path}"


def test_every_event_is_one_line_of_json_and_the_session_comes_first() -> None:
    ran = run_cli("chat", "--json", "--budget", "1024", stdin="hello\nhow are you?\n")
    assert (ran.code, ran.stderr) == (0, "")
    first = ran.events[0]
    assert first["type"] == "session"
    assert (first["session"], first["model"], first["budget"]) == ("default", "scripted", 1024)
    assert [event["text"] for event in ran.of_type("reply")] == ["ok.", "ok."]
    assert [event["turn"] for event in ran.of_type("reply")] == [1, 2]
    assert {event["type"] for event in ran.events} <= {"session", "decision", "recall", "reply"}


def test_a_reply_event_has_every_field_the_design_promises() -> None:
    (reply,) = run_cli("chat", "--json", stdin="hello\n").of_type("reply")
    assert {
        "type", "turn", "text", "finish_reason", "prompt_tokens", "completion_tokens", "budget",
        "kv_bytes", "kv_bytes_host", "kv_bytes_dense", "kv_bytes_parked_ram",
        "kv_bytes_parked_disk", "rss", "segments", "seconds",
    } <= set(reply)  # fmt: skip
    assert set(reply["seconds"]) == {"recall", "controller", "prefill", "decode"}
    assert 0 < reply["prompt_tokens"] <= reply["budget"]


def test_without_json_only_replies_go_to_stdout(scripted: Path) -> None:
    model = script(scripted, "One.", "Two\nlines.")
    ran = run_cli("chat", "--model", model, stdin="a\nb\n")
    assert (ran.code, ran.stdout, ran.stderr) == (0, "One.\nTwo\nlines.\n", "")


def test_the_same_turn_again_returns_the_stored_reply(scripted: Path) -> None:
    model = script(scripted, "first", "second")
    line = '{"turn": "a", "text": "hello"}\n'
    ran = run_cli("chat", "--json", "--model", model, stdin=line + line)
    replies = ran.of_type("reply")
    assert [(reply["turn"], reply["text"]) for reply in replies] == [("a", "first")] * 2
    assert [reply.get("repeated", False) for reply in replies] == [False, True]
    again = run_cli("chat", "--json", "--model", model, stdin=line)
    assert again.of_type("reply")[0]["text"] == "first"


def test_a_conversation_goes_on_where_it_stopped() -> None:
    run_cli("chat", "--json", stdin="one\ntwo\n")
    ran = run_cli("chat", "--json", stdin="three\n")
    assert ran.events[0]["turns"] == 2
    assert ran.of_type("reply")[0]["turn"] == 3
    assert run_cli("chat", "--new", "--json", stdin="").events[0]["turns"] == 0


def test_sessions_and_users_are_apart() -> None:
    run_cli("chat", "--session", "work", stdin="one\n")
    run_cli("chat", "--user", "ann", stdin="one\n")
    assert run_cli("chat", "--json", stdin="").events[0]["turns"] == 0
    assert run_cli("chat", "--json", "--session", "work", stdin="").events[0]["turns"] == 1


def test_empty_lines_are_skipped_and_said() -> None:
    ran = run_cli("chat", "--json", stdin="\none\n   \n")
    assert len(ran.of_type("reply")) == 1
    assert ran.stderr == "line 1 is empty: skipped\nline 3 is empty: skipped\n"
    assert ran.code == 0


def test_a_malformed_turn_is_an_error_event_and_the_next_is_answered() -> None:
    stdin = '{"turn": 1, "text": \n{"turn": 2, "text": "hi"}\n{"turn": 3, "text": "  "}\n'
    ran = run_cli("chat", "--json", stdin=stdin)
    kinds = [(event["type"], event.get("turn")) for event in ran.events[1:]]
    assert kinds == [("error", None), ("reply", 2), ("error", 3)]
    assert [event["code"] for event in ran.of_type("error")] == ["InvalidInput"] * 2
    assert ran.code == 2


def test_bytes_that_are_no_text_are_replaced_and_stored() -> None:
    ran = run_cli("chat", "--json", stdin=b"caf\xe9 \x00 ok\n")
    assert len(ran.of_type("reply")) == 1
    said = [row["text"] for row in run_cli("show", "--json").events if row["origin"] == "user"]
    assert said == ["caf\ufffd \u2400 ok"]


def test_a_lone_surrogate_is_replaced_not_lost() -> None:
    ran = run_cli("chat", "--json", stdin='{"turn": 1, "text": "half \\ud83d pair"}\n')
    assert len(ran.of_type("reply")) == 1
    said = [row["text"] for row in run_cli("show", "--json").events if row["origin"] == "user"]
    assert said == ["half \ufffd pair"]


def test_every_language_comes_back_as_it_was_said() -> None:
    text = "Schön 你好 नमस्ते مرحبا 🎉"
    ran = run_cli("chat", "--json", stdin=json.dumps({"turn": "ü", "text": text}) + "\n")
    assert ran.of_type("reply")[0]["turn"] == "ü"
    assert text in [row["text"] for row in run_cli("show", "--json").events]


def test_a_line_of_a_megabyte_is_answered_within_the_budget() -> None:
    ran = run_cli("chat", "--json", stdin="word " * 200_000 + "\nnext\n")
    replies = ran.of_type("reply")
    assert len(replies) == 2, ran
    assert all(reply["prompt_tokens"] <= reply["budget"] for reply in replies)


def test_a_model_that_fails_keeps_the_message_and_the_next_turn_works(scripted: Path) -> None:
    model = script(scripted, {"error": "503 from the endpoint"}, "back again")
    stdin = '{"turn": 1, "text": "one"}\n{"turn": 2, "text": "two"}\n'
    ran = run_cli("chat", "--json", "--model", model, stdin=stdin)
    (error,) = ran.of_type("error")
    assert (error["code"], error["turn"]) == ("ModelUnavailable", 1)
    assert [reply["turn"] for reply in ran.of_type("reply")] == [2]
    assert ran.code == 4
    retried = run_cli("chat", "--json", stdin='{"turn": 1, "text": "one"}\n')
    assert retried.of_type("reply")[0]["turn"] == 1
    said = [row["text"] for row in run_cli("show", "--json").events if row["origin"] == "user"]
    assert said.count("one") == 1


def test_a_fault_without_json_is_a_line_on_stderr(scripted: Path) -> None:
    model = script(scripted, {"error": "503"}, "fine")
    ran = run_cli("chat", "--model", model, stdin="one\ntwo\n")
    assert (ran.code, ran.stdout) == (4, "fine\n")
    assert ran.stderr.startswith("error: ")


def test_what_looks_like_a_command_is_text_in_a_pipe() -> None:
    assert len(run_cli("chat", "--json", stdin="/quit\nexit\n").of_type("reply")) == 2


def test_a_small_budget_makes_decisions_and_none_is_exceeded() -> None:
    stdin = "".join(f"message {number} {'word ' * 20}\n" for number in range(40))
    ran = run_cli("chat", "--json", "--budget", "512", "--controller", "policy", stdin=stdin)
    decisions = ran.of_type("decision")
    assert decisions and all(event["tokens_after"] <= 512 for event in decisions)
    assert all(reply["prompt_tokens"] <= 512 for reply in ran.of_type("reply"))
    assert {event["source"] for event in decisions} == {"policy"}


def test_a_session_in_use_is_busy() -> None:
    holder = start_cli("chat", "--json")
    assert holder.stdin is not None and holder.stdout is not None
    holder.stdout.readline()
    try:
        ran = run_cli("chat", "--json", stdin="hi\n")
        assert (ran.code, ran.events[0]["code"]) == (5, "SessionBusy")
        assert run_cli("chat", "--json", "--session", "other", stdin="hi\n").code == 0
    finally:
        holder.communicate(timeout=60)
    assert holder.returncode == 0


def test_settings_come_from_flags_then_environment_then_file(
    scripted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scripted / "agentmem.toml").write_text('budget = 700\nsession = "from-file"\nkv = "dense"')
    monkeypatch.setenv("AGENTMEM_SESSION", "from-env")
    session = run_cli("chat", "--json", "--budget", "900", stdin="").events[0]
    assert (session["budget"], session["session"], session["kv"]) == (900, "from-env", "dense")


# Asking once


def test_ask_answers_once() -> None:
    ran = run_cli("ask", "hello", "--json")
    assert [event["type"] for event in ran.events] == ["session", "reply"]
    assert run_cli("ask", "hello").stdout == "ok.\n"


def test_ask_joins_what_is_piped() -> None:
    run_cli("ask", "Summarize this:", stdin="a long text\nof two lines\n")
    said = [row["text"] for row in run_cli("show", "--json").events if row["origin"] == "user"]
    assert said == ["Summarize this:\n\na long text\nof two lines"]


def test_ask_exits_with_the_code_of_its_fault(scripted: Path) -> None:
    model = script(scripted, {"error": "503"})
    assert run_cli("ask", "hello", "--model", model).code == 4


# Signals and kills


def read_event(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The next event a command writes."""
    assert process.stdout is not None
    event = json.loads(process.stdout.readline())
    assert isinstance(event, dict)
    return event


def send(process: subprocess.Popen[bytes], turn: int) -> None:
    """Send a turn."""
    assert process.stdin is not None
    process.stdin.write(json.dumps({"turn": turn, "text": f"text of turn {turn}"}).encode() + b"\n")
    process.stdin.flush()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_between_turns_ends_the_command_and_loses_nothing(
    signum: signal.Signals, code: int
) -> None:
    chat = start_cli("chat", "--json")
    read_event(chat)
    send(chat, 1)
    assert read_event(chat)["type"] == "reply"
    started = time.monotonic()
    chat.send_signal(signum)
    _, stderr = chat.communicate(timeout=30)
    assert (chat.returncode, stderr) == (code, b"")
    assert time.monotonic() - started < 5
    again = run_cli("chat", "--json", stdin='{"turn": 1, "text": "text of turn 1"}\n')
    assert again.of_type("reply")[0]["repeated"] is True


class Signalled(ScriptedModel):
    """Gets a signal in the middle of its reply."""

    def __init__(self, signum: signal.Signals) -> None:
        super().__init__(["one two three four five"])
        self.signum = signum

    def generate(self, prompt: Sequence[Part], options: Options) -> Iterator[Delta]:
        """Stream, and be signalled before the third token."""
        for number, delta in enumerate(super().generate(prompt, options)):
            if number == 2:
                signal.raise_signal(self.signum)
            yield delta


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_a_reply_keeps_the_partial_reply_and_leaves(
    signum: signal.Signals, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with Agent(Signalled(signum), embedder=HashEmbedder()) as agent:
        lines = io.BytesIO(b"hello\nnever read\n")
        assert PipedChat(agent, as_json=True).run(lines) == code
    reply = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (reply["type"], reply["finish_reason"]) == ("reply", "interrupted")
    assert reply["text"].startswith("one") and "five" not in reply["text"]
    stored = [row for row in run_cli("show", "--json").events if row["origin"] != "system"]
    assert [row["text"] for row in stored] == ["hello", reply["text"]]


def test_ten_kills_lose_no_acknowledged_turn_and_store_none_twice() -> None:
    rng = random.Random(7)
    acknowledged: dict[int, str] = {}
    turn = 1
    for _ in range(10):
        chat = start_cli("chat", "--json")
        read_event(chat)
        for _ in range(rng.randrange(1, 4)):
            send(chat, turn)
            event = read_event(chat)
            while event["type"] != "reply":
                event = read_event(chat)
            acknowledged[event["turn"]] = event["text"]
            turn += 1
        send(chat, turn)  # its fate is open: it is sent again after the kill
        time.sleep(rng.random() * 0.02)
        chat.kill()
        chat.communicate(timeout=30)
    turns = "".join(
        json.dumps({"turn": number, "text": f"text of turn {number}"}) + "\n"
        for number in range(1, turn + 1)
    )
    ran = run_cli("chat", "--json", stdin=turns)
    assert ran.code == 0, ran
    replies = {event["turn"]: event for event in ran.of_type("reply")}
    assert {number: replies[number]["text"] for number in acknowledged} == acknowledged
    assert all(replies[number].get("repeated") for number in acknowledged)
    said = [row["text"] for row in run_cli("show", "--json").events if row["origin"] == "user"]
    assert said == [f"text of turn {number}" for number in range(1, turn + 1)]
    assert run_cli("db", "check").code == 0
