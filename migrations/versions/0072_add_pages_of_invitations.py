"""add the pages that invitations lead to

Revision ID: 0072
Revises: 0071
Create Date: 2026-11-30 08:30:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text

revision = "0072"
down_revision = "0071"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("invitations", sa.Column("redirect_uri", Text))


def downgrade() -> None:
    """Revert the revision; invitations then outlive the listing of their pages."""
    op.drop_column("invitations", "redirect_uri")
