"""append audit changes as text

Revision ID: 0020
Revises: 0019
Create Date: 2026-11-22 11:10:00.000000
"""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

# As in revision 0018, but the columns shared by all entries are an array, in the order of the
# declarations, and the hashes one text, column by column: parsing JSON and arrays took longer than
# building the chain. A numbered array is planned once, while generate_series has such a high row
# estimate that each call is planned again.
SIGNATURE = "account text, told text[], joined text, fields text[], olds text[], news text[]"
APPEND = f"""
CREATE FUNCTION append_audit_change({SIGNATURE})
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  operation text := told[1];
  table_name text := told[2];
  record_id text := told[3];
  extra_metadata text := told[4];
  occurred_at timestamptz := told[5];
  user_id text := told[6];
  user_email text := told[7];
  user_name text := told[8];
  ip_address text := told[9];
  user_agent text := told[10];
  request_id text := told[11];
  es_username text := told[12];
  es_reason text := told[13];
  es_timestamp timestamptz := told[14];
  entries int := cardinality(fields);
  hashes text[] := string_to_array(joined, ',');
  previous text := lock_audit_head(account, occurred_at);
  checksums text[] := ARRAY[previous];
  ids bigint[] := '{{}}';
  newest bigint;
BEGIN
  FOR i IN 1 .. entries LOOP
    newest := nextval('audit_log_ids');
    previous := encode(
      sha256((previous || ':' || newest || ':' || hashes[4 * entries + i])::bytea), 'hex');
    ids := ids || newest;
    checksums := checksums || previous;
  END LOOP;
  WITH moved AS (
    UPDATE audit_heads AS head
      SET last_id = newest, listed_id = newest, checksum = previous, changed_at = occurred_at
      WHERE head.account_id = account
  ), told_of AS (
    INSERT INTO audit_changes (
      account_id, first_id, last_id, entries,
      operation, table_name, record_id, user_id, occurred_at)
    VALUES (
      account, ids[1], newest, entries,
      operation, table_name, record_id, user_id, occurred_at)
  )
  INSERT INTO audit_log (
    account_id, operation, table_name, record_id,
    user_id, user_email, user_name, es_username, es_reason, es_timestamp,
    ip_address, user_agent, request_id, occurred_at, extra_metadata,
    id, column_name, old_value, new_value,
    salt, values_digest, actor_salt, actor_digest, entry_digest,
    previous_hash, checksum)
  SELECT
    account, operation, table_name, record_id,
    user_id, user_email, user_name, es_username, es_reason, es_timestamp,
    ip_address, user_agent, request_id, occurred_at, extra_metadata::json,
    id, fields[i::int], olds[i::int], news[i::int],
    hashes[i::int], hashes[entries + i::int], hashes[2 * entries + i::int],
    hashes[3 * entries + i::int], hashes[4 * entries + i::int],
    checksums[i::int], checksums[i::int + 1]
  FROM unnest(ids) WITH ORDINALITY AS entry (id, i);
END $$
"""  # noqa: S608 - constants


def upgrade() -> None:
    """Apply the revision; keeps the function for processes of the previous version."""
    # Only superadmins look up entries by id alone, which the heads make possible.
    op.drop_index("ix_audit_log_id", "audit_log")
    if op.get_bind().dialect.name == "postgresql":
        op.execute(APPEND)


def downgrade() -> None:
    """Revert the revision."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"DROP FUNCTION append_audit_change({SIGNATURE})")
    op.create_index("ix_audit_log_id", "audit_log", ["id"], unique=False)
