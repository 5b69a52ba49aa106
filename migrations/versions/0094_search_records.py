"""note whose words of records are being stored

Revision ID: 0094
Revises: 0093
Create Date: 2026-11-30 18:20:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0094"
down_revision = "0093"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("collections", sa.Column("indexing", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("collections", "indexing")
