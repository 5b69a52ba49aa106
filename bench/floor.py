"""The floor: a bare Flask application that does only the necessary work.

It is served by the same server under the same settings as the product. Each view runs the one
necessary statement through the bare driver and answers the same JSON. It knows no callers, rules,
definitions or errors. Writes make the same audit entries, by the product's own digests and
statement, unless FLOOR_AUDITED is 0.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import orjson
import psycopg2
import psycopg2.extras
from argon2 import PasswordHasher
from flask import Flask, Response, request
from uuid_utils import uuid7

from app.audit import append
from app.context.actor import Actor, acting

DATABASE, ACCOUNT, USER = (os.environ[f"FLOOR_{n}"] for n in ("DATABASE", "ACCOUNT", "USER"))
AUDITED = os.environ.get("FLOOR_AUDITED", "1") != "0"
ON_SQLITE = DATABASE.startswith("sqlite")
FIELDS = os.environ.get("FLOOR_FIELDS", "title,code,views,live,at").split(",")
SYSTEM = ("id", "created_at", "updated_at", "created_by", "updated_by")
TOLD = Actor(USER, "alice@acme.example", None, "127.0.0.1")
JSON = "application/json"

app = Flask(__name__)
hasher = PasswordHasher(time_cost=2, memory_cost=19456, parallelism=1)
_local = threading.local()

MARK = "?" if ON_SQLITE else "%s"
NAMES = ", ".join(f'"{name}"' for name in (*SYSTEM, *FIELDS))
WHERE = f"FROM col_posts WHERE account_id = {MARK}"
ONE = f"SELECT {NAMES} {WHERE} AND id = {MARK}"
LIST = f"SELECT {NAMES}, (SELECT count(*) {WHERE}) {WHERE} ORDER BY created_at DESC, id LIMIT 30"
FILTERED = (
    f'SELECT {NAMES}, (SELECT count(*) {WHERE} AND "views" >= {MARK}) {WHERE} AND "views" >= {MARK}'
    ' ORDER BY "views" DESC, id LIMIT 30'
)
INSERT = f"INSERT INTO col_posts (account_id, {NAMES}) VALUES"
ROW = f"({', '.join([MARK] * (1 + len(SYSTEM) + len(FIELDS)))})"
PATCH = f'UPDATE col_posts SET "title" = {MARK}, updated_at = {MARK}, updated_by = {MARK}'  # noqa: S608
CHANGED = f"WHERE account_id = {MARK} AND id = {MARK} RETURNING {NAMES}"
LOGIN = (
    "SELECT u.id, u.email, u.password_hash, a.slug, a.name FROM users u JOIN accounts a"  # noqa: S608
    f" ON a.id = u.account_id WHERE a.slug = {MARK} AND u.email = {MARK}"
)


def driver() -> Any:
    """This thread's connection."""
    if not hasattr(_local, "connection"):
        if ON_SQLITE:
            path = DATABASE.removeprefix("sqlite:///")
            _local.connection = sqlite3.connect(path, isolation_level=None, timeout=15)
            _local.connection.execute("PRAGMA synchronous = NORMAL")
        else:
            _local.connection = psycopg2.connect(DATABASE.replace("+psycopg2", ""))
            _local.connection.autocommit = True
    return _local.connection


def rows(statement: str, *values: Any) -> list[Any]:
    """Execute a statement and return its rows."""
    if ON_SQLITE:
        return list(driver().execute(statement, values).fetchall())
    with driver().cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())


@contextmanager
def writing() -> Iterator[Any]:
    """A transaction; what it executes with."""
    connection = driver()
    if ON_SQLITE:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")
        return
    connection.autocommit = False
    with connection.cursor() as cursor:
        yield cursor
    connection.commit()
    connection.autocommit = True


def audit(through: Any, changes: Sequence[append.Change]) -> None:
    """Write changes for the audit log, as part of the transaction."""
    with acting(TOLD):
        new = list(append._rows(changes))
    if ON_SQLITE:
        through.executemany(append._INSERT, new)
    else:
        psycopg2.extras.execute_values(through, f"{append._INTO}) VALUES %s", new)


def shown(row: Sequence[Any]) -> dict[str, Any]:
    """A record as in responses."""
    return dict(zip((*SYSTEM, *FIELDS), map(text, row), strict=False))


def text(value: Any) -> Any:
    """A value as in responses."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return int(value) if isinstance(value, Decimal) else value


def answer(body: Any, status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(orjson.dumps(body), status, mimetype=JSON)


@app.get("/api/v1/records/posts/<record_id>")
def get(record_id: str) -> Response:
    """One record."""
    return answer(shown(rows(ONE, ACCOUNT, record_id)[0]))


@app.get("/api/v1/records/posts")
def page() -> Response:
    """The 30 newest records, or those with the most views, and the total."""
    asked = request.args.get("filter")
    if asked:
        least = int(asked.rpartition(" ")[2])
        found = rows(FILTERED, ACCOUNT, least, ACCOUNT, least)
    else:
        found = rows(LIST, ACCOUNT, ACCOUNT)
    total = found[0][-1] if found else 0
    return answer({"items": [shown(row) for row in found], "total": total, "skip": 0, "limit": 30})


@app.get("/health")
def health() -> str:
    """Liveness."""
    return "ok"


def values_of(body: dict[str, Any], moment: datetime) -> tuple[Any, ...]:
    """The row of a new record."""
    now: Any = text(moment) if ON_SQLITE else moment
    given = [body.get(name) for name in FIELDS]
    return (ACCOUNT, str(uuid7()), now, now, USER, USER, *given)


def created(row: Sequence[Any], body: dict[str, Any]) -> append.Change:
    """The audit entries of a new record."""
    told = [(name, None, append.text(body.get(name))) for name in FIELDS]
    place = (append.CREATE, "col_posts", row[1])
    return append.Change(ACCOUNT, place, [("id", None, row[1]), *told], None, None)


@app.post("/api/v1/records/posts")
def create() -> Response:
    """A new record."""
    body, moment = orjson.loads(request.data), datetime.now(UTC)
    row = values_of(body, moment)
    with writing() as through:
        through.execute(f"{INSERT} {ROW}", row)
        if AUDITED:
            audit(through, [created(row, body)])
    return answer(shown(row[1:]), 201)


@app.patch("/api/v1/records/posts/<record_id>")
def patch(record_id: str) -> Response:
    """A record with another title."""
    title, moment = orjson.loads(request.data)["title"], datetime.now(UTC)
    now = text(moment) if ON_SQLITE else moment
    with writing() as through:
        before = through.execute(ONE, (ACCOUNT, record_id)) or through
        old = before.fetchone()[5]
        after = through.execute(f"{PATCH} {CHANGED}", (title, now, USER, ACCOUNT, record_id))
        row = (after or through).fetchone()
        if AUDITED:
            place = (append.UPDATE, "col_posts", record_id)
            change = append.Change(ACCOUNT, place, [("title", old, title)], None, None)
            audit(through, [change])
    return answer(shown(row))


@app.post("/api/v1/records/posts/batch")
def batch() -> Response:
    """Many new records."""
    bodies, moment = orjson.loads(request.data)["records"], datetime.now(UTC)
    new = [values_of(body, moment) for body in bodies]
    with writing() as through:
        if ON_SQLITE:
            through.executemany(f"{INSERT} {ROW}", new)
        else:
            psycopg2.extras.execute_values(through, f"{INSERT} %s", new)
        if AUDITED:
            audit(through, [created(r, b) for r, b in zip(new, bodies, strict=True)])
    return answer({"created": [shown(row[1:]) for row in new], "count": len(new)}, 201)


@app.post("/api/v1/auth/login")
def login() -> Response:
    """Verify a password."""
    body = orjson.loads(request.data)
    ((id, email, hash, slug, name),) = rows(LOGIN, body["account"], body["email"])
    hasher.verify(hash, body["password"])
    return answer({"user": {"id": id, "email": email}, "account": {"slug": slug, "name": name}})
