"""add account templates, a setting of the instance, and which one filled an account

Revision ID: 0078
Revises: 0077
Create Date: 2026-11-30 09:20:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text

revision = "0078"
down_revision = "0077"
branch_labels = None
depends_on = None

NAMES = ("account_templates", "account_templates.versions")
SETTINGS = sa.table(
    "instance_settings",
    sa.column("id", Text),
    sa.column("value", sa.JSON()),
    sa.column("version", sa.Integer()),
)


def upgrade() -> None:
    """Apply the revision."""
    op.bulk_insert(SETTINGS, [{"id": one, "value": {}, "version": 1} for one in NAMES])
    op.add_column("accounts", sa.Column("template", Text))
    op.add_column("accounts", sa.Column("template_version", sa.Integer()))


def downgrade() -> None:
    """Revert the revision; templates are lost, what they made stays."""
    op.drop_column("accounts", "template_version")
    op.drop_column("accounts", "template")
    op.execute("DELETE FROM instance_settings WHERE id LIKE 'account_templates%'")
