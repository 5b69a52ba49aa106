"""add the counters of fields that number records

Revision ID: 0089
Revises: 0088
Create Date: 2026-11-30 17:55:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.support import row_security
from migrations.support.types import Id, Text

revision = "0089"
down_revision = "0088"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "record_sequences",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("collection_id", Id, nullable=False),
        sa.Column("field", Text, nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "account_id", "collection_id", "field", name=op.f("pk_record_sequences")
        ),
    )
    row_security.cover(op.get_bind(), "record_sequences")


def downgrade() -> None:
    """Revert the revision; the counters are lost."""
    op.drop_table("record_sequences")
