"""Tables sharded by account, where PostgreSQL has Citus (docs/scaling.md, docs/adr/0053).

Tables with `account_id` are distributed by it and colocated with `users`; shared tables are
reference tables, which every node has. Whether a database is sharded follows from `users` alone.
"""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from app.context import tenancy
from app.db import engine, row_security
from app.db.citus import ANCHOR, COLUMN, HAS_CATALOG, distribution
from app.db.policy import OF_EXTENSIONS, Placement, policies
from app.db.session import connection as current_connection
from app.db.transactions import transaction

DISTRIBUTED, REFERENCE, LOCAL = Placement.SHARDED, Placement.SHARED, Placement.LOCAL
LOCK_SECONDS = 30
MISSING = "This database has no extension citus: install it on every node (docs/scaling.md)."
NO_NODES = "No node has been added: run citus_add_node for each one (docs/scaling.md)."
NO_TRIGGERS = (
    "Citus refuses triggers: ALTER DATABASE ... SET citus.enable_unsafe_triggers = on, as a"
    " superuser (docs/scaling.md)."
)

NODES = sa.text(
    "SELECT count(*) FROM pg_dist_node WHERE isactive AND shouldhaveshards AND noderole = 'primary'"
)
ALLOWS_TRIGGERS = sa.text("SELECT current_setting('citus.enable_unsafe_triggers', true)")
PLACES = sa.text("""
SELECT t.relname, d.partmethod, d.colocationid,
  CASE d.partmethod WHEN 'h' THEN column_to_column_name(d.logicalrelid, d.partkey) END AS key
FROM pg_class AS t JOIN pg_dist_partition AS d ON d.logicalrelid = t.oid
WHERE t.relnamespace = current_schema()::regnamespace
""")
COLLECTIONS = sa.text(
    "SELECT table_name FROM collections WHERE to_regclass(table_name) IS NOT NULL"
)
FOREIGN_KEYS = sa.text("""
SELECT conrelid::regclass::text AS source, format('%I', conname) AS name,
  pg_get_constraintdef(oid) AS definition
FROM pg_constraint WHERE contype = 'f' AND connamespace = current_schema()::regnamespace
  AND NOT relation_is_a_known_shard(conrelid)
ORDER BY 1, 2
""")
# They would count rows that are moved, on a worker that has no tables of counts yet.
COUNTING = sa.text("""
SELECT tgrelid::regclass::text AS source, format('%I', tgname) AS name,
  pg_get_triggerdef(t.oid) AS definition
FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = tgfoid
WHERE (starts_with(proname, 'count_') OR proname = 'measure_records')
  AND NOT tgisinternal AND p.pronamespace = current_schema()::regnamespace
  AND NOT relation_is_a_known_shard(tgrelid)
ORDER BY 1, 2
""")
# What runs on workers: functions of rules and triggers, and what these call. Those of a database
# that is older than its extension are on the coordinator alone. Other functions run there, and
# reach rows through tables.
FUNCTIONS = sa.text("""
SELECT oid::regprocedure::text FROM pg_proc
WHERE pronamespace = current_schema()::regnamespace AND prokind = 'f'
  AND (starts_with(proname, 'atrium_') OR prorettype = 'trigger'::regtype
    OR proname = 'add_usage')
ORDER BY oid
""")
# A worker cannot reach the distributed table from within a statement on one of its shards, so the
# trigger of a shard changes the shard of the same accounts.
COUNTS = """
SELECT format('%I.%I', TG_TABLE_SCHEMA, 'record_counts_' || other.shardid)
FROM pg_dist_shard AS own JOIN pg_dist_shard AS other USING (shardminvalue)
WHERE own.shardid::text = substring(TG_TABLE_NAME FROM '_([0-9]+)$')
  AND other.logicalrelid = 'record_counts'::regclass
"""
COUNT = """
CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  collection CONSTANT text := TG_ARGV[0];
  counts text;
  account text;
  number bigint;
  size bigint;
  free int;
BEGIN
  IF to_regclass('pg_dist_shard') IS NOT NULL THEN  -- else restored into a database without Citus
    counts := ({counts});
  END IF;
  FOR account, number, size IN {changes} ORDER BY 1 LOOP
    free := 0;
    WHILE NOT pg_try_advisory_xact_lock(hashtext(account || collection), free) LOOP
      free := free + 1;
    END LOOP;
    EXECUTE format('INSERT INTO %s AS present (account_id, collection_id, slot, records, bytes)'
      ' VALUES ($1, $2, $3, $4, $5) ON CONFLICT (account_id, collection_id, slot) DO UPDATE'
      ' SET records = present.records + $4, bytes = present.bytes + $5',
      coalesce(counts, 'record_counts'))
      USING account, collection, free::text, number, size;
  END LOOP;
  RETURN NULL;
END $$
"""
CHANGES = {
    "count_records": (
        "SELECT c.account_id, TG_ARGV[1]::bigint * count(*),"
        " TG_ARGV[1]::bigint * sum(octet_length((c.*)::text)) FROM changed AS c GROUP BY 1"
    ),
    "measure_records": (
        "SELECT u.account_id, 0, sum(u.bytes) FROM ("
        "SELECT o.account_id, -octet_length((o.*)::text) AS bytes FROM old_rows AS o UNION ALL"
        " SELECT n.account_id, octet_length((n.*)::text) FROM new_rows AS n"
        ") AS u GROUP BY 1 HAVING sum(u.bytes) <> 0"
    ),
}

# Within a shard no statement reads what a trigger collected and writes another distributed table.
COUNT_USAGE = """
CREATE OR REPLACE FUNCTION count_{name}() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  used record;
BEGIN
  FOR used IN SELECT account_id, day, sum(amount)::bigint AS amount FROM ({changes}) AS c
      GROUP BY account_id, day HAVING sum(amount) <> 0 ORDER BY account_id, day LOOP
    PERFORM add_usage(used.account_id, '{meter}', used.day, used.amount);
  END LOOP;
  RETURN NULL;
END $$
"""
NEW_ROWS = (
    "SELECT account_id, to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day, 1 AS amount"
    " FROM new_rows"
)
OLD_FILES = (
    "SELECT account_id, 'now' AS day, -size AS amount FROM old_rows WHERE removed_at IS NULL"
)
NEW_FILES = "SELECT account_id, 'now' AS day, size AS amount FROM new_rows WHERE removed_at IS NULL"
USAGE = (
    ("deliveries", "deliveries", NEW_ROWS.format("created_at")),
    ("workflow_steps", "workflow_steps", NEW_ROWS.format("started_at")),
    ("file_bytes_on_insert", "file_bytes", NEW_FILES),
    ("file_bytes_on_delete", "file_bytes", OLD_FILES),
    ("file_bytes_on_update", "file_bytes", f"{OLD_FILES} UNION ALL {NEW_FILES}"),
)


class ShardingError(Exception):
    """A database that cannot be sharded as it is; the message says what to do."""


class Place(NamedTuple):
    """The way in which Citus stores a table."""

    kind: str
    key: str | None = None
    colocation: int | None = None


def shard() -> list[str]:
    """Distribute each table that is not yet distributed; returns their names.

    All of it is one transaction. Raises ShardingError.
    """
    if engine.has_one_writer():
        raise ShardingError("SQLite has no shards: use PostgreSQL with Citus.")
    with tenancy.as_owner(), transaction(changes_schema=True):
        connection = current_connection()
        if not connection.scalar(HAS_CATALOG):
            raise ShardingError(MISSING)
        if not connection.scalar(NODES):
            raise ShardingError(NO_NODES)
        if connection.scalar(ALLOWS_TRIGGERS) != "on":
            raise ShardingError(NO_TRIGGERS)
        _run(connection, f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
        return _distribute(connection)


def faults(connection: sa.Connection) -> list[str]:
    """Return what is wrong with the places of a sharded database's tables."""
    places = _places(connection)
    anchor = places.get(ANCHOR, Place("local"))
    found = []
    for name, kind in sorted(_expected(connection).items()):
        place = places.get(name, Place("local"))
        if place.kind != kind:
            found.append(f"{name} is {place.kind}, not {kind}")
        elif kind == DISTRIBUTED and place.key != COLUMN:
            found.append(f"{name} is distributed by {place.key}")
        elif kind == DISTRIBUTED and place.colocation != anchor.colocation:
            found.append(f"{name} is not colocated with {ANCHOR}")
    return found


def expected_core() -> dict[str, str]:
    """Return the kind of place of each of the core's tables."""
    places = {name: policy.placement for name, policy in policies().items()}
    return {name: place for name, place in places.items() if place is not LOCAL}


def _expected(connection: sa.Connection) -> dict[str, str]:
    # Tables of extensions are there once their own revisions have been applied.
    later = {name for name in policies() if name.startswith(OF_EXTENSIONS)}
    later -= set(sa.inspect(connection).get_table_names()) if later else set()
    core = {name: kind for name, kind in expected_core().items() if name not in later}
    return core | dict.fromkeys(connection.scalars(COLLECTIONS), DISTRIBUTED)


def _places(connection: sa.Connection) -> dict[str, Place]:
    kinds = {"h": DISTRIBUTED, "n": REFERENCE}
    return {
        row.relname: Place(kinds.get(row.partmethod, "local"), row.key, row.colocationid)
        for row in connection.execute(PLACES)
    }


def _distribute(connection: sa.Connection) -> list[str]:
    kinds, places = _expected(connection), _places(connection)
    pending = [
        name for name, kind in kinds.items() if places.get(name, Place("local")).kind != kind
    ]
    # Reference tables first, as keys of the others lead to them; then what others are placed by.
    pending.sort(key=lambda name: (kinds[name] == DISTRIBUTED, name != ANCHOR, name))
    if pending:
        row_security.leave_views(connection)
        for function in connection.scalars(FUNCTIONS).all():
            _run(connection, f"SELECT create_distributed_function('{function}')")
        # Between a local and a distributed table Citus accepts no foreign key, in either direction.
        keys = connection.execute(FOREIGN_KEYS).all()
        for key in keys:
            _run(connection, f"ALTER TABLE {key.source} DROP CONSTRAINT {key.name}")
        triggers = connection.execute(COUNTING).all()
        for trigger in triggers:
            _run(connection, f"DROP TRIGGER {trigger.name} ON {trigger.source}")
        for name in pending:
            _run(connection, _place(name, kinds[name]))
        for trigger in triggers:
            _run(connection, trigger.definition)
        for key in keys:
            _run(connection, f"ALTER TABLE {key.source} ADD CONSTRAINT {key.name} {key.definition}")
    for name, changes in CHANGES.items():
        _run(connection, COUNT.format(name=name, counts=COUNTS, changes=changes))
    for name, meter, changes in USAGE:
        _run(connection, COUNT_USAGE.format(name=name, meter=meter, changes=changes))
    return pending


def _place(name: str, kind: str) -> str:
    if kind == REFERENCE:
        return f"SELECT create_reference_table('{name}')"
    return distribution(name, beside=None if name == ANCHOR else ANCHOR)


def _run(connection: sa.Connection, statement: str) -> None:
    connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
