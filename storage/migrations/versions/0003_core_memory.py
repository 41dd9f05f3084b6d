"""Core memory: blocks and their edits, tags of archival passages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "blocks",
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("max_tokens", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_blocks_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("user_id", "label", name=op.f("pk_blocks")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "block_edits",
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("segment_id", sa.Integer(), nullable=True),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("restored", sa.Integer(), nullable=True),
        sa.Column("maker", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created", sa.REAL(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id", "label"],
            ["blocks.user_id", "blocks.label"],
            name=op.f("fk_block_edits_user_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["segment_id"],
            ["segments.id"],
            name=op.f("fk_block_edits_segment_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
            name=op.f("fk_block_edits_session_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("user_id", "label", "version", name=op.f("pk_block_edits")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_block_edits_segment_id"), "block_edits", ["segment_id"])
    op.create_index(op.f("ix_block_edits_session_id"), "block_edits", ["session_id"])
    op.create_table(
        "passage_tags",
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.Column("segment_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["segment_id"],
            ["segments.id"],
            name=op.f("fk_passage_tags_segment_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_passage_tags_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("user_id", "tag", "segment_id", name=op.f("pk_passage_tags")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_passage_tags_segment_id"), "passage_tags", ["segment_id"])
    op.execute("PRAGMA user_version=3")
