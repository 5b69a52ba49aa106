"""add setup links, and the challenges that start SAML sessions

Revision ID: 0047
Revises: 0046
Create Date: 2026-11-26 23:40:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id, Text, UtcDateTime

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "setup_links",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("id", Id, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("email", Text, nullable=True),
        sa.Column("features", sa.JSON(), nullable=False),
        sa.Column("token_hash", Text, nullable=False),
        sa.Column("created_by", Id, nullable=False),
        sa.Column("opened_at", UtcDateTime(), nullable=True),
        sa.Column("tested_at", UtcDateTime(), nullable=True),
        sa.Column("completed_at", UtcDateTime(), nullable=True),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_setup_links_account_id")
        ),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_setup_links")),
        sa.UniqueConstraint(
            "account_id", "token_hash", name=op.f("uq_setup_links_account_id_token_hash")
        ),
    )
    op.create_index("ix_setup_links_expires_at", "setup_links", ["expires_at"])
    op.add_column("saml_sessions", sa.Column("challenge_id", Id, nullable=True))


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("saml_sessions", "challenge_id")
    op.drop_table("setup_links")
