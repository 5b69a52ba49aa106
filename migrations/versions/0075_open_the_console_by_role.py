"""let roles open the console

Revision ID: 0075
Revises: 0073
Create Date: 2026-11-30 08:30:00.000000
"""

import sqlalchemy as sa
from alembic import op

revision = "0075"
down_revision = "0073"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision; the console then is for admins alone until roles open it."""
    column = sa.Column("console", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("roles", column)
    op.execute(sa.text("UPDATE roles SET console = true WHERE name = 'admin'"))


def downgrade() -> None:
    """Revert the revision; every user may open the console again."""
    op.drop_column("roles", "console")
