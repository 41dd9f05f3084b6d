"""Segments in SQL: their messages, lineage and state. The content hash is checked at every read."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, cast

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from agentmem.errors import InvalidInput
from agentmem.segment import MOST_TRUST, Kind, Message, Origin, Segment, State, ToolCall, Trust
from agentmem.storage import encoding, faults
from agentmem.storage.ids import as_ids, check_number, is_id, not_found, portions
from agentmem.storage.rows import StoredSegment
from agentmem.storage.schema import (
    AnyRow,
    AnySelect,
    lineage,
    messages,
    segments,
    sessions,
    windows,
)
from agentmem.storage.text import check_text

FORGOTTEN: State = "forgotten"


_TRUST = {int(trust): trust for trust in Trust}
_insert = insert(segments)
_insert_messages = insert(messages)
_insert_lineage = insert(lineage)


def are_of(
    user_id: int | BindParameter[int], ids: Sequence[int] | BindParameter[Any]
) -> ColumnElement[bool]:
    """That segments are of these ids, and the user's.

    SQLite, without statistics, takes the index on users to lead to ten rows, and would walk all a
    user ever said instead of looking up a few ids. A sum has no index.
    """
    return segments.c.id.in_(ids) & (segments.c.user_id + 0 == user_id)


_OWNED = select(segments.c.id, segments.c.state).where(
    are_of(bindparam("user_id"), bindparam("ids", expanding=True))
)


def select_segments(user_id: int) -> AnySelect:
    """All of a user's segments that are not forgotten."""
    return select(segments).where(segments.c.user_id == user_id, segments.c.state != FORGOTTEN)


def select_these(user_id: int, ids: Sequence[int]) -> AnySelect:
    """Those of a user's segments with these ids that are not forgotten."""
    return select(segments).where(are_of(user_id, ids), segments.c.state != FORGOTTEN)


def add(
    connection: Connection,
    user_id: int,
    session_id: int,
    turn: int,
    segment: Segment,
    *,
    searchable: bool,
    state: State,
    now: float,
) -> Segment:
    """Append a segment and return it with its id; one without a time is stamped with `now`."""
    _check(segment, turn, state)
    owned = _owned(connection, user_id, segment.parents, forgotten_too=True)
    for parent in segment.parents:
        if parent not in owned:
            raise not_found(parent)
    _check_trust(connection, segment)
    created = float(segment.created or now)
    key = connection.execute(
        _insert,
        {
            "user_id": user_id,
            "session_id": session_id,
            "turn": turn,
            "kind": segment.kind,
            "origin": segment.origin,
            "trust": int(segment.trust),
            "created": created,
            "content_hash": segment.content_hash,
            "state": state,
            "pinned": 0,
            "kept_until": 0,
            "recalls": 0,
            "used_turn": 0,
            "searchable": int(searchable),
            "source": check_text(segment.source, "The source of a segment") or None,
        },
    ).inserted_primary_key
    assert key is not None
    segment_id = int(key[0])
    rows = [
        {"segment_id": segment_id, "ordinal": ordinal, **_message_values(message)}
        for ordinal, message in enumerate(segment.messages)
    ]
    connection.execute(_insert_messages, rows)
    if segment.parents:
        links = [
            {"child_id": segment_id, "ordinal": ordinal, "parent_id": parent}
            for ordinal, parent in enumerate(segment.parents)
        ]
        connection.execute(_insert_lineage, links)
    return dataclasses.replace(segment, id=segment_id, created=created)


def _check(segment: Segment, turn: int, state: State) -> None:
    if segment.id:
        raise InvalidInput(f"A new segment must have no id: got {segment.id}.")
    check_number(turn, "`turn`")
    if state == FORGOTTEN:
        raise InvalidInput("A new segment cannot be forgotten: use another state.")
    if not math.isfinite(segment.created):
        raise InvalidInput(f"`created` must be seconds since the epoch: got {segment.created}.")


def _check_trust(connection: Connection, segment: Segment) -> None:
    """Refuse trust that nobody could have given.

    Raises:
        InvalidInput: it is above that of its origin or of what it was made of, or it is a core
            block or a system message and below user trust.
    """
    most = MOST_TRUST[segment.origin]
    for portion in portions(as_ids(segment.parents)):
        least = select(func.min(segments.c.trust)).where(segments.c.id.in_(portion))
        most = min(most, _TRUST[connection.execute(least).scalar_one()])
    if segment.trust > most:
        raise InvalidInput(
            f"A segment of origin {segment.origin!r} made of {list(segment.parents)} may have "
            f"{most.name} trust at most: got {segment.trust.name}."
        )
    is_core = segment.kind == "core_block" or any(m.role == "system" for m in segment.messages)
    if is_core and segment.trust < Trust.USER:
        raise InvalidInput(
            f"Core blocks and system messages need USER trust or more: got {segment.trust.name}."
        )


def _message_values(message: Message) -> dict[str, Any]:
    calls = message.to_dict().get("tool_calls")
    return {
        "role": message.role,
        "content": check_text(message.content, "The text of a message"),
        "tool_calls": None if calls is None else encoding.dump(calls, "Tool calls"),
        "tool_call_id": message.tool_call_id,
    }


def load(connection: Connection, user_id: int, ids: Sequence[int]) -> list[StoredSegment]:
    """Segments in the order asked.

    Raises:
        SegmentNotFound: one of them is not this user's, or was forgotten.
        StoreCorrupt: one of them is not what was stored.
    """
    found = present(connection, user_id, ids)
    wanted = as_ids(ids)
    for segment_id in wanted:
        if segment_id not in found:
            raise not_found(segment_id)
    return [found[segment_id] for segment_id in wanted]


def present(connection: Connection, user_id: int, ids: Sequence[int]) -> dict[int, StoredSegment]:
    """Those of a user's segments that were not forgotten, by id.

    Raises:
        StoreCorrupt: one of them is not what was stored.
    """
    found: dict[int, StoredSegment] = {}
    for portion in portions(sorted(set(as_ids(ids)))):
        rows = connection.execute(select_these(user_id, portion))
        found.update((stored.segment.id, stored) for stored in assemble(connection, rows.all()))
    return found


def page(
    connection: Connection,
    user_id: int,
    *,
    session_id: int | None,
    origin: Origin | None,
    after: int,
    limit: int,
) -> list[StoredSegment]:
    """Up to `limit` segments with ids above `after`, by id; of one session or origin if asked."""
    query = select_segments(user_id).where(segments.c.id > after)
    if session_id is not None:
        if not is_id(session_id):
            return []
        query = query.where(segments.c.session_id == session_id)
    if origin is not None:
        query = query.where(segments.c.origin == origin)
    rows = connection.execute(query.order_by(segments.c.id).limit(limit))
    return assemble(connection, rows.all())


def of_turn(
    connection: Connection, user_id: int, session_id: int, turn: int, kinds: Sequence[Kind]
) -> list[StoredSegment]:
    """A turn's segments of these kinds, by id."""
    if not is_id(session_id) or not (turn == 0 or is_id(turn)):
        return []
    query = (
        select_segments(user_id)
        .where(
            segments.c.session_id == session_id,
            segments.c.turn == turn,
            segments.c.kind.in_(kinds),
        )
        .order_by(segments.c.id)
    )
    return assemble(connection, connection.execute(query).all())


def assemble(connection: Connection, rows: Sequence[AnyRow]) -> list[StoredSegment]:
    """Segments from their rows, with messages and parents read and the hash checked."""
    ids = [row.id for row in rows]
    said: dict[int, list[Message]] = defaultdict(list)
    parents: dict[int, list[int]] = defaultdict(list)
    for portion in portions(ids):
        texts = (
            select(messages)
            .where(messages.c.segment_id.in_(portion))
            .order_by(messages.c.segment_id, messages.c.ordinal)
        )
        for text in connection.execute(texts):
            said[text.segment_id].append(_message(text))
        links = (
            select(lineage.c.child_id, lineage.c.parent_id)
            .where(lineage.c.child_id.in_(portion))
            .order_by(lineage.c.child_id, lineage.c.ordinal)
        )
        for child, parent in connection.execute(links):
            parents[child].append(parent)
    return [_stored(connection, row, said[row.id], parents[row.id]) for row in rows]


def _message(row: AnyRow) -> Message:
    calls: tuple[ToolCall, ...] = ()
    if row.tool_calls is not None:
        what = f"A tool call of segment {row.segment_id}"
        calls = encoding.tool_calls_from_json(row.tool_calls, what)
    return Message(row.role, row.content, calls, row.tool_call_id)


def _stored(
    connection: Connection, row: AnyRow, said: list[Message], parents: list[int]
) -> StoredSegment:
    segment = None
    trust = _TRUST.get(row.trust)
    if said and trust is not None:
        segment = Segment(
            tuple(said),
            row.kind,
            row.origin,
            trust,
            row.created,
            tuple(parents),
            row.id,
            row.source or "",
        )
    if segment is None or segment.content_hash != row.content_hash:
        reason = f"segment {row.id} is not what was stored (its content hash differs)"
        raise faults.corrupt(faults.path_of(connection), reason)
    return StoredSegment(
        segment,
        row.session_id,
        row.turn,
        cast(State, row.state),
        bool(row.pinned),
        row.kept_until,
        row.recalls,
        row.used_turn,
        bool(row.searchable),
    )


def _owned(
    connection: Connection, user_id: int, ids: Sequence[int], *, forgotten_too: bool = False
) -> set[int]:
    owned: set[int] = set()
    for portion in portions(as_ids(ids)):
        rows = connection.execute(_OWNED, {"user_id": user_id, "ids": portion})
        owned.update(each for each, state in rows if forgotten_too or state != FORGOTTEN)
    return owned


def remaining(connection: Connection, user_id: int, ids: Sequence[int]) -> list[int]:
    """Those of this user's segments that were not forgotten, in the order given.

    Raises:
        SegmentNotFound: naming the first that never was this user's.
    """
    there = existing(connection, user_id, ids)
    if len(there) < len(ids):
        mine = _owned(connection, user_id, ids, forgotten_too=True)
        for segment_id in as_ids(ids):
            if segment_id not in mine:
                raise not_found(segment_id)
    return there


def existing(connection: Connection, user_id: int, ids: Sequence[int]) -> list[int]:
    """Those of the ids that are this user's segments and not forgotten, in the order given."""
    wanted = as_ids(ids)
    owned = _owned(connection, user_id, wanted)
    return [segment_id for segment_id in wanted if segment_id in owned]


def check_owner(connection: Connection, user_id: int, ids: Sequence[int]) -> list[int]:
    """The ids as plain ints, if all of them are this user's and not forgotten.

    Raises:
        SegmentNotFound: naming the first that is not.
    """
    wanted = as_ids(ids)
    owned = _owned(connection, user_id, wanted)
    for segment_id in wanted:
        if segment_id not in owned:
            raise not_found(segment_id)
    return wanted


def check_kind(connection: Connection, user_id: int, segment_id: int, kind: Kind) -> int:
    """The id as a plain int, if it is a segment of this user and kind, and not forgotten.

    Raises:
        SegmentNotFound: it is not this user's.
        InvalidInput: it is of another kind.
    """
    (segment_id,) = check_owner(connection, user_id, [segment_id])
    query = select(segments.c.kind).where(segments.c.id == segment_id)
    found = connection.execute(query).scalar_one()
    if found != kind:
        raise InvalidInput(f"Segment {segment_id} must be of kind {kind!r}: got {found!r}.")
    return segment_id


def change(
    connection: Connection, user_id: int, ids: Sequence[int], values: Mapping[str, Any]
) -> list[int]:
    """Set columns of segments; all of them must be this user's. Returns the ids."""
    wanted = check_owner(connection, user_id, ids)
    for portion in portions(wanted):
        connection.execute(update(segments).where(segments.c.id.in_(portion)).values(dict(values)))
    return wanted


def add_recalls(connection: Connection, user_id: int, ids: Sequence[int], turn: int) -> None:
    """Count one recall of each segment, in this turn."""
    change(connection, user_id, ids, {"recalls": segments.c.recalls + 1, "used_turn": turn})


def count_states(connection: Connection, user_id: int, session_id: int) -> dict[State, int]:
    """Segments of a session per state, the forgotten included; states without any are left out."""
    if not is_id(session_id):
        return {}
    query = (
        select(segments.c.state, func.count())
        .join(sessions, sessions.c.id == segments.c.session_id)
        .where(sessions.c.user_id == user_id, sessions.c.id == session_id)
        .group_by(segments.c.state)
    )
    return {cast(State, state): count for state, count in connection.execute(query)}


def ids_of_session(connection: Connection, user_id: int, session_id: int) -> list[int]:
    """Ids of a session's segments that are not forgotten."""
    query = select_segments(user_id).with_only_columns(segments.c.id)
    rows = connection.execute(query.where(segments.c.session_id == session_id))
    return list(rows.scalars())


def all_ids(connection: Connection, user_id: int) -> list[int]:
    """Ids of a user's segments that are not forgotten."""
    query = select_segments(user_id).with_only_columns(segments.c.id)
    return list(connection.execute(query).scalars())


def children(connection: Connection, user_id: int, ids: Sequence[int]) -> list[int]:
    """Ids of what was made directly from these segments (summaries, parts), by id."""
    found: set[int] = set()
    mine = select_segments(user_id).with_only_columns(segments.c.id)
    for portion in portions(as_ids(ids)):
        query = select(lineage.c.child_id).where(
            lineage.c.parent_id.in_(portion), lineage.c.child_id.in_(mine)
        )
        found.update(connection.execute(query).scalars())
    return sorted(found)


def descendants(connection: Connection, user_id: int, ids: Sequence[int]) -> set[int]:
    """Ids of all that was made of these segments, directly or not, in any session."""
    found: set[int] = set()
    newest = set(ids)
    while newest:
        newest = set(children(connection, user_id, sorted(newest))) - found
        found |= newest
    return found


def said_ids(
    connection: Connection,
    user_id: int,
    *,
    origin: str | None,
    since: float,
    until: float,
    not_in: tuple[int, int],
) -> list[int]:
    """Ids of what was said and may be found: by whom, from when to when, but for one turn.

    Parts of documents are found whenever they were said: nobody has them in view.
    """
    session_id, turn = not_in
    query = (
        select_segments(user_id)
        .with_only_columns(segments.c.id)
        .where(
            segments.c.searchable == 1,
            segments.c.kind.in_(("turn", "tool_exchange", "document_part")),
            segments.c.created >= since,
            segments.c.created < until,
            (segments.c.session_id != session_id)
            | (segments.c.turn != turn)
            | (segments.c.kind == "document_part"),
        )
        .order_by(segments.c.id)
    )
    if origin is not None:
        query = query.where(segments.c.origin == origin)
    return list(connection.execute(query).scalars())


def unsummarized(connection: Connection, user_id: int) -> list[StoredSegment]:
    """What is left of one group of segments whose summary was forgotten, by id; empty for none."""
    child = segments.alias("child")
    made = select(lineage.c.child_id, lineage.c.parent_id, child.c.state).join_from(
        lineage, child, child.c.id == lineage.c.child_id
    ).where(child.c.kind == "summary").subquery()  # fmt: skip
    alive = select(made.c.parent_id).where(made.c.state != FORGOTTEN)
    orphans = (
        select_segments(user_id)
        .with_only_columns(segments.c.id, made.c.child_id)
        .join(made, made.c.parent_id == segments.c.id)
        .where(segments.c.state == "summarized", segments.c.id.not_in(alive))
        .order_by(made.c.child_id.desc(), segments.c.id)
    )
    rows = connection.execute(orphans).all()
    group = [row.id for row in rows if row.child_id == rows[0].child_id]
    return load(connection, user_id, group)


def forget(connection: Connection, segment_id: int) -> None:
    """Delete a segment's text and place; what stays says only that there was one."""
    connection.execute(delete(messages).where(messages.c.segment_id == segment_id))
    connection.execute(delete(windows).where(windows.c.segment_id == segment_id))
    connection.execute(
        update(segments)
        .where(segments.c.id == segment_id)
        .values(state=FORGOTTEN, content_hash="", pinned=0, searchable=0, source=None)
    )


def forgotten_turn(connection: Connection, user_id: int, segment_id: int) -> int | None:
    """The turn in which a forgotten segment was said; None where there is no such segment."""
    if not is_id(segment_id):
        return None
    query = select(segments.c.turn).where(
        segments.c.user_id == user_id, segments.c.id == segment_id, segments.c.state == FORGOTTEN
    )
    return connection.execute(query).scalar()


def last_id(connection: Connection, user_id: int) -> int:
    """The newest segment's id, forgotten or not; 0 where the user has none."""
    query = select(func.max(segments.c.id)).where(segments.c.user_id == user_id)
    return connection.execute(query).scalar() or 0
