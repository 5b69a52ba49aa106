"""show requests of deliveries

Revision ID: 0038
Revises: 0037
Create Date: 2026-11-26 08:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

DELIVERIES, ATTEMPTS = "webhook_deliveries", "webhook_attempts"
INDEXES = {
    "ix_webhook_deliveries_undelivered": (
        ["account_id", "webhook_id", "id"],
        "status IN ('failed', 'retrying')",
    ),
    "ix_webhook_deliveries_record": (
        ["account_id", "record_id", "id"],
        "record_id IS NOT NULL",
    ),
}


def upgrade() -> None:
    """Apply the revision."""
    op.add_column(DELIVERIES, sa.Column("record_id", Id, nullable=True))
    op.add_column(ATTEMPTS, sa.Column("request", sa.JSON(none_as_null=True), nullable=True))
    for name, (columns, where) in INDEXES.items():
        condition = sa.text(where)
        op.create_index(
            name, DELIVERIES, columns, sqlite_where=condition, postgresql_where=condition
        )


def downgrade() -> None:
    """Revert the revision."""
    for name in INDEXES:
        op.drop_index(name, DELIVERIES)
    op.drop_column(ATTEMPTS, "request")
    op.drop_column(DELIVERIES, "record_id")
