"""A conversation at a terminal: exact screens of slash commands, Ctrl-C, a real pty."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from agentmem import Agent, ScriptedModel
from agentmem.cli import signals
from agentmem.cli.piped import PipedChat
from agentmem.cli.slash import COMMANDS
from agentmem.cli.terminal import HINT, TerminalChat
from agentmem.errors import ModelUnavailable
from agentmem.models.base import Delta, Options, Part
from agentmem.models.embed import HashEmbedder
from tests.cli_run import ROOT, SCRIPTED

Line = str | type[BaseException]


class Screen:
    """A terminal of text: what is typed, and what it shows."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.console = Console(file=io.StringIO(), width=100, color_system=None)
        self.exit_code: int | None = None

    def type(self, *lines: Line) -> list[str]:
        """Type lines (or raise what a prompt raises), then end; the lines that were shown."""
        self.console.file = file = io.StringIO()
        typed = iter(lines)

        def read() -> str:
            line = next(typed, EOFError)
            if isinstance(line, str):
                return line
            raise line

        self.exit_code = TerminalChat(self.agent, self.console, read).run()
        shown = file.getvalue().splitlines()
        assert shown[0].startswith("scripted · session default")
        return [line.rstrip() for line in shown[1:]]


@pytest.fixture
def model() -> ScriptedModel:
    """Answers "ok." unless told otherwise."""
    return ScriptedModel()


@pytest.fixture
def screen(model: ScriptedModel, tmp_path: Path) -> Iterator[Screen]:
    """A chat of its own."""
    store = tmp_path / "me.db"
    with Agent(model, store=store, embedder=HashEmbedder(), budget=1000) as agent:
        yield Screen(agent)


STATUS = re.compile(r"^\d+/1000 tokens( · \w+ \d+)+$")


def test_an_answer_is_shown_with_one_status_line(screen: Screen) -> None:
    shown = screen.type("hello")
    assert shown[0] == "ok."
    assert STATUS.match(shown[1]), shown
    assert len(shown) == 2
    assert screen.exit_code == 0


@pytest.mark.parametrize("word", ["/quit", "/exit", "/bye", "exit", "quit", "  /quit "])
def test_a_word_leaves(screen: Screen, word: str) -> None:
    assert screen.type(word, "never said") == []
    assert screen.exit_code == 0


def test_an_empty_line_says_nothing(screen: Screen) -> None:
    assert screen.type("", "   ") == []


def test_help_lists_every_command(screen: Screen) -> None:
    shown = screen.type("/help")
    assert [line.split()[0] for line in shown] == [f"/{name}" for name in COMMANDS]
    assert shown[0] == "/help                list these commands"


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("/memry", "Unknown command /memry. Did you mean /memory? /help lists all."),
        ("/zzz", "Unknown command /zzz. /help lists all."),
        ("/\x1b[2J", r"Unknown command /\x1b[2J. /help lists all."),
        ("/drop", "error: `/drop` needs segment ids, as in `/drop 12`: got none."),
        ("/drop x", "error: `/drop` needs segment ids, as in `/drop 12`: got 'x'."),
        ("/why 1 2", "error: `/why` needs one id, as in `/why 12`: got '1 2'."),
        ("/why -1", "error: `/why` needs one id, as in `/why 12`: got '-1'."),
        ("/why ٣", "error: `/why` needs one id, as in `/why 12`: got '٣'."),
        ("/search", "error: `/search` needs words to look for, as in `/search locker code`."),
    ],
)
def test_a_wrong_command_is_answered_and_the_loop_goes_on(
    screen: Screen, typed: str, answer: str
) -> None:
    shown = screen.type(typed, "hello")
    assert shown[:2] == [answer, "ok."]


@pytest.mark.parametrize("typed", ["/why 999", "/drop 999", "/undo 999", "/memory 999", "/undo"])
def test_a_made_up_id_is_an_error_line(screen: Screen, typed: str) -> None:
    shown = screen.type(typed, "hello")
    assert shown[0].startswith("error: ") and shown[1] == "ok."


def test_two_slashes_say_text_that_begins_with_one(screen: Screen, model: ScriptedModel) -> None:
    screen.type("//etc/hosts is a file")
    assert model.history[-1].messages[-1].content == "/etc/hosts is a file"


def test_context_draws_the_window(screen: Screen) -> None:
    screen.type("My locker code is 58291.")
    shown = screen.type("/context")
    bar = dict(screen.agent.context.bar())
    used = 1000 - bar["free"]
    assert re.fullmatch(rf"█+·+ {used}/1000 tokens", shown[0])
    assert shown[1] == "  ".join(f"{name} {count}" for name, count in bar.items())
    assert shown[2] == "id  tokens  state  via     text"
    assert re.fullmatch(r" 2 +\d+  live   prompt  My locker code is 58291\.", shown[4])
    assert re.fullmatch(r" 3 +\d+  live   prompt  ok\.", shown[5])


def test_memory_lists_the_newest_and_shows_one(screen: Screen) -> None:
    screen.type("My locker code is 58291.")
    shown = screen.type("/memory", "/memory 2")
    assert shown[0] == "id  turn  kind        from       state  text"
    assert shown[2] == " 2     1  turn        user       live   My locker code is 58291."
    assert shown[3] == " 3     1  turn        assistant  live   ok."
    assert shown[4].startswith("segment 2 · turn · from user · trust user · turn 1 · live · ")
    assert shown[5] == "My locker code is 58291."


def test_blocks_shows_core_memory(screen: Screen) -> None:
    screen.agent.memory.blocks.append("human", "Name: [red]Ann\x1b[2J")
    shown = screen.type("/blocks human", "/blocks", "/blocks pets")
    tokens = screen.agent.memory.blocks.get("human").num_tokens
    head = f"human (what is known of the user): {tokens} of 128 tokens, version 1"
    assert shown[:3] == [head, r"Name: [red]Ann\x1b[2J", head]
    assert shown[-2] == "(empty)" and shown[-1].startswith("error: There is no block 'pets'")


def test_search_finds_what_was_said(screen: Screen) -> None:
    screen.type("My locker code is 58291.", "It rains.")
    shown = screen.type("/search locker code")
    assert shown[0] == "id  score  state  turn  from  text"
    assert re.fullmatch(r" 2 +\d\.\d\d  live      1  user  My locker code is 58291\.", shown[1])


def test_drop_why_restore_and_undo_go_together(screen: Screen) -> None:
    screen.type("My locker code is 58291.", "It rains.")
    dropped, *why = screen.type("/drop 2", "/why 2")
    assert re.fullmatch(
        r"drop 2 \(decision \d+, user, \d+ -> \d+ tokens\): The user asked for it\.", dropped
    )
    assert why[0].startswith("Segment 2 (user, turn 1)")
    assert any("dropped by user" in line for line in why)
    assert 2 not in screen.agent.context
    undone, restored_again = screen.type("/undo", "/restore 2")
    assert undone.startswith("bring_back 2 (decision ")
    assert 2 in screen.agent.context
    assert restored_again.startswith(("bring_back 2", "error: "))


def test_pin_keep_and_unpin(screen: Screen) -> None:
    screen.type("My locker code is 58291.")
    pinned, kept, unpinned = screen.type("/pin 2", "/keep 2", "/unpin 2")
    assert pinned.startswith("pin 2 (decision ")
    assert kept.startswith("keep 2 (decision ")
    assert unpinned.startswith("unpin 2 (decision ")


def test_summarize_puts_a_summary_in_place(screen: Screen, model: ScriptedModel) -> None:
    screen.type("My locker code is 58291. " * 5, "It rains. " * 5)
    model.enqueue_asides("The locker code is 58291.")
    assert screen.type("/summarize 2,3")[0].startswith("summarize 2, 3 (decision ")
    kinds = [entry.segment.kind for entry in screen.agent.context.entries]
    assert "summary" in kinds


def test_stats_show_tokens_and_segments(screen: Screen) -> None:
    screen.type("hello")
    shown = screen.type("/stats")
    assert STATUS.match(shown[0])
    assert "turns: 1" in shown


def test_hostile_memory_is_shown_escaped(screen: Screen) -> None:
    screen.type("\x1b]52;c;aGk=\x07 \u202egnp.exe [red]x[/red]")
    for command in ("/memory 2", "/memory", "/context", "/search exe", "/why 2"):
        shown = "\n".join(screen.type(command))
        assert r"\x1b]52;c;aGk=\x07 \u202egnp.exe [red]x[/red]" in shown, command


def test_a_hostile_reply_is_shown_escaped(screen: Screen, model: ScriptedModel) -> None:
    model.enqueue("\x1b[2J\x1b]0;title\x07[bold]hi")
    assert screen.type("hello")[0] == r"\x1b[2J\x1b]0;title\x07[bold]hi"


def test_a_model_that_fails_is_an_error_line_and_the_message_is_kept(
    screen: Screen, model: ScriptedModel
) -> None:
    model.enqueue(ModelUnavailable("503 from \x1b[31mthe endpoint"))
    shown = screen.type("hello", "again")
    assert shown[:2] == [r"error: 503 from \x1b[31mthe endpoint", "ok."]
    assert "hello" in [entry.segment.text for entry in screen.agent.context.entries]


def test_decisions_are_shown_as_they_happen(tmp_path: Path) -> None:
    with Agent(
        ScriptedModel(),
        store=tmp_path / "me.db",
        embedder=HashEmbedder(),
        budget=400,
        controller="policy",
    ) as agent:
        shown = Screen(agent).type(*(f"message {n} {'word ' * 20}" for n in range(20)))
    assert any(
        re.match(r"drop \d+ \(decision \d+, policy, \d+ -> \d+ tokens\): ", s) for s in shown
    )


# Ctrl-C


def test_ctrl_c_at_the_prompt_gives_a_hint_and_twice_leaves(screen: Screen) -> None:
    assert screen.type(KeyboardInterrupt, KeyboardInterrupt, "never said") == [HINT]
    assert screen.exit_code == 130


def test_ctrl_c_twice_but_slowly_stays(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "TWICE_SECONDS", 0.0)
    assert screen.type(KeyboardInterrupt, KeyboardInterrupt, "hello")[:3] == [HINT, HINT, "ok."]
    assert screen.exit_code == 0


class Interrupted(ScriptedModel):
    """Gets Ctrl-C in the middle of its first reply."""

    def __init__(self, times: int) -> None:
        super().__init__(["one two three four five"])
        self.times = times

    def generate(self, prompt: Sequence[Part], options: Options) -> Iterator[Delta]:
        """Stream, and be interrupted before the third token."""
        for number, delta in enumerate(super().generate(prompt, options)):
            while number == 2 and self.times:
                self.times -= 1
                signal.raise_signal(signal.SIGINT)
            yield delta


@pytest.mark.parametrize(("times", "exit_code", "answers"), [(1, 0, 2), (2, 130, 1)])
def test_ctrl_c_during_an_answer_keeps_what_was_said(
    tmp_path: Path, times: int, exit_code: int, answers: int
) -> None:
    model = Interrupted(times)
    with Agent(model, store=tmp_path / "me.db", embedder=HashEmbedder(), budget=1000) as agent:
        screen = Screen(agent)
        shown = screen.type("hello", "again")
        said = [e.segment.text for e in agent.context if e.segment.origin == "assistant"]
    assert screen.exit_code == exit_code
    assert shown[0] == said[0] == "one two three"
    assert shown[1] == "(stopped; what was said is kept)"
    assert len(said) == answers


@pytest.mark.parametrize(("signum", "exit_code"), [(signal.SIGINT, 0), (signal.SIGTERM, None)])
def test_a_signal_during_a_slash_command_ends_it(
    screen: Screen, monkeypatch: pytest.MonkeyPatch, signum: signal.Signals, exit_code: int | None
) -> None:
    screen.type("hello")
    monkeypatch.setattr(screen.agent.memory, "why", lambda _: signal.raise_signal(signum))
    if exit_code is None:
        with pytest.raises(signals.Stopped):
            screen.type("/why 2", "never said")
    else:
        assert screen.type("/why 2", "hello")[:2] == ["(stopped)", "ok."]
        assert screen.exit_code == exit_code


# A real terminal


class Pty:
    """`agentmem chat` with a terminal of its own."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        self.terminal, inside = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agentmem", "chat", "--store", str(folder / "me.db"), *words],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            cwd=folder,
            start_new_session=True,
            env={
                **os.environ,
                **SCRIPTED,
                "PYTHONPATH": str(ROOT),
                "TERM": "xterm",
                "PROMPT_TOOLKIT_NO_CPR": "1",
                **environment,
            },
        )
        os.close(inside)
        self.shown = ""

    def until(self, text: str, seconds: float = 60) -> str:
        """Wait until the terminal shows a text; all that it showed."""
        deadline = time.monotonic() + seconds
        while text not in self.shown:
            assert self._readable(deadline), f"{text!r} did not come: {self.shown!r}"
            self.shown += os.read(self.terminal, 65536).decode("utf-8", "replace")
        seen, self.shown = self.shown, self.shown.partition(text)[2]
        return seen

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self.terminal, keys.encode())

    def leave(self, seconds: float = 60) -> int:
        """Wait for the end; the exit code."""
        deadline = time.monotonic() + seconds
        while True:
            assert self._readable(deadline), f"The chat did not end: {self.shown!r}"
            try:
                if not os.read(self.terminal, 65536):
                    break
            except OSError:  # the other end is closed
                break
        os.close(self.terminal)
        return self.process.wait(timeout=30)

    def _readable(self, deadline: float) -> bool:
        left = max(0.0, deadline - time.monotonic())
        return bool(select.select([self.terminal], [], [], left)[0])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Pty]]:
    """Start chats, and end what is left of them."""
    started: list[Pty] = []

    def _start(*words: str, **environment: str) -> Pty:
        started.append(Pty(tmp_path, *words, **environment))
        return started[-1]

    yield _start
    for chat in started:
        if chat.process.poll() is None:
            chat.process.kill()
            chat.process.wait()


def test_a_real_terminal_gets_a_prompt_an_answer_and_keeps_history(
    start: Callable[..., Pty], home: Path
) -> None:
    chat = start()
    chat.until("you>")
    chat.type("hello\r")
    chat.until("ok.")
    chat.until("tokens")
    chat.until("you>")
    chat.type("first line\x1b\rsecond line\r")  # Alt-Enter
    chat.until("ok.")
    chat.until("you>")
    chat.type("\x1b[200~pasted\ntext\x1b[201~\r")
    chat.until("ok.")
    chat.until("you>")
    chat.type("\x04")
    assert chat.leave() == 0
    history = home / "state" / "agentmem" / "history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    text = history.read_text()
    assert "+hello" in text and "+first line\n+second line" in text and "+pasted\n+text" in text


def test_ctrl_c_in_a_real_terminal_hints_then_leaves(start: Callable[..., Pty], home: Path) -> None:
    chat = start("--no-history")
    chat.until("you>")
    chat.type("\x03")
    chat.until(HINT)
    chat.until("you>")
    chat.type("\x03")
    assert chat.leave() == 130
    assert not (home / "state" / "agentmem" / "history").exists()


def test_sigterm_in_a_real_terminal_leaves(start: Callable[..., Pty]) -> None:
    chat = start("--no-history")
    chat.until("you>")
    chat.process.send_signal(signal.SIGTERM)
    assert chat.leave() == 143


def test_a_long_answer_streams_and_ends_as_markdown(
    start: Callable[..., Pty], tmp_path: Path
) -> None:
    items = "".join(f"- **item {number}** \x1b]0;x\x07\n" for number in range(60))
    (tmp_path / "script.jsonl").write_text(json.dumps(f"# A title\n\n{items}") + "\n")
    chat = start("--no-history", "--model", f"scripted:{tmp_path / 'script.jsonl'}",
                 "--max-new-tokens", "2000", "--budget", "8000")  # fmt: skip
    chat.until("you>")
    chat.type("hello\r")
    shown = chat.until("8000 tokens")
    assert "A title" in shown and "item 59" in shown
    assert "**item 59**" not in shown.rpartition("A title")[2]  # rendered at the end
    assert "\x1b]0;" not in shown and "\\x1b]0;x\\x07" in shown
    chat.until("you>")  # keys pressed before the prompt is there may be lost
    chat.type("\x04")
    assert chat.leave() == 0


def test_what_is_piped_in_is_shown_escaped_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inside, outside = pty.openpty()
    with Agent(ScriptedModel(["\x1b[2Jhi"]), store=tmp_path / "me.db") as agent:
        with os.fdopen(outside, "w") as stdout:
            monkeypatch.setattr("sys.stdout", stdout)
            PipedChat(agent, as_json=False).run(io.BytesIO(b"hello\n"))
        assert os.read(inside, 100) == b"\\x1b[2Jhi\r\n"
    os.close(inside)
