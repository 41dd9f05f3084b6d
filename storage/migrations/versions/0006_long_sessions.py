"""Indexes by which a turn, and the states of a session, are found without walking the session."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.drop_index(op.f("ix_segments_session_id"), "segments")
    op.create_index(op.f("ix_segments_session_id_turn"), "segments", ["session_id", "turn"])
    op.create_index(op.f("ix_segments_session_id_state"), "segments", ["session_id", "state"])
    op.execute("PRAGMA user_version=6")
