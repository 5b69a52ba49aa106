"""find groups by user

Revision ID: 0021
Revises: 0020
Create Date: 2026-11-23 12:00:00.000000
"""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    # Covering: otherwise SQLite prefers to scan all of an account's memberships in the primary key.
    op.drop_index("ix_group_members_user", "group_members")
    op.create_index("ix_group_members_user", "group_members", ["account_id", "user_id", "group_id"])


def downgrade() -> None:
    """Revert the revision."""
    op.drop_index("ix_group_members_user", "group_members")
    op.create_index("ix_group_members_user", "group_members", ["account_id", "user_id"])
