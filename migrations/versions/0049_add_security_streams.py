"""send the security log to a receiver of the account

Revision ID: 0049
Revises: 0048
Create Date: 2026-11-27 00:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id, Text, UtcDateTime

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "security_streams",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("id", Id, nullable=False),
        sa.Column("url", Text, nullable=False),
        sa.Column("secret", Text, nullable=False),
        sa.Column("is_enabled", sa.Boolean(), nullable=False),
        sa.Column("sent_number", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=False),
        sa.Column("failing_since", UtcDateTime(), nullable=True),
        sa.Column("last_error", Text, nullable=True),
        sa.Column("last_sent_at", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_security_streams_account_id")
        ),
        sa.UniqueConstraint("account_id", name=op.f("uq_security_streams_account_id")),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_security_streams")),
    )


def downgrade() -> None:
    """Revert the revision."""
    op.drop_table("security_streams")
