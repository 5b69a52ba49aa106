"""The database: declarative base, connections and the one transaction."""

from app.db.base import Base, db, dispose_after_fork, init_app, partial_index
from app.db.connections import check_time, connection, driver, has_one_writer, sqlite_file
from app.db.deletion import purge
from app.db.transactions import (
    before_commit,
    defer,
    held_transaction,
    hold_commits,
    in_transaction,
    limit_writes,
    notes,
    on_commit,
    refuse_transactions,
    rollback_held,
    savepoint,
    transaction,
    without_time_limit,
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
    "has_one_writer",
    "held_transaction",
    "hold_commits",
    "in_transaction",
    "init_app",
    "limit_writes",
    "notes",
    "on_commit",
    "partial_index",
    "purge",
    "refuse_transactions",
    "rollback_held",
    "savepoint",
    "sqlite_file",
    "transaction",
    "without_time_limit",
]
