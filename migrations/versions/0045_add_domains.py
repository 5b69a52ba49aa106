"""add domains of accounts

Revision ID: 0045
Revises: 0044
Create Date: 2026-11-26 21:20:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id, Text, UtcDateTime

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "account_domains",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("id", Id, nullable=False),
        sa.Column("domain", Text, nullable=False),
        sa.Column("token", Text, nullable=False),
        sa.Column("verified_at", UtcDateTime(), nullable=True),
        sa.Column("last_checked_at", UtcDateTime(), nullable=True),
        sa.Column("failed_checks", sa.Integer(), nullable=False),
        sa.Column("auto_join", sa.Boolean(), nullable=False),
        sa.Column("auto_join_role", Text, nullable=True),
        sa.Column("sso_only", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_account_domains_account_id")
        ),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_account_domains")),
        sa.UniqueConstraint(
            "account_id", "domain", name=op.f("uq_account_domains_account_id_domain")
        ),
    )
    op.create_index("ix_account_domains_last_checked_at", "account_domains", ["last_checked_at"])
    op.create_table(
        "verified_domains",
        sa.Column("domain", Text, nullable=False),
        sa.Column("owner_account_id", Id, nullable=False),
        sa.Column("token", Text, nullable=False),
        sa.ForeignKeyConstraint(
            ["owner_account_id"],
            ["accounts.id"],
            name=op.f("fk_verified_domains_owner_account_id"),
        ),
        sa.PrimaryKeyConstraint("domain", name=op.f("pk_verified_domains")),
    )


def downgrade() -> None:
    """Revert the revision."""
    op.drop_table("verified_domains")
    op.drop_table("account_domains")
