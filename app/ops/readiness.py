"""What a process needs to work, and whether it is there."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from app import config, db, jobs
from app.collections import revisions
from app.db import disk, sqlite_driver

LONGEST_LOCK_SECONDS = 2
LOCKED = "locked: something has kept all others from writing for seconds"


def checks() -> dict[str, str]:
    """`ok`, or what is missing, of the database, its migrations, its disk and the queue."""
    found = {}
    try:
        db.connection().execute(sa.select(sa.literal(1)))
        found["database"] = "ok"
        found["migrations"] = "missing: run flask db upgrade" if revisions.lacks_core() else "ok"
    except SQLAlchemyError:
        missing = "missing: run flask db upgrade" if "database" in found else "unknown"
        found.setdefault("database", "unreachable")
        found.setdefault("migrations", missing)
    file = db.sqlite_file()
    if file and found["database"] == "ok" and sqlite_driver.is_locked(file, LONGEST_LOCK_SECONDS):
        found["database"] = LOCKED
    if file:
        found["disk"] = _disk(file)
    if config.current().redis_url:
        found["queue"] = "ok" if jobs.is_redis_up() else "unreachable"
    return found


def _disk(file: str) -> str:
    left = disk.free_bytes(file)
    if left is not None and left < disk.LOW_BYTES:
        return f"full: less than {disk.LOW_BYTES // disk.MIB} MiB are free"
    return "ok" if disk.may_write(file) else "not to be written to"
