"""`agentmem sessions`: the conversations of a user."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from agentmem.cli import options
from agentmem.errors import InvalidInput

app = typer.Typer(name="sessions", help="List, show or remove conversations.")

Name = Annotated[str, typer.Argument(help="Which conversation.")]


@app.command("list")
def list_sessions(
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """List conversations, oldest first."""
    from agentmem.cli import records, render, tables

    with options.open_archive(store, user) as archive:
        found = archive.sessions()
    if as_json:
        for row in found:
            render.write_json(records.session_json(row))
    else:
        rows = [(row.name, row.num_turns, render.when(row.created)) for row in found]
        render.table_console().print(tables.table("name", "turns", "begun", rows=rows))


@app.command("show")
def show_session(
    name: Name,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Show what was said in a conversation, in order."""
    from agentmem.cli import records, render

    with options.open_archive(store, user) as archive:
        found = archive.session_segments(archive.session(name, create=False).id)
    for stored in found:
        if as_json:
            render.write_json(records.segment_json(stored))
        else:
            render.stdout_console().print(render.segment_text(stored))


@app.command("rm")
def remove_session(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Delete a conversation, everything in it and all that was made of it. There is no undo."""
    from agentmem.cli import render

    confirm(f"Delete the conversation {name!r} and everything in it?", yes)
    with options.open_archive(store, user) as archive:
        count = archive.remove_session(name)
    if as_json:
        render.write_json({"type": "removed", "session": name, "segments": count})
    else:
        render.stdout_console().print(render.safe(f"removed {name}: {count} segments"))


def confirm(question: str, yes: bool) -> None:
    """Ask before what cannot be undone.

    Raises:
        InvalidInput: nobody is there to be asked, and `yes` is False.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidInput("This cannot be undone: it needs --yes where nobody can be asked.")
    typer.confirm(question, abort=True, err=True)
