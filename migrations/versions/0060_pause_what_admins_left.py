"""pause webhooks and security-log streams whose maker is no admin any more

Revision ID: 0060
Revises: 0059
Create Date: 2026-11-29 01:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id, UtcDateTime

revision = "0060"
down_revision = "0059"
branch_labels = None
depends_on = None

TABLES = ("webhooks", "security_streams")


def upgrade() -> None:
    """Apply the revision; nobody knows who made the streams there are, so none is paused."""
    for table in TABLES:
        op.add_column(table, sa.Column("paused_at", UtcDateTime(), nullable=True))
    op.add_column("security_streams", sa.Column("created_by", Id, nullable=True))


def downgrade() -> None:
    """Revert the revision; what was paused is disabled, as earlier versions would send it."""
    op.execute("UPDATE webhooks SET enabled = false WHERE paused_at IS NOT NULL")
    op.execute("UPDATE security_streams SET is_enabled = false WHERE paused_at IS NOT NULL")
    op.drop_column("security_streams", "created_by")
    for table in reversed(TABLES):
        op.drop_column(table, "paused_at")
