"""note whether the domains of senders have a DMARC record

Revision ID: 0088
Revises: 0078
Create Date: 2026-11-30 11:40:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0088"
down_revision = "0087"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("account_domains", sa.Column("sender_dmarc", sa.Boolean(), nullable=True))


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("account_domains", "sender_dmarc")
