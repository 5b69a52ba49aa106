"""give provider settings redirect addresses of their own

Revision ID: 0022
Revises: 0021
Create Date: 2026-11-24 10:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Id, Text

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

ENDPOINTS = ("authorize_url", "token_url", "userinfo_url", "jwks_url", "issuer")
settings = sa.table(
    "provider_settings",
    sa.column("account_id", Id),
    sa.column("id", Id),
    sa.column("category", Text),
    sa.column("config", sa.JSON),
    sa.column("shared_callback", sa.Boolean),
)


def upgrade() -> None:
    """Apply the revision."""
    shared = sa.Column("shared_callback", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("provider_settings", shared)
    op.add_column("sso_flows", sa.Column("row_id", Id, nullable=True))
    op.add_column("sso_flows", sa.Column("callback_url", Text, nullable=True))
    # The shared address is registered at their providers; it is safe with the default endpoints.
    connection = op.get_bind()
    rows = sa.select(settings.c.account_id, settings.c.id, settings.c.config)
    rows = rows.where(settings.c.category == "auth_providers")
    for account_id, id, config in connection.execute(rows).all():
        if not any(config.get(name) for name in ENDPOINTS):
            mine = (settings.c.account_id == account_id, settings.c.id == id)
            connection.execute(sa.update(settings).where(*mine).values(shared_callback=True))


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("sso_flows", "callback_url")
    op.drop_column("sso_flows", "row_id")
    op.drop_column("provider_settings", "shared_callback")
