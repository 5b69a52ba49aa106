"""date tokens of users

Revision ID: 0014
Revises: 0013
Create Date: 2026-11-21 23:10:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import UtcDateTime

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("users", sa.Column("tokens_valid_from", UtcDateTime(), nullable=True))


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("users", "tokens_valid_from")
