"""The `agentmem` command: its groups, exit codes, and how a fault is told.

    0 ok, 1 failure, 2 usage, 3 configuration, 4 model or endpoint unavailable,
    5 store (locked, busy session, corrupt, newer schema), 130 interrupted

It must answer `--help` at once: nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from agentmem.cli import (
    ask,
    audit,
    bench,
    blocks,
    calibrate,
    chat,
    consolidate,
    db,
    doctor,
    export,
    facts,
    import_,
    memory,
    replay,
    sessions,
    setup,
    stats,
)
from agentmem.errors import AgentmemError

EXIT_CODES = (
    "Exit codes: 0 ok, 1 failure, 2 usage, 3 configuration, 4 model or endpoint unavailable, "
    "5 store (locked, busy session, corrupt, newer schema), 130 interrupted."
)
INTERRUPTED = 130

app = typer.Typer(
    name="agentmem",
    help="One assistant conversation for months, inside a fixed budget of tokens and memory.",
    epilog=EXIT_CODES,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
chat.register(app)
ask.register(app)
memory.register(app)
blocks.register(app)
facts.register(app)
replay.register(app)
stats.register(app)
consolidate.register(app)
export.register(app)
import_.register(app)
audit.register(app)
setup.register(app)
calibrate.register(app)
doctor.register(app)
app.add_typer(sessions.app)
app.add_typer(db.app)
app.add_typer(bench.app)


def _version(wanted: bool) -> None:
    if wanted:
        from agentmem import __version__

        typer.echo(f"agentmem {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    _prepare_streams(as_json)
    try:
        result = app(words, prog_name="agentmem", standalone_mode=False)
        sys.stdout.flush()
    except AgentmemError as error:
        return _fault(error.code, str(error), error.exit_code, as_json)
    except typer.TyperException as error:
        return _fault("UsageError", error.format_message(), error.exit_code, as_json)
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has enough. Python would flush again at exit and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fault(type(error).__name__, str(error), 1, as_json)
    return result if isinstance(result, int) else 0


def _prepare_streams(as_json: bool) -> None:
    """No text, however odd, may fail to print; JSON is UTF-8 whatever the locale says."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        encoding = "utf-8" if as_json else None
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")


def _fault(code: str, message: str, exit_code: int, as_json: bool) -> int:
    from agentmem.cli import render

    if as_json:
        render.write_json({"type": "error", "code": code, "message": message})
    else:
        render.write_error(message)
    return exit_code
