"""`agentmem audit`: what came from where, how far it is believed, and what was made of what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from agentmem.cli import options
from agentmem.cli.memory import Origin

if TYPE_CHECKING:
    from agentmem import Archive, StoredSegment


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(audit)


def audit(
    origin: Origin = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """List what is remembered with where it came from and how far it is believed."""
    from agentmem import from_origin, origin_name
    from agentmem.cli import records, render, tables

    with options.open_archive(store, user) as archive:
        names = {row.id: row.name for row in archive.sessions()}
        found = _all_of(archive) if origin is None else from_origin(archive, origin)
        if as_json:
            for stored in found:
                render.write_json(
                    records.segment_json(stored)
                    | {"session": names[stored.session_id], "from": origin_name(stored.segment)}
                )
            return
        rows = [
            (
                stored.segment.id,
                origin_name(stored.segment),
                stored.segment.trust.name.lower(),
                stored.segment.kind,
                stored.state,
                names[stored.session_id],
                " ".join(map(str, stored.segment.parents)),
                render.preview(stored.segment.text),
            )
            for stored in found
        ]
    columns = ("id", "from", "trust", "kind", "state", "session", "made of", "text")
    render.table_console().print(tables.table(*columns, rows=rows))


def _all_of(archive: Archive) -> Iterator[StoredSegment]:
    for session in archive.sessions():
        for page in archive.session_pages(session.id):
            yield from page
