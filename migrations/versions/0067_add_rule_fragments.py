"""add fragments of rules

Revision ID: 0067
Revises: 0066
Create Date: 2026-11-30 00:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id, Text, UtcDateTime

revision = "0067"
down_revision = "0066"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "rule_fragments",
        sa.Column("id", Id, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("text", Text, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rule_fragments")),
        sa.UniqueConstraint("name", name=op.f("uq_rule_fragments_name")),
    )
    op.add_column(
        "collections", sa.Column("fragments", sa.JSON(), server_default="{}", nullable=False)
    )


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("collections", "fragments")
    op.drop_table("rule_fragments")
