"""Archival passages in SQL: segments of their own, found by their tags."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects.sqlite import insert

from agentmem.storage.ids import portions
from agentmem.storage.schema import passage_tags, segments
from agentmem.storage.segments import select_segments


def add_tags(connection: Connection, user_id: int, segment_id: int, tags: Sequence[str]) -> None:
    """File a passage under tags; those it has already add nothing."""
    rows = [{"user_id": user_id, "tag": tag, "segment_id": segment_id} for tag in tags]
    if rows:
        connection.execute(insert(passage_tags).on_conflict_do_nothing(), rows)


def tags_of(connection: Connection, user_id: int, ids: Sequence[int]) -> dict[int, list[str]]:
    """The tags of those of the segments that have any, each list in order."""
    found: dict[int, list[str]] = {}
    for portion in portions(ids):
        query = (
            select(passage_tags.c.segment_id, passage_tags.c.tag)
            .where(passage_tags.c.user_id == user_id, passage_tags.c.segment_id.in_(portion))
            .order_by(passage_tags.c.segment_id, passage_tags.c.tag)
        )
        for segment_id, tag in connection.execute(query):
            found.setdefault(segment_id, []).append(tag)
    return found


def ids(
    connection: Connection, user_id: int, tags: Sequence[str], content_hash: str | None
) -> list[int]:
    """Ids of a user's passages that have all the tags, and the content if one is named."""
    query = select_segments(user_id).with_only_columns(segments.c.id)
    query = query.where(segments.c.kind == "passage")
    for tag in tags:
        tagged = select(passage_tags.c.segment_id).where(
            passage_tags.c.user_id == user_id, passage_tags.c.tag == tag
        )
        query = query.where(segments.c.id.in_(tagged))
    if content_hash is not None:
        query = query.where(segments.c.content_hash == content_hash)
    return list(connection.execute(query.order_by(segments.c.id)).scalars())


def remove_tags(connection: Connection, segment_id: int) -> None:
    """Delete the tags of a passage."""
    connection.execute(delete(passage_tags).where(passage_tags.c.segment_id == segment_id))


def misfiled(connection: Connection) -> list[int]:
    """Segments with tags, of all users, that are no passages of the tags' user."""
    query = (
        select(passage_tags.c.segment_id)
        .join(segments, segments.c.id == passage_tags.c.segment_id)
        .where((segments.c.kind != "passage") | (segments.c.user_id != passage_tags.c.user_id))
        .distinct()
        .order_by(passage_tags.c.segment_id)
    )
    return list(connection.execute(query).scalars())
