"""add the language of users

Revision ID: 0039
Revises: 0038
Create Date: 2026-11-26 11:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("users", sa.Column("language", Text, nullable=True))


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("users", "language")
