"""The database: the parent of its models, its connections, and the one transaction."""

from app.db.base import Base, db, dispose_after_fork, init_app
from app.db.connections import check_time, connection, driver, has_one_writer, sqlite_file
from app.db.deletion import purge
from app.db.transactions import (
    before_commit,
    drop_held,
    held_transaction,
    hold_commits,
    in_transaction,
    limit,
    notes,
    on_commit,
    put_off,
    refusing,
    savepoint,
    transaction,
    unlimited,
)

__all__ = [
    "Base",
    "before_commit",
    "check_time",
    "connection",
    "db",
    "dispose_after_fork",
    "driver",
    "drop_held",
    "has_one_writer",
    "held_transaction",
    "hold_commits",
    "in_transaction",
    "init_app",
    "limit",
    "notes",
    "on_commit",
    "purge",
    "put_off",
    "refusing",
    "savepoint",
    "sqlite_file",
    "transaction",
    "unlimited",
]
