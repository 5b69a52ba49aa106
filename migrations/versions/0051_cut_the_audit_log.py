"""let the audit log begin at a signed start

Revision ID: 0051
Revises: 0050
Create Date: 2026-11-27 01:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support import row_security
from migrations.support.types import Id, Text, UtcDateTime

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None

DROP = {
    "sqlite": "DROP TRIGGER audit_changes_delete",
    "postgresql": "DROP TRIGGER audit_changes_delete ON audit_changes",
}
CUT = (
    "EXISTS (SELECT 1 FROM audit_starts AS s"
    " WHERE s.account_id = OLD.account_id AND OLD.last_id <= s.entry_id)"
)
REFUSE = "BEGIN SELECT RAISE(ABORT, 'audit_changes is append-only'); END"
CREATE = "CREATE TRIGGER audit_changes_delete BEFORE DELETE ON audit_changes"


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "audit_starts",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("entry_id", sa.BigInteger(), nullable=False),
        sa.Column("checksum", sa.LargeBinary(), nullable=False),
        sa.Column("removed", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("public_key", Text, nullable=False),
        sa.Column("signature", Text, nullable=False),
        sa.PrimaryKeyConstraint("account_id", name=op.f("pk_audit_starts")),
    )
    dialect = op.get_bind().dialect.name
    op.execute(DROP[dialect])
    if dialect == "sqlite":
        op.execute(f"{CREATE} WHEN NOT {CUT} {REFUSE}")
        return
    op.execute(
        "CREATE FUNCTION refuse_audit_deletion() RETURNS trigger LANGUAGE plpgsql AS $$"
        f" BEGIN IF {CUT} THEN RETURN OLD; END IF;"
        " RAISE EXCEPTION 'audit_changes is append-only'; END $$"
    )
    op.execute(f"{CREATE} FOR EACH ROW EXECUTE FUNCTION refuse_audit_deletion()")
    row_security.cover(op.get_bind(), "audit_starts")


def downgrade() -> None:
    """Revert the revision; logs that were cut no longer verify."""
    dialect = op.get_bind().dialect.name
    op.execute(DROP[dialect])
    if dialect == "sqlite":
        op.execute(f"{CREATE} {REFUSE}")
    else:
        op.execute("DROP FUNCTION refuse_audit_deletion")
        op.execute(f"{CREATE} FOR EACH ROW EXECUTE FUNCTION refuse_audit_change()")
    op.drop_table("audit_starts")
