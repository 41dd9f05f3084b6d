"""`agentmem replay` and `agentmem whatif`: a recorded session played again, as it was or otherwise.

Neither loads a model or an embedder; nothing of the store is changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentmem.cli import options

SessionName = Annotated[
    str | None,
    typer.Argument(metavar="[SESSION]", help="Which conversation.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (replay, whatif):
        app.command()(command)


def replay(
    session: SessionName = None,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="FILE", help="Keep the replayed store here.")
    ] = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> int:
    """Play a session's log again and compare the state it comes to with the stored one."""
    from agentmem import replay as replay_
    from agentmem.cli import render

    chosen = options.settings(session=session).session
    with options.open_archive(store, user) as archive:
        played = replay_(archive, chosen, into=into)
    if as_json:
        render.write_json(played.to_dict())
    else:
        facts = {name: value for name, value in played.to_dict().items() if name != "type"}
        render.stdout_console().print(render.facts(facts))
    return 0 if played.same else 1


def whatif(
    policy: Annotated[str, typer.Option("--policy", metavar="NAME", help="Decides instead.")],
    session: SessionName = None,
    budget: options.BudgetTokens = None,
    turn: Annotated[
        int | None, typer.Option("--turn", min=1, metavar="N", help="Compare after this turn.")
    ] = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Play a session's inputs and replies with another policy, and show what it would have kept."""
    from agentmem import what_if
    from agentmem.cli import render, tables

    chosen = options.settings(session=session).session
    with options.open_archive(store, user) as archive:
        seen = what_if(archive, chosen, policy=policy, budget=budget, turn=turn)
    if as_json:
        render.write_json(seen.to_dict())
        return
    facts = {name: value for name, value in seen.to_dict().items()
             if name not in ("type", "segments")}  # fmt: skip
    render.stdout_console().print(render.facts(facts))
    rows = [
        (one.id, one.turn, one.num_tokens, "recorded" if one.recorded else policy, one.origin,
         render.preview(one.text))
        for one in seen.segments
    ]  # fmt: skip
    if rows:
        names = ("id", "turn", "tokens", "only in the window of", "from", "text")
        render.table_console().print(tables.table(*names, rows=rows))
