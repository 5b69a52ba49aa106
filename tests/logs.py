"""The audit log as someone sees it who owns the database, and may do what the product refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app import db
from app.context import tenancy

GUARDED = ("audit_changes", "security_events")


@contextmanager
def unguarded() -> Iterator[None]:
    """Within an open transaction: the audit log without its triggers."""
    with tenancy.as_owner():
        yield from _without_triggers(db.connection())


def _without_triggers(connection: Connection) -> Iterator[None]:
    if connection.dialect.name == "postgresql":
        # A worker of the test before may still be about to let go of the table.
        connection.execute(sa.text("SET LOCAL lock_timeout = '30s'"))
        for table in GUARDED:
            connection.execute(sa.text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
        yield
        for table in GUARDED:
            connection.execute(sa.text(f"ALTER TABLE {table} ENABLE TRIGGER USER"))
        return
    names = ", ".join(f"'{name}'" for name in GUARDED)
    which = f"FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN ({names})"
    triggers = connection.execute(sa.text(f"SELECT name, sql {which}")).all()
    for name, _ in triggers:
        connection.execute(sa.text(f"DROP TRIGGER {name}"))
    yield
    for _, definition in triggers:
        connection.execute(sa.text(definition))
