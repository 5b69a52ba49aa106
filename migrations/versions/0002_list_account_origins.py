"""list account origins, let closed invitations forget their role

Revision ID: 0002
Revises: 0001
Create Date: 2026-11-21 15:05:12.402117
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "account_origins",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("origin", Text, nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_account_origins_account_id")
        ),
        sa.PrimaryKeyConstraint("account_id", "origin", name=op.f("pk_account_origins")),
    )
    op.create_index("ix_account_origins_origin", "account_origins", ["origin"], unique=False)
    _list_origins()
    with op.batch_alter_table("invitations") as invitations:
        invitations.alter_column("role_id", existing_type=sa.Integer(), nullable=True)


def _list_origins() -> None:
    """The origins in the accounts' present settings."""
    accounts = sa.table(
        "accounts", sa.column("id"), sa.column("settings", sa.JSON()), sa.column("closed_at")
    )
    open_accounts = sa.select(accounts.c.id, accounts.c.settings).where(
        accounts.c.closed_at.is_(None)
    )
    rows = [
        {"account_id": account_id, "origin": origin}
        for account_id, settings in op.get_bind().execute(open_accounts)
        for origin in dict.fromkeys(settings.get("cors_origins", ()))
    ]
    op.bulk_insert(sa.table("account_origins", sa.column("account_id"), sa.column("origin")), rows)


def downgrade() -> None:
    """Revert the revision; deletes invitations without a role."""
    op.execute("DELETE FROM invitations WHERE role_id IS NULL")
    with op.batch_alter_table("invitations") as invitations:
        invitations.alter_column("role_id", existing_type=sa.Integer(), nullable=False)
    op.drop_index("ix_account_origins_origin", table_name="account_origins")
    op.drop_table("account_origins")
