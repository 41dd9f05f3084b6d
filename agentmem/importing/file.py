"""Reading a file into the archive: nothing of it enters a window, nothing of it is believed.

The file is read twice: once to find every fault, once to store it, so that a faulty file stores
nothing. It is stored in sessions of its own, under an unfinished name until all of it is there; one
that was broken off is begun again, and a file whose bytes were imported before adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from agentmem.errors import InvalidInput
from agentmem.importing.core_memory import FactRead
from agentmem.importing.export import (
    ExportReader,
    Read,
    SegmentRead,
    SessionRead,
    TurnRead,
    manifest_of,
)
from agentmem.importing.lines import ImportLines
from agentmem.importing.plain import message_segments, text_segments
from agentmem.importing.restoring import Restoring
from agentmem.segment import Segment
from agentmem.storage.archive import Archive
from agentmem.storage.rows import SessionRow
from agentmem.storage.transaction import Transaction

_ROWS_AT_ONCE = 500
"""Rows stored in one transaction: others want to write too."""
_TEXT_SUFFIXES = (".txt", ".md")
_LINES_SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import added.

    Args:
        file: its name.
        sha256: of its bytes, in hex.
        trusted: its rows kept their own origins and trust.
        sessions: what they were stored in.
        segments, turns: how many were added; none where the file was imported before.
        repeated: it was imported before.
        blocks: labels of core memory that a trusted export restored.
        blocks_left: labels that were there already, and stayed as they were.
        facts: how many a trusted export restored.
    """

    file: str
    sha256: str
    trusted: bool
    sessions: tuple[str, ...]
    segments: int = 0
    turns: int = 0
    repeated: bool = False
    blocks: tuple[str, ...] = ()
    blocks_left: tuple[str, ...] = ()
    facts: int = 0


def import_file(archive: Archive, path: str | Path, *, trusted: bool = False) -> Imported:
    """Archive a file: searchable, in no window, of origin "import" and below user trust.

    Args:
        archive: of the user who imports.
        path: what `agentmem export` wrote; a text (.txt, .md), which is cut into parts; or lines of
            `{"role": ..., "content": ...}` (.jsonl).
        trusted: the file is an export of the user's own: its sessions and turns are restored, its
            segments keep their origins and trust, its facts their intervals and sources, and blocks
            of core memory come back with their history where there is none of that label. It holds
            only where the hash in the manifest does: otherwise the file is imported like any
            other, and the result says so.

    Raises:
        InvalidInput: the file cannot be opened, is none of these, too large, or a line is faulty.
        SessionBusy: the same file is being imported.
    """
    with ImportLines(path) as lines:
        manifest = manifest_of(lines)
        if trusted and manifest is None:
            raise InvalidInput(f"{lines.name} is no export: only those can be trusted.")
        if trusted and manifest is not None:
            trusted = manifest.get("sha256") == lines.sha256_behind_first_line()
        told = Imported(lines.name, "", trusted, ())
        for _ in _rows(lines, told, is_export=manifest is not None):
            pass  # every fault is raised before anything is stored
        told = replace(told, sha256=lines.sha256)
        rows = _rows(lines, told, is_export=manifest is not None)
        with _only_one(archive, told):
            found = _found(archive, told)
            if found and all(_mark(row)["done"] for row in found) and _is_there(archive, found):
                return replace(told, sessions=tuple(row.name for row in found), repeated=True)
            for row in found:
                archive.remove_session(row.name)
            return _store(archive, lines, rows, told)


def _rows(lines: ImportLines, told: Imported, *, is_export: bool) -> Iterator[tuple[int, Read]]:
    """The rows of the file with the numbers of their lines."""
    source = f"{told.sha256} {told.file}"
    if is_export:
        rows = ExportReader(lines, source, told.trusted).rows()
        return rows if told.trusted else _in_one_session(rows, told)
    suffix = Path(lines.name).suffix.lower()
    if suffix in _TEXT_SUFFIXES:
        return _in_one_session(text_segments(lines, source), told)
    if suffix == _LINES_SUFFIX:
        return _in_one_session(message_segments(lines, source), told)
    raise InvalidInput(
        f"{lines.name} must be an export, or end with {', '.join(_TEXT_SUFFIXES)} or "
        f"{_LINES_SUFFIX}: got {suffix or 'no ending'!r}."
    )


def _in_one_session(
    rows: Iterable[tuple[int, Read | Segment]], told: Imported
) -> Iterator[tuple[int, Read]]:
    yield 0, SessionRead(f"import-{told.sha256[:12]}")
    for number, row in rows:
        if not isinstance(row, SessionRead):
            yield number, SegmentRead(row) if isinstance(row, Segment) else row


def _mark(row: SessionRow) -> Mapping[str, Any]:
    """What the settings of an import's session say of it; empty for any other session."""
    mark = row.settings.get("import")
    return mark if isinstance(mark, Mapping) else {}


@contextmanager
def _only_one(archive: Archive, told: Imported) -> Iterator[None]:
    """Keep others from importing the same file meanwhile.

    Raises:
        SessionBusy: one is at it.
    """
    guard = archive.session(_unfinished(told))
    with archive.lease(guard.id):
        try:
            yield
        finally:
            with archive.write() as transaction:
                transaction.remove_session(guard.id)


def _unfinished(told: Imported) -> str:
    return f"import-{told.sha256[:12]}-unfinished"


def _found(archive: Archive, told: Imported) -> list[SessionRow]:
    """The sessions this file was imported into, whole or broken off."""
    wanted = {"sha256": told.sha256, "trusted": told.trusted}
    return [row for row in archive.sessions() if wanted.items() <= _mark(row).items()]


def _is_there(archive: Archive, found: Sequence[SessionRow]) -> bool:
    """Whether not all of it was forgotten since."""
    return any(next(archive.session_pages(row.id, 1), None) for row in found)


def _store(
    archive: Archive, lines: ImportLines, rows: Iterator[tuple[int, Read]], told: Imported
) -> Imported:
    """Store checked rows; where that fails, nothing of them stays."""
    work = _Work(archive, lines, told)
    try:
        while work.has_more:
            with archive.write() as transaction:
                work.add(transaction, islice(rows, _ROWS_AT_ONCE))
        if lines.sha256 != told.sha256:
            raise InvalidInput(f"{told.file} changed while it was read: import it again.")
        names = work.finish()
    except BaseException:
        for session in _found(archive, told):
            archive.remove_session(session.name)
        raise
    restored = work.restoring
    return replace(
        told,
        sessions=names,
        segments=work.num_segments,
        turns=work.num_turns,
        blocks=tuple(restored.blocks),
        blocks_left=tuple(restored.blocks_left),
        facts=restored.num_facts,
    )


class _Work:
    """An import that is being stored."""

    def __init__(self, archive: Archive, lines: ImportLines, told: Imported) -> None:
        self._names: dict[str, str] = {}
        """The name each session will have, by the one it has until all is there."""
        self.num_segments = self.num_turns = 0
        self.restoring = Restoring.into(archive) if told.trusted else Restoring()
        self.has_more = True
        self._archive = archive
        self._lines = lines
        self._told = told
        self._session_id = 0
        self._new_ids: dict[int, int] = {}
        self._session_ids: dict[str, int] = {}
        """By the names that the file has."""

    def add(self, transaction: Transaction, rows: Iterable[tuple[int, Read]]) -> None:
        """Store some rows, one in memory at a time; with none of them all is there."""
        self.has_more = False
        for number, row in rows:
            self._add(transaction, number, row)
            self.has_more = True

    def _add(self, transaction: Transaction, number: int, row: Read) -> None:
        try:
            if isinstance(row, SessionRead):
                self._begin(transaction, row)
            elif isinstance(row, TurnRead):
                turn = transaction.add_turn(self._session_id, row.key, row.text)
                if row.reply is not None:
                    transaction.answer_turn(turn.id, row.reply)
                self.num_turns += 1
            elif isinstance(row, SegmentRead):
                self._add_segment(transaction, row)
            elif isinstance(row, FactRead):
                self.restoring.add_fact(transaction, row, self._new_ids)
            else:
                self.restoring.take(row)
        except InvalidInput as error:
            raise self._lines.fault(number, str(error)) from error

    def _begin(self, transaction: Transaction, row: SessionRead) -> None:
        if row.name in self._session_ids:
            self._session_id = self._session_ids[row.name]
            return
        name = f"{_unfinished(self._told)}-{len(self._names)}"
        self._names[name] = row.name
        self._session_id = self._session_ids[row.name] = transaction.session(name)
        transaction.set_session_settings(self._session_id, self._settings(done=False))

    def _add_segment(self, transaction: Transaction, row: SegmentRead) -> None:
        parents = tuple(self._new_ids[one] for one in row.segment.parents)
        stored = transaction.add_segment(
            self._session_id,
            row.turn,
            replace(row.segment, parents=parents),
            searchable=row.searchable,
            state=row.state,
        )
        if row.old_id:
            self._new_ids[row.old_id] = stored.id
        self.num_segments += 1

    def finish(self) -> tuple[str, ...]:
        """Give the sessions their names; from then on the file was imported."""
        rows = {row.name: row for row in self._archive.sessions()}
        names: list[str] = []
        with self._archive.write() as transaction:
            # Blocks are of no session: with them all is there, or none of it.
            self.restoring.put_blocks(transaction, self._new_ids, self._session_ids)
            for unfinished, wanted in self._names.items():
                name, number = wanted, 1
                while name in rows or name in names:
                    number += 1
                    name = f"{wanted}-{number}"
                names.append(name)
                session_id = rows[unfinished].id
                transaction.rename_session(session_id, name)
                transaction.set_session_settings(session_id, self._settings(done=True))
        return tuple(names)

    def _settings(self, *, done: bool) -> dict[str, Any]:
        told = self._told
        return {"import": {"sha256": told.sha256, "file": told.file, "trusted": told.trusted,
                           "done": done}}  # fmt: skip
