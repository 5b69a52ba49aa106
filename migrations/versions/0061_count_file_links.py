"""let all links of a file be ended

Revision ID: 0061
Revises: 0060
Create Date: 2026-11-29 00:30:00.000000
"""

import sqlalchemy as sa
from alembic import op

revision = "0061"
down_revision = "0060"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    column = sa.Column("link_version", sa.Integer(), nullable=False, server_default="0")
    op.add_column("files", column)


def downgrade() -> None:
    """Revert the revision; earlier versions do not end links."""
    op.drop_column("files", "link_version")
