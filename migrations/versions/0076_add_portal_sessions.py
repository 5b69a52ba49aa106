"""let sessions open pages of administration in a product's own page

Revision ID: 0076
Revises: 0075
Create Date: 2026-11-30 09:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

revision = "0076"
down_revision = "0075"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.add_column("sessions", sa.Column("portal", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Revert the revision; portal sessions end."""
    op.execute("DELETE FROM sessions WHERE kind = 'portal'")
    op.drop_column("sessions", "portal")
