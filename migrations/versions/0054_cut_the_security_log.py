"""let the security log begin at a signed start, and remember verifications

Revision ID: 0054
Revises: 0053
Create Date: 2026-11-27 03:40:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support import row_security
from migrations.support.types import Id, Text, UtcDateTime

revision = "0054"
down_revision = "0053"
branch_labels = None
depends_on = None

MESSAGE = "The security log is append-only."
IS_CUT = (
    "EXISTS (SELECT 1 FROM security_starts AS s"
    " WHERE s.account_id = OLD.account_id AND OLD.number <= s.entry_id)"
)


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "security_starts",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("entry_id", sa.BigInteger(), nullable=False),
        sa.Column("checksum", sa.LargeBinary(), nullable=False),
        sa.Column("removed", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("public_key", Text, nullable=False),
        sa.Column("signature", Text, nullable=False),
        sa.PrimaryKeyConstraint("account_id", name=op.f("pk_security_starts")),
    )
    op.create_table(
        "chain_verifications",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("log", Text, nullable=False),
        sa.Column("verified_at", UtcDateTime(), nullable=False),
        sa.Column("is_valid", sa.Boolean(), nullable=False),
        sa.Column("checked", sa.BigInteger(), nullable=False),
        sa.Column("broken_id", sa.BigInteger(), nullable=True),
        sa.Column("reason", Text, nullable=True),
        sa.PrimaryKeyConstraint("account_id", "log", name=op.f("pk_chain_verifications")),
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER security_events_delete")
        op.execute(
            "CREATE TRIGGER security_events_delete BEFORE DELETE ON security_events"
            f" WHEN NOT {IS_CUT} BEGIN SELECT RAISE(ABORT, '{MESSAGE}'); END"
        )
        return
    op.execute("DROP TRIGGER security_events_change ON security_events")
    op.execute(
        "CREATE TRIGGER security_events_change BEFORE UPDATE ON security_events"
        " FOR EACH ROW EXECUTE FUNCTION protect_security_events()"
    )
    op.execute(
        "CREATE FUNCTION refuse_security_deletion() RETURNS trigger LANGUAGE plpgsql AS $$"
        f" BEGIN IF {IS_CUT} THEN RETURN OLD; END IF; RAISE EXCEPTION '{MESSAGE}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER security_events_delete BEFORE DELETE ON security_events"
        " FOR EACH ROW EXECUTE FUNCTION refuse_security_deletion()"
    )
    for table in ("security_starts", "chain_verifications"):
        row_security.cover(op.get_bind(), table)


def downgrade() -> None:
    """Revert the revision; logs that were cut no longer verify."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER security_events_delete")
        op.execute(
            "CREATE TRIGGER security_events_delete BEFORE DELETE ON security_events"
            f" BEGIN SELECT RAISE(ABORT, '{MESSAGE}'); END"
        )
    else:
        op.execute("DROP TRIGGER security_events_delete ON security_events")
        op.execute("DROP FUNCTION refuse_security_deletion")
        op.execute("DROP TRIGGER security_events_change ON security_events")
        op.execute(
            "CREATE TRIGGER security_events_change BEFORE UPDATE OR DELETE ON security_events"
            " FOR EACH ROW EXECUTE FUNCTION protect_security_events()"
        )
    op.drop_table("chain_verifications")
    op.drop_table("security_starts")
