"""store what issuers publish, and the addresses of deleted users

Revision ID: 0057
Revises: 0056
Create Date: 2026-11-29 00:30:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text, UtcDateTime

revision = "0057"
down_revision = "0056"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "issuer_documents",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("address_hash", Text, nullable=False),
        sa.Column("content", sa.JSON(), nullable=True),
        sa.Column("read_at", UtcDateTime(), nullable=True),
        sa.Column("error", Text, nullable=True),
        sa.Column("failed_at", UtcDateTime(), nullable=True),
        sa.Column("renewal_asked_at", UtcDateTime(), nullable=True),
        sa.Column("refreshed_at", UtcDateTime(), nullable=True),
        sa.Column("stored_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_issuer_documents_account_id")
        ),
        sa.PrimaryKeyConstraint("account_id", "address_hash", name=op.f("pk_issuer_documents")),
    )
    op.create_index("ix_issuer_documents_stored_at", "issuer_documents", ["stored_at"])
    op.create_table(
        "deleted_addresses",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("email_hash", Text, nullable=False),
        sa.Column("deleted_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_deleted_addresses_account_id")
        ),
        sa.PrimaryKeyConstraint("account_id", "email_hash", name=op.f("pk_deleted_addresses")),
    )


def downgrade() -> None:
    """Revert the revision."""
    op.drop_table("deleted_addresses")
    op.drop_table("issuer_documents")
