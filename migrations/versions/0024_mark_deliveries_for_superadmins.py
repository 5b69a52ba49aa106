"""mark deliveries for superadmins

Revision ID: 0024
Revises: 0023
Create Date: 2026-11-24 13:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    marked = sa.Column("for_superadmins", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("webhook_deliveries", marked)


def downgrade() -> None:
    """Take the revision back."""
    op.drop_column("webhook_deliveries", "for_superadmins")
