"""add texts of mails, who may have their own, and senders of accounts

Revision ID: 0073
Revises: 0072
Create Date: 2026-11-30 08:30:00.000000
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations.support import row_security
from migrations.support.types import Id, Text, UtcDateTime

revision = "0073"
down_revision = "0072"
branch_labels = None
depends_on = None

SETTINGS = sa.table(
    "instance_settings",
    sa.column("id", Text),
    sa.column("value", sa.JSON()),
    sa.column("version", sa.Integer()),
)


def upgrade() -> None:
    """Apply the revision."""
    op.bulk_insert(SETTINGS, [{"id": "mail_templates", "value": {}, "version": 1}])
    op.add_column("accounts", sa.Column("may_brand", sa.Boolean(), nullable=True))
    op.add_column("account_domains", sa.Column("sender_proof", Text, nullable=True))
    op.create_table(
        "mail_templates",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("id", Id, nullable=False),
        sa.Column("kind", Text, nullable=False),
        sa.Column("language", Text, nullable=False),
        sa.Column("subject_line", Text, nullable=False),
        sa.Column("body_text", Text),
        sa.Column("body_html", Text),
        sa.Column("reply_to", Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_mail_templates")),
        sa.UniqueConstraint(
            "account_id",
            "kind",
            "language",
            name=op.f("uq_mail_templates_account_id_kind_language"),
        ),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name=op.f("fk_mail_templates_account_id_accounts")
        ),
    )
    row_security.cover(op.get_bind(), "mail_templates")


def downgrade() -> None:
    """Revert the revision; all texts are lost."""
    op.drop_table("mail_templates")
    op.drop_column("account_domains", "sender_proof")
    op.drop_column("accounts", "may_brand")
    op.execute("DELETE FROM instance_settings WHERE id = 'mail_templates'")
