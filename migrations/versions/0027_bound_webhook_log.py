"""bound webhook log

Revision ID: 0027
Revises: 0026
Create Date: 2026-11-24 12:30:00.000000
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

TABLE, INDEX = "webhook_deliveries", "ix_webhook_deliveries_log"
COLUMNS = ["account_id", "webhook_id", "id"]


def upgrade() -> None:
    """Apply the revision."""
    cut = sa.Column("payloads_cut", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("webhook_versions", cut)
    # Covering: SQLite must read the whole payload to reach the columns after it.
    op.drop_index(INDEX, TABLE)
    op.create_index(INDEX, TABLE, [*COLUMNS, "status", "size"])


def downgrade() -> None:
    """Revert the revision."""
    op.drop_index(INDEX, TABLE)
    op.create_index(INDEX, TABLE, COLUMNS)
    op.drop_column("webhook_versions", "payloads_cut")
