"""complete SAML: key pairs, sessions for single logout, metadata by URL

Revision ID: 0044
Revises: 0043
Create Date: 2026-11-26 20:40:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text, UtcDateTime

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

SETTINGS = sa.table(
    "provider_settings",
    sa.column("account_id", Text),
    sa.column("id", Text),
    sa.column("category", Text),
    sa.column("config", sa.JSON),
)


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "saml_keys",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("certificate", Text, nullable=False),
        sa.Column("private_key", Text, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_saml_keys_account_id")
        ),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_saml_keys")),
        sa.UniqueConstraint("account_id", "slot", name=op.f("uq_saml_keys_account_id_slot")),
    )
    op.create_table(
        "saml_sessions",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("session_id", Text, nullable=True),
        sa.Column("provider_name", Text, nullable=False),
        sa.Column("issuer", Text, nullable=False),
        sa.Column("subject", Text, nullable=False),
        sa.Column("name_format", Text, nullable=True),
        sa.Column("name_qualifier", Text, nullable=True),
        sa.Column("sp_name_qualifier", Text, nullable=True),
        sa.Column("session_index", Text, nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id", "session_id"],
            ["sessions.account_id", "sessions.id"],
            name=op.f("fk_saml_sessions_account_id_session_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_saml_sessions")),
    )
    op.create_index(
        "ix_saml_sessions_subject", "saml_sessions", ["account_id", "issuer", "subject"]
    )
    op.create_index("ix_saml_sessions_session", "saml_sessions", ["account_id", "session_id"])
    op.create_index("ix_saml_sessions_created_at", "saml_sessions", ["created_at"])
    op.create_table(
        "saml_metadata_reads",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("setting_id", Text, nullable=False),
        sa.Column("read_at", UtcDateTime(), nullable=False),
        sa.Column("error", Text, nullable=True),
        sa.Column("changed_at", UtcDateTime(), nullable=True),
        sa.Column("changes", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id", "setting_id"],
            ["provider_settings.account_id", "provider_settings.id"],
            name=op.f("fk_saml_metadata_reads_account_id_setting_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("account_id", "setting_id", name=op.f("pk_saml_metadata_reads")),
    )
    op.create_index("ix_saml_metadata_reads_read_at", "saml_metadata_reads", ["read_at"])
    # Another NameID would be another identity: present providers keep sending theirs.
    _change_configs(lambda config: {"name_id_format": "unspecified", **config})


def downgrade() -> None:
    """Revert the revision."""
    names = ("name_id_format", "sign_requests", "idp_slo_url", "metadata_url")
    _change_configs(
        lambda config: {name: value for name, value in config.items() if name not in names}
    )
    for table in ("saml_metadata_reads", "saml_sessions", "saml_keys"):
        op.drop_table(table)


def _change_configs(change):
    connection, columns = op.get_bind(), SETTINGS.c
    rows = connection.execute(sa.select(SETTINGS).where(columns.category == "saml_providers"))
    for row in rows.all():
        connection.execute(
            SETTINGS.update()
            .where(columns.account_id == row.account_id, columns.id == row.id)
            .values(config=change(row.config))
        )
