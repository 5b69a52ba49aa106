"""append audit entries at once

Revision ID: 0009
Revises: 0008
Create Date: 2026-11-21 18:40:00.000000
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

LOCK = """
CREATE FUNCTION lock_audit_head(account text, moment timestamptz) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  previous text;
BEGIN
  SELECT checksum INTO previous FROM audit_heads WHERE account_id = account FOR UPDATE;
  IF NOT FOUND THEN
    INSERT INTO audit_heads (account_id, last_id, checksum, checkpoint_id, changed_at)
      VALUES (account, 0, repeat('0', 64), 0, moment)
      ON CONFLICT (account_id) DO NOTHING;
    SELECT checksum INTO previous FROM audit_heads WHERE account_id = account FOR UPDATE;
  END IF;
  RETURN previous;
END $$
"""
# All entries share the actor; `digests` are those of the entries, in order. Ids are drawn under the
# lock of the head, so that they ascend along every chain, and accounts do not wait for each other.
# A single INSERT, as each one opens every index of the table.
APPEND = """
CREATE FUNCTION append_audit(account text, told json, digests text[], given json) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  moment timestamptz := told ->> 'occurred_at';
  previous text := lock_audit_head(account, moment);
  checksums text[] := ARRAY[previous];
  ids bigint[] := '{}';
  digest text;
BEGIN
  FOREACH digest IN ARRAY digests LOOP
    ids := ids || nextval('audit_log_ids');
    previous := encode(sha256(convert_to(
      previous || ':' || ids[cardinality(ids)] || ':' || digest, 'UTF8')), 'hex');
    checksums := checksums || previous;
  END LOOP;
  INSERT INTO audit_log (
    account_id, id, operation, table_name, record_id, column_name, old_value, new_value,
    user_id, user_email, user_name, es_username, es_reason, es_timestamp,
    ip_address, user_agent, request_id, occurred_at, extra_metadata,
    salt, values_digest, actor_salt, actor_digest, entry_digest, previous_hash, checksum)
  SELECT
    account, e.id, e.operation, e.table_name, e.record_id, e.column_name, e.old_value, e.new_value,
    t.user_id, t.user_email, t.user_name, t.es_username, t.es_reason, t.es_timestamp,
    t.ip_address, t.user_agent, t.request_id, moment, e.extra_metadata::json,
    e.salt, e.values_digest, e.actor_salt, e.actor_digest, e.entry_digest, e.previous, e.checksum
  FROM
    json_to_record(told) AS t (
      user_id text, user_email text, user_name text, es_username text, es_reason text,
      es_timestamp timestamptz, ip_address text, user_agent text, request_id text),
    ROWS FROM (
      json_to_recordset(given) AS (
        operation text, table_name text, record_id text, column_name text,
        old_value text, new_value text, extra_metadata text,
        salt text, values_digest text, actor_salt text, actor_digest text),
      unnest(ids), unnest(digests), unnest(checksums), unnest(checksums[2:])
    ) AS e (
      operation, table_name, record_id, column_name, old_value, new_value, extra_metadata,
      salt, values_digest, actor_salt, actor_digest, id, entry_digest, previous, checksum)
  WHERE e.id IS NOT NULL;
  UPDATE audit_heads
    SET last_id = ids[cardinality(ids)], checksum = previous, changed_at = moment
    WHERE account_id = account;
END $$
"""


def upgrade() -> None:
    """Apply the revision."""
    if op.get_bind().dialect.name == "postgresql":
        # Keeps append_audit(json) for processes that were not restarted yet.
        op.execute(LOCK)
        op.execute(APPEND)


def downgrade() -> None:
    """Revert the revision."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION append_audit(text, json, text[], json)")
        op.execute("DROP FUNCTION lock_audit_head")
