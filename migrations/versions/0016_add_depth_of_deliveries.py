"""add depth of deliveries

Revision ID: 0016
Revises: 0015
Create Date: 2026-11-22 02:30:00.000000
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    depth = sa.Column("depth", sa.Integer(), nullable=False, server_default="0")
    op.add_column("webhook_deliveries", depth)


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("webhook_deliveries", "depth")
