"""The database: declarative base, connections and the one transaction."""

from app.db.base import Base, partial_index, policies, policy_of
from app.db.engine import has_one_writer, sqlite_file
from app.db.session import (
    before_commit,
    check_time,
    connection,
    db,
    defer,
    driver,
    hold_commits,
    in_transaction,
    notes,
    on_commit,
)
from app.db.setup import dispose_after_fork, init_app
from app.db.transactions import (
    flush_before_commit,
    held_transaction,
    lock_schema,
    purge,
    refuse_transactions,
    rollback_held,
    savepoint,
    transaction,
    transaction_apart,
    write_limit,
)

__all__ = [
    "Base",
    "before_commit",
    "check_time",
    "connection",
    "db",
    "defer",
    "dispose_after_fork",
    "driver",
    "flush_before_commit",
    "has_one_writer",
    "held_transaction",
    "hold_commits",
    "in_transaction",
    "init_app",
    "lock_schema",
    "notes",
    "on_commit",
    "partial_index",
    "policies",
    "policy_of",
    "purge",
    "refuse_transactions",
    "rollback_held",
    "savepoint",
    "sqlite_file",
    "transaction",
    "transaction_apart",
    "write_limit",
]
