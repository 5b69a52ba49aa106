"""add plans, a setting of the instance, and the plan and flags of accounts

Revision ID: 0077
Revises: 0076
Create Date: 2026-11-30 08:50:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text

revision = "0077"
down_revision = "0076"
branch_labels = None
depends_on = None

SETTINGS = sa.table(
    "instance_settings",
    sa.column("id", Text),
    sa.column("value", sa.JSON()),
    sa.column("version", sa.Integer()),
)


def upgrade() -> None:
    """Apply the revision."""
    op.bulk_insert(SETTINGS, [{"id": "plans", "value": {}, "version": 1}])
    op.add_column("accounts", sa.Column("plan", Text))
    op.add_column("accounts", sa.Column("flags", sa.JSON(), server_default="{}", nullable=False))


def downgrade() -> None:
    """Revert the revision; plans, and which accounts have them, are lost."""
    op.drop_column("accounts", "flags")
    op.drop_column("accounts", "plan")
    op.execute("DELETE FROM instance_settings WHERE id = 'plans'")
