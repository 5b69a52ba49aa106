"""count records

Revision ID: 0031
Revises: 0030
Create Date: 2026-11-25 19:40:00.000000
"""

import sqlalchemy as sa
from alembic import op

from migrations.support.types import Text

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

# A transaction takes the first slot that no other has locked, so that writers never wait here. An
# advisory lock costs less than SKIP LOCKED; a statement on many accounts would need too many.
COUNT = """
CREATE FUNCTION count_records() RETURNS trigger LANGUAGE plpgsql AS $$
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
    """Apply the revision; `migrations/env.py` then adds the triggers, table by table."""
    op.create_table(
        "record_counts",
        sa.Column("account_id", Text, nullable=False),
        sa.Column("collection_id", Text, nullable=False),
        sa.Column("slot", Text, nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "account_id", "collection_id", "slot", name=op.f("pk_record_counts")
        ),
    )
    op.create_index("ix_record_counts_collection_id", "record_counts", ["collection_id"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(COUNT)


def downgrade() -> None:
    """Revert the revision."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION count_records CASCADE")
    else:
        names = sa.text(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND sql LIKE '%record_counts%'"
        )
        for name in op.get_bind().scalars(names).all():
            op.execute(f'DROP TRIGGER "{name}"')
    op.drop_table("record_counts")
