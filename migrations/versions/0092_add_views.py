"""add collections of type view

Revision ID: 0092
Revises: 0091
Create Date: 2026-11-30 18:10:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0092"
down_revision = "0091"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("collections", sa.Column("view", sa.JSON()))


def downgrade() -> None:
    """Revert the revision; views are lost, which have no records."""
    op.execute("DELETE FROM collections WHERE view IS NOT NULL")
    op.drop_column("collections", "view")
