"""create sso

Revision ID: 0011
Revises: 0010
Create Date: 2026-11-21 18:20:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text, UtcDateTime

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    _create_settings()
    _create_identities()
    _create_flows()
    op.create_table(
        "sso_assertions",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("assertion_hash", Text, nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "assertion_hash", name=op.f("pk_sso_assertions")),
        _of_account("sso_assertions"),
    )
    op.create_index("ix_sso_assertions_expires_at", "sso_assertions", ["expires_at"])
    op.create_table(
        "sso_refusals",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("category", Text, nullable=False),
        sa.Column("provider_name", Text, nullable=False),
        sa.Column("check", Text, nullable=False),
        sa.Column("detail", Text, nullable=False),
        sa.Column("ip_address", Text, nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_sso_refusals")),
        _of_account("sso_refusals"),
    )
    op.create_index("ix_sso_refusals_created_at", "sso_refusals", ["created_at"])


def _of_account(table: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_account_id")
    return sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=name)


def _create_settings() -> None:
    op.create_table(
        "provider_settings",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("category", Text, nullable=False),
        sa.Column("provider_name", Text, nullable=False),
        sa.Column("display_name", Text, nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("secrets", Text, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_provider_settings")),
        _of_account("provider_settings"),
        sa.UniqueConstraint(
            "account_id",
            "category",
            "provider_name",
            name=op.f("uq_provider_settings_account_id_category_provider_name"),
        ),
    )


def _create_identities() -> None:
    op.create_table(
        "identities",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("user_id", Text, nullable=False),
        sa.Column("provider_name", Text, nullable=False),
        sa.Column("issuer", Text, nullable=False),
        sa.Column("subject", Text, nullable=False),
        sa.Column("groups", sa.JSON(), nullable=False),
        sa.Column("given_role_id", sa.Integer(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("last_used_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_identities")),
        sa.ForeignKeyConstraint(
            ["account_id", "user_id"],
            ["users.account_id", "users.id"],
            name=op.f("fk_identities_account_id_user_id"),
            ondelete="CASCADE",
        ),
        sa.UniqueConstraint(
            "account_id",
            "provider_name",
            "issuer",
            "subject",
            name=op.f("uq_identities_account_id_provider_name_issuer_subject"),
        ),
    )
    op.create_index("ix_identities_user", "identities", ["account_id", "user_id"])


def _create_flows() -> None:
    op.create_table(
        "sso_flows",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("category", Text, nullable=False),
        sa.Column("provider_name", Text, nullable=False),
        sa.Column("purpose", Text, nullable=False),
        sa.Column("state_hash", Text, nullable=False),
        sa.Column("browser_hash", Text, nullable=False),
        sa.Column("verifier", Text, nullable=False),
        sa.Column("nonce", Text, nullable=False),
        sa.Column("request_id", Text, nullable=False),
        sa.Column("redirect_uri", Text, nullable=True),
        sa.Column("client_state", Text, nullable=True),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("used_at", UtcDateTime(), nullable=True),
        sa.Column("user_id", Text, nullable=True),
        sa.Column("is_new_user", sa.Boolean(), nullable=False),
        sa.Column("outcome", Text, nullable=True),
        sa.Column("code_hash", Text, nullable=True),
        sa.Column("code_needs_state", sa.Boolean(), nullable=False),
        sa.Column("code_expires_at", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_sso_flows")),
        _of_account("sso_flows"),
    )
    op.create_index("ix_sso_flows_state", "sso_flows", ["account_id", "state_hash"])
    op.create_index("ix_sso_flows_code", "sso_flows", ["account_id", "code_hash"])
    op.create_index("ix_sso_flows_expires_at", "sso_flows", ["expires_at"])


def downgrade() -> None:
    """Revert the revision."""
    for table in (
        "sso_refusals",
        "sso_assertions",
        "sso_flows",
        "identities",
        "provider_settings",
    ):
        op.drop_table(table)
