"""name the client application that a mailed link leads to

Revision ID: 0046
Revises: 0045
Create Date: 2026-11-26 21:20:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("mailed_tokens", sa.Column("redirect_uri", Text, nullable=True))


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("mailed_tokens", "redirect_uri")
