"""`agentmem export FILE`: all of a user's memory as lines of JSON.

    {"type": "manifest", "format": 1, "user": ..., "counts": {...}, "sha256": ...}
    {"type": "session", ...}    each followed by its turns
    {"type": "segment", ...}    of all sessions, each behind what it is made of
    {"type": "decision", ...}   of a session, followed by its log
    {"type": "block", ...}      each followed by its edits, whose texts are those of their segments
    {"type": "fact", ...}       what was stated in any of them, and while it held

The hash is of everything after the manifest's line. A file appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from agentmem.cli import options
from agentmem.errors import InvalidInput

if TYPE_CHECKING:
    from agentmem import Archive

FORMAT = 1
_SPOOL_BYTES = 16 * 2**20


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(export)


def export(
    file: Annotated[Path, typer.Argument(help="The file to write; - is stdout.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Write everything a user ever said, and what was decided about it, as lines of JSON."""
    from agentmem.cli import render

    to_stdout = str(file) == "-"
    if file.exists() and not force and not to_stdout:
        raise InvalidInput(f"{file} exists: give --force to replace it, or another name.")
    with options.open_archive(store, user) as archive:
        if to_stdout:
            write_export(archive, sys.stdout.buffer)
            return
        manifest = write_file(archive, file, force=force)
    if as_json:
        render.write_json(manifest | {"type": "exported", "file": str(file)})
    else:
        render.stdout_console().print(render.facts({"file": file} | manifest["counts"]))


def write_file(archive: Archive, file: Path, *, force: bool) -> dict[str, Any]:
    """Export into a file that is there whole or not at all, readable by its owner only."""
    if not file.parent.is_dir():
        raise InvalidInput(
            f"{file.parent} is no folder: make it, or give another file than {file}."
        )
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as new:
        try:
            manifest = write_export(archive, new)
            new.flush()
            os.fsync(new.fileno())
            if force:
                os.replace(new.name, file)
            else:
                # A link fails where the name was taken meanwhile; a rename would not.
                os.link(new.name, file)
        except FileExistsError as error:
            raise InvalidInput(f"{file} exists: give --force to replace it.") from error
        finally:
            Path(new.name).unlink(missing_ok=True)
    return manifest


def write_export(archive: Archive, stream: IO[bytes]) -> dict[str, Any]:
    """Write manifest and rows; returns the manifest. It counts the rows, so they are spooled."""
    digest, counts = hashlib.sha256(), Counter[str]()
    with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES) as spool:
        for row in rows(archive):
            line = _line(row)
            digest.update(line)
            counts[f"{row['type']}s"] += 1
            spool.write(line)
        manifest = {
            "type": "manifest",
            "format": FORMAT,
            "user": archive.user,
            "counts": dict(counts),
            "sha256": digest.hexdigest(),
        }
        stream.write(_line(manifest))
        spool.seek(0)
        shutil.copyfileobj(spool, stream)
    return manifest


def rows(archive: Archive) -> Iterator[dict[str, Any]]:
    """Every row of a user: sessions with turns, decisions and logs; segments; facts; blocks."""
    from agentmem.cli import records

    sessions = archive.sessions()
    names = {session.id: session.name for session in sessions}
    for session in sessions:
        window = [entry.segment_id for entry in archive.window(session.id)]
        yield records.session_json(session) | {"window": window}
        for turn in archive.turns(session.id):
            yield records.turn_json(turn) | {"session": session.name}
    for page in archive.pages():
        # A session that began meanwhile is not in it.
        page = [stored for stored in page if stored.session_id in names]
        tags = archive.passage_tags(stored.segment.id for stored in page)
        for stored in page:
            filed = {"tags": tags[stored.segment.id]} if stored.segment.id in tags else {}
            name = {"session": names[stored.session_id]}
            yield records.segment_json(stored) | filed | name
    for session in sessions:
        for row in reversed(archive.decisions(session_id=session.id, limit=2**31)):
            yield records.decision_json(row) | {"session": session.name}
        for entry in archive.recordings(session.id):
            yield records.recording_json(entry) | {"session": session.name}
    for fact in archive.facts():
        yield records.fact_json(fact) | {"sources": list(map(records.source_json, fact.sources))}

    for block in archive.blocks():
        yield {
            "type": "block",
            "label": block.label,
            "description": block.description,
            "max_tokens": block.max_tokens,
            "version": block.version,
            "segment": block.segment_id,
        }
        for edit in archive.block_edits(block.label):
            if edit.session_id in names:
                yield records.block_edit_json(edit) | {"session": names[edit.session_id]}


def _line(row: dict[str, Any]) -> bytes:
    # Half a surrogate pair has no UTF-8: escaped, it is valid JSON.
    text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"
