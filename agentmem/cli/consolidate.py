"""`agentmem consolidate`: do now what waits between turns; for servers, as a job of its own."""

from __future__ import annotations

import typer

from agentmem.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(consolidate)


def consolidate(
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Embed, read facts and summarize again what waits for it; may run beside a conversation.

    With --model facts are read and summaries written by that model; else by patterns and out of the
    originals' sentences.
    """
    from agentmem import consolidate_memory
    from agentmem.cli import render

    with options.look(store, user) as memory:
        done = consolidate_memory(memory, model=model, base_url=base_url, progress=render.progress)
    counts = {name.replace(" ", "_"): count for name, count in done.items()}
    render.write_facts("consolidated", counts, as_json=as_json)
