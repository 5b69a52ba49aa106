"""store changes before they have a place in the audit log

Revision ID: 0068
Revises: 0067
Create Date: 2026-11-30 02:00:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support import row_security
from migrations.support.types import Id, Text, UtcDateTime

revision = "0068"
down_revision = "0067"
branch_labels = None
depends_on = None

MESSAGE = "audit_pending is append-only"
# A change is deleted once the log has it: nothing else has its salts. The account is no column of
# the key here, as all changes of a transaction may have the same time.
IS_SEALED = (
    "EXISTS (SELECT 1 FROM audit_changes AS c WHERE c.account_id || '' = OLD.account_id"
    " AND c.record_id = OLD.record_id AND c.occurred_at = OLD.occurred_at AND c.salts = OLD.salts"
    " AND c.columns = OLD.columns AND c.old_values {same} OLD.old_values"
    " AND c.new_values {same} OLD.new_values)"
)
# A worker of Citus cannot reach the distributed table from within a statement on one of its
# shards, so the trigger of a shard looks into the shard of the same accounts. A plan that was made
# while the table was small would read all of it.
PROTECT = f"""
CREATE FUNCTION protect_pending_changes() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off AS $$
DECLARE
  shard text;
  is_sealed boolean := OLD.salts IS NULL;
BEGIN
  IF TG_OP = 'DELETE' AND NOT is_sealed THEN
    IF TG_TABLE_NAME = 'audit_pending' THEN
      is_sealed := {IS_SEALED.format(same="IS NOT DISTINCT FROM")};
    ELSE
      SELECT format('%I.%I', TG_TABLE_SCHEMA, 'audit_changes_' || other.shardid) INTO shard
      FROM pg_dist_shard AS own JOIN pg_dist_shard AS other USING (shardminvalue)
      WHERE own.shardid::text = substring(TG_TABLE_NAME FROM '_([0-9]+)$')
        AND other.logicalrelid = 'audit_changes'::regclass;
      EXECUTE format('SELECT EXISTS (SELECT 1 FROM %s AS c WHERE c.account_id = $1.account_id'
        ' AND c.record_id = $1.record_id AND c.occurred_at = $1.occurred_at'
        ' AND c.salts = $1.salts AND c.columns = $1.columns'
        ' AND c.old_values IS NOT DISTINCT FROM $1.old_values'
        ' AND c.new_values IS NOT DISTINCT FROM $1.new_values)', shard)
        INTO is_sealed USING OLD;
    END IF;
  END IF;
  IF TG_OP = 'DELETE' AND is_sealed THEN
    RETURN OLD;
  END IF;
  RAISE EXCEPTION '{MESSAGE}';
END $$
"""  # noqa: S608 - constants


def upgrade() -> None:
    """Apply the revision; processes of the version before go on to append to the chains."""
    op.create_table(
        "audit_pending",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("operation", Text, nullable=False),
        sa.Column("table_name", Text, nullable=False),
        sa.Column("record_id", Text, nullable=False),
        sa.Column("occurred_at", UtcDateTime(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("columns", Text, nullable=False),
        sa.Column("old_values", Text),
        sa.Column("new_values", Text),
        sa.Column("unchanged", Text),
        sa.Column("user_id", Text, nullable=False),
        sa.Column("user_email", Text),
        sa.Column("user_name", Text),
        sa.Column("ip_address", Text),
        sa.Column("user_agent", Text),
        sa.Column("request_id", Text),
        sa.Column("es_username", Text),
        sa.Column("es_reason", Text),
        sa.Column("es_timestamp", UtcDateTime()),
        sa.Column("extra_metadata", Text),
        sa.Column("salts", sa.LargeBinary()),
        sa.Column("actor_salts", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("account_id", "id", name=op.f("pk_audit_pending")),
    )
    if op.get_bind().dialect.name == "sqlite":
        refuse = f"BEGIN SELECT RAISE(ABORT, '{MESSAGE}'); END"
        op.execute(f"CREATE TRIGGER audit_pending_update BEFORE UPDATE ON audit_pending {refuse}")
        sealed = IS_SEALED.format(same="IS")
        op.execute(
            "CREATE TRIGGER audit_pending_delete BEFORE DELETE ON audit_pending"
            f" WHEN OLD.salts IS NOT NULL AND NOT {sealed} {refuse}"
        )
        return
    op.execute(PROTECT)
    call = "EXECUTE FUNCTION protect_pending_changes()"
    op.execute(
        "CREATE TRIGGER audit_pending_change BEFORE UPDATE OR DELETE ON audit_pending"
        f" FOR EACH ROW {call}"
    )
    op.execute(
        "CREATE TRIGGER audit_pending_truncate BEFORE TRUNCATE ON audit_pending"
        " FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change()"
    )
    row_security.cover(op.get_bind(), "audit_pending")


def downgrade() -> None:
    """Revert the revision; refused while changes are not sealed."""
    connection = op.get_bind()
    if connection.scalar(sa.text("SELECT 1 FROM audit_pending LIMIT 1")):
        raise RuntimeError("Changes are not sealed yet: run bin/atrium audit verify first.")
    op.drop_table("audit_pending")
    if connection.dialect.name == "postgresql":
        op.execute("DROP FUNCTION protect_pending_changes")
