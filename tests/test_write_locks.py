"""On SQLite nobody keeps the others from writing for long, whatever is sent."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.context import deadline, tenancy
from app.db import errors, sqlite_driver
from app.ops import health
from app.records.transfer import imports
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_record

SCHEMA = [
    {"name": "text", "type": "text"},
    {"name": "code", "type": "text", "unique": True},
]


@pytest.fixture
def database() -> str:
    return "sqlite"


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long each transaction kept the others waiting."""
    held: list[float] = []
    begin, rollback, commit = (
        getattr(sqlite_driver.Driver, n) for n in ("begin", "rollback", "commit")
    )
    begun: dict[int, float] = {}

    def begin_(self: Any, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        begun[id(self)] = time.monotonic()

    def ended(end: Callable[[Any], None]) -> Callable[[Any], None]:
        def run(self: Any) -> None:
            end(self)
            if id(self) in begun:
                held.append(time.monotonic() - begun.pop(id(self)))

        return run

    monkeypatch.setattr(sqlite_driver.Driver, "begin", begin_)
    monkeypatch.setattr(sqlite_driver.Driver, "rollback", ended(rollback))
    monkeypatch.setattr(sqlite_driver.Driver, "commit", ended(commit))
    return held


def send(caller: Caller, file: str, query: str = "") -> Any:
    return caller.post(f"records/diary/import{query}", data=file, content_type="text/csv")


def limited(app: Flask, monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
    changed = replace(app.extensions["atrium.config"], **limits)
    monkeypatch.setitem(app.extensions, "atrium.config", changed)


@contextmanager
def limited_to(seconds: float) -> Iterator[None]:
    """As a request whose statements have this deadline."""
    with deadline.within(deadline.Limit(seconds)):
        yield


@pytest.mark.timing
def test_import_header_of_60_000_names_is_422_at_once(cast: Cast, longest: list[float]) -> None:
    make_collection(cast.root, "diary", SCHEMA)
    longest.clear()
    began = time.monotonic()
    refused = send(cast.alice, ",".join(f"n{i}" for i in range(60_000)) + "\n")
    assert (refused.status_code, time.monotonic() - began < 1) == (422, True)
    assert "at most 1,000" in refused.json["detail"][0]["msg"]
    assert longest == []


@pytest.mark.timing
@pytest.mark.parametrize("rows", [20_000, pytest.param(40_000, marks=pytest.mark.slow)])
def test_import_dry_run_does_not_block_sign_in_of_other_account(
    cast: Cast, longest: list[float], rows: int
) -> None:
    make_collection(cast.root, "diary", SCHEMA)
    longest.clear()
    login = {"account": "globex", "email": "charlie@globex.example", "password": PASSWORD}
    with ThreadPoolExecutor(1) as pool:
        tried = pool.submit(send, cast.alice, "text\n" + "a\n" * rows, "?dry_run=true")
        slowest = 0.0
        while not tried.done():
            began = time.monotonic()
            assert cast.charlie.post("auth/login", login).status_code == 200
            slowest = max(slowest, time.monotonic() - began)
    assert (tried.result().status_code, tried.result().json["imported"]) == (200, rows)
    assert max(longest) < 1
    assert slowest < 2  # with all that other tests do meanwhile
    assert cast.alice.get("records/diary").json["total"] == 0


@pytest.mark.timing
def test_import_of_large_file_lets_others_write_in_between(
    cast: Cast, longest: list[float]
) -> None:
    make_collection(cast.root, "diary", SCHEMA)
    longest.clear()
    done = send(cast.alice, "text\n" + "a\n" * 3000)
    assert (done.status_code, done.json["imported"]) == (200, 3000)
    assert max(longest) < 1
    assert cast.alice.get("records/diary").json["total"] == 3000


def test_import_with_error_at_end_of_large_file_stores_nothing(cast: Cast) -> None:
    make_collection(cast.root, "diary", SCHEMA, create_rule='text != "no"')
    rows = [{"text": "a", "code": f"c{i}"} for i in range(1100)]
    rows += [{"text": "a", "code": "c3"}, {"text": "no", "code": "c4"}, {"text": "no", "code": "x"}]
    text = io.StringIO()
    writer = csv.DictWriter(text, ["text", "code"])
    writer.writeheader()
    writer.writerows(rows)
    refused = send(cast.alice, text.getvalue())
    told = [(one["line"], one["code"]) for one in refused.json["details"]]
    assert told == [(1102, "not_unique"), (1103, "rule_denied"), (1104, "rule_denied")]
    assert cast.alice.get("records/diary").json["total"] == 0


def test_import_interrupted_by_other_writes_reports_stored_count(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root, "diary", SCHEMA)
    store = imports.Import._store

    def store_late(self: imports.Import, piece: Any) -> None:
        if piece[0][0]:  # the first piece is stored
            monkeypatch.undo()
            make_record(cast.bob, "diary", code="c1099")
        store(self, piece)

    monkeypatch.setattr(imports.Import, "_store", store_late)
    file = "code\n" + "".join(f"c{i}\n" for i in range(1100))
    stopped = send(cast.alice, file)
    assert (stopped.status_code, stopped.json["error"]) == (409, "import_interrupted")
    stored = stopped.json["imported"]
    assert 0 < stored < 1100
    assert f"The first {stored:,} of 1,100 records are stored" in stopped.json["message"]
    assert cast.alice.get("records/diary").json["total"] == stored + 1


def test_import_over_row_limit_is_413(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root, "diary", SCHEMA)
    limited(app, monkeypatch, import_max_rows=10)
    for type, line in (("text/csv", "a"), ("application/x-ndjson", '{"text": "a"}')):
        head = "text\n" if type == "text/csv" else ""
        for count, status in ((10, 200), (11, 413)):
            file = head + f"{line}\n" * count
            answer = cast.alice.post(
                "records/diary/import?dry_run=true", data=file, content_type=type
            )
            assert answer.status_code == status
        assert answer.json["error"] == "payload_too_large"
        assert "at most 10 records" in answer.json["message"]


@pytest.mark.timing
def test_batch_over_write_deadline_is_too_expensive_and_rolled_back(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch, longest: list[float]
) -> None:
    make_collection(cast.root, "wide", [{"name": f"f{i}", "type": "text"} for i in range(100)])
    limited(app, monkeypatch, statement_seconds=0.1)
    longest.clear()
    records = [{f"f{i}": "a" for i in range(100)} for _ in range(1000)]
    refused = cast.alice.post("records/wide/batch", {"records": records})
    assert (refused.status_code, refused.json["error"]) == (400, "too_expensive")
    assert "longer than 0.1 s and was undone" in refused.json["message"]
    assert max(longest) < 1
    assert cast.alice.get("records/wide").json["total"] == 0
    assert cast.alice.post("records/wide", {"f1": "a"}).status_code == 201


def test_sqlite_statement_over_deadline_is_interrupted(app: Flask, cast: Cast) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"

    @contextmanager
    def broken_off() -> Iterator[None]:
        with pytest.raises(Exception, match="interrupted") as told:
            yield
        assert errors.passed_deadline(told.value)

    with app.app_context(), limited_to(0.1), broken_off(), db.transaction():
        db.connection().exec_driver_sql(endless)


def test_ready_reports_long_sqlite_lock(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "LONGEST_LOCK_SECONDS", 0.2)
    assert cast.alice.get("/ready").json["checks"]["database"] == "ok"
    with app.app_context():
        file = db.sqlite_file()
    assert file
    other = sqlite_driver.Driver(file, isolation_level=None)
    other.begin()
    try:
        locked = cast.alice.get("/ready")
        assert (locked.status_code, locked.json["checks"]["database"]) == (503, health.LOCKED)
    finally:
        other.rollback()
        other.close()
    assert cast.alice.get("/ready").status_code == 200


def test_ready_ignores_short_sqlite_locks(tmp_path: Path) -> None:
    file = str(tmp_path / "atrium.db")
    one = sqlite_driver.Driver(file, isolation_level=None, check_same_thread=False)
    stop = Event()

    def write() -> None:
        while not stop.is_set():
            one.begin()
            time.sleep(0.02)
            one.rollback()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        found = [sqlite_driver.is_locked(file, 10) for _ in range(5)]
        stop.set()
        writing.result()
    assert found == [False] * 5
    one.close()


@pytest.mark.timing
def test_sqlite_writers_of_one_account_delay_others_by_one(
    app: Flask, longest: list[float]
) -> None:
    started, written, stop = Barrier(6), list[str](), Event()

    def write(account_id: str, seconds: float) -> None:
        with app.app_context(), tenancy.in_account(account_id), limited_to(60):
            started.wait()
            while not stop.is_set():
                with db.transaction() as session:
                    session.execute(sa.text("SELECT 1"))
                    written.append(account_id)
                    time.sleep(seconds)
                time.sleep(0.001)
            db.db.session.remove()

    with ThreadPoolExecutor(6) as pool:
        works = [pool.submit(write, "busy", 0.05) for _ in range(5)]
        works.append(pool.submit(write, "third", 0))
        time.sleep(2)
        stop.set()
        for work in works:
            work.result()
    between = "".join("b" if one == "busy" else "t" for one in written).split("t")[1:-1]
    assert len(between) > 10
    assert max(map(len, between)) <= 2  # one that writes, and one that had queued before
