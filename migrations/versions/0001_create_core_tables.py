"""create core tables

Revision ID: 0001
Revises:
Create Date: 2026-11-21 08:55:52.800956
"""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op
from uuid_utils import uuid7

from migrations.support.types import Text, UtcDateTime

SYSTEM_ACCOUNT_ID = "00000000-0000-0000-0000-000000000000"

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "account_code_counter",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("given_out", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_account_code_counter")),
    )
    op.create_table(
        "accounts",
        sa.Column("id", Text, nullable=False),
        sa.Column("account_code", Text, nullable=False),
        sa.Column("slug", Text, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("closed_at", UtcDateTime(), nullable=True),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_accounts")),
        sa.UniqueConstraint("account_code", name=op.f("uq_accounts_account_code")),
        sa.UniqueConstraint("slug", name=op.f("uq_accounts_slug")),
    )
    op.create_table(
        "collection_revisions",
        sa.Column("revision", Text, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("down_revision", Text, nullable=True),
        sa.Column("description", Text, nullable=False),
        sa.Column("collection_id", Text, nullable=False),
        sa.Column("statements", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("revision", name=op.f("pk_collection_revisions")),
        sa.UniqueConstraint("number", name=op.f("uq_collection_revisions_number")),
    )
    op.create_table(
        "collections",
        sa.Column("id", Text, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("name_key", Text, nullable=False),
        sa.Column("table_name", Text, nullable=False),
        sa.Column("schema", sa.JSON(), nullable=False),
        sa.Column("rules", sa.JSON(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_collections")),
        sa.UniqueConstraint("name_key", name=op.f("uq_collections_name_key")),
        sa.UniqueConstraint("table_name", name=op.f("uq_collections_table_name")),
    )
    op.create_table(
        "jobs",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("kind", Text, nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("status", Text, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=False),
        sa.Column("last_error", Text, nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_jobs")),
    )
    op.create_index("ix_jobs_due", "jobs", ["status", "due_at"], unique=False)
    op.create_table(
        "rate_limits",
        sa.Column("key", Text, nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_rate_limits")),
    )
    op.create_index("ix_rate_limits_expires_at", "rate_limits", ["expires_at"], unique=False)
    op.create_table(
        "roles",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("description", Text, nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_roles")),
        sa.UniqueConstraint("name", name=op.f("uq_roles_name")),
    )
    op.create_table(
        "groups",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("description", Text, nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_groups_account_id")),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_groups")),
        sa.UniqueConstraint("account_id", "name", name=op.f("uq_groups_account_id_name")),
    )
    op.create_table(
        "invitations",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("email", Text, nullable=False),
        sa.Column("email_key", Text, nullable=False),
        sa.Column("role_id", sa.Integer(), nullable=False),
        sa.Column("groups", sa.JSON(), nullable=False),
        sa.Column("state", Text, nullable=False),
        sa.Column("token_hash", Text, nullable=False),
        sa.Column("invited_by", Text, nullable=True),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("accepted_at", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_invitations_account_id")
        ),
        sa.ForeignKeyConstraint(["role_id"], ["roles.id"], name=op.f("fk_invitations_role_id")),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_invitations")),
    )
    op.create_index(
        "ix_invitations_created_at", "invitations", ["account_id", "created_at"], unique=False
    )
    op.create_index(
        "ix_invitations_hash", "invitations", ["account_id", "token_hash"], unique=False
    )
    op.create_table(
        "users",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("email", Text, nullable=False),
        sa.Column("email_key", Text, nullable=False),
        sa.Column("name", Text, nullable=True),
        sa.Column("password_hash", Text, nullable=True),
        sa.Column("role_id", sa.Integer(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("email_verified", sa.Boolean(), nullable=False),
        sa.Column("email_verified_at", UtcDateTime(), nullable=True),
        sa.Column("auth_provider", Text, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("last_login", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=op.f("fk_users_account_id")),
        sa.ForeignKeyConstraint(["role_id"], ["roles.id"], name=op.f("fk_users_role_id")),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_users")),
        sa.UniqueConstraint("account_id", "email_key", name=op.f("uq_users_account_id_email_key")),
    )
    op.create_index("ix_users_id", "users", ["id"], unique=False)
    op.create_table(
        "api_keys",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("key_hash", Text, nullable=False),
        sa.Column("name", Text, nullable=False),
        sa.Column("description", Text, nullable=True),
        sa.Column("created_by", Text, nullable=False),
        sa.Column("scopes", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("is_revoked", sa.Boolean(), nullable=False),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.Column("revoked_by", Text, nullable=True),
        sa.Column("expires_at", UtcDateTime(), nullable=True),
        sa.Column("last_used_at", UtcDateTime(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id", "created_by"],
            ["users.account_id", "users.id"],
            name=op.f("fk_api_keys_account_id_created_by"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("account_id", "key_hash", name=op.f("uq_api_keys_account_id_key_hash")),
    )
    op.create_index("ix_api_keys_owner", "api_keys", ["account_id", "created_by"], unique=False)
    op.create_table(
        "group_members",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("group_id", Text, nullable=False),
        sa.Column("user_id", Text, nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id", "group_id"],
            ["groups.account_id", "groups.id"],
            name=op.f("fk_group_members_account_id_group_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["account_id", "user_id"],
            ["users.account_id", "users.id"],
            name=op.f("fk_group_members_account_id_user_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("account_id", "group_id", "user_id", name=op.f("pk_group_members")),
    )
    op.create_index(
        "ix_group_members_user", "group_members", ["account_id", "user_id"], unique=False
    )
    op.create_table(
        "mailed_tokens",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("user_id", Text, nullable=False),
        sa.Column("purpose", Text, nullable=False),
        sa.Column("email", Text, nullable=False),
        sa.Column("token_hash", Text, nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id", "user_id"],
            ["users.account_id", "users.id"],
            name=op.f("fk_mailed_tokens_account_id_user_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_mailed_tokens")),
    )
    op.create_index(
        "ix_mailed_tokens_hash", "mailed_tokens", ["account_id", "token_hash"], unique=False
    )
    op.create_index(
        "ix_mailed_tokens_user", "mailed_tokens", ["account_id", "user_id"], unique=False
    )
    op.create_table(
        "sessions",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("user_id", Text, nullable=False),
        sa.Column("kind", Text, nullable=False),
        sa.Column("token_hash", Text, nullable=False),
        sa.Column("ip_address", Text, nullable=True),
        sa.Column("user_agent", Text, nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("last_used_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["account_id", "user_id"],
            ["users.account_id", "users.id"],
            name=op.f("fk_sessions_account_id_user_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_sessions")),
    )
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"], unique=False)
    op.create_index("ix_sessions_hash", "sessions", ["account_id", "token_hash"], unique=False)
    op.create_index("ix_sessions_user", "sessions", ["account_id", "user_id"], unique=False)
    _seed()


def _seed() -> None:
    """Insert the system account, the roles and the counter of account codes."""
    now = datetime.now(UTC)
    times = {"created_at": now, "updated_at": now}
    account = {"id": SYSTEM_ACCOUNT_ID, "account_code": "SY0000", "slug": "system"}
    account |= {"name": "System", "is_active": True, "version": 1, "settings": {}}
    group = {"account_id": SYSTEM_ACCOUNT_ID, "id": str(uuid7()), "name": "pii_access"}
    group |= {"description": "Sees personal data unmasked."}
    roles = {
        "admin": "Runs the account.",
        "editor": "Works with the account's records.",
        "viewer": "Reads the account's records.",
    }
    _insert("accounts", account | times)
    _insert("groups", group | times)
    for name, description in roles.items():
        _insert("roles", {"name": name, "description": description} | times)
    _insert("account_code_counter", {"id": 1, "given_out": 0})


def _insert(table: str, row: dict[str, object]) -> None:
    moments = ("created_at", "updated_at")
    types = {"settings": sa.JSON(), **dict.fromkeys(moments, UtcDateTime())}
    columns = [sa.column(name, types.get(name)) for name in row]
    op.bulk_insert(sa.table(table, *columns), [row])


def downgrade() -> None:
    """Revert the revision."""
    op.drop_index("ix_sessions_user", table_name="sessions")
    op.drop_index("ix_sessions_hash", table_name="sessions")
    op.drop_index("ix_sessions_expires_at", table_name="sessions")
    op.drop_table("sessions")
    op.drop_index("ix_mailed_tokens_user", table_name="mailed_tokens")
    op.drop_index("ix_mailed_tokens_hash", table_name="mailed_tokens")
    op.drop_table("mailed_tokens")
    op.drop_index("ix_group_members_user", table_name="group_members")
    op.drop_table("group_members")
    op.drop_index("ix_api_keys_owner", table_name="api_keys")
    op.drop_table("api_keys")
    op.drop_index("ix_users_id", table_name="users")
    op.drop_table("users")
    op.drop_index("ix_invitations_hash", table_name="invitations")
    op.drop_index("ix_invitations_created_at", table_name="invitations")
    op.drop_table("invitations")
    op.drop_table("groups")
    op.drop_table("roles")
    op.drop_index("ix_rate_limits_expires_at", table_name="rate_limits")
    op.drop_table("rate_limits")
    op.drop_index("ix_jobs_due", table_name="jobs")
    op.drop_table("jobs")
    op.drop_table("collections")
    op.drop_table("collection_revisions")
    op.drop_table("accounts")
    op.drop_table("account_code_counter")
