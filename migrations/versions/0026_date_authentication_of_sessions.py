"""date authentication of sessions

Revision ID: 0026
Revises: 0025
Create Date: 2026-11-24 09:30:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import UtcDateTime

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("sessions", sa.Column("authenticated_at", UtcDateTime(), nullable=True))


def downgrade() -> None:
    """Revert the revision."""
    op.drop_column("sessions", "authenticated_at")
