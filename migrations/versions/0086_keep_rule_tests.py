"""keep the rule tests that manifests state of collections, and the format of exports

Revision ID: 0086
Revises: 0078
Create Date: 2026-11-30 11:40:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text

revision = "0086"
down_revision = "0083"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    tests = sa.Column("tests", sa.JSON(), server_default="[]", nullable=False)
    op.add_column("collections", tests)
    format = sa.Column("format", Text, server_default="bundle", nullable=False)
    op.add_column("account_exports", format)


def downgrade() -> None:
    """Revert the revision; the tests are lost here, not in the manifests."""
    op.drop_column("account_exports", "format")
    op.drop_column("collections", "tests")
