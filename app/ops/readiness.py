"""Readiness checks."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from app import config, db, jobs
from app.collections import revisions
from app.db import disk, owner_connection, postgres_session, sqlite_driver
from app.db.postgres_driver import Driver

LONGEST_LOCK_SECONDS = 2
LOCKED = "locked: one writer has blocked all others for several seconds"


def checks() -> dict[str, str]:
    """Check database, migrations, disk and queue: each is `ok`, or says what is wrong."""
    results = {}
    try:
        db.connection().execute(sa.select(sa.literal(1)))
        with db.driver() as driver:
            if isinstance(driver, Driver):
                postgres_session.check(driver)
        results["database"] = "ok"
        results["migrations"] = (
            "missing: run bin/atrium db upgrade" if revisions.lacks_core() else "ok"
        )
    except SQLAlchemyError as error:
        missing = "missing: run bin/atrium db upgrade" if "database" in results else "unknown"
        results.setdefault("database", postgres_session.refusal(error) or "unreachable")
        results.setdefault("migrations", missing)
    file = db.sqlite_file()
    if file and results["database"] == "ok" and sqlite_driver.is_locked(file, LONGEST_LOCK_SECONDS):
        results["database"] = LOCKED
    if file:
        results["disk"] = _disk(file)
    if config.current().redis_url:
        results["queue"] = "ok" if jobs.is_redis_up() else "unreachable"
    return results


def pooler_refusal() -> str | None:
    """Return why the database's pooler is refused; None if it is not, or if nothing answers."""
    if db.has_one_writer():
        return None
    try:
        with owner_connection.connect():
            return None
    except SQLAlchemyError as error:
        return postgres_session.refusal(error)


def _disk(file: str) -> str:
    free = disk.free_bytes(file)
    if free is not None and free < disk.LOW_BYTES:
        return f"full: less than {disk.LOW_BYTES // disk.MIB} MiB free"
    return "ok" if disk.may_write(file) else "not writable"
