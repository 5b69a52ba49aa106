"""create idempotency keys

Revision ID: 0007
Revises: 0006
Create Date: 2026-11-21 16:50:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text, UtcDateTime

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "idempotency_keys",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("caller", Text, nullable=False),
        sa.Column("key", Text, nullable=False),
        sa.Column("claim", Text, nullable=False),
        sa.Column("request", Text, nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("answer", Text, nullable=True),
        sa.Column("etag", Text, nullable=True),
        sa.Column("made", Text, nullable=True),
        sa.Column("claimed_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "caller", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index("ix_idempotency_keys_claimed", "idempotency_keys", ["claimed_at"])


def downgrade() -> None:
    """Revert the revision."""
    op.drop_table("idempotency_keys")
