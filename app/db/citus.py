"""Whether PostgreSQL shards the tenant tables, which takes Citus (docs/adr/0053)."""

from __future__ import annotations

import sqlalchemy as sa

COLUMN, ANCHOR = "account_id", "users"
"""Tenant tables are distributed by this column, and colocated with this table."""
HAS_CATALOG = sa.text("SELECT to_regclass('pg_dist_partition') IS NOT NULL")
IS_SHARDED = sa.text(
    f"SELECT count(*) > 0 FROM pg_dist_partition WHERE logicalrelid = to_regclass('{ANCHOR}')"  # noqa: S608 - a constant
)


def is_sharded(connection: sa.Connection) -> bool:
    """Whether `users`, and so every tenant table, is distributed."""
    if connection.dialect.name != "postgresql" or not connection.scalar(HAS_CATALOG):
        return False
    return bool(connection.scalar(IS_SHARDED))


def distribution(table: str, *, beside: str | None = ANCHOR) -> str:
    """Return the statement that distributes a table, colocated with another one."""
    # Names of tables are letters, digits and underscores.
    colocation = f", colocate_with => '{beside}'" if beside else ""
    return f"SELECT create_distributed_table('{table}', '{COLUMN}'{colocation})"


def use_one_connection_per_node(connection: sa.Connection) -> None:
    """Prepare a transaction that uses several shards before it changes a shared table."""
    if is_sharded(connection):
        connection.exec_driver_sql("SET LOCAL citus.multi_shard_modify_mode = 'sequential'")
