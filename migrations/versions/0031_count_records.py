"""count records

Revision ID: 0031
Revises: 0029
Create Date: 2026-11-25 19:40:00.000000
"""

import sqlalchemy as sa
from alembic import op

from app.db.types import Text

revision = "0031"
down_revision = "0029"
branch_labels = None
depends_on = None

# A transaction takes the first row that no other has locked, so that writers never wait here.
COUNT = """
CREATE FUNCTION count_records() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  id CONSTANT text := TG_ARGV[0];
  step CONSTANT bigint := TG_ARGV[1];
  change record;
BEGIN
  FOR change IN SELECT account_id, step * count(*) AS records FROM changed GROUP BY account_id LOOP
    UPDATE record_counts AS counted SET records = counted.records + change.records
      WHERE counted.account_id = change.account_id AND counted.collection_id = id
      AND counted.slot = (
        SELECT free.slot FROM record_counts AS free
          WHERE free.account_id = change.account_id AND free.collection_id = id
          LIMIT 1 FOR UPDATE SKIP LOCKED);
    IF NOT FOUND THEN
      INSERT INTO record_counts (account_id, collection_id, slot, records)
        VALUES (change.account_id, id, gen_random_uuid()::text, change.records);
    END IF;
  END LOOP;
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
