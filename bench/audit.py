"""The CPU cost of auditing a new record of 8 columns in milliseconds, and the bytes of log that a
record of 4 fields takes, on both databases.

    python -m bench.audit [records]

The CPU time is that of this process and, on PostgreSQL, of its server process, both on one core.
Short blocks with and without auditing alternate, so that both meet the same machine; the lowest
twentieth of the blocks counts, as whatever else runs there only adds.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa
from flask import Flask

from app import db
from app.auth import principal as principals
from app.records import service as records
from bench import machine
from bench.product import application
from tests import builders, conftest, services

FIELDS = ("title", "body", "author", "state", "email", "link", "place", "note")
BODY = {name: f"what stands in {name}" for name in FIELDS}
BLOCKS = 150


def server_seconds() -> float:
    """The CPU time of the PostgreSQL process that serves this connection."""
    if db.db.engine.dialect.name == "sqlite":
        return 0.0
    pid = db.connection().scalar(sa.text("SELECT pg_backend_pid()"))
    # Ticks are too coarse for one block; the scheduler's nanoseconds are not.
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def block(app: Flask, caller: principals.Principal, count: int, audited: bool) -> float:
    """Milliseconds of CPU for one record."""
    settings = app.extensions["atrium.config"]
    app.extensions["atrium.config"] = replace(settings, audit_logging_enabled=audited)
    begun = time.process_time() + server_seconds()
    for _ in range(count):
        records.create("notes", BODY, by=caller)
    return (time.process_time() + server_seconds() - begun) * 1000 / count


def measure(database: str, count: int) -> dict[str, float]:
    """The cost with and without auditing, and what is between them."""
    app = application(conftest.settings_for(database, Path(tempfile.mkdtemp())))
    cast = builders.make_cast(app)
    builders.make_collection(cast.root, "notes", [{"name": n, "type": "text"} for n in FIELDS])
    with app.app_context():
        caller = principals.for_user(cast.alice.account_id, cast.alice.id)
        if caller is None:
            raise LookupError("alice")
        gc.freeze()  # as the web processes do
        block(app, caller, 50, True)
        found: dict[bool, list[float]] = {True: [], False: []}
        for i in range(2 * BLOCKS):
            found[i % 2 == 0].append(block(app, caller, count, i % 2 == 0))
    low = {audited: statistics.quantiles(times, n=20)[0] for audited, times in found.items()}
    return {"audited": low[True], "unaudited": low[False], "auditing": low[True] - low[False]}


def stored_bytes(database: str, number: int = 3000) -> float:
    """The bytes that the log of a new record of four fields takes, indexes included."""
    sizes = {}
    for audited in (True, False):
        settings = conftest.settings_for(database, Path(tempfile.mkdtemp()))
        app = application(replace(settings, audit_logging_enabled=audited))
        cast = builders.make_cast(app)
        schema = [{"name": name, "type": "text"} for name in FIELDS[:4]]
        builders.make_collection(cast.root, "notes", schema)
        body = {name: BODY[name] for name in FIELDS[:4]}
        with app.app_context():
            before = size()
            for _ in range(number):
                caller = principals.for_user(cast.alice.account_id, cast.alice.id)
                records.create("notes", body, by=caller)  # type: ignore[arg-type]
            sizes[audited] = size() - before
    return (sizes[True] - sizes[False]) / number


def size() -> int:
    """The bytes of the database."""
    if db.db.engine.dialect.name == "sqlite":
        pages, bytes_ = (
            db.connection().scalar(sa.text(f"PRAGMA {name}"))
            for name in ("page_count", "page_size")
        )
        return int(pages) * int(bytes_)
    # Of the tables alone: the catalog grows, too.
    tables = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r'"
    return int(db.connection().scalar(sa.text(tables)) or 0)


def main() -> None:
    """Print both databases' costs."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    machine.stay_on_one_core()
    server = services.Postgres()
    server.start()
    os.environ["TEST_POSTGRES_URL"] = server.url
    try:
        for database in conftest.DATABASES:
            costs = measure(database, count)
            told = ", ".join(f"{name} {ms:.2f} ms" for name, ms in costs.items())
            print(database, told)  # noqa: T201 - what it is for
            print(f"{database} {stored_bytes(database):.0f} bytes of log")  # noqa: T201
        machine.say(server.url)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
