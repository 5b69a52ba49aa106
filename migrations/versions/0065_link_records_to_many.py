"""link records to the entries of their lists

Revision ID: 0065
Revises: 0064
Create Date: 2026-11-30 01:50:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id, Text

revision = "0065"
down_revision = "0064"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "record_links",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("id", Id, nullable=False),
        sa.Column("collection_id", Id, nullable=False),
        sa.Column("field", Text, nullable=False),
        sa.Column("record_id", Id, nullable=False),
        sa.Column("target_id", Id, nullable=False),
        sa.Column("user_id", Id, nullable=True),
        sa.ForeignKeyConstraint(
            ["account_id", "user_id"],
            ["users.account_id", "users.id"],
            name=op.f("fk_record_links_account_id_user_id"),
        ),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_record_links")),
    )
    op.create_index(
        "ix_record_links_target",
        "record_links",
        ["target_id", "collection_id", "field", "account_id", "record_id"],
    )
    op.create_index(
        "ix_record_links_record",
        "record_links",
        ["account_id", "record_id", "collection_id", "field", "target_id"],
    )
    op.create_index("ix_record_links_user", "record_links", ["account_id", "user_id"])


def downgrade() -> None:
    """Revert the revision."""
    op.drop_table("record_links")
