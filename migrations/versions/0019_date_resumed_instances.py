"""date resumed instances

Revision ID: 0019
Revises: 0018
Create Date: 2026-11-22 08:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import UtcDateTime

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

RESUMED = sa.text("resumed_at IS NOT NULL")


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("workflow_instances", sa.Column("resumed_at", UtcDateTime(), nullable=True))
    op.create_index(
        "ix_workflow_instances_resumed",
        "workflow_instances",
        ["account_id", "resumed_at", "status"],
        postgresql_where=RESUMED,
        sqlite_where=RESUMED,
    )


def downgrade() -> None:
    """Revert the revision."""
    op.drop_index("ix_workflow_instances_resumed", "workflow_instances")
    op.drop_column("workflow_instances", "resumed_at")
