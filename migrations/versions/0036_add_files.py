"""add files

Revision ID: 0036
Revises: 0035
Create Date: 2026-11-26 01:40:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text, UtcDateTime

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "files",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("mime_type", Text, nullable=False),
        sa.Column("sha256", Text, nullable=False),
        sa.Column("uploaded_by", Text, nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("collection_id", Text, nullable=True),
        sa.Column("record_id", Text, nullable=True),
        sa.Column("released_at", UtcDateTime(), nullable=True),
        sa.Column("removed_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_files_account_id_accounts")
        ),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_files")),
    )
    untaken = sa.text("record_id IS NULL")
    op.create_index("ix_files_record", "files", ["account_id", "record_id"])
    op.create_index(
        "ix_files_untaken",
        "files",
        ["created_at"],
        sqlite_where=untaken,
        postgresql_where=untaken,
    )
    op.create_index("ix_files_released_at", "files", ["released_at"])
    op.create_index("ix_files_removed_at", "files", ["removed_at"])


def downgrade() -> None:
    """Revert the revision."""
    op.drop_table("files")
