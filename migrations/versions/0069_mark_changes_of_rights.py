"""mark changes of rights in the change feed

Revision ID: 0069
Revises: 0068
Create Date: 2026-11-30 04:30:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text, UtcDateTime

revision = "0069"
down_revision = "0068"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "rights_changes",
        sa.Column("collection", Text, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("collection", name=op.f("pk_rights_changes")),
    )
    op.add_column("audit_heads", sa.Column("rights_number", sa.BigInteger()))


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("audit_heads", "rights_number")
    op.drop_table("rights_changes")
