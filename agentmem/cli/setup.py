"""`agentmem setup`: fetch and convert the embedded models, once."""

from __future__ import annotations

from typing import Annotated

import typer

from agentmem.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(setup)


def setup(
    force: Annotated[
        bool, typer.Option("--force", help="Fetch them even if they are there.")
    ] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Calibrate the chat model for the klt format too.")
    ] = False,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Fetch the embedded models (hash-checked) and convert them; done once, then offline."""
    from agentmem.cli import render
    from agentmem.models.setup import setup as fetch

    for model in fetch(render.progress, force):
        if as_json:
            render.write_json(
                {"type": "model", "name": model.name, "path": str(model.path),
                 "nbytes": model.nbytes, "is_new": model.is_new}
            )  # fmt: skip
        else:
            render.stdout_console().print(render.safe(str(model.path)))
    if calibrate:
        from agentmem.cli.calibrate import calibrate as run

        run("local", force=force, as_json=as_json)
