"""add collection indexes

Revision ID: 0032
Revises: 0031
Create Date: 2026-11-25 19:30:00.000000
"""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    indexes = sa.Column("indexes", sa.JSON(), nullable=False, server_default="[]")
    op.add_column("collections", indexes)


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("collections", "indexes")
