"""`agentmem import FILE`: a file into the archive, as data.

What is read and what is refused is the library's to say; here it is only told.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from agentmem.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(import_)


def import_(
    file: Annotated[Path, typer.Argument(help="An export, a .txt, .md or .jsonl.")],
    trusted: Annotated[
        bool, typer.Option("--trusted", help="An export of your own: restore it as it was.")
    ] = False,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Archive a file: searchable, in no window, believed no more than a tool's result."""
    from agentmem import Store, import_file
    from agentmem.cli import render

    chosen = options.settings(store=store, user=user)
    with Store.open(options.store_path(chosen)) as opened:
        imported = import_file(opened.for_user(chosen.user), file, trusted=trusted)
    if trusted and not imported.trusted:
        render.progress("The hash in the manifest does not hold: imported as external text.")
    if imported.blocks_left:
        render.progress(f"Left as they were: blocks {', '.join(imported.blocks_left)}.")
    lists = ("sessions", "blocks", "blocks_left")
    facts = asdict(imported) | {name: list(getattr(imported, name)) for name in lists}
    render.write_facts("imported", facts, as_json=as_json)
