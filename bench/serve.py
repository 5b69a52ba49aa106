"""The product's speed over HTTP, beside the floor of the same stack, as ratios within one run.

    python -m bench.serve [seconds] [records ...] [--only CASE]

Product and floor (`bench/floor.py`) are served by deploy/gunicorn.conf.py on one database. They are
asked in turn, three times for each case and number of connections, after what their processes do
once only; medians count. The load comes from this process, on the same machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flask import Flask

from app import db
from app.config import Config
from app.context import tenancy
from app.types import JSONObject
from bench import load
from bench.product import application
from tests import builders, conftest, services
from tests.processes import environment, started, wait_for
from tests.project import PROGRAMS, free_port

FIELDS: list[dict[str, Any]] = [
    {"name": "title", "type": "text", "required": True},
    {"name": "code", "type": "text"},
    {"name": "views", "type": "number", "options": {"index": True}},
    {"name": "live", "type": "boolean"},
    {"name": "at", "type": "datetime"},
]
NEW = {"title": "A record", "code": "c7", "views": 7, "live": True, "at": "2026-11-20T12:00:00Z"}
ROUNDS = 3
# Requests a second of a view with one SELECT by key at 16 connections, on the machine of reference.
USUAL_FLOOR, APART = 2900, 0.3
WARM_SECONDS = 0.5


@dataclass
class Served:
    """A server under load."""

    port: int
    session: int


@dataclass
class Case:
    """A benchmark case: the same requests for the product and the floor."""

    name: str
    request: Callable[[], bytes]
    audited: bool = True
    connections: tuple[int, ...] = (1, 16)


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def filled(
    app: Flask, cast: builders.Cast, count: int, new: JSONObject, **definition: Any
) -> list[str]:
    """Create a collection with `count` records like `new`; returns some ids."""
    builders.make_collection(cast.root, **definition)
    builders.make_record(cast.alice, **new)
    columns = ", ".join(["updated_at", "created_by", "account_id", *(new.keys() - {"views"})])
    with app.app_context(), db.transaction():
        moved, number = "created_at - i * interval '1 second'", "lpad(i::text, 8, '0')"
        if db.db.engine.dialect.name == "sqlite":
            moved = "strftime('%Y-%m-%dT%H:%M:%S.000000Z', created_at, -i || ' seconds')"
            number = "substr('00000000' || i, -8)"
        db.connection().exec_driver_sql(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count - 1})"  # noqa: S608
            f" INSERT INTO col_posts (id, created_at, views, {columns})"
            f" SELECT substr(id, 1, 28) || {number}, {moved}, i, {columns} FROM col_posts, n",
            execution_options={"no_parameters": True},
        )
        with tenancy.as_owner():
            db.connection().exec_driver_sql("ANALYZE col_posts")
        rows = db.connection().exec_driver_sql("SELECT id FROM col_posts LIMIT 500")
        return [row[0] for row in rows]


def message(
    method: str, path: str, credential: str, body: Any = None, *, prefix: str = "/api/v1"
) -> bytes:
    """The bytes of a request."""
    head = [f"{method} {prefix}/{path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: {credential}"]
    sent = b"" if body is None else json.dumps(body).encode()
    if body is not None:
        head += ["Content-Type: application/json", f"Content-Length: {len(sent)}"]
    return "\r\n".join([*head, "", ""]).encode() + sent


def cases(ids: Sequence[str], count: int, bearer: str, key: str) -> Iterator[Case]:
    """All cases."""
    around = itertools.cycle(ids)
    sign_in = {
        "account": "acme",
        "email": "alice@acme.example",
        "password": builders.PASSWORD,
    }
    many = message("POST", "records/posts/batch", bearer, {"records": [NEW] * 1000})
    filtered = f"records/posts?filter=views%20%3E=%20{count - 100}&sort=-views&limit=30"

    def always(*request: Any) -> Callable[[], bytes]:
        text = message(*request)
        return lambda: text

    yield Case("get", lambda: message("GET", f"records/posts/{next(around)}", bearer))
    yield Case("get, API key", lambda: message("GET", f"records/posts/{next(around)}", key))
    yield Case("list 30 newest, total", always("GET", "records/posts?limit=30", bearer))
    yield Case("list filtered, sorted", always("GET", filtered, bearer))
    for audited in (True, False):
        told = "" if audited else ", not audited"
        yield Case(f"create{told}", always("POST", "records/posts", bearer, NEW), audited)
        titles = (f"title {number}" for number in itertools.count())
        yield Case(
            f"patch{told}",
            lambda titles=titles: message(  # type: ignore[misc]
                "PATCH", f"records/posts/{next(around)}", bearer, {"title": next(titles)}
            ),
            audited,
        )
    yield Case("batch of 1,000", lambda: many, connections=(1, 2))
    yield Case("login", always("POST", "auth/login", "", sign_in))


def server_command(kind: str) -> list[str]:
    """Return what serves an application, `wsgi:app` or the floor, on PORT."""
    configured = "deploy" if kind == "wsgi:app" else "bench"
    return [str(PROGRAMS / "gunicorn"), "-c", f"{configured}/gunicorn.conf.py", kind]


@contextmanager
def serving(kind: str, settings: dict[str, str], folder: Path) -> Iterator[Served]:
    """The product or the floor under a server of the product's."""
    port, log = free_port(), folder / f"{kind}.log"
    env = environment(folder, PORT=str(port), **settings)
    with started(server_command(kind), env, log) as process:
        wait_for(f"http://127.0.0.1:{port}/health", log)
        yield Served(port, process.pid)


def compare(case: Case, product: Served, floor: Served, count: int, seconds: float) -> float:
    """Print a case's figures, and return the floor's rate."""
    found: dict[str, list[load.Figures]] = {"product": [], "floor": []}
    for one in (product, floor):
        load.run(one.port, one.session, case.request, max(count, 2), WARM_SECONDS)
    for _ in range(ROUNDS):
        for name, one in (("product", product), ("floor", floor)):
            found[name].append(load.run(one.port, one.session, case.request, count, seconds))
    one, other = load.middle(found["product"]), load.middle(found["floor"])
    say(
        f"  {case.name:24} {count:2}  {one.rate:7,.0f}/s of {other.rate:7,.0f}/s ="
        f" {one.rate / other.rate:.2f}   p50 {one.p50:6.1f} of {other.p50:6.1f} ms"
        f"   p99 {one.p99:6.1f} of {other.p99:6.1f} ms   CPU {one.cpu:5.2f} of {other.cpu:5.2f} ms"
    )
    return other.rate


def measure(database: str, records: int, seconds: float, only: str) -> None:
    """Print the figures of one database with so many records, of cases that begin like that."""
    folder = Path(tempfile.mkdtemp())
    url = f"sqlite:///{folder / 'atrium.db'}"
    if database == "postgresql":
        url = services.Postgres().create_database(f"bench_{secrets.token_hex(4)}")
    settings = {"SERVICE_DATABASE_URL": url}
    app = application(Config.from_env(environment(folder, **settings)))
    cast = builders.make_cast(app)
    ids = filled(app, cast, records, NEW, schema=FIELDS)
    bearer = cast.alice.headers["Authorization"]
    key = "Bearer " + cast.alice.post("api-keys", {"name": "bench"}).json["key"]
    with app.app_context():
        db.db.engine.dispose()
        url = db.db.engine.url.render_as_string(hide_password=False)
    bare = {"FLOOR_DATABASE": url, "FLOOR_ACCOUNT": cast.alice.account_id}
    say(f"{database}, {records:,} records, requests of the product and of the floor:")
    with ExitStack() as stack:
        servers = {}
        for audited in (True, False):
            told = {"SERVICE_AUDIT_LOGGING_ENABLED": str(audited).lower()}
            product = stack.enter_context(serving("wsgi:app", settings | told, folder))
            told = bare | {"FLOOR_USER": cast.alice.id, "FLOOR_AUDITED": str(int(audited))}
            floor = stack.enter_context(serving("bench.floor:app", told, folder))
            servers[audited] = product, floor
        for case in cases(ids, records, bearer, key):
            for count in case.connections if case.name.startswith(only) else ():
                rate = compare(case, *servers[case.audited], count, seconds)
                if case.name == "get" and count == 16:
                    warn(rate)
        largest = [f"{load.pss_of(one.session)[0]:.0f} MiB" for one in servers[True]]
        say(f"  memory of the largest process (PSS): {largest[0]}, the floor's {largest[1]}")


def warn(rate: float) -> None:
    """Warn if this machine differs from the reference machine."""
    if abs(rate / USUAL_FLOOR - 1) > APART:
        say(f"  ! the floor's {rate:,.0f}/s are more than 30 % beside the usual {USUAL_FLOOR:,}/s")


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", nargs="?", type=float, default=2)
    parser.add_argument("records", nargs="*", type=int)
    parser.add_argument("--only", default="", metavar="CASE")
    asked = parser.parse_args()
    server = services.Postgres()
    server.start()
    os.environ["TEST_POSTGRES_URL"] = server.url
    try:
        for records in asked.records or (10_000, 100_000):
            for database in conftest.DATABASES:
                measure(database, records, asked.seconds, asked.only)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
