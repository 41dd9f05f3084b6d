"""Users, sessions and turns in SQL. Every query names its user: equality, never a pattern."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from agentmem.errors import InvalidInput, StoreCorrupt
from agentmem.storage import encoding
from agentmem.storage.ids import is_id
from agentmem.storage.rows import SessionRow, TurnRow
from agentmem.storage.schema import AnyRow, AnySelect, sessions, turns, users

NO_USER = 0
"""The id of a user who has stored nothing yet: no row has it."""


_user_id = select(users.c.id).where(users.c.name == bindparam("name"))
_owned = select(sessions.c.id).where(
    sessions.c.id == bindparam("session_id"), sessions.c.user_id == bindparam("owner")
)


def user_id(connection: Connection, name: str) -> int:
    """The id of a user; `NO_USER` where there is none yet."""
    return connection.execute(_user_id, {"name": name}).scalar() or NO_USER


def add_user(connection: Connection, name: str) -> int:
    """Make a user."""
    return _new_id(connection.execute(insert(users).values(name=name)).inserted_primary_key)


def _new_id(key: AnyRow | None) -> int:
    assert key is not None
    return int(key[0])


_num_turns = (
    select(func.count())
    .select_from(turns)
    .where(turns.c.session_id == sessions.c.id)
    .scalar_subquery()
)


def _select_sessions(owner: int) -> AnySelect:
    return select(
        sessions.c.id, sessions.c.name, sessions.c.created, _num_turns, sessions.c.settings
    ).where(sessions.c.user_id == owner)


def _session(row: AnyRow) -> SessionRow:
    settings = encoding.load_object(row[4], f"The settings of session {row[1]!r}")
    return SessionRow(row[0], row[1], row[2], row[3], settings)


def find(connection: Connection, owner: int, name: str) -> SessionRow | None:
    """A user's session by name."""
    row = connection.execute(_select_sessions(owner).where(sessions.c.name == name)).first()
    return None if row is None else _session(row)


def all_of(connection: Connection, owner: int) -> list[SessionRow]:
    """A user's sessions, oldest first."""
    rows = connection.execute(_select_sessions(owner).order_by(sessions.c.id))
    return [_session(row) for row in rows]


def check_owner(connection: Connection, owner: int, session_id: int) -> None:
    """Refuse a session that is not this user's, or is gone.

    Raises:
        InvalidInput: naming the session's id.
    """
    names = {"session_id": session_id, "owner": owner}
    if not is_id(session_id) or connection.execute(_owned, names).first() is None:
        raise InvalidInput(f"No session {session_id}: it does not exist or was removed.")


def add(connection: Connection, owner: int, name: str, created: float) -> SessionRow:
    """Make a session."""
    values = {"user_id": owner, "name": name, "created": created, "settings": "{}"}
    key = connection.execute(insert(sessions).values(values)).inserted_primary_key
    return SessionRow(_new_id(key), name, created)


def set_settings(connection: Connection, session_id: int, settings: Mapping[str, Any]) -> None:
    """Replace a session's settings."""
    text = encoding.dump(settings, "The settings of a session")
    connection.execute(update(sessions).where(sessions.c.id == session_id).values(settings=text))


def rename(connection: Connection, owner: int, session_id: int, name: str) -> None:
    """Give a session another name.

    Raises:
        InvalidInput: another session of this user has it.
    """
    found = find(connection, owner, name)
    if found is not None and found.id != session_id:
        raise InvalidInput(f"There is a session {name!r} already: use another name.")
    connection.execute(update(sessions).where(sessions.c.id == session_id).values(name=name))


def remove(connection: Connection, session_id: int) -> None:
    """Delete a session and all that hangs on it."""
    connection.execute(delete(sessions).where(sessions.c.id == session_id))


_select_turns = select(
    turns.c.id, turns.c.session_id, turns.c.number, turns.c.key, turns.c.text, turns.c.reply
)


def _turn(row: AnyRow | None) -> TurnRow | None:
    if row is None:
        return None
    turn_id, session_id, number, key, text, reply = row
    if reply is None:
        return TurnRow(turn_id, session_id, number, key, "unanswered", text)
    answer = encoding.load_object(reply, f"The reply of turn {key!r}")
    return TurnRow(turn_id, session_id, number, key, "answered", text, answer)


def turn(connection: Connection, session_id: int, key: str) -> TurnRow | None:
    """A session's turn by its key."""
    where = (turns.c.session_id == session_id, turns.c.key == key)
    return _turn(connection.execute(_select_turns.where(*where)).first())


def last_turn(connection: Connection, session_id: int) -> TurnRow | None:
    """A session's newest turn."""
    query = (
        _select_turns.where(turns.c.session_id == session_id)
        .order_by(turns.c.number.desc())
        .limit(1)
    )
    return _turn(connection.execute(query).first())


def turns_of(connection: Connection, session_id: int) -> list[TurnRow]:
    """All turns of a session, oldest first."""
    query = _select_turns.where(turns.c.session_id == session_id).order_by(turns.c.number)
    return [found for row in connection.execute(query) if (found := _turn(row)) is not None]


def add_turn(
    connection: Connection, session_id: int, key: str | None, text: str, created: float
) -> TurnRow:
    """Append a turn. One without a key is called by its number ("3.1" where "3" was taken).

    Raises:
        InvalidInput: the session has a turn with this key.
    """
    newest = select(func.max(turns.c.number)).where(turns.c.session_id == session_id)
    number = (connection.execute(newest).scalar() or 0) + 1
    if key is None:
        key, suffix = str(number), 0
        while turn(connection, session_id, key) is not None:
            suffix += 1
            key = f"{number}.{suffix}"
    elif turn(connection, session_id, key) is not None:
        raise InvalidInput(
            f"The session has a turn {key!r}. Read it with `turn`, or use another key."
        )
    values = {
        "session_id": session_id, "number": number, "key": key, "text": text, "created": created,
    }  # fmt: skip
    new = connection.execute(insert(turns).values(values)).inserted_primary_key
    return TurnRow(_new_id(new), session_id, number, key, "unanswered", text)


def damaged(connection: Connection) -> list[str]:
    """Sessions and turns of all users whose settings or reply are not what was stored."""
    found = []
    settings = select(sessions.c.id, sessions.c.settings).order_by(sessions.c.id)
    replies = select(turns.c.id, turns.c.reply).where(turns.c.reply.is_not(None))
    for what, query in (("session", settings), ("turn", replies.order_by(turns.c.id))):
        for row_id, text in connection.execute(query):
            try:
                encoding.load_object(text, what)
            except StoreCorrupt:
                found.append(f"{what} {row_id}")
    return found


def answer_turn(connection: Connection, owner: int, turn_id: int, reply: Mapping[str, Any]) -> None:
    """Store the reply of a turn, once.

    Raises:
        InvalidInput: no such turn of this user, or it has a reply.
    """
    if not is_id(turn_id):
        raise _no_turn(turn_id)
    mine = select(sessions.c.id).where(sessions.c.user_id == owner)
    changed = connection.execute(
        update(turns)
        .where(turns.c.id == turn_id, turns.c.session_id.in_(mine), turns.c.reply.is_(None))
        .values(reply=encoding.dump(reply, "A reply"))
    )
    if changed.rowcount != 1:
        raise _no_turn(turn_id)


def _no_turn(turn_id: int) -> InvalidInput:
    return InvalidInput(f"No unanswered turn with id {turn_id}.")


def scrub_turn(
    connection: Connection, session_id: int, number: int, said: list[str], answered: list[str]
) -> None:
    """Take forgotten texts out of a turn: what the user said, and what was answered."""
    where = (turns.c.session_id == session_id, turns.c.number == number)
    found = _turn(connection.execute(_select_turns.where(*where)).first())
    if found is None:
        return
    # Either way round: a document's part is in the turn's text, which may be in a longer message.
    if any(text in found.text or found.text in text for text in said):
        connection.execute(update(turns).where(turns.c.id == found.id).values(text=""))
    if found.reply is not None and any(text in found.reply["text"] for text in answered):
        values = {"reply": encoding.dump({**found.reply, "text": ""}, "A reply")}
        connection.execute(update(turns).where(turns.c.id == found.id).values(values))
