"""Records per second created by `POST /records/{collection}/batch` on PostgreSQL.

    python -m bench.batch [batches]

A thousand records of five fields each, as JSON, with and without auditing in turn: within one
process, which shows what a batch costs, and by the Procfile's web processes, two clients at once,
which shows what an instance takes. The medians count.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import requests
from flask import Flask

from bench.product import application
from tests import builders, conftest, services
from tests.processes import environment, started, wait_for
from tests.project import PROJECT, free_port, procfile

SCHEMA = [
    {"name": "title", "type": "text", "required": True},
    {"name": "code", "type": "text"},
    {"name": "views", "type": "number", "default": 0},
    {"name": "live", "type": "boolean"},
    {"name": "at", "type": "datetime"},
]
SIZE, CLIENTS = 1000, 2
PASSWORD = "Correct-horse-7-battery"  # noqa: S105 - of an instance that lives for seconds
JSON = {"Content-Type": "application/json"}


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


def within(count: int) -> None:
    """Print both rates of one process."""
    folder = Path(tempfile.mkdtemp())
    app = application(conftest.settings_for("postgresql", folder))
    cast = builders.make_cast(app)
    builders.make_collection(cast.root, "posts", SCHEMA)
    rate(app, cast.alice, audited=True)
    for audited in (False, True):
        say("one process", audited, [rate(app, cast.alice, audited=audited) for _ in range(count)])


@contextmanager
def serving(url: str, *, audited: bool) -> Iterator[str]:
    """The web processes of the Procfile, on a database of their own; their address."""
    folder, port = Path(tempfile.mkdtemp()), free_port()
    address = f"http://127.0.0.1:{port}"
    env = environment(
        folder,
        PORT=str(port),
        SERVICE_DATABASE_URL=url,
        SERVICE_BASE_URL=address,
        SERVICE_AUDIT_LOGGING_ENABLED=str(audited).lower(),
        SERVICE_SUPERADMIN_EMAIL="root@system.example",
        SERVICE_SUPERADMIN_PASSWORD=PASSWORD,
    )
    commands = procfile()
    subprocess.run(  # noqa: S603 - the Procfile
        shlex.split(commands["release"]), cwd=PROJECT, env=env, check=True, capture_output=True
    )
    with started(shlex.split(commands["web"]), env, folder / "log"):
        wait_for(f"{address}/ready", folder / "log")
        yield f"{address}/api/v1"


def served(server: services.Postgres, count: int, *, audited: bool) -> None:
    """Print the rate of the web processes."""
    url = server.create_database(f"bench_{secrets.token_hex(4)}")
    with serving(url, audited=audited) as api:
        root = {"account": "system", "email": "root@system.example", "password": PASSWORD}
        signed_in = requests.post(f"{api}/auth/login", json=root, timeout=30).json()
        headers = JSON | {"Authorization": f"Bearer {signed_in['token']}"}
        made = {"name": "posts", "schema": SCHEMA}
        requests.post(f"{api}/collections", json=made, headers=headers, timeout=30)
        text = json.dumps(body()).encode()

        def client(number: int) -> None:
            with requests.Session() as session:
                for _ in range(count):
                    path = f"{api}/records/posts/batch"
                    session.post(path, data=text, headers=headers, timeout=60).raise_for_status()

        rates = []
        with ThreadPoolExecutor(CLIENTS) as pool:
            for _ in range(4):  # the first of which is left out
                begun = time.perf_counter()
                list(pool.map(client, range(CLIENTS)))
                rates.append(CLIENTS * count * SIZE / (time.perf_counter() - begun))
        say(f"served, {CLIENTS} clients", audited, rates[1:])


def say(how: str, audited: bool, rates: list[float]) -> None:
    """Print a median and the best."""
    kind = "audited" if audited else "unaudited"
    told = f"{statistics.median(rates):,.0f} records/s, at best {max(rates):,.0f}"
    print(f"{how}, {kind}: {told}")  # noqa: T201 - what it is for


def main() -> None:
    """Print all rates."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    server = services.Postgres()
    server.start()
    os.environ["TEST_POSTGRES_URL"] = server.url
    try:
        within(count)
        for audited in (False, True):
            served(server, count, audited=audited)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
