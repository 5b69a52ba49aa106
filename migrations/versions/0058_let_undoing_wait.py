"""let the undoing of a change of address wait; say which factors and codes are their owner's

Revision ID: 0058
Revises: 0057
Create Date: 2026-11-29 10:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import UtcDateTime

revision = "0058"
down_revision = "0057"
branch_labels = None
depends_on = None

OF_A_VERIFIED_USER = """
    UPDATE second_factors SET on_verified_address = true
    WHERE confirmed_at IS NOT NULL AND EXISTS (
        SELECT 1 FROM users
        WHERE users.account_id = second_factors.account_id AND users.id = second_factors.user_id
        AND users.email_verified
    )
"""


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("mailed_tokens", sa.Column("due_at", UtcDateTime(), nullable=True))
    op.add_column("recovery_codes", sa.Column("created_at", UtcDateTime(), nullable=True))
    op.add_column("second_factors", sa.Column("on_verified_address", sa.Boolean(), nullable=True))
    op.execute(OF_A_VERIFIED_USER)


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("second_factors", "on_verified_address")
    op.drop_column("recovery_codes", "created_at")
    op.drop_column("mailed_tokens", "due_at")
