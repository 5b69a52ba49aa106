"""add the product, a setting of the instance, and brands of accounts

Revision ID: 0070
Revises: 0069
Create Date: 2026-11-30 04:40:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.support import row_security
from migrations.support.types import Id, Text, UtcDateTime

revision = "0070"
down_revision = "0069"
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
    op.bulk_insert(SETTINGS, [{"id": "product", "value": {}, "version": 1}])
    op.create_table(
        "account_brands",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("id", Id, nullable=False),
        sa.Column("name", Text),
        sa.Column("logo", Text),
        sa.Column("accent_color", Text),
        sa.Column("links", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_account_brands")),
        sa.UniqueConstraint("account_id", name=op.f("uq_account_brands_account_id")),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_account_brands_account_id_accounts")
        ),
    )
    row_security.cover(op.get_bind(), "account_brands")


def downgrade() -> None:
    """Revert the revision; the product and all brands are lost."""
    op.drop_table("account_brands")
    op.execute("DELETE FROM instance_settings WHERE id = 'product'")
