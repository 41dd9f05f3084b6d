"""`agentmem blocks`: what is always in the model's view, its history, and edits by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from agentmem.cli import options
from agentmem.errors import InvalidInput


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(blocks)


def blocks(
    label: Annotated[str | None, typer.Argument(help="human, persona, ...; all if none.")] = None,
    history: Annotated[bool, typer.Option("--history", help="Every version of the block.")] = False,
    text: Annotated[
        str | None, typer.Option("--set", metavar="TEXT", help="Make this the block's text.")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Go back one version.")] = False,
    session: options.Session = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Show core memory, or edit one block of it."""
    from agentmem.cli import records, render

    edits = text is not None or undo
    if (text is not None) + undo + history > 1 or (label is None and (edits or history)):
        raise InvalidInput("Name a block, and one of --history, --set and --undo at most.")
    opened = options.open_memory(store, user, session) if edits else options.look(store, user)
    with opened as memory:
        if history and label is not None:
            for version in memory.blocks.history(label):
                if as_json:
                    row = records.block_edit_json(version.edit) | {"text": version.text}
                    render.write_json(row)
                else:
                    render.stdout_console().print(render.safe(render.version_text(version)))
            return
        if text is not None and label is not None:
            memory.blocks.rewrite(label, text)
        elif undo and label is not None:
            memory.blocks.undo(label)
        shown = memory.blocks.list() if label is None else [memory.blocks.get(label)]
    for block in shown:
        if as_json:
            render.write_json(records.block_json(block))
        else:
            render.stdout_console().print(render.safe(render.block_text(block)))
