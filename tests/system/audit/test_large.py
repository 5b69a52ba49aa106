"""A log of a million entries: lists by index, and is verified in little memory."""

from __future__ import annotations

import subprocess
import time
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from flask import Flask

from app import clock, config, db
from app.audit import append, service
from app.auth.principal import Principal
from app.context import actor
from app.ops import command
from bench.audit import server_seconds
from tests.processes import environment, mebibytes
from tests.project import PROJECT
from tests.sql import statements

ACCOUNTS = [f"019a9f00-0000-7000-8000-00000000000{i}" for i in range(3)]
USERS = [f"019a9f00-0000-7000-8000-0000000000f{i}" for i in range(4)]
OPERATIONS = (append.CREATE, append.UPDATE, append.DELETE)
TRANSACTION = 500
FEW, MANY = 10_000, 1_000_000
MIB = 160
ROUNDS = 20
BY_INDEX = {"postgresql": "Index Scan", "sqlite": "USING INDEX"}
SINGLE: dict[str, Any] = {
    "nothing": {},
    "table": {"table_name": "col_3"},
    "record": {"record_id": "record-7"},
    "user": {"user_id": USERS[1]},
    "operation": {"operation": "DELETE"},
    "from": {"from_date": clock.parse("2026-01-01T00:00:00Z")},
    "to": {"to_date": clock.parse("2126-01-01T00:00:00Z")},
}
FILTERS = SINGLE | {
    f"account and {name}": {"account_id": ACCOUNTS[0], **asked} for name, asked in SINGLE.items()
}


def fill(first: int, last: int) -> None:
    """Write entries; every table, operation and record with every user and account."""
    for n in range(first // TRANSACTION, last // TRANSACTION):
        actor.source.set(partial(actor.Actor, USERS[n % 4], "alice@acme.example", "Alice"))
        with db.transaction():
            for i in range(TRANSACTION):
                place = (OPERATIONS[i % 3], f"col_{i % 7}", f"record-{i % 20}")
                values = [("title", None, f"number {n} {i}")]
                append.record(append.Change(ACCOUNTS[n % 3], place, values))
    actor.source.set(actor.system)
    if db.db.engine.dialect.name == "postgresql":
        url = db.db.engine.url.set(drivername="postgresql")
        with closing(psycopg2.connect(url.render_as_string(hide_password=False))) as owner:
            owner.autocommit = True
            owner.cursor().execute("VACUUM ANALYZE audit_changes")


def first_page(asked: dict[str, Any]) -> int:
    """Read the first page in the order of the list. Returns how long it is."""
    order = {"sort_by": "occurred_at", "sort_order": "desc", "skip": 0, "limit": 50}
    by = Principal(None)
    return len(service.page({**order, "include_total": False, **asked}, by=by)[0])


def fastest() -> dict[str, float]:
    """Milliseconds of CPU of each first page, here and in the database's process.

    In turn, as a machine may be slow for seconds.
    """
    times: dict[str, list[float]] = {name: [] for name in FILTERS}
    for _ in range(ROUNDS):
        for name, asked in FILTERS.items():
            times[name] += [cost(asked) for _ in range(5)]
    return {name: min(found) for name, found in times.items()}


def cost(asked: dict[str, Any]) -> float:
    """Milliseconds of CPU of a first page."""
    begun = time.process_time() + server_seconds()
    assert first_page(asked) == 50
    return (time.process_time() + server_seconds() - begun) * 1000


def plan_of(app: Flask, asked: dict[str, Any]) -> str:
    """How the database reads a first page."""
    with statements(app) as sent:
        first_page(asked)
    (statement,) = [one for one in sent if "audit_changes" in one]
    explain = "EXPLAIN" if db.db.engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
    rows = db.connection().exec_driver_sql(f"{explain} {statement}", statement.parameters)
    return "\n".join(str(row) for row in rows)


def verify(settings: config.Config, folder: Path) -> tuple[str, float]:
    """Have the command verify all chains. Returns what it prints, and its memory in MiB."""
    env = environment(folder, SERVICE_ENV="test", SERVICE_DATABASE_URL=settings.database_url)
    arguments = [str(PROJECT / "bin/atrium"), "audit", "verify"]
    printed, peak = folder / "printed", 0.0
    with printed.open("w") as output:
        process = subprocess.Popen(arguments, cwd=PROJECT, env=env, stdout=output, stderr=output)
        while process.poll() is None:
            with suppress(AssertionError):  # once it has ended
                peak = mebibytes(process.pid, "VmHWM")
            time.sleep(0.05)
    assert process.returncode == 0, printed.read_text()
    return printed.read_text(), peak


@pytest.mark.slow
def test_audit_log_of_a_million_entries_is_listed_and_verified(
    app: Flask, database: str, tmp_path: Path
) -> None:
    with app.app_context():
        fill(0, FEW)
        few = fastest()
        fill(FEW, MANY)
        many = fastest()
        print({name: (round(few[name], 2), round(many[name], 2)) for name in FILTERS})  # noqa: T201
        assert not [name for name in FILTERS if many[name] > 1.5 * few[name]], (few, many)
        for name, asked in FILTERS.items():
            plan = plan_of(app, asked)
            assert BY_INDEX[database] in plan, (name, plan)
            assert "Seq Scan" not in plan, (name, plan)
            assert plan.count("Sort  (") + plan.count("TEMP B-TREE") == 0, (name, plan)
    begun = time.perf_counter()
    output, peak = verify(app.extensions["atrium.config"], tmp_path)
    taken = time.perf_counter() - begun
    print(f"verified in {taken:.0f} s, {peak:.0f} MiB")  # noqa: T201
    assert f"checked {MANY}" in output
    assert output.count("Entries verified: ") > taken / command.SECONDS_BETWEEN_LINES / 2
    assert peak < MIB
