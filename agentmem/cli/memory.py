"""Commands on what is remembered: search, show, why, decisions, keep, pin, drop, ...

None of them needs a model that answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from agentmem.cli import options
from agentmem.cli.sessions import confirm
from agentmem.errors import InvalidInput
from agentmem.segment import PRECISIONS

SegmentId = Annotated[int, typer.Argument(metavar="SEGMENT", min=1, show_default=False)]
Origin = Annotated[
    str | None,
    typer.Option(
        "--origin",
        metavar="ORIGIN",
        help="user, assistant, tool, import or summary; tool:NAME, import:NAME or import:HASH.",
        show_default=False,
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="FORMAT",
        help=f"Store keys and values as {', '.join(PRECISIONS)} from the next turn on.",
        show_default=False,
    ),
]
SegmentIds = Annotated[list[int], typer.Argument(metavar="SEGMENT...", min=1, show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (search, show, why, decisions, keep, pin, unpin, drop, restore, undo, forget):
        app.command()(command)


def search(
    query: Annotated[str, typer.Argument(help="Words to look for.")],
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="Hits at most.")] = 10,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Search everything that was ever said, by meaning and by words."""
    from agentmem.cli import records, render, tables

    with options.look(store, user) as memory:
        hits = memory.search(query, k)
    if as_json:
        for hit in hits:
            render.write_json(records.hit_json(hit))
    else:
        render.table_console().print(tables.hits_table(hits))


def show(
    segment: Annotated[int | None, typer.Argument(metavar="[SEGMENT]", min=1)] = None,
    session: options.Session = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Show one segment in full, or list the conversation's segments."""
    from agentmem.cli import records, render, tables

    with options.open_archive(store, user) as archive:
        if segment is None:
            chosen = options.settings(session=session).session
            found = archive.session_segments(archive.session(chosen, create=False).id)
        else:
            found = [archive.segment(segment)]
    if as_json:
        for stored in found:
            render.write_json(records.segment_json(stored))
    elif segment is None:
        render.table_console().print(tables.segments_table(found))
    else:
        render.stdout_console().print(render.segment_text(found[0]))


def why(
    segment: SegmentId,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Say which decisions touched a segment, by whom, and on what evidence."""
    from agentmem.cli import records, render

    with options.look(store, user) as memory:
        explanation = memory.why(segment)
    if as_json:
        decisions = [records.decision_json(row) for row in explanation.decisions]
        render.write_json(
            {"type": "explanation", "segment": segment, "text": explanation.text,
             "decisions": decisions}
        )  # fmt: skip
    else:
        render.stdout_console().print(render.safe(explanation.text))


def decisions(
    segment: Annotated[
        int | None,
        typer.Option("--segment", min=1, metavar="SEGMENT", help="About this one, by any session."),
    ] = None,
    number: Annotated[int, typer.Option("-n", min=1, help="So many at most.")] = 20,
    session: options.Session = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """List what was decided in a conversation, the newest first; `undo` takes one back."""
    from agentmem.cli import records, render, tables

    with options.open_archive(store, user) as archive:
        if segment is None:
            chosen = archive.session(options.settings(session=session).session, create=False)
            found = archive.decisions(session_id=chosen.id, limit=number)
        else:
            found = archive.decisions(segment_id=segment, limit=number)
    if as_json:
        for row in found:
            render.write_json(records.decision_json(row))
    else:
        render.table_console().print(tables.decisions_table(found))


def keep(
    segments: SegmentIds,
    precision: Precision = None,
    session: options.Session = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Do not offer segments to the controller for a while."""
    _decide("keep", segments, store, user, session, as_json, precision=precision)


def pin(
    segments: SegmentIds,
    session: options.Session = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Hold segments in the window whatever happens."""
    _decide("pin", segments, store, user, session, as_json)


def unpin(
    segments: SegmentIds,
    session: options.Session = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Let pinned segments be dropped again."""
    _decide("unpin", segments, store, user, session, as_json)


def drop(
    segments: SegmentIds,
    session: options.Session = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Take segments out of the window; they stay in the archive."""
    _decide("drop", segments, store, user, session, as_json)


def restore(
    segments: SegmentIds,
    session: options.Session = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Bring segments back to their place in the window."""
    _decide("restore", segments, store, user, session, as_json)


def undo(
    decision: Annotated[int | None, typer.Argument(metavar="[DECISION]", min=1)] = None,
    session: options.Session = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Revert a decision; the newest one where none is named."""
    _decide("undo", [decision], store, user, session, as_json)


def forget(
    segment: Annotated[int | None, typer.Argument(metavar="[SEGMENT]", min=1)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that the user ever said.")] = False,
    origin: Origin = None,
    now: Annotated[bool, typer.Option("--now", help="Also wipe freed pages at once.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Delete a segment from every tier, and print the receipt. There is no undo."""
    from agentmem.cli import render
    from agentmem.cli.typed import forget_typed

    if (segment is not None) + everything + (origin is not None) != 1:
        raise InvalidInput("Name a segment to forget, or give --origin or --all: one of them.")
    receipt: dict[str, Any]
    if everything:
        confirm("Forget everything this user ever said?", yes)
        with options.open_archive(store, user) as archive:
            receipt = archive.forget_all()
        receipt |= {"typed_lines": forget_typed()}
    elif origin is not None:
        confirm(f"Forget everything from {origin} and all that was made of it?", yes)
        with options.open_memory(store, user, _newest_session(store, user)) as memory:
            receipt = memory.forget_origin(origin)
        if origin == "user":
            receipt |= {"typed_lines": forget_typed()}
    else:
        assert segment is not None
        session, typed = _said_in(segment, store, user)
        with options.open_memory(store, user, session) as memory:
            receipt = memory.forget(segment) | {"typed_lines": forget_typed(typed)}
    if now:
        with options.open_store(store) as opened:
            receipt |= {"purged": opened.purge()}
    render.write_facts("receipt", receipt, as_json=as_json)


def _newest_session(store: Path | None, user: str | None) -> str:
    with options.open_archive(store, user) as archive:
        names = [row.name for row in archive.sessions()]
    if not names:
        raise InvalidInput("There is nothing to forget: this user has no session.")
    return names[-1]


def _said_in(segment: int, store: Path | None, user: str | None) -> tuple[str, set[str]]:
    """The session a segment was said in, whose window must let go of it, and what was typed."""
    with options.open_archive(store, user) as archive:
        stored = archive.segment(segment)
        session = next(row for row in archive.sessions() if row.id == stored.session_id)
        if stored.segment.origin != "user":
            return session.name, set()
        turns = archive.turns(session.id)
        return session.name, {turn.text for turn in turns if turn.number == stored.turn}


def _decide(
    action: str,
    ids: list[Any],
    store: Path | None,
    user: str | None,
    session: str | None,
    as_json: bool,
    **more: Any,
) -> None:
    from agentmem.cli import render

    with options.open_memory(store, user, session) as memory:
        decided = getattr(memory, action)(*ids, **more)
    if as_json:
        render.write_json(decided.to_dict())
    else:
        render.stdout_console().print(render.safe(render.decided_text(decided)))
