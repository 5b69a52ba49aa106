"""let users leave whom many records refer to

Revision ID: 0064
Revises: 0063
Create Date: 2026-11-30 01:20:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import UtcDateTime

revision = "0064"
down_revision = "0063"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("users", sa.Column("leaving_at", UtcDateTime(), nullable=True))


def downgrade() -> None:
    """Revert the revision; who was leaving stays, deactivated."""
    op.drop_column("users", "leaving_at")
