"""add events of all accounts for the operator

Revision ID: 0081
Revises: 0078
Create Date: 2026-11-30 11:30:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.support import row_security
from migrations.support.types import Id, Text, UtcDateTime

revision = "0081"
down_revision = "0080"
branch_labels = None
depends_on = None

IS_PENDING = sa.text("number IS NULL")


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "operator_events",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("id", Id, nullable=False),
        sa.Column("position", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("number", sa.BigInteger()),
        sa.Column("type", Text, nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("actor", sa.JSON(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_operator_events")),
    )
    op.create_index("ix_operator_events_number", "operator_events", ["number"])
    op.create_index("ix_operator_events_account", "operator_events", ["account_id", "number"])
    op.create_index("ix_operator_events_at", "operator_events", ["at"])
    op.create_index(
        "ix_operator_events_pending",
        "operator_events",
        ["position"],
        postgresql_where=IS_PENDING,
        sqlite_where=IS_PENDING,
    )
    op.create_table(
        "operator_heads",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("expired", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", name=op.f("pk_operator_heads")),
    )
    for table in ("operator_events", "operator_heads"):
        row_security.cover(op.get_bind(), table)
    announced = sa.Column("announced", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("collections", announced)


def downgrade() -> None:
    """Revert the revision; all events are lost."""
    op.drop_column("collections", "announced")
    op.drop_table("operator_heads")
    op.drop_table("operator_events")
