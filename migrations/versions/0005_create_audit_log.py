"""create audit log

Revision ID: 0005
Revises: 0004
Create Date: 2026-11-21 15:10:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text, UtcDateTime

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

# Columns that an erasure may set to null; others never change.
ERASABLE = (
    "old_value",
    "new_value",
    "salt",
    "user_email",
    "user_name",
    "ip_address",
    "user_agent",
    "es_username",
    "es_reason",
    "actor_salt",
)
FIXED = (
    "account_id",
    "id",
    "operation",
    "table_name",
    "record_id",
    "column_name",
    "user_id",
    "es_timestamp",
    "request_id",
    "occurred_at",
    "extra_metadata",
    "values_digest",
    "actor_digest",
    "entry_digest",
    "previous_hash",
    "checksum",
)
INDEXES = {
    "ix_audit_log_id": ["id"],
    "ix_audit_log_newest": ["occurred_at", "id"],
    "ix_audit_log_account": ["account_id", "occurred_at", "id"],
    "ix_audit_log_table": ["table_name", "occurred_at", "id"],
    "ix_audit_log_record": ["record_id", "occurred_at", "id"],
    "ix_audit_log_user": ["user_id", "occurred_at", "id"],
    "ix_audit_log_operation": ["operation", "occurred_at", "id"],
    "ix_audit_log_account_table": ["account_id", "table_name", "occurred_at", "id"],
    "ix_audit_log_account_user": ["account_id", "user_id", "occurred_at", "id"],
    "ix_audit_log_account_operation": ["account_id", "operation", "occurred_at", "id"],
}

# Entries are a JSON array, ordered by account. Ids are drawn under the lock of the head, so that
# they ascend along every chain, and accounts do not wait for each other.
APPEND = """
CREATE FUNCTION append_audit(given json) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  entry audit_log;
  head audit_heads;
BEGIN
  FOR entry IN SELECT * FROM json_populate_recordset(NULL::audit_log, given) LOOP
    IF head.account_id IS DISTINCT FROM entry.account_id THEN
      PERFORM move_audit_head(head);
      SELECT * INTO head FROM audit_heads WHERE account_id = entry.account_id FOR UPDATE;
      IF NOT FOUND THEN
        INSERT INTO audit_heads (account_id, last_id, checksum, checkpoint_id, changed_at)
          VALUES (entry.account_id, 0, repeat('0', 64), 0, entry.occurred_at)
          ON CONFLICT (account_id) DO NOTHING;
        SELECT * INTO head FROM audit_heads WHERE account_id = entry.account_id FOR UPDATE;
      END IF;
    END IF;
    entry.id := nextval('audit_log_ids');
    entry.previous_hash := head.checksum;
    entry.checksum := encode(sha256(convert_to(
      entry.previous_hash || ':' || entry.id || ':' || entry.entry_digest, 'UTF8')), 'hex');
    INSERT INTO audit_log SELECT entry.*;
    head.last_id := entry.id;
    head.checksum := entry.checksum;
    head.changed_at := entry.occurred_at;
  END LOOP;
  PERFORM move_audit_head(head);
END $$
"""
MOVE = """
CREATE FUNCTION move_audit_head(head audit_heads) RETURNS void LANGUAGE sql AS $$
  UPDATE audit_heads
    SET last_id = head.last_id, checksum = head.checksum, changed_at = head.changed_at
    WHERE account_id = head.account_id
$$
"""
REFUSE = """
CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'audit_log is append-only';
END $$
"""


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "audit_log",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("operation", Text, nullable=False),
        sa.Column("table_name", Text, nullable=False),
        sa.Column("record_id", Text, nullable=False),
        sa.Column("column_name", Text, nullable=False),
        sa.Column("old_value", Text, nullable=True),
        sa.Column("new_value", Text, nullable=True),
        sa.Column("user_id", Text, nullable=False),
        sa.Column("user_email", Text, nullable=True),
        sa.Column("user_name", Text, nullable=True),
        sa.Column("es_username", Text, nullable=True),
        sa.Column("es_reason", Text, nullable=True),
        sa.Column("es_timestamp", UtcDateTime(), nullable=True),
        sa.Column("ip_address", Text, nullable=True),
        sa.Column("user_agent", Text, nullable=True),
        sa.Column("request_id", Text, nullable=True),
        sa.Column("occurred_at", UtcDateTime(), nullable=False),
        sa.Column("extra_metadata", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("salt", Text, nullable=True),
        sa.Column("values_digest", Text, nullable=False),
        sa.Column("actor_salt", Text, nullable=True),
        sa.Column("actor_digest", Text, nullable=False),
        sa.Column("entry_digest", Text, nullable=False),
        sa.Column("previous_hash", Text, nullable=False),
        sa.Column("checksum", Text, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_audit_log")),
    )
    op.create_table(
        "audit_heads",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("last_id", sa.BigInteger(), nullable=False),
        sa.Column("checksum", Text, nullable=False),
        sa.Column("checkpoint_id", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", name=op.f("pk_audit_heads")),
    )
    op.create_table(
        "audit_checkpoints",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("entry_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("checksum", Text, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("public_key", Text, nullable=False),
        sa.Column("signature", Text, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "entry_id", name=op.f("pk_audit_checkpoints")),
    )
    for name, columns in INDEXES.items():
        op.create_index(name, "audit_log", columns, unique=False)
    newest = ["created_at", "account_id"]
    op.create_index("ix_audit_checkpoints_newest", "audit_checkpoints", newest, unique=False)
    if op.get_bind().dialect.name == "postgresql":
        _guard_postgres()
    else:
        _guard_sqlite()


def _changes(distinct: str) -> str:
    """The condition for an UPDATE that does more than erase."""
    fixed = [_differs(name, distinct) for name in FIXED]
    erasable = [f"(NEW.{n} IS NOT NULL AND {_differs(n, distinct)})" for n in ERASABLE]
    return " OR ".join([*fixed, *erasable])


def _differs(name: str, distinct: str) -> str:
    # PostgreSQL cannot compare json.
    cast = "::text" if name == "extra_metadata" and distinct == "IS DISTINCT FROM" else ""
    return f"NEW.{name}{cast} {distinct} OLD.{name}{cast}"


def _guard_postgres() -> None:
    op.execute("CREATE SEQUENCE audit_log_ids OWNED BY audit_log.id")
    for statement in (MOVE, APPEND, REFUSE):
        op.execute(statement)
    refuse = "EXECUTE FUNCTION refuse_audit_change()"
    op.execute(
        "CREATE TRIGGER audit_log_update BEFORE UPDATE ON audit_log FOR EACH ROW"
        f" WHEN ({_changes('IS DISTINCT FROM')}) {refuse}"
    )
    op.execute(f"CREATE TRIGGER audit_log_delete BEFORE DELETE ON audit_log FOR EACH ROW {refuse}")
    op.execute(
        "CREATE TRIGGER audit_log_truncate BEFORE TRUNCATE ON audit_log"
        f" FOR EACH STATEMENT {refuse}"
    )


def _guard_sqlite() -> None:
    refuse = "BEGIN SELECT RAISE(ABORT, 'audit_log is append-only'); END"
    op.execute(
        "CREATE TRIGGER audit_log_update BEFORE UPDATE ON audit_log"
        f" WHEN {_changes('IS NOT')} {refuse}"
    )
    op.execute(f"CREATE TRIGGER audit_log_delete BEFORE DELETE ON audit_log {refuse}")


def downgrade() -> None:
    """Revert the revision."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION append_audit")
        op.execute("DROP FUNCTION move_audit_head")
    for table in ("audit_checkpoints", "audit_heads", "audit_log"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION refuse_audit_change")
