"""add runs of backups

Revision ID: 0053
Revises: 0052
Create Date: 2026-11-27 03:20:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id, Text, UtcDateTime

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "backup_runs",
        sa.Column("id", Id, nullable=False),
        sa.Column("status", Text, nullable=False),
        sa.Column("place", Text, nullable=False),
        sa.Column("name", Text, nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=True),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("sha256", Text, nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("files", sa.BigInteger(), nullable=True),
        sa.Column("audit_entries", sa.BigInteger(), nullable=True),
        sa.Column("proved_at", UtcDateTime(), nullable=True),
        sa.Column("error", Text, nullable=True),
        sa.Column("deleted_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_backup_runs")),
    )
    op.create_index(
        "uq_backup_runs_pending",
        "backup_runs",
        ["status"],
        unique=True,
        sqlite_where=sa.text("status = 'pending'"),
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index("ix_backup_runs_created_at", "backup_runs", ["status", "created_at"])


def downgrade() -> None:
    """Revert the revision."""
    op.drop_table("backup_runs")
