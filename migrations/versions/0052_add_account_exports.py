"""add exports of accounts, and certificates of deletion

Revision ID: 0052
Revises: 0051
Create Date: 2026-11-27 00:40:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id, Text, UtcDateTime

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "account_exports",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("id", Id, nullable=False),
        sa.Column("status", Text, nullable=False),
        sa.Column("lines", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("sha256", Text, nullable=True),
        sa.Column("error", Text, nullable=True),
        sa.Column("requested_by", Id, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_account_exports_account_id")
        ),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_account_exports")),
    )
    op.create_index("ix_account_exports_expires_at", "account_exports", ["expires_at"])
    op.create_table(
        "deletion_certificates",
        sa.Column("closed_account_id", Id, nullable=False),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.Column("closed_at", UtcDateTime(), nullable=False),
        sa.Column("closed_by", Id, nullable=False),
        sa.Column("certificate", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("closed_account_id", name=op.f("pk_deletion_certificates")),
    )


def downgrade() -> None:
    """Revert the revision."""
    op.drop_table("deletion_certificates")
    op.drop_table("account_exports")
