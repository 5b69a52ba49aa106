"""What many accounts need, reckoned from costs measured here.

    python -m bench.capacity [--accounts N ...] [--records N] [--requests N] [--writes SHARE]

Measures, on PostgreSQL with row-level security, the disk that an account, a user, a record and an
audited change take, and the processor time of requests, in the application and in the server.
Then prints what the numbers of accounts need if each has so many records and sends so many requests
a day. Nothing is reckoned for what an operator adds, such as standbys.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import psycopg2
from flask import Flask

from app.accounts import service as accounts
from app.db import db
from bench.growth import instance, say
from tests import builders, services

FIELDS = [
    {"name": "title", "type": "text", "required": True},
    {"name": "status", "type": "text", "options": {"index": True}},
    {"name": "amount", "type": "number"},
    {"name": "due", "type": "date"},
]
ACCOUNTS, RECORDS, REQUESTS, WRITES = (10_000, 1_000_000, 10_000_000), 200, 50, 0.2
MEASURED_ACCOUNTS, MEASURED_RECORDS, MEASURED_REQUESTS = 500, 2_000, 600
PEAK = 5  # times the mean of a day
BUSY = 0.6  # of a core, before waits grow
DAY = 86_400
Request = Callable[[], object]


class Costs(NamedTuple):
    """Bytes of the database, and seconds of processors: application, server."""

    account: float
    record: float
    change: float
    reading: tuple[float, float]
    writing: tuple[float, float]


def size(app: Flask) -> int:
    """The bytes of all tables with their indexes."""
    with app.app_context(), db.engine.connect() as connection:
        query = (
            "SELECT sum(pg_total_relation_size(oid)) FROM pg_class"
            " WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        )
        return int(connection.exec_driver_sql(query).scalar() or 0)


def server_seconds(server: services.Postgres) -> float:
    """The processor time of the server's processes so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    with closing(psycopg2.connect(server.url)) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'")
        pids = [row[0] for row in cursor.fetchall() if row[0] != connection.info.backend_pid]
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / ticks


def seconds_of(server: services.Postgres, request: Request) -> tuple[float, float]:
    """The processor time of a request: in the application, and in the server."""
    for _ in range(20):
        request()
    own = []
    before = server_seconds(server)
    for _ in range(MEASURED_REQUESTS):
        begun = time.process_time()
        request()
        own.append(time.process_time() - begun)
    return statistics.median(own), (server_seconds(server) - before) / MEASURED_REQUESTS


def measure(server: services.Postgres) -> Costs:
    """Measure all costs."""
    with instance("postgresql") as app:
        cast = builders.make_cast(app)
        builders.make_collection(cast.root, "tasks", FIELDS)
        empty = size(app)
        with app.app_context():
            for number in range(MEASURED_ACCOUNTS):
                accounts.create_account(f"Account {number}", f"account-{number}")
        account = (size(app) - empty) / MEASURED_ACCOUNTS
        body = {"title": "A record of usual length", "status": "open", "amount": 12.5}
        before, ids = size(app), []
        for _ in range(MEASURED_RECORDS):
            ids.append(builders.make_record(cast.alice, "tasks", **body)["id"])
        record = (size(app) - before) / MEASURED_RECORDS
        before = size(app)
        for id in ids:
            cast.alice.patch(f"records/tasks/{id}", {"status": "done"})
        change = (size(app) - before) / MEASURED_RECORDS
        titles = (f"title {number}" for number in itertools.count())
        reads = [
            seconds_of(server, lambda: cast.alice.get(f"records/tasks/{ids[0]}")),
            seconds_of(server, lambda: cast.alice.get("records/tasks?status=done&limit=30")),
        ]
        writes = [
            seconds_of(server, lambda: cast.alice.post("records/tasks", body)),
            seconds_of(
                server,
                lambda: cast.alice.patch(f"records/tasks/{ids[1]}", {"title": next(titles)}),
            ),
        ]
    return Costs(account, record, change, _mean(reads), _mean(writes))


def _mean(costs: list[tuple[float, float]]) -> tuple[float, float]:
    own, server = zip(*costs, strict=True)
    return statistics.mean(own), statistics.mean(server)


def needs(
    costs: Costs, number: int, records: int, requests: int, writes: float
) -> Mapping[str, float]:
    """What so many accounts need."""
    per_second = number * requests / DAY * PEAK
    reading, writing = per_second * (1 - writes), per_second * writes
    application = reading * costs.reading[0] + writing * costs.writing[0]
    server = reading * costs.reading[1] + writing * costs.writing[1]
    changes = number * requests * writes * 365
    return {
        "requests/s at the peak": per_second,
        "of them writes": writing,
        "cores for web": application / BUSY,
        "web machines of 8 cores": application / BUSY / 8,
        "cores for PostgreSQL": server / BUSY,
        "GB of accounts and records": number * (costs.account + records * costs.record) / 1e9,
        "GB of log each year": changes * costs.change / 1e9,
    }


def main() -> None:
    """Print costs and needs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--accounts", nargs="+", type=int, default=ACCOUNTS)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--writes", type=float, default=WRITES)
    given = parser.parse_args()
    with services.Postgres() as server:
        os.environ["TEST_POSTGRES_URL"] = server.url
        costs = measure(server)
    say(f"an account {costs.account:,.0f} B, a record {costs.record:,.0f} B with its entry,")
    say(f"a change {costs.change:,.0f} B; milliseconds of web and server: a read")
    parts = (*costs.reading, *costs.writing)
    say("{:.2f} + {:.2f}, a write {:.2f} + {:.2f}".format(*(part * 1000 for part in parts)))
    say(f"each {given.records} records, {given.requests} requests a day, {given.writes:.0%} writes")
    columns = [
        needs(costs, number, given.records, given.requests, given.writes)
        for number in given.accounts
    ]
    say(f"{'accounts':28}{''.join(f'{number:>14,}' for number in given.accounts)}")
    for name in columns[0]:
        say(f"{name:28}{''.join(f'{column[name]:>14,.1f}' for column in columns)}")


if __name__ == "__main__":
    main()
