"""`agentmem db`: the store's file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentmem.cli import options

app = typer.Typer(name="db", help="Check, upgrade or back up the store.")
STORE_EXIT_CODE = 5


@app.command()
def check(
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Check file, schema, integrity and references; exits 5 if something is broken."""
    from agentmem.cli import render

    broken = False
    with options.open_store(store) as opened:
        for finding in opened.check():
            broken |= finding.status == "fail"
            render.write_check(
                finding.name, finding.status, finding.message, finding.fix, as_json=as_json
            )
    raise typer.Exit(STORE_EXIT_CODE if broken else 0)


@app.command()
def upgrade(
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Bring the store to this version's schema; opening it does the same."""
    from agentmem.cli import render

    with options.open_store(store) as opened:
        render.write_facts("upgraded", {"store": opened.path}, as_json=as_json)


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The copy to write; it must not exist.")],
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Copy the store while it is in use; copying its file by other means loses what is new."""
    from agentmem.cli import render

    with options.open_store(store) as opened:
        opened.backup(file)
        render.write_facts("backup", {"store": opened.path, "backup": file}, as_json=as_json)
