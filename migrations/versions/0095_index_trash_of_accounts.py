"""index the trash of each account by the time of deletion

Revision ID: 0095
Revises: 0094
Create Date: 2026-11-30 19:42:00.000000
"""

from __future__ import annotations

from alembic import op

revision = "0095"
down_revision = "0094"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    columns = ["account_id", "collection_id", "deleted_at"]
    op.create_index("ix_trashed_records_account_deleted_at", "trashed_records", columns)


def downgrade() -> None:
    """Revert the revision."""
    op.drop_index("ix_trashed_records_account_deleted_at", "trashed_records")
