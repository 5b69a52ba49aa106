"""add former names

Revision ID: 0035
Revises: 0034
Create Date: 2026-11-26 02:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    names = sa.Column("former_names", sa.JSON(), nullable=False, server_default="[]")
    op.add_column("collections", names)


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("collections", "former_names")
