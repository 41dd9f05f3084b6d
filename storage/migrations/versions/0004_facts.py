"""Facts: what was stated, the segments it was stated in, and which segments were read for it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "facts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("about", sa.Integer(), nullable=False),
        sa.Column("valid_from", sa.REAL(), nullable=True),
        sa.Column("valid_to", sa.REAL(), nullable=True),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_facts_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_facts")),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_facts_user_id_about"), "facts", ["user_id", "about"], unique=False)
    op.create_table(
        "fact_sources",
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("segment_id", sa.Integer(), nullable=False),
        sa.Column("written_by", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("fact_id", sa.Integer(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=True),
        sa.Column("statement", sa.Text(), nullable=False),
        sa.Column("ended", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_fact_sources_user_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["segment_id"],
            ["segments.id"],
            name=op.f("fk_fact_sources_segment_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["fact_id"], ["facts.id"], name=op.f("fk_fact_sources_fact_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint(
            "user_id", "segment_id", "written_by", "ordinal", name=op.f("pk_fact_sources")
        ),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    for column in ("segment_id", "fact_id"):
        name = op.f(f"ix_fact_sources_{column}")
        op.create_index(name, "fact_sources", [column], unique=False)
    op.create_table(
        "fact_reads",
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column("segment_id", sa.Integer(), nullable=False),
        sa.Column("extractor", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_fact_reads_user_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["segment_id"],
            ["segments.id"],
            name=op.f("fk_fact_reads_segment_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("user_id", "segment_id", "extractor", name=op.f("pk_fact_reads")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_fact_reads_segment_id"), "fact_reads", ["segment_id"], unique=False)
    op.execute("PRAGMA user_version=4")
