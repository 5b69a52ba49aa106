"""seal changes after their commit

Revision ID: 0063
Revises: 0062
Create Date: 2026-11-29 15:10:00.000000
"""

from types import ModuleType

import sqlalchemy as sa
from alembic import context, op

from migrations.support import row_security
from migrations.support.types import Id, Text, UtcDateTime

revision = "0063"
down_revision = "0062"
branch_labels = None
depends_on = None

PLACES = "audit_pending_places"
COLUMNS = (
    "account_id, place, number, is_audited, operation, table_name, record_id, extra_metadata,"
    " occurred_at, user_id, user_email, user_name, ip_address, user_agent, request_id,"
    " es_username, es_reason, es_timestamp, columns, old_values, new_values, unchanged, size"
)
# Processes of the release before call these until they are restarted. What they append is sealed
# like all else; digests and salts of theirs are made anew then.
APPEND = f"""
CREATE OR REPLACE FUNCTION append_audit_change({{arguments}})
RETURNS void LANGUAGE sql AS $$
  INSERT INTO audit_pending ({COLUMNS}) VALUES (
    account, nextval('{PLACES}'), 0, true, told[1], told[2], told[3], told[4],
    told[5]::timestamptz, told[6], told[7], told[8], told[9], told[10], told[11],
    told[12], told[13], told[14]::timestamptz, names, olds, news, unchanged_values,
    characters)
$$
"""  # noqa: S608 - constants
APPEND_TO_FEED = f"""
CREATE OR REPLACE FUNCTION append_feed_change({{arguments}})
RETURNS void LANGUAGE sql AS $$
  INSERT INTO audit_pending ({COLUMNS}) VALUES (
    account, nextval('{PLACES}'), 0, false, change_operation, changed_table, changed_record, NULL,
    moment, actor, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    names, olds, news, unchanged_values, characters)
$$
"""  # noqa: S608 - constants
# Ten changes or more they still append themselves: not before what was committed earlier.
LOCK = """
CREATE OR REPLACE FUNCTION lock_audit_head(account text, moment timestamptz) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  previous text;
BEGIN
  FOR look IN 1 .. 100 LOOP
    EXIT WHEN NOT EXISTS (SELECT FROM audit_pending WHERE account_id = account);
    PERFORM pg_sleep(0.02);
  END LOOP;
  INSERT INTO audit_heads (account_id, last_id, checksum, checkpoint_id, changed_at)
    VALUES (account, 0, repeat('0', 64), 0, moment)
    ON CONFLICT (account_id) DO NOTHING;
  SELECT checksum INTO previous FROM audit_heads WHERE account_id = account FOR UPDATE;
  IF EXISTS (SELECT FROM audit_pending WHERE account_id = account) THEN
    RAISE lock_not_available USING MESSAGE = 'changes are not sealed yet';
  END IF;
  RETURN previous;
END $$
"""
REFUSE = "BEGIN SELECT RAISE(ABORT, 'audit_pending is append-only'); END"
UPDATED = "CREATE TRIGGER audit_pending_update BEFORE UPDATE ON audit_pending"


def upgrade() -> None:
    """Apply the revision."""
    is_postgres = op.get_bind().dialect.name == "postgresql"
    op.create_table(
        "audit_pending",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("place", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("is_audited", sa.Boolean(), nullable=False),
        *(sa.Column(name, Text, nullable=False) for name in ("operation", "table_name")),
        *(sa.Column(name, Text, nullable=False) for name in ("record_id", "user_id")),
        sa.Column("occurred_at", UtcDateTime(), nullable=False),
        *(sa.Column(name, Text) for name in ("user_email", "user_name", "es_username")),
        sa.Column("es_reason", Text),
        sa.Column("es_timestamp", UtcDateTime()),
        *(sa.Column(name, Text) for name in ("ip_address", "user_agent", "request_id")),
        sa.Column("extra_metadata", Text),
        sa.Column("columns", Text, nullable=False),
        *(sa.Column(name, Text) for name in ("old_values", "new_values", "unchanged")),
        sa.Column("size", sa.BigInteger()),
        sa.PrimaryKeyConstraint("account_id", "place", "number", name=op.f("pk_audit_pending")),
    )
    if not is_postgres:
        op.execute(f"{UPDATED} {REFUSE}")
        return
    op.execute(f"CREATE SEQUENCE {PLACES}")
    op.execute(f"{UPDATED} FOR EACH ROW EXECUTE FUNCTION refuse_audit_change()")
    row_security.cover(op.get_bind(), "audit_pending")
    row_security.grant_sequence(op.get_bind(), PLACES)
    op.execute(APPEND.format(arguments=_former("0033").APPEND_ARGUMENTS))
    op.execute(APPEND_TO_FEED.format(arguments=_former("0033").FEED_ARGUMENTS))
    op.execute(LOCK)


def downgrade() -> None:
    """Revert the revision. Raises RuntimeError if changes are not sealed yet."""
    if op.get_bind().scalar(sa.text("SELECT EXISTS (SELECT 1 FROM audit_pending)")):
        raise RuntimeError("Changes are not sealed yet: run bin/atrium audit verify first.")
    if op.get_bind().dialect.name == "postgresql":
        replaced = "CREATE OR REPLACE FUNCTION"
        for statement in (
            _former("0009").LOCK,
            _former("0033")._append(),
            _former("0033").APPEND_TO_FEED,
        ):
            op.execute(statement.replace("CREATE FUNCTION", replaced))
    op.drop_table("audit_pending")
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"DROP SEQUENCE {PLACES}")


def _former(revision: str) -> ModuleType:
    module: ModuleType = context.script.get_revision(revision).module
    return module
