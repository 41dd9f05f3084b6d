"""`agentmem facts [QUERY]`: what was stated, and from when to when it held."""

from __future__ import annotations

from typing import Annotated

import typer

from agentmem.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(facts)


def facts(
    query: Annotated[str | None, typer.Argument(help="Only what is about this.")] = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """List facts that were stated, the newest first, with the time in which each held."""
    from agentmem.cli import records, render, tables

    with options.look(store, user) as memory:
        found = memory.facts(query)
    if as_json:
        for fact in found:
            render.write_json(records.fact_json(fact))
    else:
        render.table_console().print(tables.FactsTable(found))
