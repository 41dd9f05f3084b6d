"""The command as a whole: fast help, exit codes, how faults are told, pure stdout."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from agentmem.cli.main import app
from agentmem.errors import (
    AgentmemError,
    BudgetTooSmall,
    ConfigError,
    InvalidInput,
    MissingExtra,
    ModelCorrupt,
    ModelNotFound,
    ModelUnavailable,
    SchemaNewer,
    SegmentNotFound,
    SessionBusy,
    StoreCorrupt,
    StoreFull,
    StoreLocked,
    UndoBlocked,
    Unsupported,
)
from tests.cli_run import ROOT, SCRIPTED, run_cli, start_cli

HEAVY = {"torch", "transformers", "faiss", "sqlalchemy", "alembic", "langchain_core", "numpy",
         "pydantic_settings", "prompt_toolkit"}  # fmt: skip


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The scripted model, and an empty current folder."""
    monkeypatch.chdir(tmp_path)
    for name, value in SCRIPTED.items():
        monkeypatch.setenv(name, value)
    return tmp_path


OURS = """
import sys
from agentmem.cli.main import main
code = main(["--help"])
sys.stderr.write(" ".join(sys.modules))
sys.exit(code)
"""
SMALLEST = """
import typer
app = typer.Typer()
app.command("chat")(lambda: None)
app.command("ask")(lambda: None)
app(["--help"])
"""


def help_in_a_new_process(script: str) -> tuple[float, set[str]]:
    """Seconds of processor that help takes, and the top-level modules it loads."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "chat" in done.stdout
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, {name.partition(".")[0] for name in done.stderr.split()}


def test_help_loads_nothing_heavy_and_answers_at_once() -> None:
    runs = [(help_in_a_new_process(OURS), help_in_a_new_process(SMALLEST)) for _ in range(3)]
    assert runs[0][0][1] & HEAVY == set()
    ours, smallest = (min(seconds for seconds, _ in each) for each in zip(*runs, strict=True))
    assert ours < 1.6 * smallest, "as seconds it would depend on the processor"


def test_help_shows_the_exit_codes() -> None:
    assert "5 store (locked, busy session, corrupt, newer schema)" in run_cli("--help").stdout


def test_without_words_help_is_shown() -> None:
    ran = run_cli()
    assert (ran.code, ran.stdout) == (0, run_cli("--help").stdout)


def test_the_version_is_the_packages() -> None:
    import agentmem

    assert run_cli("--version").stdout == f"agentmem {agentmem.__version__}\n"


def commands() -> list[tuple[str, ...]]:
    """Every command by its words."""
    names: list[tuple[str, ...]] = [
        (info.name or info.callback.__name__,)  # type: ignore[union-attr]
        for info in app.registered_commands
    ]
    for group in app.registered_groups:
        typer_app = group.typer_instance
        assert typer_app is not None
        names += [
            (str(typer_app.info.name), info.name or info.callback.__name__)  # type: ignore[union-attr]
            for info in typer_app.registered_commands
        ]
    return names


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_has_help_and_takes_store_user_and_json(words: tuple[str, ...]) -> None:
    ran = run_cli(*words, "--help")
    assert ran.code == 0
    for flag in ("--store", "--user", "--json"):
        assert flag in ran.stdout, f"{words} lacks {flag}"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["nosuch"], 2),
        (["chat", "--nosuch"], 2),
        (["search"], 2),
        (["search", "x", "-k", "0"], 2),
        (["show", "abc"], 2),
        (["drop"], 2),
        (["chat", "--kv", "q3"], 2),
        (["chat", "--budget", "many"], 2),
        (["chat", "--budget", "-5"], 2),
        (["chat", "--budget", "20"], 3),
        (["chat", "--policy", "nosuch"], 2),
        (["chat", "--model", "/no/such/folder"], 4),
        (["stats"], 5),
        (["search", "x", "--store", "/no/such/store.db"], 5),
        (["forget"], 2),
        (["forget", "--all"], 2),
        (["sessions", "rm", "x"], 2),
        (["db", "check"], 5),
    ],
)
def test_a_fault_has_its_exit_code_and_one_line(words: list[str], code: int) -> None:
    plain = run_cli(*words)
    assert plain.code == code, plain
    assert plain.stdout == ""
    assert plain.stderr.startswith("error: ") and plain.stderr.count("\n") == 1
    as_json = run_cli(*words, "--json")
    assert as_json.code == code
    (event,) = as_json.events
    assert event["type"] == "error" and event["code"] and event["message"]


def error_classes() -> list[tuple[type[AgentmemError], int]]:
    """Each kind of error and the code that design says it exits with."""
    return [
        (AgentmemError, 1), (InvalidInput, 2), (SegmentNotFound, 2), (UndoBlocked, 1),
        (ConfigError, 3), (BudgetTooSmall, 3), (MissingExtra, 3),
        (ModelNotFound, 4), (ModelCorrupt, 4), (ModelUnavailable, 4), (Unsupported, 4),
        (StoreLocked, 5), (SessionBusy, 5), (StoreCorrupt, 5), (SchemaNewer, 5), (StoreFull, 5),
    ]  # fmt: skip


@pytest.mark.parametrize(("error", "code"), error_classes(), ids=lambda value: str(value))
def test_each_error_exits_with_its_code(
    error: type[AgentmemError], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("it is so \x1b[2J")

    monkeypatch.setattr("agentmem.cli.options.look", fail)
    ran = run_cli("search", "x")
    assert (ran.code, ran.stdout) == (code, "")
    assert ran.stderr == "error: it is so \\x1b[2J\n"
    assert run_cli("search", "x", "--json").events == [
        {"type": "error", "code": error.__name__, "message": "it is so \x1b[2J"}
    ]


def test_an_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("agentmem.cli.options.look", interrupt)
    assert run_cli("search", "x").code == 130


def test_a_settings_file_that_is_wrong_exits_3_and_is_named(scripted: Path) -> None:
    (scripted / "agentmem.toml").write_text("bugdet = 5")
    ran = run_cli("chat")
    assert ran.code == 3
    assert "agentmem.toml" in ran.stderr and "`bugdet`" in ran.stderr


def test_json_after_two_dashes_is_text() -> None:
    assert not run_cli("search", "--store", "/no/such.db", "--", "--json").stdout


def test_a_reader_that_has_enough_is_no_fault() -> None:
    chat = start_cli("chat", "--json")
    assert chat.stdin is not None and chat.stdout is not None and chat.stderr is not None
    chat.stdout.readline()
    chat.stdout.close()
    chat.stdin.write(b"".join(b"hello\n" for _ in range(50)))
    chat.stdin.close()
    assert chat.wait(timeout=60) in (0, 1)
    assert chat.stderr.read() == b""
    chat.stderr.close()


def test_output_in_a_locale_without_unicode_is_escaped_not_a_crash(scripted: Path) -> None:
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    run_cli("chat", stdin="héllo 你好\n")
    plain = start_cli("show", **environment)
    out, err = plain.communicate(timeout=60)
    assert plain.returncode == 0, err
    assert b"h\\xe9llo" in out
    as_json = start_cli("show", "--json", **environment)
    out, err = as_json.communicate(timeout=60)
    assert any("héllo 你好" in json.loads(line)["text"] for line in out.decode().splitlines()), err
