"""say when versions of workflows were saved; let API keys only read

Revision ID: 0056
Revises: 0055
Create Date: 2026-11-27 11:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import UtcDateTime

revision = "0056"
down_revision = "0055"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("workflow_versions", sa.Column("saved_at", UtcDateTime(), nullable=True))
    read_only = sa.Column("read_only", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("api_keys", read_only)


def downgrade() -> None:
    """Revert the revision; in earlier versions, read-only keys could write."""
    op.execute("DELETE FROM api_keys WHERE read_only")
    op.drop_column("api_keys", "read_only")
    op.drop_column("workflow_versions", "saved_at")
