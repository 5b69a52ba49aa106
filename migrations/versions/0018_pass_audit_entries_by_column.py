"""pass audit entries by column

Revision ID: 0018
Revises: 0017
Create Date: 2026-11-22 04:30:00.000000
"""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# As in revision 0015, with an array per column instead of a JSON object per entry, whose parsing
# dominated the time. Arrays side by side in a select list are not materialized.
ARRAYS = (
    "digests",
    "fields",
    "olds",
    "news",
    "salts",
    "values_digests",
    "actor_salts",
    "actor_digests",
)
SIGNATURE = f"account text, told json, {', '.join(f'{name} text[]' for name in ARRAYS)}"
APPEND = f"""
CREATE FUNCTION append_audit_change({SIGNATURE})
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  c record;
  previous text;
  checksums text[];
  ids bigint[] := '{{}}';
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
    account_id, operation, table_name, record_id,
    user_id, user_email, user_name, es_username, es_reason, es_timestamp,
    ip_address, user_agent, request_id, occurred_at, extra_metadata,
    id, column_name, old_value, new_value, salt, values_digest, actor_salt, actor_digest,
    entry_digest, previous_hash, checksum)
  SELECT
    account, c.operation, c.table_name, c.record_id,
    c.user_id, c.user_email, c.user_name, c.es_username, c.es_reason, c.es_timestamp,
    c.ip_address, c.user_agent, c.request_id, c.occurred_at, c.extra_metadata::json,
    unnest(ids), unnest(fields), unnest(olds), unnest(news), unnest(salts),
    unnest(values_digests), unnest(actor_salts), unnest(actor_digests),
    unnest(digests), unnest(checksums[1:cardinality(ids)]), unnest(checksums[2:]);
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
"""  # noqa: S608 - constants


def upgrade() -> None:
    """Apply the revision; keeps the function for processes of the previous version."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(APPEND)


def downgrade() -> None:
    """Revert the revision."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"DROP FUNCTION append_audit_change({SIGNATURE})")
