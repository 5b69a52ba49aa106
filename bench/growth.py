"""How costs grow with records, accounts and collections, as ratios within one run.

    python -m bench.growth [--records N ...] [--accounts N ...] [--collections N ...] [--rounds N]
    python -m bench.growth --records 1000 20000 --accounts 10 50 --collections 1 20 --rounds 10

On PostgreSQL the login is that of docs/deployment.md: no superuser, so that row-level security
holds. One account has a collection for each number of records; the instances for each number of
accounts have a hundred records in each of them. Requests and the looks of workers run in turn,
by one client within this process; lower quartiles count, as whatever else runs there only adds. A
ratio is to the first number. Start and memory are those of a process of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg2
from flask import Flask
from werkzeug.test import TestResponse

from app import db, jobs
from app.accounts import service as accounts
from app.context import tenancy
from app.jobs import leases
from app.webhooks import models as webhooks
from app.workflows import models as workflows
from bench.product import application
from tests import builders, conftest, services
from tests.processes import environment
from tests.project import PROJECT

SCHEMA = [
    {"name": "title", "type": "text", "required": True},
    {"name": "number", "type": "number", "options": {"index": True}},
]
RECORDS, ACCOUNTS, COLLECTIONS = (1_000, 100_000, 500_000), (10, 1_000, 10_000), (1, 100, 500)
ROUNDS, STARTS, OF_EACH = 40, 3, 100
WARMING = 5  # what is done once only
Request = Callable[[], object]
QUEUES = {"jobs": jobs.QUEUE, "deliveries": webhooks.QUEUE, "workflows": workflows.QUEUE}
# A process of its own: its start, its memory, and its memory after it has used all collections.
PROCESS = """
import json, sys, time
def memory():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))
began = time.perf_counter()
from wsgi import app
client = app.test_client()
assert client.get("/ready").status_code == 200
seconds, started = time.perf_counter() - began, memory()
for path in sys.argv[2:]:
    answer = client.get(path, headers={"Authorization": "Bearer " + sys.argv[1]})
    assert answer.status_code == 200, answer.text
print(json.dumps([seconds, started, memory()]))
"""


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(*statements: str) -> None:
    """Run statements as the server's superuser."""
    with closing(psycopg2.connect(services.Postgres().url)) as connection:
        connection.autocommit = True
        for statement in statements:
            connection.cursor().execute(statement)


@contextmanager
def instance(database: str) -> Iterator[Flask]:
    """An instance on a database of its own; on PostgreSQL its login is no superuser."""
    settings = conftest.settings_for("sqlite", Path(tempfile.mkdtemp()))
    if database == "sqlite":
        yield application(settings)
        return
    name, password = f"growth_{secrets.token_hex(4)}", secrets.token_hex(8)
    server = services.Postgres()
    url = urlsplit(server.create_database(name))
    run(
        f"CREATE ROLE {name} LOGIN CREATEROLE PASSWORD '{password}'",
        f"ALTER DATABASE {name} OWNER TO {name}",
    )
    netloc = f"{name}:{password}@{url.netloc.rpartition('@')[2]}"
    address = urlunsplit(url._replace(scheme="postgresql+psycopg2", netloc=netloc))
    yield application(replace(settings, database_url=address))
    server.drop_database(name)
    run(*(f"DROP ROLE IF EXISTS {name}{ending}" for ending in ("", "_account", "_all")))


def fill(app: Flask, cast: builders.Cast, name: str, count: int, others: Sequence[str]) -> None:
    """Create a collection with `count` records of alice's account, and some of each other one."""
    builders.make_collection(cast.root, name, SCHEMA)
    builders.make_record(cast.alice, name, title="A record", number=0)
    moved = "created_at - i * interval '1 second'"
    if app.extensions["atrium.config"].database_url.startswith("sqlite"):
        moved = "strftime('%Y-%m-%dT%H:%M:%S.000000Z', created_at, -i || ' seconds')"
    owners = [(cast.alice.account_id, count - 1), *((id, OF_EACH) for id in others)]
    with app.app_context(), tenancy.as_owner(), db.transaction():
        for account_id, records in owners:
            db.connection().exec_driver_sql(
                "WITH RECURSIVE n(i) AS"  # noqa: S608 - constants and ids
                f" (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {records}),"
                f" one AS (SELECT * FROM col_{name} WHERE number = 0)"
                f" INSERT INTO col_{name} (account_id, id, created_at, updated_at, title, number)"
                f" SELECT '{account_id}', substr(id, 1, 27) || i, {moved}, updated_at, title, i"
                " FROM one, n",
                execution_options={"no_parameters": True},
            )
        db.connection().exec_driver_sql(f"ANALYZE col_{name}")


def make_accounts(app: Flask, count: int) -> list[str]:
    """Create accounts in large transactions, which spares most of the time; returns their ids."""
    made: list[str] = []
    with app.app_context():
        while len(made) < count:
            with db.transaction():
                for number in range(len(made), min(len(made) + OF_EACH, count)):
                    made.append(accounts.create_account(f"A {number}", f"a-{number}").id)
    return made


def requests_of(cast: builders.Cast, name: str, count: int) -> Mapping[str, Request]:
    """The requests that are compared, about a collection with so many records of alice's."""
    alice, path = cast.alice, f"records/{name}"
    first = alice.get(f"{path}?number={count // 2}").json["items"][0]["id"]
    titles = (f"title {i}" for i in itertools.count())
    return {
        "get a record": lambda: alice.get(f"{path}/{first}"),
        "list 30 newest, with total": lambda: alice.get(path),
        "list by equality": lambda: alice.get(f"{path}?number={count // 2}"),
        "list by range": lambda: alice.get(f"{path}?filter=number >= {count - 50}&sort=number"),
        "list sorted": lambda: alice.get(f"{path}?sort=-number"),
        "page by cursor, sorted": lambda: alice.get(f"{path}?sort=-number&cursor="),
        "create": lambda: alice.post(path, {"title": "A record"}),
        "patch": lambda: alice.patch(f"{path}/{first}", {"title": next(titles)}),
        "collection, with its count": lambda: cast.root.get(f"collections/{name}"),
    }


def requests_of_instance(app: Flask, cast: builders.Cast) -> Mapping[str, Request]:
    """What an instance does, whatever it is about: lists, a sign-in, looks for due work."""

    def look(queue: leases.Queue) -> None:
        with app.app_context(), tenancy.across_accounts():
            leases.find_due(queue, 100)

    body = {"account": cast.alice.slug, "email": cast.alice.email, "password": builders.PASSWORD}
    requests: dict[str, Request] = {
        "list of collections": lambda: cast.root.get("collections"),
        "list of accounts": lambda: cast.root.get("accounts"),
        "API description": lambda: cast.root.get("/openapi.json"),
        "sign-in": lambda: cast.alice.post("auth/login", body),
    }
    looks = {f"look for due {name}": partial(look, queue) for name, queue in QUEUES.items()}
    return {**requests, **looks}


def measure_process(app: Flask, cast: builders.Cast, names: Sequence[str]) -> list[float]:
    """The start of a process in seconds, and its memory in MiB before and after it is used."""
    settings = app.extensions["atrium.config"]
    env = environment(
        settings.instance_dir,
        SERVICE_ENV="test",
        SERVICE_INSTANCE_DIR=str(settings.instance_dir),
        SERVICE_DATABASE_URL=settings.database_url,
        SERVICE_SECRET_KEY=settings.secret_key,
        SERVICE_BASE_URL=settings.base_url,
    )
    token = cast.root.headers["Authorization"].removeprefix("Bearer ")
    paths = ["/api/v1/collections", *(f"/api/v1/records/{name}" for name in names)]
    command = [sys.executable, "-c", PROCESS, token, *paths]
    run = partial(subprocess.run, command, env=env, cwd=PROJECT, check=True, text=True)
    found: list[float] = json.loads(run(stdout=subprocess.PIPE).stdout.splitlines()[-1])
    return found


def compare_processes(starts: Sequence[Callable[[], Sequence[float]]]) -> None:
    """Print the start and the memory of processes, as ratios to the first one's."""
    rounds = [[start() for start in starts] for _ in range(STARTS)]
    found = [[min(values) for values in zip(*of, strict=True)] for of in zip(*rounds, strict=True)]
    for name, values in zip(
        ("start", "memory of a process", "the same, used"), zip(*found, strict=True), strict=True
    ):
        ratios = "".join(f"{value / values[0]:8.2f}" for value in values)
        say(f"  {name:28}{values[0]:6.1f} {'s ' if name == 'start' else 'MiB'}{ratios}")


def compare(of: Sequence[Mapping[str, Request]], rounds: int) -> None:
    """Print each request's cost for the further ones, in multiples of that for the first."""
    for case in of[0]:
        requests = [one[case] for one in of]
        times: list[list[float]] = [[] for _ in of]
        for number in range(rounds + WARMING):
            for request, found in zip(requests, times, strict=True):
                begun = time.perf_counter()
                answer = request()
                seconds = time.perf_counter() - begun
                if isinstance(answer, TestResponse) and answer.status_code >= 300:
                    raise LookupError(answer.text)
                if number >= WARMING:
                    found.append(seconds)
        costs = [statistics.quantiles(found, n=4)[0] for found in times]
        ratios = "".join(f"{cost / costs[0]:8.2f}" for cost in costs)
        say(f"  {case:28}{costs[0] * 1000:6.1f} ms{ratios}")


def measure_records(database: str, records: Sequence[int], rounds: int) -> None:
    """Print the ratios of collections of these sizes."""
    with instance(database) as app:
        cast = builders.make_cast(app)
        for count in records:
            fill(app, cast, f"of_{count}", count, ())
        say(f"{database}, {', '.join(f'{count:,}' for count in records)} records of an account:")
        compare([requests_of(cast, f"of_{count}", count) for count in records], rounds)


def measure_accounts(database: str, numbers: Sequence[int], rounds: int) -> None:
    """Print the ratios of instances with these numbers of accounts."""
    with ExitStack() as stack:
        requests, processes = [], []
        for count in numbers:
            app = stack.enter_context(instance(database))
            cast = builders.make_cast(app)
            made = make_accounts(app, count - 2)
            fill(app, cast, "posts", OF_EACH, [cast.charlie.account_id, *made])
            own = requests_of(cast, "posts", OF_EACH)
            requests.append({**own, **requests_of_instance(app, cast)})
            processes.append(partial(measure_process, app, cast, ["posts"]))
        say(f"{database}, {', '.join(f'{count:,}' for count in numbers)} accounts:")
        compare(requests, rounds)
        compare_processes(processes)


def measure_collections(database: str, numbers: Sequence[int], rounds: int) -> None:
    """Print the ratios of instances with these numbers of collections."""
    with ExitStack() as stack:
        requests, processes = [], []
        for count in numbers:
            app = stack.enter_context(instance(database))
            cast = builders.make_cast(app)
            names = [f"c_{number}" for number in range(count)]
            for name in names:
                builders.make_collection(cast.root, name, SCHEMA)
            builders.make_record(cast.alice, names[0], title="A record", number=0)
            own = requests_of(cast, names[0], 0)
            requests.append({**own, **requests_of_instance(app, cast)})
            processes.append(partial(measure_process, app, cast, names))
        say(f"{database}, {', '.join(f'{count:,}' for count in numbers)} collections:")
        compare(requests, rounds)
        compare_processes(processes)


def main() -> None:
    """Print all ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", nargs="+", type=int, default=RECORDS)
    parser.add_argument("--accounts", nargs="+", type=int, default=ACCOUNTS)
    parser.add_argument("--collections", nargs="+", type=int, default=COLLECTIONS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    server = services.Postgres()
    server.start()
    os.environ["TEST_POSTGRES_URL"] = server.url
    try:
        for database in conftest.DATABASES:
            measure_records(database, asked.records, asked.rounds)
            measure_accounts(database, asked.accounts, asked.rounds)
            measure_collections(database, asked.collections, asked.rounds)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
