"""Records per second created by `POST /records/{collection}/batch` on PostgreSQL.

    python -m bench.batch [batches]

Requests go through the whole application, with the body as JSON, a thousand records of five fields
each; with and without auditing in turn, the median of each counts.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from flask import Flask

from tests import builders, conftest, services

SCHEMA = [
    {"name": "title", "type": "text", "required": True},
    {"name": "code", "type": "text"},
    {"name": "views", "type": "number", "default": 0},
    {"name": "live", "type": "boolean"},
    {"name": "at", "type": "datetime"},
]
SIZE = 1000


def body() -> dict[str, list[dict[str, object]]]:
    """A batch."""
    at = "2026-11-20T12:00:00Z"
    return {
        "records": [
            {"title": f"Record {i}", "code": f"c{i}", "views": i, "live": True, "at": at}
            for i in range(SIZE)
        ]
    }


def rate(app: Flask, caller: builders.Caller, *, audited: bool) -> float:
    """Records per second of one batch."""
    settings = app.extensions["atrium.config"]
    app.extensions["atrium.config"] = replace(settings, audit_logging_enabled=audited)
    sent = body()
    begun = time.perf_counter()
    answer = caller.post("records/posts/batch", sent)
    seconds = time.perf_counter() - begun
    if answer.status_code != 201:
        raise LookupError(answer.text)
    return SIZE / seconds


def main() -> None:
    """Print both rates."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    server = services.Postgres()
    server.start()
    os.environ["TEST_POSTGRES_URL"] = server.url
    try:
        folder = Path(tempfile.mkdtemp())
        app = conftest.make_app(conftest.settings_for("postgresql", folder))
        cast = builders.make_cast(app)
        builders.make_collection(cast.root, "posts", SCHEMA)
        rate(app, cast.alice, audited=True)
        for audited in (False, True):
            rates = [rate(app, cast.alice, audited=audited) for _ in range(count)]
            told = f"{statistics.median(rates):,.0f} records/s, at best {max(rates):,.0f}"
            print("audited:" if audited else "unaudited:", told)  # noqa: T201 - what it is for
    finally:
        server.stop()


if __name__ == "__main__":
    main()
