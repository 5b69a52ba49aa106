"""add the trash of collections

Revision ID: 0093
Revises: 0092
Create Date: 2026-11-30 17:58:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id, UtcDateTime

revision = "0093"
down_revision = "0092"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "trashed_records",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("collection_id", Id, nullable=False),
        sa.Column("id", Id, nullable=False),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("deleted_at", UtcDateTime, nullable=False),
        sa.Column("deleted_by", Id),
        sa.PrimaryKeyConstraint(
            "account_id", "collection_id", "id", name=op.f("pk_trashed_records")
        ),
    )
    op.create_index(
        "ix_trashed_records_deleted_at", "trashed_records", ["collection_id", "deleted_at"]
    )


def downgrade() -> None:
    """Revert the revision; what is in the trash is lost."""
    op.drop_table("trashed_records")
