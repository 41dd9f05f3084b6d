"""`agentmem bench`: measurements that anybody can repeat."""

from __future__ import annotations

import typer

app = typer.Typer(name="bench", help="Measure, and write what was measured.")


@app.callback()
def _group() -> None:
    pass
