"""give schedules of workflows a time zone

Revision ID: 0090
Revises: 0089
Create Date: 2026-11-30 18:05:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0090"
down_revision = "0089"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("workflow_schedules", sa.Column("timezone", sa.Text(), nullable=True))


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("workflow_schedules", "timezone")
