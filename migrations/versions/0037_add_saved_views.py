"""add saved views

Revision ID: 0037
Revises: 0036
Create Date: 2026-11-26 08:40:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text, UtcDateTime

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "saved_views",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("user_id", Text, nullable=False),
        sa.Column("collection_id", Text, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("filter", Text, nullable=True),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.Column("is_shared", sa.Boolean(), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id", "user_id"],
            ["users.account_id", "users.id"],
            name=op.f("fk_saved_views_account_id_user_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_saved_views")),
        sa.UniqueConstraint(
            "account_id",
            "user_id",
            "collection_id",
            "name",
            name=op.f("uq_saved_views_account_id_user_id_collection_id_name"),
        ),
    )


def downgrade() -> None:
    """Revert the revision."""
    op.drop_table("saved_views")
