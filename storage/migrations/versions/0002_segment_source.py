"""Where an imported segment came from: the file's hash and name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.add_column("segments", sa.Column("source", sa.Text(), nullable=True))
    op.execute("PRAGMA user_version=2")
