"""name viewers of deliveries

Revision ID: 0028
Revises: 0027
Create Date: 2026-11-24 12:40:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("webhook_deliveries", sa.Column("viewed_by", Id, nullable=True))


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("webhook_deliveries", "viewed_by")
