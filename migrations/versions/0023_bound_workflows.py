"""bound workflows

Revision ID: 0023
Revises: 0022
Create Date: 2026-11-25 12:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision; instances of older processes, without a root, are their own."""
    op.add_column("workflow_instances", sa.Column("root_id", Text, nullable=True))


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("workflow_instances", "root_id")
