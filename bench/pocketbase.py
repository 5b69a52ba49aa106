"""PocketBase's speed over HTTP, for the rows of `bench.serve` that it has, on the same machine.

    python -m bench.pocketbase PROGRAM [seconds] [records]

PROGRAM is PocketBase's own. It gets the same fields, indexed as they are, rules that ask for
somebody who has signed in, and the same records. It has no audit log, so its writes are to be
compared with those of `bench.serve` that are not audited, too.
"""

from __future__ import annotations

import argparse
import itertools
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import requests

from bench import load
from bench.serve import ROUNDS, WARM_SECONDS, Served, message, say
from tests.processes import free_port, started, wait_for

ADDRESS, PASSWORD = "somebody@acme.example", "correct horse battery"
NEW = {"title": "A record", "code": "c7", "views": 7, "live": True, "at": "2026-11-20 12:00:00Z"}
SIGNED_IN = "@request.auth.id != ''"
OPERATIONS = ("list", "view", "create", "update", "delete")
POSTS = {
    "name": "posts",
    "type": "base",
    "fields": [
        {"name": "title", "type": "text", "required": True},
        {"name": "code", "type": "text"},
        {"name": "views", "type": "number"},
        {"name": "live", "type": "bool"},
        {"name": "at", "type": "date"},
        {"name": "created", "type": "autodate", "onCreate": True},
        {"name": "updated", "type": "autodate", "onCreate": True, "onUpdate": True},
    ],
    "indexes": [
        "CREATE INDEX posts_views ON posts (views)",
        "CREATE INDEX posts_created ON posts (created)",
    ],
    **{f"{operation}Rule": SIGNED_IN for operation in OPERATIONS},
}


@contextmanager
def serving(program: str, folder: Path) -> Iterator[Served]:
    """PocketBase with its data in a folder."""
    port, log = free_port(), folder.parent / "pocketbase.log"
    command = [program, "serve", "--http", f"127.0.0.1:{port}", "--dir", str(folder)]
    with started(command, {}, log) as process:
        wait_for(f"http://127.0.0.1:{port}/api/health", log)
        yield Served(port, process.pid)


def asked(port: int, path: str, body: Any, token: str = "") -> Any:
    """Send a POST and return the response."""
    url = f"http://127.0.0.1:{port}/api/collections{path}"
    answer = requests.post(url, json=body, headers={"Authorization": token}, timeout=30)
    answer.raise_for_status()
    return answer.json()


def furnish(port: int) -> None:
    """A collection with a record, and a user."""
    mine = {"identity": ADDRESS, "password": PASSWORD}
    token = asked(port, "/_superusers/auth-with-password", mine)["token"]
    asked(port, "", POSTS, token)
    user = {"email": ADDRESS, "password": PASSWORD, "passwordConfirm": PASSWORD, "verified": True}
    asked(port, "/users/records", user, token)
    asked(port, "/posts/records", NEW, token)


def fill(database: Path, records: int) -> list[str]:
    """Insert `records` records; returns some ids."""
    with closing(sqlite3.connect(database)) as connection:
        cursor = connection.execute("SELECT * FROM posts")
        names = [column[0] for column in cursor.description]
        first, now = dict(zip(names, cursor.fetchone(), strict=True)), datetime.now(UTC)
        rows = [
            {
                **first,
                "id": f"{number:015d}",
                "views": number,
                "created": f"{now - timedelta(seconds=number):%Y-%m-%d %H:%M:%S}.000Z",
            }
            for number in range(1, records)
        ]
        marks = ", ".join(f":{name}" for name in names)
        connection.executemany(f"INSERT INTO posts ({', '.join(names)}) VALUES ({marks})", rows)  # noqa: S608
        connection.execute("ANALYZE")
        connection.commit()
    return [str(row["id"]) for row in rows[:500]]


def cases(ids: list[str], records: int, token: str) -> dict[str, Callable[[], bytes]]:
    """The cases under the names of `bench.serve`."""
    around, numbers = itertools.cycle(ids), itertools.count()

    def of(method: str, path: str, body: Any = None) -> bytes:
        return message(method, path, token, body, prefix="/api/collections")

    filtered = f"posts/records?filter=views%3E{records - 100}&sort=-views&perPage=30"
    sign_in = {"identity": ADDRESS, "password": PASSWORD}
    return {
        "get": lambda: of("GET", f"posts/records/{next(around)}"),
        "list 30 newest, total": lambda: of("GET", "posts/records?sort=-created&perPage=30"),
        "list filtered, sorted": lambda: of("GET", filtered),
        "create": lambda: of("POST", "posts/records", NEW),
        "patch": lambda: of(
            "PATCH", f"posts/records/{next(around)}", {"title": f"title {next(numbers)}"}
        ),
        "login": lambda: of("POST", "users/auth-with-password", sign_in),
    }


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("seconds", nargs="?", type=float, default=2)
    parser.add_argument("records", nargs="?", type=int, default=10_000)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp()) / "data"
    made = [given.program, "superuser", "upsert", ADDRESS, PASSWORD, "--dir", str(folder)]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    with serving(given.program, folder) as one:
        furnish(one.port)
    ids = fill(folder / "data.db", given.records)
    with serving(given.program, folder) as one:
        sign_in = {"identity": ADDRESS, "password": PASSWORD}
        token = asked(one.port, "/users/auth-with-password", sign_in)["token"]
        say(f"PocketBase, {given.records:,} records:")
        for name, request in cases(ids, given.records, token).items():
            for count in (1, 16):
                load.run(one.port, one.session, request, count, WARM_SECONDS)
                found = load.middle(
                    [
                        load.run(one.port, one.session, request, count, given.seconds)
                        for _ in range(ROUNDS)
                    ]
                )
                say(
                    f"  {name:24} {count:2}  {found.rate:7,.0f}/s   p50 {found.p50:6.1f} ms"
                    f"   p99 {found.p99:6.1f} ms   CPU {found.cpu:5.2f} ms"
                )
        say(f"  memory of the process (PSS): {load.pss_of(one.session)[0]:.0f} MiB")


if __name__ == "__main__":
    main()
