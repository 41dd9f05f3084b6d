"""The log a session is replayed from, in SQL: what came from outside, one row a commit.

A row is written in the transaction it explains. Its body is JSON, deflated against a dictionary of
what all bodies have in common, because most of them are a few dozen bytes. It knows no record.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, delete, select, text

from agentmem.errors import InvalidInput, StoreCorrupt
from agentmem.storage import encoding
from agentmem.storage.rows import Counters, RecordingRow
from agentmem.storage.schema import recordings, sessions

_COMMON = (
    b'"calls":[{"id":"call_","name":"","arguments":"{"thought":"["drop_segments\\",'
    b'\\"arguments\\": {\\"segment_ids\\": [","keep_segments","review_tokens":0,'
    b'["from",{"turns":,"decisions":,"window":[[,"prompt",null],["segments":[[,"archived",0,0,0,0],'
    b'"parked","summarized","pinned","kv","text","archived","compressed","live",'
    b'["failed","StoreFull"],["error","","ModelUnavailable","",""],["away","",""],["left",'
    b'["tool",true,""],["vector","["clock",["has",,true],["has",,false],["attention",{}],'
    b'["do","drop",[["do","pin",[["do","undo",[null]],["do","bring_back",[["do","keep",['
    b'["open",{"kind":"agent","model":"scripted","capabilities":{"has_kv":true,"has_logits":false,'
    b'"calls_tools":true,"alternates_roles":false,"caches_prefix":false,"context_tokens":0},'
    b'"dense_bytes_per_token":,"budget":{"max_tokens":2048,"warn_at":0.7,"free_to":0.5,'
    b'"reserve":256,"review_tokens":615,"recall_share":0.25,"controller_calls":4,"seconds":60.0,'
    b'"kv_bytes":0,"parked_ram_bytes":268435456,"parked_disk_bytes":2147483648},"kv":"q8",'
    b'"controller":"llm","policy":"relevance","rule":"Policy(","recall":"kv","system_prompt":null,'
    b'"embedder":"hash:384","dim":384,"generation":{"max_new_tokens":256,"temperature":0.0,'
    b'"top_p":1.0,"top_k":0,"repetition_penalty":1.0,"seed":0,"stop":[]},"fence":"","tools":[]}],'
    b'["count","",["states",{}],["aside","","[]","stop"],["states",{"":"parked"}],'
    b'["say","",null,"stop"],["turn",null,false,'
)
"""What bodies are deflated against. It is part of the format: never change it, add another."""

_COUNTERS = """SELECT
    (SELECT seq FROM sqlite_sequence WHERE name = 'segments'),
    (SELECT seq FROM sqlite_sequence WHERE name = 'decisions'),
    (SELECT seq FROM sqlite_sequence WHERE name = 'facts'),
    (SELECT seq FROM sqlite_sequence WHERE name = 'changes'),
    (SELECT max(id) FROM recordings WHERE session_id = ?)"""
_INSERT = """INSERT INTO recordings
    (session_id, created, segments, decisions, facts, changes, last_change, body)
    SELECT id, ?, ?, ?, ?, ?, (SELECT seq FROM sqlite_sequence WHERE name = 'changes'), ?
    FROM sessions WHERE id = ? AND user_id = ?"""
_set_sequence = text("UPDATE sqlite_sequence SET seq = :seq WHERE name = :name")
_new_sequence = text(
    "INSERT INTO sqlite_sequence (name, seq) SELECT :name, 0"
    " WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = :name)"
)


def counters(connection: Connection, session_id: int) -> Counters:
    """What the store has counted to, and the newest row of this session's log."""
    # As text and not as an expression: it is asked at every change of a session.
    row = connection.exec_driver_sql(_COUNTERS, (session_id,)).one()
    return Counters(*(number or 0 for number in row))


def set_counters(connection: Connection, wanted: Counters) -> None:
    """Let the next segment, decision and fact get the ids after these: for a replay's own store."""
    for name in ("segments", "decisions", "facts"):
        connection.execute(_new_sequence, {"name": name})
        connection.execute(_set_sequence, {"name": name, "seq": getattr(wanted, name)})


def add(
    connection: Connection,
    owner: int,
    session_id: int,
    created: float,
    before: Counters,
    records: Iterable[list[Any]],
) -> int:
    """Append a row to the log of a user's session and return its id.

    Raises:
        InvalidInput: the session is not this user's.
    """
    # A probability may be 0, and its logarithm is no number: Python reads back what it writes.
    body = json.dumps(list(records), ensure_ascii=False, separators=(",", ":"))
    counted = (before.segments, before.decisions, before.facts, before.changes)
    values = (created, *counted, pack(body), session_id, owner)
    done = connection.exec_driver_sql(_INSERT, values)
    if done.rowcount != 1:
        raise InvalidInput(f"No session {session_id}: it does not exist or was removed.")
    return int(done.lastrowid)


def load(connection: Connection, session_id: int) -> list[RecordingRow]:
    """A session's log, oldest first.

    Raises:
        StoreCorrupt: a row is damaged.
    """
    query = select(recordings).where(recordings.c.session_id == session_id)
    return [
        RecordingRow(
            row.id,
            row.created,
            Counters(row.segments, row.decisions, row.facts, row.changes),
            row.last_change,
            tuple(encoding.load(unpack(row.body, row.id), f"Row {row.id} of a session's log")),
        )
        for row in connection.execute(query.order_by(recordings.c.id))
    ]


def last_change(connection: Connection, session_id: int) -> int:
    """The newest change that the newest row of a session's log covers; 0 where it has none."""
    query = select(recordings.c.last_change).where(recordings.c.session_id == session_id)
    newest = query.order_by(recordings.c.id.desc()).limit(1)
    return int(connection.execute(newest).scalar() or 0)


def remove(connection: Connection, session_id: int) -> None:
    """Delete a session's log."""
    connection.execute(delete(recordings).where(recordings.c.session_id == session_id))


def remove_where_seen(connection: Connection, owner: int, session_id: int, segment_id: int) -> None:
    """Delete the logs of all of a user's sessions that may have seen a segment.

    Args:
        session_id: where it was said; another session has seen it only if it committed later.
    """
    seen = (
        select(recordings.c.session_id)
        .join(sessions, sessions.c.id == recordings.c.session_id)
        .where(sessions.c.user_id == owner, recordings.c.segments >= segment_id)
    )
    connection.execute(
        delete(recordings).where(
            recordings.c.session_id.in_(seen) | (recordings.c.session_id == session_id)
        )
    )


def damaged(connection: Connection) -> list[int]:
    """Ids of rows, of all users, that are not what was stored."""
    found = []
    for row_id, body in connection.execute(select(recordings.c.id, recordings.c.body)):
        try:
            encoding.load(unpack(body, row_id), "A row")
        except StoreCorrupt:
            found.append(row_id)
    return found


def pack(body: str) -> bytes:
    """Text as bytes of a row."""
    deflate = zlib.compressobj(6, zdict=_COMMON)
    return deflate.compress(body.encode("utf-8", "surrogatepass")) + deflate.flush()


def unpack(body: bytes, row_id: int) -> str:
    """Text of a row.

    Raises:
        StoreCorrupt: the bytes are not what `pack` gave.
    """
    try:
        inflate = zlib.decompressobj(zdict=_COMMON)
        return (inflate.decompress(body) + inflate.flush()).decode("utf-8", "surrogatepass")
    except (zlib.error, UnicodeDecodeError) as error:
        raise StoreCorrupt(
            f"Row {row_id} of a session's log is damaged: {error}. Restore the store from a backup."
        ) from error
