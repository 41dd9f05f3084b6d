"""`agentmem calibrate`: learn how to code a model's keys and values with few bits, once."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from agentmem.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(calibrate)


def calibrate(
    model: Annotated[str, typer.Argument(help="local, or hf:PATH of a transformers model.")],
    gradients: Annotated[
        bool,
        typer.Option(
            "--gradients/--no-gradients",
            help="Differentiate the model; without, larger models fit in memory.",
        ),
    ] = True,
    texts: Annotated[
        int, typer.Option("--texts", min=1, help="How many it reads; a few seconds each.")
    ] = 24,
    force: Annotated[
        bool, typer.Option("--force", help="Calibrate it even if it was before.")
    ] = False,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Calibrate a model for the klt format of keys and values; minutes, done once."""
    from agentmem.cli import render
    from agentmem.models.calibrate import calibrate_model

    made = calibrate_model(
        model, gradients=gradients, force=force, num_texts=texts, progress=render.progress
    )
    if as_json:
        render.write_json({"type": "calibration"} | asdict(made) | {"path": str(made.path)})
    else:
        render.stdout_console().print(render.safe(str(made.path)))
