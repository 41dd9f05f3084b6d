"""Looking a store over: damage fails, what may lead to damage warns, and each says what to do."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sqlalchemy import Connection, func, select

from agentmem.errors import StoreCorrupt
from agentmem.storage import blocks, encoding, facts, passages, recordings, windows, word_rows
from agentmem.storage import decisions as decisions_rows
from agentmem.storage import sessions as sessions_rows
from agentmem.storage.backup import upgrade_backups
from agentmem.storage.database import Database
from agentmem.storage.engine import wal_is_sound
from agentmem.storage.rows import Finding, FindingStatus
from agentmem.storage.schema import (
    SCHEMA_VERSION,
    AnyRow,
    decisions,
    lineage,
    messages,
    segments,
    sessions,
    turns,
    users,
)
from agentmem.storage.segments import FORGOTTEN, assemble

_RESTORE = "Restore the store from a backup."
_PAGE = 500
_NETWORK_FILE_SYSTEMS = frozenset(
    (
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "lustre",
        "fuse.sshfs",
        "fuse.glusterfs",
    )
)


def check(database: Database) -> list[Finding]:
    """All findings, the worst not first but each check in its order."""
    with database.read() as connection:
        findings = [part(connection) for part in _SQL_CHECKS]
    return [*findings, sqlite_version(), permissions(database.path), file_system(database.path)]


def integrity(connection: Connection) -> Finding:
    """Whether SQLite finds its own pages and indexes whole."""
    answers = list(connection.exec_driver_sql("PRAGMA integrity_check(10)").scalars())
    if answers == ["ok"]:
        return Finding("integrity", "ok", "Pages and indexes are whole.")
    return Finding("integrity", "fail", "; ".join(map(str, answers)), _RESTORE)


def references(connection: Connection) -> Finding:
    """Whether every row that another row names is there."""
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
    if not broken:
        return Finding("references", "ok", "Every reference leads to a row.")
    tables = sorted({str(row[0]) for row in broken})
    return Finding("references", "fail", f"{len(broken)} broken, in {tables}.", _RESTORE)


def schema(connection: Connection) -> Finding:
    """Whether the schema is the newest, by both of its marks."""
    version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    revision = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    if version == SCHEMA_VERSION and int(revision or 0) == SCHEMA_VERSION:
        return Finding("schema", "ok", f"Schema {version}, the newest.")
    message = f"Schema {version}, alembic's revision {revision}; the newest is {SCHEMA_VERSION}."
    return Finding("schema", "fail", message, "Open the store with the newest agentmem.")


def journal(connection: Connection) -> Finding:
    """Whether changes go through a write-ahead log."""
    mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
    if mode == "wal":
        return Finding("journal", "ok", "Write-ahead log.")
    return Finding("journal", "fail", f"Journal mode {mode}.", "Move the store to a local disk.")


def hashes(connection: Connection) -> Finding:
    """Whether every segment is what was stored."""
    damaged: list[int] = []
    seen = last_id = 0
    live = select(segments).where(segments.c.state != FORGOTTEN).order_by(segments.c.id)
    while rows := connection.execute(live.where(segments.c.id > last_id).limit(_PAGE)).all():
        last_id = rows[-1].id
        seen += len(rows)
        try:
            assemble(connection, rows)
        except StoreCorrupt:
            damaged += [row.id for row in rows if not _is_whole(connection, row)]
    if not damaged:
        return Finding("hashes", "ok", f"{seen} segments are what was stored.")
    message = f"{len(damaged)} of {seen} segments are not what was stored: {damaged[:10]}."
    return Finding("hashes", "fail", message, _RESTORE)


def _is_whole(connection: Connection, row: AnyRow) -> bool:
    try:
        assemble(connection, [row])
    except StoreCorrupt:
        return False
    return True


def tool_pairs(connection: Connection) -> Finding:
    """Whether each tool call stands in one segment with its result: one alone blocks a model."""
    query = (
        select(messages.c.segment_id, messages.c.tool_calls, messages.c.tool_call_id)
        .where(messages.c.tool_calls.is_not(None) | messages.c.tool_call_id.is_not(None))
        .order_by(messages.c.segment_id)
    )
    calls: dict[int, set[str]] = {}
    results: dict[int, set[str]] = {}
    damaged: set[int] = set()
    for segment_id, called, answered in connection.execute(query):
        if called is not None:
            try:
                made = encoding.tool_calls_from_json(called, "A tool call")
            except StoreCorrupt:
                damaged.add(segment_id)  # `hashes` tells of it
                continue
            calls.setdefault(segment_id, set()).update(call.id for call in made)
        if answered is not None:
            results.setdefault(segment_id, set()).add(answered)
    orphans = sorted(
        segment_id
        for segment_id in (calls.keys() | results.keys()) - damaged
        if calls.get(segment_id, set()) != results.get(segment_id, set())
    )
    if not orphans:
        return Finding("tool pairs", "ok", "Every tool call has its result.")
    message = f"{len(orphans)} segments hold a call without result or the reverse: {orphans[:10]}."
    return Finding("tool pairs", "fail", message, "Forget these segments.")


def trust(connection: Connection) -> Finding:
    """Whether nothing is trusted more than what it was made of."""
    child, parent = segments.alias("child"), segments.alias("parent")
    query = (
        select(child.c.id)
        .distinct()
        .join_from(lineage, child, child.c.id == lineage.c.child_id)
        .join(parent, parent.c.id == lineage.c.parent_id)
        .where(child.c.trust > parent.c.trust, child.c.state != FORGOTTEN)
        .order_by(child.c.id)
    )
    raised = list(connection.execute(query).scalars())
    return _told(
        "trust",
        raised,
        "Nothing is trusted more than what it was made of.",
        "segments are trusted more than their parents",
        fix="Forget these segments.",
    )


def _told(
    name: str,
    wrong: Sequence[int],
    good: str,
    bad: str,
    *,
    status: FindingStatus = "fail",
    fix: str = _RESTORE,
) -> Finding:
    """The finding that some rows are wrong, the first of them named; or that none is."""
    if not wrong:
        return Finding(name, "ok", good)
    return Finding(name, status, f"{len(wrong)} {bad}: {list(wrong)[:10]}.", fix)


def word_index(connection: Connection) -> Finding:
    """Whether every searchable segment has its terms stored."""
    missing = word_rows.count_missing(connection)
    if not missing:
        return Finding("words", "ok", "Every searchable segment has its words.")
    message = f"{missing} searchable segments have no words stored; they are read from their text."
    return Finding("words", "warn", message, "None needed; searches start slower.")


def core_memory(connection: Connection) -> Finding:
    """Whether every version of a block, and every tag, belongs to a segment that can have it."""
    versions, tagged = blocks.misfiled(connection), passages.misfiled(connection)
    if not versions and not tagged:
        return Finding("core memory", "ok", "Every block and tag has its segment.")
    named = [f"{label} {version}" for label, version in versions]
    named += [f"tags of segment {segment_id}" for segment_id in tagged]
    message = f"{len(named)} lead to no segment that could be meant: {', '.join(named[:10])}."
    return Finding("core memory", "fail", message, _RESTORE)


def fact_spans(connection: Connection) -> Finding:
    """Whether every fact has evidence, and holds when its evidence says."""
    good = "Every fact holds when its evidence says."
    return _told("facts", facts.misplaced(connection), good, "facts differ from what was said")


def window_states(connection: Connection) -> Finding:
    """Whether every segment that stands in a window to stay is live."""
    return _told(
        "windows",
        windows.misplaced(connection),
        "Every segment that stays in a window is live.",
        "segments stand in a window and are not live",
        status="warn",
        fix="Restore them where they stand.",
    )


def logs(connection: Connection) -> Finding:
    """Whether every row that sessions are replayed from can be read."""
    good = "Every row that sessions are replayed from can be read."
    return _told(
        "logs", recordings.damaged(connection), good, "rows of sessions' logs cannot be read"
    )


def records(connection: Connection) -> Finding:
    """Whether all settings, replies and decisions can be read."""
    damaged = [*sessions_rows.damaged(connection), *decisions_rows.damaged(connection)]
    if not damaged:
        return Finding("records", "ok", "All settings, replies and decisions can be read.")
    message = f"{len(damaged)} cannot be read: {', '.join(damaged[:10])}."
    return Finding("records", "fail", message, _RESTORE)


def counts(connection: Connection) -> Finding:
    """How much there is."""
    numbers = [
        f"{connection.execute(select(func.count()).select_from(table)).scalar_one()} {table.name}"
        for table in (users, sessions, turns, segments, decisions)
    ]
    return Finding("counts", "ok", ", ".join(numbers) + ".")


_SQL_CHECKS: tuple[Callable[[Connection], Finding], ...] = (
    integrity, references, schema, journal, hashes, tool_pairs, trust, word_index, core_memory,
    fact_spans, window_states, records, logs, counts,
)  # fmt: skip


def sqlite_version() -> Finding:
    """Whether SQLite itself is known to be sound."""
    if wal_is_sound(sqlite3.sqlite_version_info):
        return Finding("sqlite", "ok", f"SQLite {sqlite3.sqlite_version}.")
    message = (
        f"SQLite {sqlite3.sqlite_version} can damage a write-ahead log that two programs write at "
        "once. agentmem's own processes take turns and are safe."
    )
    fix = "Let no other program write the store, or use SQLite 3.51.3 or later."
    return Finding("sqlite", "warn", message, fix)


def permissions(path: Path) -> Finding:
    """Whether nobody but the owner can read the files."""
    names = [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", ".lock"))]
    names += upgrade_backups(path)
    wide = [name.name for name in names if _mode(name) & 0o077]
    if wide:
        fix = f"chmod 600 {' '.join(wide)}"
        return Finding("permissions", "fail", f"Others can read or write {', '.join(wide)}.", fix)
    if _mode(path.parent) & 0o022 and not _mode(path.parent) & stat.S_ISVTX:
        message = f"Others can rename files in {path.parent}."
        return Finding("permissions", "warn", message, f"chmod go-w {path.parent}")
    return Finding("permissions", "ok", "Only the owner can read the files.")


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return 0


def file_system(path: Path) -> Finding:
    """Whether the file is on a disk of this machine: a write-ahead log cannot be shared further."""
    kind = max(_mounts(path), default=(0, "unknown"))[1]
    if kind in _NETWORK_FILE_SYSTEMS:
        message = f"{path.parent} is on a network file system ({kind})."
        return Finding("file system", "fail", message, "Move the store to a local disk.")
    return Finding("file system", "ok", f"On {kind}.")


def _mounts(path: Path) -> Iterator[tuple[int, str]]:
    """Mount points above a path, as (length of the name, file system); none where unknown."""
    try:
        lines = Path("/proc/self/mounts").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        if path.is_relative_to(point.replace("\\040", " ")):
            yield len(point), kind
