"""add webhooks that send events of all accounts to the operator

Revision ID: 0082
Revises: 0081
Create Date: 2026-11-30 11:40:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id, Text

revision = "0082"
down_revision = "0081"
branch_labels = None
depends_on = None

IS_UNFINISHED = sa.text("status IN ('pending', 'retrying')")


def upgrade() -> None:
    """Apply the revision."""
    for column in (sa.Column("types", sa.JSON()), sa.Column("collections", sa.JSON())):
        op.add_column("webhooks", column)
    op.add_column("webhooks", sa.Column("key", Text))
    op.add_column("webhook_deliveries", sa.Column("of_account", Id))
    op.add_column("webhook_deliveries", sa.Column("event_number", sa.BigInteger()))
    op.create_index(
        "ix_webhook_deliveries_in_order",
        "webhook_deliveries",
        ["account_id", "webhook_id", "of_account", "event_number"],
        postgresql_where=IS_UNFINISHED,
        sqlite_where=IS_UNFINISHED,
    )


def downgrade() -> None:
    """Revert the revision; the operator's webhooks are lost, with their deliveries."""
    of_operator = "SELECT id FROM webhooks WHERE types IS NOT NULL"
    for table in ("webhook_deliveries", "webhooks"):
        column = "webhook_id" if table == "webhook_deliveries" else "id"
        op.execute(f"DELETE FROM {table} WHERE {column} IN ({of_operator})")  # noqa: S608
    op.drop_index("ix_webhook_deliveries_in_order", "webhook_deliveries")
    for column in ("event_number", "of_account"):
        op.drop_column("webhook_deliveries", column)
    for column in ("key", "collections", "types"):
        op.drop_column("webhooks", column)
