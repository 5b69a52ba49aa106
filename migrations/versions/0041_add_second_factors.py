"""add second factors, recovery codes and used tokens

Revision ID: 0041
Revises: 0040
Create Date: 2026-11-26 20:40:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id, Text, UtcDateTime

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def _user_key(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["account_id", "user_id"],
        ["users.account_id", "users.id"],
        name=op.f(f"fk_{table}_account_id_user_id"),
        ondelete="CASCADE",
    )


def upgrade() -> None:
    """Apply the revision."""
    op.add_column(
        "sessions", sa.Column("mfa", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.create_table(
        "second_factors",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("id", Id, nullable=False),
        sa.Column("user_id", Id, nullable=False),
        sa.Column("kind", Text, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("secret", Text, nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("credential_id", Text, nullable=True),
        sa.Column("public_key", Text, nullable=True),
        sa.Column("sign_count", sa.BigInteger(), nullable=True),
        sa.Column("confirmed_at", UtcDateTime(), nullable=True),
        sa.Column("last_used_at", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        _user_key("second_factors"),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_second_factors")),
        sa.UniqueConstraint(
            "account_id", "credential_id", name=op.f("uq_second_factors_account_id_credential_id")
        ),
    )
    op.create_index("ix_second_factors_user", "second_factors", ["account_id", "user_id"])
    op.create_table(
        "recovery_codes",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("user_id", Id, nullable=False),
        sa.Column("code_hash", Text, nullable=False),
        _user_key("recovery_codes"),
        sa.PrimaryKeyConstraint(
            "account_id", "user_id", "code_hash", name=op.f("pk_recovery_codes")
        ),
    )
    op.create_table(
        "used_mfa_tokens",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("token_hash", Text, nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_used_mfa_tokens_account_id")
        ),
        sa.PrimaryKeyConstraint("account_id", "token_hash", name=op.f("pk_used_mfa_tokens")),
    )
    op.create_index("ix_used_mfa_tokens_expires_at", "used_mfa_tokens", ["expires_at"])


def downgrade() -> None:
    """Revert the revision."""
    for table in ("used_mfa_tokens", "recovery_codes", "second_factors"):
        op.drop_table(table)
    op.drop_column("sessions", "mfa")
