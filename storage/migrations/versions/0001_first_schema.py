"""First schema: sessions, turns, segments, words, embeddings, windows, decisions, changes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "spaces",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("dim", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_spaces")),
        sa.UniqueConstraint("name", name=op.f("uq_spaces_name")),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_table(
        "users",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("name", name=op.f("uq_users_name")),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_table(
        "changes",
        sa.Column("sn", sa.Integer(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("op", sa.Text(), nullable=False),
        sa.Column("segment_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_changes_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("sn", name=op.f("pk_changes")),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_changes_user_id_sn"), "changes", ["user_id", "sn"], unique=False)
    op.create_table(
        "sessions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created", sa.REAL(), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_sessions_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        sa.UniqueConstraint("user_id", "name", name=op.f("uq_sessions_user_id_name")),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_table(
        "decisions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("window_before", sa.Text(), nullable=False),
        sa.Column("window_after", sa.Text(), nullable=False),
        sa.Column("states_before", sa.Text(), nullable=False),
        sa.Column("effect", sa.Text(), nullable=False),
        sa.Column("cost", sa.Text(), nullable=False),
        sa.Column("undone_by", sa.Integer(), nullable=True),
        sa.Column("created", sa.REAL(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
            name=op.f("fk_decisions_session_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_decisions_session_id"), "decisions", ["session_id"], unique=False)
    op.create_table(
        "leases",
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("since", sa.REAL(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_leases_session_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_leases")),
        sqlite_strict=True,
    )
    op.create_table(
        "segments",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("trust", sa.Integer(), nullable=False),
        sa.Column("created", sa.REAL(), nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("pinned", sa.Integer(), nullable=False),
        sa.Column("kept_until", sa.Integer(), nullable=False),
        sa.Column("recalls", sa.Integer(), nullable=False),
        sa.Column("used_turn", sa.Integer(), nullable=False),
        sa.Column("searchable", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_segments_session_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_segments_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_segments")),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_segments_session_id"), "segments", ["session_id"], unique=False)
    op.create_index(op.f("ix_segments_user_id"), "segments", ["user_id"], unique=False)
    op.create_table(
        "turns",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("reply", sa.Text(), nullable=True),
        sa.Column("created", sa.REAL(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_turns_session_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_turns")),
        sa.UniqueConstraint("session_id", "key", name=op.f("uq_turns_session_id_key")),
        sa.UniqueConstraint("session_id", "number", name=op.f("uq_turns_session_id_number")),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_table(
        "decided",
        sa.Column("decision_id", sa.Integer(), nullable=False),
        sa.Column("segment_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["decision_id"],
            ["decisions.id"],
            name=op.f("fk_decided_decision_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("decision_id", "segment_id", name=op.f("pk_decided")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_decided_segment_id"), "decided", ["segment_id"], unique=False)
    op.create_table(
        "embeddings",
        sa.Column("space_id", sa.Integer(), nullable=False),
        sa.Column("segment_id", sa.Integer(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["segment_id"],
            ["segments.id"],
            name=op.f("fk_embeddings_segment_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["space_id"], ["spaces.id"], name=op.f("fk_embeddings_space_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("space_id", "segment_id", name=op.f("pk_embeddings")),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_embeddings_segment_id"), "embeddings", ["segment_id"], unique=False)
    op.create_table(
        "lineage",
        sa.Column("child_id", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("parent_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["child_id"], ["segments.id"], name=op.f("fk_lineage_child_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["parent_id"], ["segments.id"], name=op.f("fk_lineage_parent_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("child_id", "ordinal", name=op.f("pk_lineage")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_lineage_parent_id"), "lineage", ["parent_id"], unique=False)
    op.create_table(
        "messages",
        sa.Column("segment_id", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("tool_calls", sa.Text(), nullable=True),
        sa.Column("tool_call_id", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["segment_id"], ["segments.id"], name=op.f("fk_messages_segment_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("segment_id", "ordinal", name=op.f("pk_messages")),
        sqlite_strict=True,
    )
    op.create_table(
        "windows",
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("segment_id", sa.Integer(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("via", sa.Text(), nullable=False),
        sa.Column("until_turn", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["segment_id"], ["segments.id"], name=op.f("fk_windows_segment_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["sessions.id"], name=op.f("fk_windows_session_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", "ordinal", name=op.f("pk_windows")),
        sa.UniqueConstraint(
            "session_id", "segment_id", name=op.f("uq_windows_session_id_segment_id")
        ),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_windows_segment_id"), "windows", ["segment_id"], unique=False)
    op.create_table(
        "words",
        sa.Column("segment_id", sa.Integer(), nullable=False),
        sa.Column("analyzer", sa.Integer(), nullable=False),
        sa.Column("terms", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["segment_id"], ["segments.id"], name=op.f("fk_words_segment_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("segment_id", name=op.f("pk_words")),
        sqlite_strict=True,
    )
    op.execute("PRAGMA user_version=1")
