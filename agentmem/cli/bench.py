"""`agentmem bench`: measurements that anybody can repeat.

Only flags count here, no settings: the command alone must give the same rows on another machine.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from agentmem.cli import options

app = typer.Typer(name="bench", help="Measure, and write what was measured.")


@app.callback()
def _group() -> None:
    pass


@app.command()
def recall(
    quick: Annotated[
        bool, typer.Option("--quick", help="Small, for minutes on two cores.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="JSON file; rows in it are not measured again.")
    ] = None,
    system: Annotated[
        list[str] | None,
        typer.Option("--system", help="dense, window, oracle, agentmem[:kv|:text]; repeatable."),
    ] = None,
    script: Annotated[
        Path | None, typer.Option("--script", help="Play this conversation file.")
    ] = None,
    write_script: Annotated[
        Path | None, typer.Option("--write-script", help="Write the conversation that is played.")
    ] = None,
    turns: Annotated[
        int | None, typer.Option("--turns", min=1, help="Of the conversation.")
    ] = None,
    facts: Annotated[int | None, typer.Option("--facts", min=1, help="Stated in it.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="Of all of it.")] = None,
    conversations: Annotated[
        int | None, typer.Option("--conversations", min=1, help="Seeds from --seed on, pooled.")
    ] = None,
    model: options.Model = None,
    budget: options.BudgetTokens = None,
    controller: options.Controller = None,
    policy: options.Policy = None,
    kv: options.KV = None,
    max_new_tokens: options.MaxNewTokens = None,
    threads: options.Threads = None,
    seed: options.Seed = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Ask, hundreds of turns later, what was said; against dense, window and oracle.

    It plays in stores of its own: --store and --user change nothing.
    """
    given = locals()
    from agentmem.bench.recall import RecallOptions, render, run_recall
    from agentmem.cli import render as screen

    own = ("quick", "system", "store", "user", "as_json")
    flags = {name: value for name, value in given.items() if name not in own and value is not None}
    if system:
        flags["systems"] = tuple(system)
    rows = run_recall(
        RecallOptions.quick(**flags) if quick else RecallOptions(**flags), progress=screen.progress
    )
    if as_json:
        for row in rows:
            screen.write_json({"type": "row", "bench": "recall"} | asdict(row))
    else:
        screen.stdout_console().print(render(rows))
