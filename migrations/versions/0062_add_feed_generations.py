"""add generations of the change feed

Revision ID: 0062
Revises: 0061
Create Date: 2026-11-29 00:30:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import UtcDateTime

revision = "0062"
down_revision = "0061"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "feed_generations",
        sa.Column("first_change", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("timeline", sa.BigInteger(), nullable=True),
        sa.Column("begun_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("first_change", name=op.f("pk_feed_generations")),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "INSERT INTO feed_generations SELECT 0,"
            " ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint,"
            " now()"
        )


def downgrade() -> None:
    """Revert the revision."""
    op.drop_table("feed_generations")
