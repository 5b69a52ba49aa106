"""add SCIM: tokens, and what directories say of users and groups

Revision ID: 0043
Revises: 0042
Create Date: 2026-11-26 20:40:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text, UtcDateTime

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "scim_tokens",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("token_hash", Text, nullable=False),
        sa.Column("hint", Text, nullable=False),
        sa.Column("created_by", Text, nullable=False),
        sa.Column("last_used_at", UtcDateTime(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_scim_tokens_account_id")
        ),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_scim_tokens")),
        sa.UniqueConstraint(
            "account_id", "token_hash", name=op.f("uq_scim_tokens_account_id_token_hash")
        ),
    )
    op.create_table(
        "directory_users",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("user_id", Text, nullable=False),
        sa.Column("user_name", Text, nullable=False),
        sa.Column("user_name_key", Text, nullable=False),
        sa.Column("external_id", Text, nullable=True),
        sa.Column("attributes", sa.JSON(), nullable=False),
        sa.Column("is_created", sa.Boolean(), nullable=False),
        sa.Column("given_role_id", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["account_id", "user_id"],
            ["users.account_id", "users.id"],
            name=op.f("fk_directory_users_account_id_user_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("account_id", "user_id", name=op.f("pk_directory_users")),
        sa.UniqueConstraint(
            "account_id", "user_name_key", name=op.f("uq_directory_users_account_id_user_name_key")
        ),
    )
    op.create_index(
        "ix_directory_users_external_id", "directory_users", ["account_id", "external_id"]
    )
    op.create_table(
        "directory_groups",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("group_id", Text, nullable=False),
        sa.Column("external_id", Text, nullable=True),
        sa.ForeignKeyConstraint(
            ["account_id", "group_id"],
            ["groups.account_id", "groups.id"],
            name=op.f("fk_directory_groups_account_id_group_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("account_id", "group_id", name=op.f("pk_directory_groups")),
    )
    op.create_index(
        "ix_directory_groups_external_id", "directory_groups", ["account_id", "external_id"]
    )


def downgrade() -> None:
    """Revert the revision."""
    for table in ("directory_groups", "directory_users", "scim_tokens"):
        op.drop_table(table)
