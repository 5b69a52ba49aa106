"""compare addresses by mailbox

Revision ID: 0010
Revises: 0009
Create Date: 2026-11-21 19:30:00.000000
"""

import unicodedata

import sqlalchemy as sa
from alembic import op
from email_validator import validate_email

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

USERS = sa.table("users", *map(sa.column, ("account_id", "id", "email", "email_key")))
INVITATIONS = sa.table("invitations", *map(sa.column, ("account_id", "id", "email", "email_key")))


def upgrade() -> None:
    """Apply the revision; addresses that now equal another of the account keep their old key."""
    for table in (USERS, INVITATIONS):
        rows = op.get_bind().execute(sa.select(table).order_by(table.c.id)).all()
        taken = {(row.account_id, row.email_key) for row in rows}
        for row in rows:
            key = _key(row.email)
            if key == row.email_key or (table is USERS and (row.account_id, key) in taken):
                continue
            taken.add((row.account_id, key))
            mine = (table.c.account_id == row.account_id, table.c.id == row.id)
            op.execute(sa.update(table).where(*mine).values(email_key=key))


def _key(email: str) -> str:
    try:
        return validate_email(email, check_deliverability=False).normalized.lower()
    except ValueError:
        return unicodedata.normalize("NFC", email).lower()


def downgrade() -> None:
    """Revert the revision; the keys stay valid."""
