"""name superadmins of deliveries

Revision ID: 0024
Revises: 0023
Create Date: 2026-11-24 13:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("webhook_deliveries", sa.Column("superadmin_id", Id, nullable=True))


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("webhook_deliveries", "superadmin_id")
