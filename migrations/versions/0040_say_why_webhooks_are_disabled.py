"""say why webhooks are disabled and who resends; rotate API keys and bind them to addresses

Revision ID: 0040
Revises: 0039
Create Date: 2026-11-26 17:45:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id, Text, UtcDateTime

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

COLUMNS = (
    ("webhooks", "disabled_reason", Text),
    ("webhook_deliveries", "requested_by", Id),
    ("api_keys", "hint", Text),
    ("api_keys", "previous_hash", Text),
    ("api_keys", "previous_valid_until", UtcDateTime()),
    ("api_keys", "ip_addresses", sa.JSON(none_as_null=True)),
)


def upgrade() -> None:
    """Apply the revision."""
    for table, name, kind in COLUMNS:
        op.add_column(table, sa.Column(name, kind, nullable=True))
    op.execute("UPDATE webhooks SET disabled_reason = 'failing' WHERE disabled_at IS NOT NULL")
    op.create_index("ix_api_keys_previous", "api_keys", ["account_id", "previous_hash"])


def downgrade() -> None:
    """Revert the revision."""
    op.drop_index("ix_api_keys_previous", "api_keys")
    for table, name, _ in reversed(COLUMNS):
        op.drop_column(table, name)
