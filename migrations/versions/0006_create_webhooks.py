"""create webhooks

Revision ID: 0006
Revises: 0005
Create Date: 2026-11-21 15:15:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text, UtcDateTime

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "webhook_versions",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", name=op.f("pk_webhook_versions")),
    )
    op.create_table(
        "webhooks",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("url", Text, nullable=False),
        sa.Column("collection", Text, nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("filter", Text, nullable=True),
        sa.Column("headers", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("include_pii", sa.Boolean(), nullable=False),
        sa.Column("secret", Text, nullable=False),
        sa.Column("previous_secret", Text, nullable=True),
        sa.Column("previous_valid_until", UtcDateTime(), nullable=True),
        sa.Column("failing_since", UtcDateTime(), nullable=True),
        sa.Column("disabled_at", UtcDateTime(), nullable=True),
        sa.Column("created_by", Text, nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_webhooks")),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_webhooks_account_id")
        ),
    )
    _create_deliveries()
    _create_attempts()


def _create_deliveries() -> None:
    op.create_table(
        "webhook_deliveries",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("webhook_id", Text, nullable=False),
        sa.Column("event", Text, nullable=False),
        sa.Column("payload", Text, nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("holds_pii", sa.Boolean(), nullable=False),
        sa.Column("status", Text, nullable=False),
        sa.Column("attempt_number", sa.Integer(), nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=True),
        sa.Column("claim", sa.Integer(), nullable=False),
        sa.Column("last_claim", sa.Integer(), nullable=True),
        sa.Column("next_retry_at", UtcDateTime(), nullable=True),
        sa.Column("delivered_at", UtcDateTime(), nullable=True),
        sa.Column("replay_of", Text, nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_webhook_deliveries")),
    )
    for name, columns, where in (
        ("due", ["due_at", "webhook_id", "account_id", "id"], "due_at IS NOT NULL"),
        ("replay_of", ["account_id", "replay_of"], "replay_of IS NOT NULL"),
    ):
        only = {"postgresql_where": sa.text(where), "sqlite_where": sa.text(where)}
        op.create_index(f"ix_webhook_deliveries_{name}", "webhook_deliveries", columns, **only)
    log = ["account_id", "webhook_id", "id"]
    op.create_index("ix_webhook_deliveries_log", "webhook_deliveries", log)


def _create_attempts() -> None:
    op.create_table(
        "webhook_attempts",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("delivery_id", Text, nullable=False),
        sa.Column("claim", sa.Integer(), nullable=False),
        sa.Column("attempt_number", sa.Integer(), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=True),
        sa.Column("response_body", Text, nullable=True),
        sa.Column("error", Text, nullable=True),
        sa.Column("duration_ms", sa.Integer(), nullable=False),
        sa.Column("attempted_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_webhook_attempts")),
    )
    delivery = ["account_id", "delivery_id"]
    op.create_index("ix_webhook_attempts_delivery", "webhook_attempts", delivery)


def downgrade() -> None:
    """Revert the revision."""
    for table in ("webhook_attempts", "webhook_deliveries", "webhooks", "webhook_versions"):
        op.drop_table(table)
