"""trust provider settings

Who of `pii_access` may sign in by a provider's row, which identities come from rows that they may
not use, and the token of an invitation that its answer shows, beside the one that is mailed. Null
is what rows from before have: they count as they did.

Revision ID: 0025
Revises: 0024
Create Date: 2026-11-24 10:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("provider_settings", sa.Column("admits_pii_members", sa.Boolean(), nullable=True))
    op.add_column("identities", sa.Column("is_trusted", sa.Boolean(), nullable=True))
    op.add_column("invitations", sa.Column("shown_token_hash", Text, nullable=True))
    op.create_index("ix_invitations_shown_hash", "invitations", ["account_id", "shown_token_hash"])


def downgrade() -> None:
    """Revert the revision."""
    op.drop_index("ix_invitations_shown_hash", "invitations")
    op.drop_column("invitations", "shown_token_hash")
    op.drop_column("identities", "is_trusted")
    op.drop_column("provider_settings", "admits_pii_members")
