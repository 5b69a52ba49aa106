"""add prices

Revision ID: shop_0001
Create Date: 2026-11-30T12:00:00Z
"""

import sqlalchemy as sa
from alembic import op

from app.extend.tables import Text, UtcDateTime

revision = "shop_0001"
down_revision = None
branch_labels = ("shop",)
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "x_shop_prices",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", Text, nullable=False),
        sa.Column("article", Text, nullable=False),
        sa.Column("amount", sa.Float(), nullable=False),
        sa.Column("note", Text, nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_x_shop_prices_account_id")
        ),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_x_shop_prices")),
        sa.UniqueConstraint(
            "account_id", "article", name=op.f("uq_x_shop_prices_account_id_article")
        ),
    )


def downgrade() -> None:
    """Revert the revision."""
    op.drop_table("x_shop_prices")
