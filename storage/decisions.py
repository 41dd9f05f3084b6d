"""The decision log in SQL: what was decided, on what evidence, to what effect, undone by what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from agentmem.decision import Decision
from agentmem.errors import InvalidInput, StoreCorrupt
from agentmem.segment import State
from agentmem.storage import encoding
from agentmem.storage.ids import as_ids, is_id, portions
from agentmem.storage.rows import DecisionRow, WindowEntry
from agentmem.storage.schema import AnyRow, AnySelect, decided, decisions, sessions


def add(
    connection: Connection,
    session_id: int,
    turn: int,
    decision: Decision,
    *,
    window_before: Sequence[WindowEntry],
    window_after: Sequence[WindowEntry],
    states_before: Mapping[int, tuple[State, bool]],
    effect: Mapping[str, Any],
    cost: Mapping[str, Any],
    now: float,
) -> int:
    """Put a decision on record; it is filed under its segments and under the summary it made."""
    key = connection.execute(
        insert(decisions).values(
            session_id=session_id,
            turn=turn,
            decision=encoding.decision_to_json(decision),
            window_before=encoding.window_to_json(window_before),
            window_after=encoding.window_to_json(window_after),
            states_before=encoding.states_to_json(states_before),
            effect=encoding.dump(effect, "The effect of a decision"),
            cost=encoding.dump(cost, "The cost of a decision"),
            created=now,
        )
    ).inserted_primary_key
    assert key is not None
    decision_id = int(key[0])
    touched = {int(segment_id) for segment_id in decision.segment_ids}
    if isinstance(summary_id := effect.get("summary_id"), int):
        touched.add(summary_id)
    rows = [{"decision_id": decision_id, "segment_id": each} for each in sorted(touched)]
    connection.execute(insert(decided), rows)
    return decision_id


def _select(user_id: int) -> AnySelect:
    return (
        select(decisions)
        .join(sessions, sessions.c.id == decisions.c.session_id)
        .where(sessions.c.user_id == user_id)
    )


def _of_segments(segment_ids: Sequence[int]) -> Any:
    filed = select(decided.c.decision_id).where(decided.c.segment_id.in_(segment_ids))
    return decisions.c.id.in_(filed)


def _row(row: AnyRow) -> DecisionRow:
    return DecisionRow(
        id=row.id,
        session_id=row.session_id,
        turn=row.turn,
        decision=encoding.decision_from_json(row.decision),
        window_before=encoding.window_from_json(row.window_before),
        window_after=encoding.window_from_json(row.window_after),
        states_before=encoding.states_from_json(row.states_before),
        effect=encoding.load_object(row.effect, "The effect of a decision"),
        cost=encoding.load_object(row.cost, "The cost of a decision"),
        undone_by=row.undone_by,
        created=row.created,
    )


def load(connection: Connection, user_id: int, decision_id: int) -> DecisionRow:
    """One decision of this user.

    Raises:
        InvalidInput: there is none with this id.
    """
    row = None
    if is_id(decision_id):
        row = connection.execute(_select(user_id).where(decisions.c.id == decision_id)).first()
    if row is None:
        raise InvalidInput(
            f"No decision {decision_id}: it does not exist or went with its session."
        )
    return _row(row)


def newest(
    connection: Connection,
    user_id: int,
    *,
    session_id: int | None,
    segment_id: int | None,
    limit: int,
    before: int | None = None,
) -> list[DecisionRow]:
    """A user's decisions, newest first; of one session, one segment or before one if asked."""
    if not all(is_id(each) for each in (session_id, segment_id) if each is not None):
        return []
    query = _select(user_id)
    if session_id is not None:
        query = query.where(decisions.c.session_id == session_id)
    if segment_id is not None:
        query = query.where(_of_segments([segment_id]))
    if before is not None:
        query = query.where(decisions.c.id < before)
    query = query.order_by(decisions.c.id.desc()).limit(max(0, min(limit, 2**31)))
    return [_row(row) for row in connection.execute(query)]


def pinned_by(connection: Connection, user_id: int, segment_ids: Sequence[int]) -> dict[int, str]:
    """The maker of each segment's newest decision to pin it that was not undone."""
    makers: dict[int, str] = {}
    for portion in portions(as_ids(segment_ids)):
        query = (
            _select(user_id)
            .join(decided, decided.c.decision_id == decisions.c.id)
            .with_only_columns(decided.c.segment_id, decisions.c.decision)
            .where(decided.c.segment_id.in_(portion), decisions.c.undone_by.is_(None))
            .order_by(decisions.c.id)
        )
        for segment_id, text in connection.execute(query):
            made = encoding.decision_from_json(text)
            if made.action == "pin":
                makers[segment_id] = made.maker
    return makers


def of_review(connection: Connection, user_id: int, row: DecisionRow) -> list[DecisionRow]:
    """All decisions of the review that made one, the first first; itself where none did."""
    first = row.cost.get("review", row.id)
    query = _select(user_id).where(
        decisions.c.session_id == row.session_id,
        decisions.c.turn == row.turn,
        decisions.c.id >= first,
    )
    found = [_row(each) for each in connection.execute(query.order_by(decisions.c.id))]
    return [each for each in found if each.cost.get("review", each.id) == first]


def damaged(connection: Connection) -> list[str]:
    """Decisions of all users that are not what was stored."""
    found = []
    for row in connection.execute(select(decisions).order_by(decisions.c.id)):
        try:
            _row(row)
        except StoreCorrupt:
            found.append(f"decision {row.id}")
    return found


def mark_undone(connection: Connection, user_id: int, decision_id: int, by: int) -> None:
    """Note which decision reverted this one.

    Raises:
        InvalidInput: either is not this user's, or it was undone before.
    """
    load(connection, user_id, by)
    undone_by = load(connection, user_id, decision_id).undone_by
    if undone_by is not None:
        raise InvalidInput(f"Decision {decision_id} was undone by {undone_by} already.")
    connection.execute(update(decisions).where(decisions.c.id == decision_id).values(undone_by=by))


def scrub(connection: Connection, user_id: int, segment_ids: Sequence[int]) -> None:
    """Take the words out of all decisions about forgotten segments; ids and numbers stay."""
    for portion in portions(segment_ids):
        query = _select(user_id).with_only_columns(
            decisions.c.id, decisions.c.decision, decisions.c.effect
        )
        changed = []
        for row in connection.execute(query.where(_of_segments(portion))):
            old = encoding.decision_from_json(row.decision)
            evidence = {key: encoding.without_text(value) for key, value in old.evidence.items()}
            bare = Decision(
                old.action, old.segment_ids, old.source, maker=old.maker, evidence=evidence
            )
            effect = encoding.without_text(encoding.load(row.effect, "The effect of a decision"))
            values = {
                "decision": encoding.decision_to_json(bare),
                "effect": encoding.dump(effect, "The effect of a decision"),
            }
            if (values["decision"], values["effect"]) != (row.decision, row.effect):
                changed.append({"changed": row.id, **values})
        _change(connection, changed)


def _change(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Set columns of decisions, each row's of the one that is `changed`."""
    if rows:
        each = update(decisions).where(decisions.c.id == bindparam("changed"))
        connection.execute(each, rows)


def decided_since(
    connection: Connection, user_id: int, segment_ids: Sequence[int]
) -> dict[int, int]:
    """Per session in which decisions were made about segments, the turn of the first."""
    found: dict[int, int] = {}
    for portion in portions(segment_ids):
        query = (
            _select(user_id)
            .with_only_columns(decisions.c.session_id, func.min(decisions.c.turn))
            .where(_of_segments(portion))
            .group_by(decisions.c.session_id)
        )
        for session_id, turn in connection.execute(query):
            found[session_id] = min(turn, found.get(session_id, turn))
    return found


def scrub_answers(connection: Connection, session_id: int, turn: int) -> None:
    """Take what models answered out of the costs of decisions from this turn on; numbers stay.

    A review shows a model more than it decides about, and an answer may quote any of it.
    """
    query = select(decisions.c.id, decisions.c.cost).where(
        decisions.c.session_id == session_id, decisions.c.turn >= turn
    )
    changed = []
    for decision_id, text in connection.execute(query):
        cost = encoding.load(text, "The cost of a decision")
        bare = encoding.without_text(cost)
        if bare != cost:
            values = {"cost": encoding.dump(bare, "The cost of a decision")}
            changed.append({"changed": decision_id, **values})
    _change(connection, changed)
