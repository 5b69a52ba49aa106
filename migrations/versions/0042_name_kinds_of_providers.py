"""name the kind of provider settings whose name is a slug; note second factors of sign-ins

Revision ID: 0042
Revises: 0041
Create Date: 2026-11-26 20:40:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("provider_settings", sa.Column("kind", Text, nullable=True))
    mfa = sa.Column("mfa", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("sso_flows", mfa)


def downgrade() -> None:
    """Revert the revision; earlier versions do not know these settings."""
    op.drop_column("sso_flows", "mfa")
    op.execute("DELETE FROM provider_settings WHERE kind IS NOT NULL")
    op.drop_column("provider_settings", "kind")
