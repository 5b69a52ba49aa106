"""say who asked for the link of a mail

Revision ID: 0059
Revises: 0058
Create Date: 2026-11-29 00:40:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text

revision = "0059"
down_revision = "0058"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("mailed_tokens", sa.Column("source", Text, nullable=True))


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("mailed_tokens", "source")
