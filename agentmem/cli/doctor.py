"""`agentmem doctor`: what is wrong here, and the one command that fixes it."""

from __future__ import annotations

import typer

from agentmem.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Check installation, models, store and folders. Exits 0 unless something is broken."""
    from agentmem.cli import render
    from agentmem.cli.checks import run_checks

    settings = options.settings(model=model, base_url=base_url, store=store, user=user)
    exit_code = 0
    for check in run_checks(settings, options.store_path(settings)):
        if check.status == "fail":
            exit_code = exit_code or check.exit_code
        render.write_check(check.name, check.status, check.message, check.fix, as_json=as_json)
    raise typer.Exit(exit_code)
