"""find audit entries by change

Revision ID: 0012
Revises: 0011
Create Date: 2026-11-21 22:20:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text, UtcDateTime

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

BY = {
    "newest": [],
    "account": ["account_id"],
    "table": ["table_name"],
    "record": ["record_id"],
    "user": ["user_id"],
    "operation": ["operation"],
    "account_table": ["account_id", "table_name"],
    "account_user": ["account_id", "user_id"],
    "account_operation": ["account_id", "operation"],
}
SAME = ("operation", "table_name", "record_id", "user_id", "occurred_at")
COLUMNS = f"account_id, first_id, last_id, entries, {', '.join(SAME)}"

# Consecutive entries of the same change become one row.
COLLECT = f"""
INSERT INTO audit_changes ({COLUMNS})
SELECT account_id, min(id), max(id), count(*), {", ".join(f"min({name})" for name in SAME)}
FROM (
  SELECT *, sum(begins) OVER (PARTITION BY account_id ORDER BY id) AS change FROM (
    SELECT account_id, id, {", ".join(SAME)},
      CASE WHEN {" AND ".join(f"{name} = lag({name}) OVER chain" for name in SAME)}
        THEN 0 ELSE 1 END AS begins
    FROM audit_log WHERE %s WINDOW chain AS (PARTITION BY account_id ORDER BY id)
  ) AS places
) AS changes
GROUP BY account_id, change;
"""  # noqa: S608 - constants
# Writers move the head after they append to a chain.
NEW_ONES = COLLECT % "account_id = NEW.account_id AND id > OLD.last_id AND id <= NEW.last_id"
ON_POSTGRES = f"""
CREATE FUNCTION collect_audit_changes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  {NEW_ONES}
  RETURN NULL;
END $$
"""

REFUSE = """
CREATE OR REPLACE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
END $$
"""


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "audit_changes",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("first_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("last_id", sa.BigInteger(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("operation", Text, nullable=False),
        sa.Column("table_name", Text, nullable=False),
        sa.Column("record_id", Text, nullable=False),
        sa.Column("user_id", Text, nullable=False),
        sa.Column("occurred_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "first_id", name=op.f("pk_audit_changes")),
    )
    on_postgres = op.get_bind().dialect.name == "postgresql"
    if on_postgres:
        # Locked, so that nothing is appended before the trigger exists.
        op.execute("LOCK TABLE audit_log IN SHARE ROW EXCLUSIVE MODE")
    op.execute(COLLECT % "id IS NOT NULL")
    for name, columns in BY.items():
        place = [*columns, "occurred_at", "first_id"]
        op.create_index(f"ix_audit_changes_{name}", "audit_changes", place, unique=False)
        op.drop_index(f"ix_audit_log_{name}", "audit_log")
    (_guard_postgres if on_postgres else _guard_sqlite)()


def _guard_postgres() -> None:
    op.execute(ON_POSTGRES)
    op.execute(REFUSE)
    # New heads start at 0 and are moved like any other.
    op.execute(
        "CREATE TRIGGER audit_heads_moved AFTER UPDATE OF last_id ON audit_heads"
        " FOR EACH ROW EXECUTE FUNCTION collect_audit_changes()"
    )
    op.execute(
        "CREATE TRIGGER audit_changes_change BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_changes"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change()"
    )


def _guard_sqlite() -> None:
    # Writers insert the changes themselves: a trigger would cost more than everything else.
    for event in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER audit_changes_{event.lower()} BEFORE {event} ON audit_changes"
            " BEGIN SELECT RAISE(ABORT, 'audit_changes is append-only'); END"
        )


def downgrade() -> None:
    """Revert the revision."""
    for name, columns in BY.items():
        op.create_index(
            f"ix_audit_log_{name}", "audit_log", [*columns, "occurred_at", "id"], unique=False
        )
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER audit_heads_moved ON audit_heads")
        op.execute("DROP FUNCTION collect_audit_changes")
    op.drop_table("audit_changes")
