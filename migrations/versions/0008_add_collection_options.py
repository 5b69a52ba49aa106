"""add collection options

Revision ID: 0008
Revises: 0007
Create Date: 2026-11-21 16:55:00.000000
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    options = sa.Column("options", sa.JSON(), nullable=False, server_default="{}")
    op.add_column("collections", options)


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("collections", "options")
