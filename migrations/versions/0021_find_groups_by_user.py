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
    # With the group: SQLite reads all of an account's memberships from the primary key rather than
    # a user's few from an index that it has to look into the table for.
    op.drop_index("ix_group_members_user", "group_members")
    op.create_index("ix_group_members_user", "group_members", ["account_id", "user_id", "group_id"])


def downgrade() -> None:
    """Take the revision back."""
    op.drop_index("ix_group_members_user", "group_members")
    op.create_index("ix_group_members_user", "group_members", ["account_id", "user_id"])
