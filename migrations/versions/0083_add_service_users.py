"""add service users, who have no address and no sign-in

Revision ID: 0083
Revises: 0078
Create Date: 2026-11-30 11:40:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text

revision = "0083"
down_revision = "0082"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("users", sa.Column("kind", Text, nullable=False, server_default="person"))


def downgrade() -> None:
    """Revert the revision; service users stay, deactivated, as people without an address."""
    op.execute(sa.text("UPDATE users SET is_active = false WHERE kind = 'service'"))
    op.drop_column("users", "kind")
