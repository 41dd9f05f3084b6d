"""The terms of each searchable segment in SQL: an index is rebuilt without reading texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, delete, func, insert, select

from agentmem.segment import Segment
from agentmem.storage.ids import portions
from agentmem.storage.schema import segments, words
from agentmem.storage.segments import FORGOTTEN, are_of, assemble, select_segments, select_these
from agentmem.storage.terms import ANALYZER, analyze

_insert = insert(words)


def add(connection: Connection, segment: Segment) -> None:
    """Store the terms of a segment."""
    terms = " ".join(analyze(segment.text))
    values = {"segment_id": segment.id, "analyzer": ANALYZER, "terms": terms}
    connection.execute(_insert, values)


def remove(connection: Connection, segment_id: int) -> None:
    """Delete the terms of a segment."""
    connection.execute(delete(words).where(words.c.segment_id == segment_id))


def load(
    connection: Connection, user_id: int, ids: Sequence[int]
) -> Iterator[tuple[int, list[str]]]:
    """Terms of those of the segments that are the user's and searchable.

    Terms that are missing, or of another version of the analyzer, are made again from the text.
    """
    for portion in portions(ids):
        query = (
            select(segments.c.id, words.c.analyzer, words.c.terms)
            .outerjoin(words, words.c.segment_id == segments.c.id)
            .where(
                are_of(user_id, portion),
                segments.c.searchable == 1,
                segments.c.state != FORGOTTEN,
            )
            .order_by(segments.c.id)
        )
        stale = []
        for segment_id, analyzer, terms in connection.execute(query).all():
            if analyzer == ANALYZER:
                yield segment_id, terms.split(" ") if terms else []
            else:
                stale.append(segment_id)
        if stale:
            rows = connection.execute(select_these(user_id, stale))
            for stored in assemble(connection, rows.all()):
                yield stored.segment.id, analyze(stored.segment.text)


def searchable_ids(connection: Connection, user_id: int) -> list[int]:
    """Ids of all segments of a user that word search may find."""
    query = select_segments(user_id).with_only_columns(segments.c.id)
    rows = connection.execute(query.where(segments.c.searchable == 1).order_by(segments.c.id))
    return list(rows.scalars())


def count_missing(connection: Connection) -> int:
    """Searchable segments of all users without terms."""
    query = (
        select(func.count())
        .select_from(segments.outerjoin(words, words.c.segment_id == segments.c.id))
        .where(
            segments.c.searchable == 1,
            segments.c.state != FORGOTTEN,
            words.c.segment_id.is_(None),
        )
    )
    return connection.execute(query).scalar_one()
