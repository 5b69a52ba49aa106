"""add attributes of users and accounts

Revision ID: 0066
Revises: 0065
Create Date: 2026-11-30 01:40:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text

revision = "0066"
down_revision = "0065"
branch_labels = None
depends_on = None

TABLES = ("users", "accounts")
SETTINGS = sa.table(
    "instance_settings",
    sa.column("id", Text),
    sa.column("value", sa.JSON()),
    sa.column("version", sa.Integer()),
)


def upgrade() -> None:
    """Apply the revision."""
    for table in TABLES:
        column = sa.Column("attributes", sa.JSON(), nullable=False, server_default="{}")
        op.add_column(table, column)
    names = [f"attributes.{table}" for table in TABLES]
    op.bulk_insert(SETTINGS, [{"id": one, "value": {"fields": []}, "version": 1} for one in names])


def downgrade() -> None:
    """Revert the revision; all values are lost."""
    op.execute("DELETE FROM instance_settings WHERE id LIKE 'attributes.%'")
    for table in TABLES:
        op.drop_column(table, "attributes")
