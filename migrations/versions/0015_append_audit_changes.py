"""append the changes of the audit log with their entries

Revision ID: 0015
Revises: 0014
Create Date: 2026-11-22 01:10:00.000000
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

# `told` has the columns shared by all entries of the change, `digests` theirs, in order. Ids are
# drawn under the lock of the head, so that they ascend along every chain.
APPEND = """
CREATE FUNCTION append_audit_change(account text, told json, digests text[], entries json)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  c record;
  previous text;
  checksums text[];
  ids bigint[] := '{}';
  newest bigint;
  digest text;
BEGIN
  SELECT * INTO c FROM json_to_record(told) AS t (
    operation text, table_name text, record_id text, extra_metadata text,
    user_id text, user_email text, user_name text, es_username text, es_reason text,
    es_timestamp timestamptz, ip_address text, user_agent text, request_id text,
    occurred_at timestamptz);
  previous := lock_audit_head(account, c.occurred_at);
  checksums := ARRAY[previous];
  FOREACH digest IN ARRAY digests LOOP
    newest := nextval('audit_log_ids');
    previous := encode(sha256((previous || ':' || newest || ':' || digest)::bytea), 'hex');
    ids := ids || newest;
    checksums := checksums || previous;
  END LOOP;
  INSERT INTO audit_log (
    account_id, id, operation, table_name, record_id, column_name, old_value, new_value,
    user_id, user_email, user_name, es_username, es_reason, es_timestamp,
    ip_address, user_agent, request_id, occurred_at, extra_metadata,
    salt, values_digest, actor_salt, actor_digest, entry_digest, previous_hash, checksum)
  SELECT
    account, e.id, c.operation, c.table_name, c.record_id, e.field, e.old, e.new,
    c.user_id, c.user_email, c.user_name, c.es_username, c.es_reason, c.es_timestamp,
    c.ip_address, c.user_agent, c.request_id, c.occurred_at, c.extra_metadata::json,
    e.salt, e.told, e.actor_salt, e.actor, e.digest, e.previous, e.checksum
  FROM ROWS FROM (
    json_to_recordset(entries) AS (
      field text, old text, new text, salt text, told text, actor_salt text, actor text),
    unnest(ids), unnest(digests), unnest(checksums), unnest(checksums[2:])
  ) AS e (field, old, new, salt, told, actor_salt, actor, id, digest, previous, checksum)
  WHERE e.id IS NOT NULL;
  INSERT INTO audit_changes (
    account_id, first_id, last_id, entries,
    operation, table_name, record_id, user_id, occurred_at)
  VALUES (
    account, ids[1], newest, cardinality(ids),
    c.operation, c.table_name, c.record_id, c.user_id, c.occurred_at);
  UPDATE audit_heads
    SET last_id = newest, listed_id = newest, checksum = previous, changed_at = c.occurred_at
    WHERE account_id = account;
END $$
"""


def upgrade() -> None:
    """Apply the revision."""
    listed = sa.Column("listed_id", sa.BigInteger(), nullable=False, server_default="0")
    op.add_column("audit_heads", listed)
    op.execute("UPDATE audit_heads SET listed_id = last_id")
    if op.get_bind().dialect.name == "postgresql":
        op.execute(APPEND)
        # Keeps the trigger for old processes that move heads without writing changes.
        _collect("WHEN (NEW.listed_id < NEW.last_id)")


def downgrade() -> None:
    """Revert the revision."""
    if op.get_bind().dialect.name == "postgresql":
        _collect("")
        op.execute("DROP FUNCTION append_audit_change")
    op.drop_column("audit_heads", "listed_id")


def _collect(when: str) -> None:
    op.execute("DROP TRIGGER audit_heads_moved ON audit_heads")
    op.execute(
        "CREATE TRIGGER audit_heads_moved AFTER UPDATE OF last_id ON audit_heads"
        f" FOR EACH ROW {when} EXECUTE FUNCTION collect_audit_changes()"
    )
