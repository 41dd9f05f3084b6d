"""Facts in SQL: statements as evidence, and the spans that `timeline` makes of them.

A statement is never changed and never deleted but by forgetting its segment. Whenever the evidence
about a thing changes, its facts are laid out anew; a fact keeps its id as long as it has evidence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.dialects.sqlite import insert as insert_or

from agentmem.segment import Trust
from agentmem.storage.ids import as_ids, is_id, portions
from agentmem.storage.rows import Fact, Source
from agentmem.storage.schema import AnySelect, fact_reads, fact_sources, facts, segments
from agentmem.storage.segments import FORGOTTEN, are_of, select_segments
from agentmem.storage.timeline import order, timeline

_sources = select(
    fact_sources.c.fact_id,
    fact_sources.c.subject,
    fact_sources.c.value,
    fact_sources.c.statement,
    fact_sources.c.segment_id,
    fact_sources.c.written_by,
    fact_sources.c.ordinal,
    fact_sources.c.ended,
    segments.c.turn,
    segments.c.created,
    segments.c.trust,
).join(segments, segments.c.id == fact_sources.c.segment_id)


def load(
    connection: Connection, user_id: int, segment_ids: Iterable[int] | None = None
) -> list[Fact]:
    """A user's facts by id: all, or those about what was said in some segments."""
    query = select(facts).where(facts.c.user_id == user_id).order_by(facts.c.id)
    if segment_ids is None:
        return _assemble(connection, user_id, query)
    wanted = abouts(connection, user_id, segment_ids)
    return [
        fact
        for portion in portions(sorted(wanted))
        for fact in _assemble(connection, user_id, query.where(facts.c.about.in_(portion)))
    ]


def abouts(connection: Connection, user_id: int, segment_ids: Iterable[int]) -> set[int]:
    """The numbers of the things that were spoken of in some segments."""
    found: set[int] = set()
    for portion in portions(as_ids(list(segment_ids))):
        query = (
            select(facts.c.about)
            .join(fact_sources, fact_sources.c.fact_id == facts.c.id)
            .where(fact_sources.c.user_id == user_id, fact_sources.c.segment_id.in_(portion))
        )
        found.update(connection.execute(query).scalars())
    return found


def _assemble(connection: Connection, user_id: int, query: AnySelect) -> list[Fact]:
    rows = connection.execute(query).all()
    said: dict[int, list[Source]] = defaultdict(list)
    for portion in portions([row.id for row in rows]):
        mine = _sources.where(
            fact_sources.c.user_id == user_id, fact_sources.c.fact_id.in_(portion)
        )
        for (
            fact_id,
            subject,
            value,
            text,
            segment_id,
            by,
            ordinal,
            ended,
            turn,
            at,
            trust,
        ) in connection.execute(mine):
            said[fact_id].append(
                Source(
                    subject,
                    value,
                    text,
                    segment_id,
                    by,
                    ordinal,
                    bool(ended),
                    turn,
                    at,
                    Trust(trust),
                )  # fmt: skip
            )
    return [
        Fact(
            row.id, row.about, tuple(sorted(said[row.id], key=order)), row.valid_from, row.valid_to
        )
        for row in rows
        if said[row.id]
    ]


def add(connection: Connection, user_id: int, about: int | None, source: Source) -> int:
    """Take in a statement about a thing that is known by its number, or about a new one.

    Returns:
        The number of what it is about. A statement that is on record already adds nothing.
    """
    known = (
        select(facts.c.about)
        .join(fact_sources, fact_sources.c.fact_id == facts.c.id)
        .where(
            fact_sources.c.user_id == user_id,
            fact_sources.c.segment_id == source.segment_id,
            fact_sources.c.written_by == source.written_by,
            fact_sources.c.ordinal == source.ordinal,
        )
    )
    if (recorded := connection.execute(known).scalar()) is not None:
        return int(recorded)
    inserted = connection.execute(
        insert(facts).values(user_id=user_id, about=about or 0)
    ).inserted_primary_key
    assert inserted is not None
    fact_id = int(inserted[0])
    if about is None:
        about = fact_id
        connection.execute(update(facts).where(facts.c.id == fact_id).values(about=about))
    connection.execute(
        insert(fact_sources).values(
            user_id=user_id,
            segment_id=source.segment_id,
            written_by=source.written_by,
            ordinal=source.ordinal,
            fact_id=fact_id,
            subject=source.subject,
            value=source.value,
            statement=source.text,
            ended=int(source.ended),
        )
    )
    return about


def is_known(connection: Connection, user_id: int, about: int) -> bool:
    """Whether a user has facts about the thing of this number."""
    query = select(facts.c.id).where(facts.c.user_id == user_id, facts.c.about == about)
    return is_id(about) and connection.execute(query.limit(1)).first() is not None


def settle(connection: Connection, user_id: int, about: int) -> list[int]:
    """Lay the facts about a thing out anew; the segments that state what changed."""
    mine = (facts.c.user_id == user_id, facts.c.about == about)
    known = _assemble(connection, user_id, select(facts).where(*mine).order_by(facts.c.id))
    fact_of = {order(source): fact.id for fact in known for source in fact.sources}
    held = {fact.id: (fact.valid_from, fact.valid_to) for fact in known}
    used: set[int] = set()
    changed: set[int] = set()
    held_anew: list[dict[str, object]] = []
    moved: list[dict[str, object]] = []
    for span in timeline(source for fact in known for source in fact.sources):
        ids = sorted({fact_of[order(source)] for source in span.sources} - used)
        interval = {"valid_from": span.valid_from, "valid_to": span.valid_to}
        if ids:
            fact_id = ids[0]
            is_new = held[fact_id] != (span.valid_from, span.valid_to)
            if is_new:
                held_anew.append({"changed": fact_id, **interval})
        else:
            values = {"user_id": user_id, "about": about, **interval}
            key = connection.execute(insert(facts).values(values)).inserted_primary_key
            assert key is not None
            fact_id, is_new = int(key[0]), True
        used.add(fact_id)
        come = [source for source in span.sources if fact_of[order(source)] != fact_id]
        moved += [
            {
                "said_in": source.segment_id,
                "by": source.written_by,
                "at": source.ordinal,
                "fact_id": fact_id,
            }
            for source in come
        ]
        if is_new or come:
            changed.update(source.segment_id for source in span.sources)
    if held_anew:
        connection.execute(update(facts).where(facts.c.id == bindparam("changed")), held_anew)
    if moved:
        source_ = (
            fact_sources.c.user_id == user_id,
            fact_sources.c.segment_id == bindparam("said_in"),
            fact_sources.c.written_by == bindparam("by"),
            fact_sources.c.ordinal == bindparam("at"),
        )
        connection.execute(update(fact_sources).where(*source_), moved)
    left = set(connection.execute(select(facts.c.id).where(*mine)).scalars()) - used
    for portion in portions(sorted(left)):
        connection.execute(delete(facts).where(facts.c.id.in_(portion)))
    return sorted(changed)


def stated_in(connection: Connection, user_id: int, about: int) -> list[int]:
    """The segments that state anything about a thing, by id."""
    query = (
        select(fact_sources.c.segment_id)
        .join(facts, facts.c.id == fact_sources.c.fact_id)
        .where(facts.c.user_id == user_id, facts.c.about == about)
        .distinct()
    )
    return list(connection.execute(query.order_by(fact_sources.c.segment_id)).scalars())


def remove_sources(connection: Connection, user_id: int, segment_ids: Sequence[int]) -> None:
    """Delete every statement said in some segments, and that they were read."""
    for portion in portions(as_ids(segment_ids)):
        for table in (fact_sources, fact_reads):
            connection.execute(
                delete(table).where(table.c.user_id == user_id, table.c.segment_id.in_(portion))
            )


def remove_all(connection: Connection, user_id: int) -> None:
    """Delete every fact of a user, with its statements."""
    connection.execute(delete(facts).where(facts.c.user_id == user_id))


def mark_read(connection: Connection, user_id: int, segment_id: int, extractor: str) -> None:
    """Note that an extractor has read a segment."""
    values = {"user_id": user_id, "segment_id": segment_id, "extractor": extractor}
    connection.execute(insert_or(fact_reads).values(values).on_conflict_do_nothing())


def unread(user_id: int, extractor: str, after: int) -> AnySelect:
    """What a user said, above segment `after`, that an extractor has not read; by id."""
    read = select(fact_reads.c.segment_id).where(
        fact_reads.c.user_id == user_id,
        fact_reads.c.segment_id == segments.c.id,
        fact_reads.c.extractor == extractor,
    )
    return (
        select_segments(user_id)
        .where(
            segments.c.id > after,
            segments.c.kind == "turn",
            segments.c.origin == "user",
            ~read.exists(),
        )
        .order_by(segments.c.id)
    )


def echoes(connection: Connection, user_id: int, segment_ids: Sequence[int]) -> dict[int, int]:
    """Replies of the turns that some segments were said in, each with the segment it answers."""
    found: dict[int, int] = {}
    reply = segments.alias("reply")
    for portion in portions(as_ids(segment_ids)):
        query = (
            select(reply.c.id, segments.c.id)
            .join(
                reply,
                (reply.c.session_id == segments.c.session_id) & (reply.c.turn == segments.c.turn),
            )
            .where(
                are_of(user_id, portion),
                reply.c.origin == "assistant",
                reply.c.kind == "turn",
                reply.c.state != FORGOTTEN,
            )
        )
        found.update((each, segment_id) for each, segment_id in connection.execute(query))
    return found


def misplaced(connection: Connection) -> list[int]:
    """Facts of any user that are not what their evidence makes of them, by id."""
    wrong: list[int] = []
    pairs = select(facts.c.user_id, facts.c.about).distinct()
    for user_id, about in connection.execute(pairs).all():
        mine = (facts.c.user_id == user_id, facts.c.about == about)
        query = select(facts).where(*mine).order_by(facts.c.id)
        known = _assemble(connection, user_id, query)
        spans = timeline(source for fact in known for source in fact.sources)
        expected = {(tuple(span.sources), span.valid_from, span.valid_to) for span in spans}
        right = {
            fact.id for fact in known if (fact.sources, fact.valid_from, fact.valid_to) in expected
        }
        wrong += sorted(set(connection.execute(select(facts.c.id).where(*mine)).scalars()) - right)
    return wrong
