"""What rules that look for a membership cost, beside an equality of an indexed field.

    python -m bench.membership [--records N] [--projects N] [--members N] [--rounds N]

An account has projects with members, of whom the caller is one in 200, and tasks in all projects.
The same tasks are listed by the rule of a membership and by an equality that finds the same ones;
tasks are created under the rule and under none. Requests run within this process, by one client;
lower quartiles count, and a ratio is to the line above.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import closing

import psycopg2
from flask import Flask
from werkzeug.test import TestResponse

from app import db
from app.context import tenancy
from bench.growth import instance, say
from tests import builders, conftest, services

MEMBER = "@any(members, project = @record.project && user = @request.auth.id)"
HOLDER = 'holder = "mine"'
MINE = 200
Request = tuple[str, Callable[[], TestResponse]]
PROJECTS, RANDOM = "01900001-0000-7000-8000-", "'01900000-0000-7000-8000-' || "
PROJECT = {"name": "project", "type": "reference", "collection": "projects"}
MEMBERS = [PROJECT, {"name": "user", "type": "user"}]
TASKS = [
    {"name": "title", "type": "text"},
    PROJECT,
    {"name": "holder", "type": "text", "options": {"index": True}},
]


def fill(app: Flask, cast: builders.Cast, args: argparse.Namespace) -> str:
    """Fill the account of bob, the caller. Returns the id of one of his projects."""
    builders.make_collection(cast.root, "projects", [{"name": "name", "type": "text"}])
    builders.make_collection(cast.root, "members", MEMBERS)
    builders.make_collection(cast.root, "tasks", TASKS)
    ago, padded = "now() - i * interval '1 second'", "lpad(CAST({} AS text), 12, '0')"
    if app.extensions["atrium.config"].database_url.startswith("sqlite"):
        ago = "strftime('%Y-%m-%dT%H:%M:%S.000000Z', 'now', -i || ' seconds')"
        padded = "printf('%012d', {})"
    project = f"'{PROJECTS}' || {padded.format(f'(i % {args.projects})')}"
    user = f"CASE WHEN i <= {MINE} THEN '{cast.bob.id}' ELSE '{cast.alice.id}' END"
    holder = f"CASE WHEN i % {args.projects} BETWEEN 1 AND {MINE} THEN 'mine' ELSE 'others' END"
    rows = {
        "projects": (args.projects, "", project, ""),
        "members": (args.members, ', project, "user"', RANDOM + padded, f", {project}, {user}"),
        "tasks": (args.records, ", project, holder", RANDOM + padded, f", {project}, {holder}"),
    }
    with app.app_context(), tenancy.as_owner(), db.transaction():
        for name, (count, columns, id, values) in rows.items():
            db.connection().exec_driver_sql(
                "WITH RECURSIVE n(i) AS"  # noqa: S608 - constants and ids
                f" (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
                f" INSERT INTO col_{name} (account_id, id, created_at, updated_at{columns})"
                f" SELECT '{cast.alice.account_id}', {id.format('i')}, {ago}, {ago}{values} FROM n",
                execution_options={"no_parameters": True},
            )
    if ago.startswith("now"):  # as its server does by itself after so many new rows
        url = app.extensions["atrium.config"].database_url.replace("+psycopg2", "")
        with closing(psycopg2.connect(url)) as connection:
            connection.autocommit = True
            cursor = connection.cursor()
            # By an own commit on disk: until then vacuum passes by rows whose commit is not.
            cursor.execute("SET synchronous_commit = on")
            for command in ("ANALYZE", "VACUUM"):
                for name in rows:
                    cursor.execute(f"{command} col_{name}")
    return PROJECTS + "1".zfill(12)


def checked(answer: TestResponse) -> None:
    """Stop at an answer that is an error."""
    if answer.status_code >= 400:
        raise SystemExit(answer.text)


def measure(requests: Mapping[str, Request], root: builders.Caller, rounds: int) -> None:
    """Print the cost of each request under its rule, in ms, and its ratio to the one before it."""
    before = 0.0
    for name, (rule, request) in requests.items():
        checked(root.put("collections/tasks/rules", {"list_rule": rule, "create_rule": rule}))
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            answer = request()
            times.append(time.perf_counter() - began)
            checked(answer)
        cost = statistics.quantiles(times[2:], n=4)[0] * 1000
        ratio = f"{cost / before:8.2f}" if "membership" in name else ""
        say(f"  {name:40}{cost:10.2f} ms{ratio}")
        before = cost


def compare(database: str, args: argparse.Namespace) -> None:
    """Print what the requests of the caller cost on one database."""
    with instance(database) as app:
        cast = builders.make_cast(app)
        project, bob = fill(app, cast, args), cast.bob
        page, whole = "records/tasks?include_total=false", "records/tasks"
        task = {"title": "A task", "project": project}
        requests = {
            "list, equality": (HOLDER, lambda: bob.get(page)),
            "list, membership": (MEMBER, lambda: bob.get(page)),
            "list with total, equality": (HOLDER, lambda: bob.get(whole)),
            "list with total, membership": (MEMBER, lambda: bob.get(whole)),
            "create, no rule": ("true", lambda: bob.post(whole, task)),
            "create, membership": (MEMBER, lambda: bob.post(whole, task)),
        }
        say(f"{database}: {args.records} tasks, {args.members} memberships, {MINE} of the caller")
        measure(requests, cast.root, args.rounds)


def main() -> None:
    """Compare on both databases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--projects", type=int, default=10_000)
    parser.add_argument("--members", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    server = services.Postgres()
    server.start()
    os.environ["TEST_POSTGRES_URL"] = server.url
    try:
        for database in conftest.DATABASES:
            compare(database, args)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
