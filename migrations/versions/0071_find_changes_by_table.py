"""find the later changes of a table in the order of their numbers

Revision ID: 0071
Revises: 0070
Create Date: 2026-11-30 08:40:00.000000
"""

from __future__ import annotations

from alembic import op

revision = "0071"
down_revision = "0070"
branch_labels = None
depends_on = None

INDEXES = (
    ("ix_audit_changes_account_table_number", "audit_changes", "first_id"),
    ("ix_feed_changes_account_table_number", "feed_changes", "change"),
)


def upgrade() -> None:
    """Apply the revision."""
    for name, table, number in INDEXES:
        op.create_index(name, table, ["account_id", "table_name", number])


def downgrade() -> None:
    """Revert the revision."""
    for name, table, _ in reversed(INDEXES):
        op.drop_index(name, table_name=table)
