"""meter usage

Revision ID: 0050
Revises: 0049
Create Date: 2026-11-26 23:50:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None

# A transaction takes the first slot that no other has locked, so that writers never wait here.
ADD_USAGE = """
CREATE FUNCTION add_usage(account text, metered text, on_day text, number bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  free int := 0;
BEGIN
  WHILE NOT pg_try_advisory_xact_lock(hashtext(account || metered || on_day), free) LOOP
    free := free + 1;
  END LOOP;
  UPDATE usage_counts SET amount = amount + number
    WHERE account_id = account AND meter = metered AND day = on_day AND slot = free::text;
  IF NOT FOUND THEN
    INSERT INTO usage_counts (account_id, meter, day, slot, amount)
      VALUES (account, metered, on_day, free::text, number);
  END IF;
END $$
"""
# A statement on many accounts would need too many locks.
COUNT = """
CREATE FUNCTION count_{meter}() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  account text;
  last_account text;
  on_day text;
  last_day text;
  number bigint;
BEGIN
  SELECT min(account_id), max(account_id), min(day), max(day), sum(amount)
    INTO account, last_account, on_day, last_day, number FROM ({changes}) AS c;
  IF account <> last_account OR on_day <> last_day THEN
    INSERT INTO usage_counts (account_id, meter, day, slot, amount)
      SELECT account_id, '{meter}', day, gen_random_uuid()::text, sum(amount)
      FROM ({changes}) AS c GROUP BY account_id, day HAVING sum(amount) <> 0;
  ELSIF number <> 0 THEN
    PERFORM add_usage(account, '{meter}', on_day, number);
  END IF;
  RETURN NULL;
END $$
"""
TRIGGER = """
CREATE TRIGGER count_{meter}_{event} AFTER {event} ON {table} REFERENCING {rows}
FOR EACH STATEMENT EXECUTE FUNCTION count_{function}()
"""
SQLITE_TRIGGER = """
CREATE TRIGGER count_{meter}_{event} AFTER {event} ON {table} WHEN {amount} <> 0 BEGIN
  INSERT INTO usage_counts (account_id, meter, day, slot, amount)
  VALUES ({row}.account_id, '{meter}', {day}, '0', {amount})
  ON CONFLICT (account_id, meter, day, slot) DO UPDATE SET amount = amount + excluded.amount;
END
"""
FLOWS = (
    ("deliveries", "webhook_deliveries", "created_at"),
    ("workflow_steps", "workflow_step_logs", "started_at"),
)
OLD = "CASE WHEN OLD.removed_at IS NULL THEN OLD.size ELSE 0 END"
NEW = "CASE WHEN NEW.removed_at IS NULL THEN NEW.size ELSE 0 END"
OLD_FILES = (
    "SELECT account_id, 'now' AS day, -size AS amount FROM old_rows WHERE removed_at IS NULL"
)
NEW_FILES = "SELECT account_id, 'now' AS day, size AS amount FROM new_rows WHERE removed_at IS NULL"
NEW_ROWS = "SELECT account_id, {day} AS day, 1 AS amount FROM new_rows"
EXISTING = """
INSERT INTO usage_counts (account_id, meter, day, slot, amount)
SELECT account_id, '{meter}', {day}, '0', count(*) FROM {table} GROUP BY 1, 3
"""
EXISTING_FILES = """
INSERT INTO usage_counts (account_id, meter, day, slot, amount)
SELECT account_id, 'file_bytes', 'now', '0', sum(size) FROM files
WHERE removed_at IS NULL GROUP BY 1
"""
# A collection may have fields with the names of the variables.
COUNT_RECORDS = """
CREATE OR REPLACE FUNCTION count_records() RETURNS trigger LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  collection CONSTANT text := TG_ARGV[0];
  step CONSTANT bigint := TG_ARGV[1];
  account text;
  last_account text;
  number bigint;
  size bigint;
  free int := 0;
BEGIN
  SELECT min(account_id), max(account_id), step * count(*), step * sum(octet_length((c.*)::text))
    INTO account, last_account, number, size FROM changed AS c;
  IF account <> last_account THEN
    INSERT INTO record_counts (account_id, collection_id, slot, records, bytes)
      SELECT account_id, collection, gen_random_uuid()::text, step * count(*),
        step * sum(octet_length((c.*)::text))
      FROM changed AS c GROUP BY account_id;
  ELSIF number <> 0 THEN
    WHILE NOT pg_try_advisory_xact_lock(hashtext(account || collection), free) LOOP
      free := free + 1;
    END LOOP;
    UPDATE record_counts SET records = records + number, bytes = bytes + size
      WHERE account_id = account AND collection_id = collection AND slot = free::text;
    IF NOT FOUND THEN
      INSERT INTO record_counts (account_id, collection_id, slot, records, bytes)
        VALUES (account, collection, free::text, number, size);
    END IF;
  END IF;
  RETURN NULL;
END $$
"""
MEASURE_RECORDS = """
CREATE FUNCTION measure_records() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  collection CONSTANT text := TG_ARGV[0];
  account text;
  last_account text;
  size bigint;
  free int := 0;
BEGIN
  SELECT min(account_id), max(account_id), sum(bytes) INTO account, last_account, size FROM (
    SELECT account_id, octet_length((o.*)::text) * -1 AS bytes FROM old_rows AS o
    UNION ALL SELECT account_id, octet_length((n.*)::text) FROM new_rows AS n) AS c;
  IF account <> last_account THEN
    INSERT INTO record_counts (account_id, collection_id, slot, records, bytes)
      SELECT account_id, collection, gen_random_uuid()::text, 0, sum(bytes) FROM (
        SELECT account_id, octet_length((o.*)::text) * -1 AS bytes FROM old_rows AS o
        UNION ALL SELECT account_id, octet_length((n.*)::text) FROM new_rows AS n) AS c
      GROUP BY account_id;
  ELSIF size <> 0 THEN
    WHILE NOT pg_try_advisory_xact_lock(hashtext(account || collection), free) LOOP
      free := free + 1;
    END LOOP;
    UPDATE record_counts SET bytes = bytes + size
      WHERE account_id = account AND collection_id = collection AND slot = free::text;
    IF NOT FOUND THEN
      INSERT INTO record_counts (account_id, collection_id, slot, records, bytes)
        VALUES (account, collection, free::text, 0, size);
    END IF;
  END IF;
  RETURN NULL;
END $$
"""

FORMER_COUNT_RECORDS = """
CREATE OR REPLACE FUNCTION count_records() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  collection CONSTANT text := TG_ARGV[0];
  step CONSTANT bigint := TG_ARGV[1];
  account text;
  last_account text;
  number bigint;
  free int := 0;
BEGIN
  SELECT min(account_id), max(account_id), step * count(*)
    INTO account, last_account, number FROM changed;
  IF account <> last_account THEN
    INSERT INTO record_counts (account_id, collection_id, slot, records)
      SELECT account_id, collection, gen_random_uuid()::text, step * count(*)
      FROM changed GROUP BY account_id;
  ELSIF number <> 0 THEN
    WHILE NOT pg_try_advisory_xact_lock(hashtext(account || collection), free) LOOP
      free := free + 1;
    END LOOP;
    UPDATE record_counts SET records = records + number
      WHERE account_id = account AND collection_id = collection AND slot = free::text;
    IF NOT FOUND THEN
      INSERT INTO record_counts (account_id, collection_id, slot, records)
        VALUES (account, collection, free::text, number);
    END IF;
  END IF;
  RETURN NULL;
END $$
"""


def upgrade() -> None:
    """Apply the revision; `migrations/env.py` then measures the rows, table by table."""
    _create_tables()
    op.add_column(
        "record_counts",
        sa.Column("bytes", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
    )
    on_postgres = op.get_bind().dialect.name == "postgresql"
    (_count_on_postgres if on_postgres else _count_on_sqlite)()
    _count_existing(
        "to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD')" if on_postgres else "substr({}, 1, 10)"
    )


def _create_tables() -> None:
    op.create_table(
        "usage_counts",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("meter", Text, nullable=False),
        sa.Column("day", Text, nullable=False),
        sa.Column("slot", Text, nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("account_id", "meter", "day", "slot", name=op.f("pk_usage_counts")),
    )
    op.create_index("ix_usage_counts_day", "usage_counts", ["day", "meter"])
    op.create_table(
        "usage_notices",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("meter", Text, nullable=False),
        sa.Column("period", Text, nullable=False),
        sa.Column("percent", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint(
            "account_id", "meter", "period", "percent", name=op.f("pk_usage_notices")
        ),
    )


def _count_on_postgres() -> None:
    op.execute(ADD_USAGE)
    for meter, table, column in FLOWS:
        day = f"to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD')"
        changes = NEW_ROWS.format(day=day)
        op.execute(COUNT.format(meter=meter, changes=changes))
        _trigger(meter, meter, table, "INSERT", "NEW TABLE AS new_rows")
    for name, rows, changes in (
        ("insert", "NEW TABLE AS new_rows", NEW_FILES),
        ("delete", "OLD TABLE AS old_rows", OLD_FILES),
        (
            "update",
            "OLD TABLE AS old_rows NEW TABLE AS new_rows",
            f"{OLD_FILES} UNION ALL {NEW_FILES}",
        ),
    ):
        count = COUNT.format(meter="file_bytes", changes=changes)
        function = f"file_bytes_on_{name}"
        op.execute(count.replace("count_file_bytes()", f"count_{function}()"))
        _trigger("file_bytes", function, "files", name.upper(), rows)
    op.execute(COUNT_RECORDS)
    op.execute(MEASURE_RECORDS)


def _trigger(meter: str, function: str, table: str, event: str, rows: str) -> None:
    op.execute(TRIGGER.format(meter=meter, function=function, table=table, event=event, rows=rows))


def _count_on_sqlite() -> None:
    for meter, table, column in FLOWS:
        day = f"substr(NEW.{column}, 1, 10)"
        _sqlite_trigger(meter, table, "INSERT", "NEW", day, "1")
    for event, row, amount in (
        ("INSERT", "NEW", NEW),
        ("DELETE", "OLD", f"-({OLD})"),
        ("UPDATE", "NEW", f"({NEW}) - ({OLD})"),
    ):
        _sqlite_trigger("file_bytes", "files", event, row, "'now'", f"({amount})")


def _sqlite_trigger(meter: str, table: str, event: str, row: str, day: str, amount: str) -> None:
    values = {"meter": meter, "table": table, "event": event, "row": row}
    op.execute(SQLITE_TRIGGER.format(**values, day=day, amount=amount))


def _count_existing(day: str) -> None:
    for meter, table, column in FLOWS:
        op.execute(EXISTING.format(meter=meter, day=day.format(column), table=table))
    op.execute(EXISTING_FILES)


def downgrade() -> None:
    """Revert the revision."""
    if op.get_bind().dialect.name == "postgresql":
        _forget_on_postgres()
    else:
        _forget_on_sqlite()
    op.drop_table("usage_notices")
    op.drop_table("usage_counts")


def _forget_on_postgres() -> None:
    op.execute("DROP FUNCTION measure_records CASCADE")
    for meter, _, _ in FLOWS:
        op.execute(f"DROP FUNCTION count_{meter} CASCADE")
    for event in ("insert", "delete", "update"):
        op.execute(f"DROP FUNCTION count_file_bytes_on_{event} CASCADE")
    op.execute("DROP FUNCTION add_usage")
    op.execute(FORMER_COUNT_RECORDS)
    op.drop_column("record_counts", "bytes")


def _forget_on_sqlite() -> None:
    """Drop the triggers; the former release then adds its own to collections, and counts anew."""
    names = sa.text(
        "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        " AND (sql LIKE '%usage_counts%' OR sql LIKE '%record_counts%')"
    )
    for name in op.get_bind().scalars(names).all():
        op.execute(f'DROP TRIGGER "{name}"')
    op.drop_column("record_counts", "bytes")
