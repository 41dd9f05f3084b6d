"""The tables of the archive. SQL is the only truth: vectors, words in memory and KV follow it.

Ids are never used again (AUTOINCREMENT), so an id in a log, a cache or another tier can only mean
the one segment it was given to. Columns of JSON are TEXT; booleans are 0 or 1.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    REAL,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    Select,
    Table,
    Text,
)
from sqlalchemy.schema import ForeignKeyConstraint, UniqueConstraint

AnyRow = Row[*tuple[Any, ...]]
AnySelect = Select[*tuple[Any, ...]]

SCHEMA_VERSION = 6
"""The newest revision in `migrations/versions`, also kept as SQLite's `user_version`."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_NUMBERED: dict[str, Any] = {"sqlite_strict": True, "sqlite_autoincrement": True}
_KEYED: dict[str, Any] = {"sqlite_strict": True, "sqlite_with_rowid": False}


def _id() -> Column[int]:
    return Column("id", Integer, primary_key=True)


def _to(name: str, target: str, *, primary_key: bool = False) -> Column[int]:
    key = ForeignKey(target, ondelete="CASCADE")
    return Column(name, Integer, key, primary_key=primary_key, nullable=False)


def _integer(name: str, *, primary_key: bool = False) -> Column[int]:
    return Column(name, Integer, primary_key=primary_key, nullable=False)


def _text(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, Text, nullable=nullable)


def _seconds(name: str) -> Column[float]:
    return Column(name, REAL, nullable=False)


users = Table("users", metadata, _id(), _text("name"), UniqueConstraint("name"), **_NUMBERED)

sessions = Table(
    "sessions",
    metadata,
    _id(),
    _to("user_id", "users.id"),
    _text("name"),
    _seconds("created"),
    _text("settings"),
    UniqueConstraint("user_id", "name"),
    **_NUMBERED,
)

leases = Table(
    "leases",
    metadata,
    _to("session_id", "sessions.id", primary_key=True),
    _text("host"),
    _integer("pid"),
    _seconds("since"),
    sqlite_strict=True,
)

turns = Table(
    "turns",
    metadata,
    _id(),
    _to("session_id", "sessions.id"),
    _integer("number"),
    _text("key"),
    _text("text"),
    _text("reply", nullable=True),
    _seconds("created"),
    UniqueConstraint("session_id", "key"),
    UniqueConstraint("session_id", "number"),
    **_NUMBERED,
)

segments = Table(
    "segments",
    metadata,
    _id(),
    _to("user_id", "users.id"),
    _to("session_id", "sessions.id"),
    _integer("turn"),
    _text("kind"),
    _text("origin"),
    _integer("trust"),
    _seconds("created"),
    _text("content_hash"),
    _text("state"),
    _integer("pinned"),
    _integer("kept_until"),
    _integer("recalls"),
    _integer("used_turn"),
    _integer("searchable"),
    _text("source", nullable=True),
    Index(None, "session_id", "turn"),
    Index(None, "session_id", "state"),
    Index(None, "user_id"),
    **_NUMBERED,
)

messages = Table(
    "messages",
    metadata,
    _to("segment_id", "segments.id", primary_key=True),
    _integer("ordinal", primary_key=True),
    _text("role"),
    _text("content"),
    _text("tool_calls", nullable=True),
    _text("tool_call_id", nullable=True),
    sqlite_strict=True,
)

lineage = Table(
    "lineage",
    metadata,
    _to("child_id", "segments.id", primary_key=True),
    _integer("ordinal", primary_key=True),
    _to("parent_id", "segments.id"),
    Index(None, "parent_id"),
    **_KEYED,
)

words = Table(
    "words",
    metadata,
    _to("segment_id", "segments.id", primary_key=True),
    _integer("analyzer"),
    _text("terms"),
    sqlite_strict=True,
)

spaces = Table(
    "spaces",
    metadata,
    _id(),
    _text("name"),
    _integer("dim"),
    UniqueConstraint("name"),
    **_NUMBERED,
)

embeddings = Table(
    "embeddings",
    metadata,
    _to("space_id", "spaces.id", primary_key=True),
    _to("segment_id", "segments.id", primary_key=True),
    Column("vector", LargeBinary, nullable=False),
    Column("sha256", LargeBinary, nullable=False),
    Index(None, "segment_id"),
    sqlite_strict=True,
)

windows = Table(
    "windows",
    metadata,
    _to("session_id", "sessions.id", primary_key=True),
    _integer("ordinal", primary_key=True),
    _to("segment_id", "segments.id"),
    _integer("place"),
    _text("via"),
    Column("until_turn", Integer),
    UniqueConstraint("session_id", "segment_id"),
    Index(None, "segment_id"),
    **_KEYED,
)

decisions = Table(
    "decisions",
    metadata,
    _id(),
    _to("session_id", "sessions.id"),
    _integer("turn"),
    _text("decision"),
    _text("window_before"),
    _text("window_after"),
    _text("states_before"),
    _text("effect"),
    _text("cost"),
    Column("undone_by", Integer),
    _seconds("created"),
    Index(None, "session_id"),
    **_NUMBERED,
)

decided = Table(
    "decided",
    metadata,
    _to("decision_id", "decisions.id", primary_key=True),
    # No foreign key: the log outlives the segments it speaks of.
    _integer("segment_id", primary_key=True),
    Index(None, "segment_id"),
    **_KEYED,
)

blocks = Table(
    "blocks",
    metadata,
    _to("user_id", "users.id", primary_key=True),
    Column("label", Text, primary_key=True, nullable=False),
    _text("description"),
    _integer("max_tokens"),
    # Of the newest edit ever made: a number is never used again.
    _integer("version"),
    **_KEYED,
)

block_edits = Table(
    "block_edits",
    metadata,
    _integer("user_id", primary_key=True),
    Column("label", Text, primary_key=True, nullable=False),
    _integer("version", primary_key=True),
    _to("session_id", "sessions.id"),
    _integer("turn"),
    # None where the edit left the block empty.
    Column("segment_id", Integer, ForeignKey("segments.id", ondelete="CASCADE")),
    _text("operation"),
    Column("restored", Integer),
    _text("maker"),
    _text("reason"),
    _seconds("created"),
    ForeignKeyConstraint(
        ["user_id", "label"], ["blocks.user_id", "blocks.label"], ondelete="CASCADE"
    ),
    Index(None, "segment_id"),
    Index(None, "session_id"),
    **_KEYED,
)

passage_tags = Table(
    "passage_tags",
    metadata,
    _to("user_id", "users.id", primary_key=True),
    Column("tag", Text, primary_key=True, nullable=False),
    _to("segment_id", "segments.id", primary_key=True),
    Index(None, "segment_id"),
    **_KEYED,
)

facts = Table(
    "facts",
    metadata,
    _id(),
    _to("user_id", "users.id"),
    # Facts about the same thing share a number: the id of the first of them, which may be gone.
    _integer("about"),
    Column("valid_from", REAL),
    Column("valid_to", REAL),
    Index(None, "user_id", "about"),
    **_NUMBERED,
)

fact_sources = Table(
    "fact_sources",
    metadata,
    _to("user_id", "users.id", primary_key=True),
    _to("segment_id", "segments.id", primary_key=True),
    Column("written_by", Text, primary_key=True, nullable=False),
    _integer("ordinal", primary_key=True),
    _to("fact_id", "facts.id"),
    _text("subject"),
    _text("value", nullable=True),
    _text("statement"),
    _integer("ended"),
    Index(None, "segment_id"),
    Index(None, "fact_id"),
    **_KEYED,
)

fact_reads = Table(
    "fact_reads",
    metadata,
    _to("user_id", "users.id", primary_key=True),
    _to("segment_id", "segments.id", primary_key=True),
    Column("extractor", Text, primary_key=True, nullable=False),
    Index(None, "segment_id"),
    **_KEYED,
)

changes = Table(
    "changes",
    metadata,
    Column("sn", Integer, primary_key=True),
    _to("user_id", "users.id"),
    _text("op"),
    # No foreign key: that a segment is gone is the change.
    _integer("segment_id"),
    Index(None, "user_id", "sn"),
    **_NUMBERED,
)

recordings = Table(
    "recordings",
    metadata,
    _id(),
    _to("session_id", "sessions.id"),
    _seconds("created"),
    # What the counters stood at before the commit: ids are given out store-wide.
    _integer("segments"),
    _integer("decisions"),
    _integer("facts"),
    _integer("changes"),
    # What was changed since, others changed.
    _integer("last_change"),
    Column("body", LargeBinary, nullable=False),
    Index(None, "session_id"),
    **_NUMBERED,
)
