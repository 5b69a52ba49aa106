"""add realtime tickets

Revision ID: 0034
Revises: 0033
Create Date: 2026-11-25 22:10:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text, UtcDateTime

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "realtime_tickets",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("token_hash", Text, nullable=False),
        sa.Column("user_id", Text, nullable=False),
        sa.Column("credential", sa.JSON(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id", "user_id"],
            ["users.account_id", "users.id"],
            name=op.f("fk_realtime_tickets_account_id_user_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("account_id", "token_hash", name=op.f("pk_realtime_tickets")),
    )
    op.create_index("ix_realtime_tickets_user", "realtime_tickets", ["account_id", "user_id"])
    op.create_index("ix_realtime_tickets_expires_at", "realtime_tickets", ["expires_at"])


def downgrade() -> None:
    """Revert the revision."""
    op.drop_table("realtime_tickets")
