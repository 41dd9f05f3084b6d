"""`agentmem stats`: what a conversation holds and costs."""

from __future__ import annotations

import typer

from agentmem.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(stats)


def stats(
    session: options.Session = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Count turns, segments per state, tokens and bytes."""
    from agentmem.cli import render

    name = options.settings(session=session).session
    with options.look(store, user, name) as memory:
        numbers = memory.stats()
    render.write_facts("stats", numbers, as_json=as_json)
