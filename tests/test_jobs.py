"""Background work: asked for in a transaction, done at least once, by whoever is there."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db, jobs
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.db.functions import database_now
from app.jobs import Job, leases, worker
from app.jobs.queue import IDLE_SECONDS, QUEUE
from tests.mailbox import run_jobs
from tests.parallel import at_once

Define = Callable[..., None]


@pytest.fixture
def define(monkeypatch: pytest.MonkeyPatch) -> Define:
    """Defines a kind of job for one test."""

    def defined(handler: jobs.Handler, *, attempts: int = 3, kind: str = "test") -> None:
        known = jobs.KINDS.get(kind, jobs.Kind(handler))
        new = known._replace(handler=handler, attempts=attempts)
        monkeypatch.setitem(jobs.KINDS, kind, new)

    return defined


def ask(app: Flask, kind: str = "test", **payload: Any) -> None:
    """Ask for work in a transaction of its own."""
    with app.app_context(), db.transaction():
        jobs.enqueue(kind, payload, account_id=SYSTEM_ACCOUNT_ID)


def rows(app: Flask) -> list[Any]:
    """All jobs, and in how many seconds each is due by the database's clock."""
    with app.app_context():
        now = db.connection().execute(sa.select(database_now())).scalar_one()
        found = db.connection().execute(sa.select(Job.__table__).order_by(Job.id)).all()
    return [(row, (row.due_at - now).total_seconds()) for row in found]


def only(app: Flask) -> Any:
    """The only job there is."""
    (row,) = [row for row, _ in rows(app) if not jobs.KINDS[row.kind].period]
    return row


def make_due(app: Flask) -> None:
    """Let the time pass that jobs still wait."""
    with app.app_context(), db.transaction() as session:
        session.execute(sa.update(Job).values(due_at=database_now(-1)))


def fail(payload: Mapping[str, Any]) -> None:
    raise OSError("with a secret in its message")


def test_job_gets_payload_and_account_once(app: Flask, define: Define) -> None:
    seen: list[Mapping[str, Any]] = []
    define(seen.append)
    ask(app, n=1, text="Grüße")
    assert (run_jobs(app), run_jobs(app)) == (1, 0)
    assert seen == [{"account_id": SYSTEM_ACCOUNT_ID, "n": 1, "text": "Grüße"}]
    row = only(app)
    assert (row.status, row.attempts, row.last_error) == ("done", 1, None)
    assert row.finished_at is not None


def test_job_payload_is_erased_when_done(app: Flask, define: Define) -> None:
    define(lambda payload: None)
    ask(app, email="ada@x.example")
    run_jobs(app)
    assert only(app).payload == {}


def test_job_enqueued_in_failed_transaction_is_absent(app: Flask, define: Define) -> None:
    define(fail)

    def ask_and_fail() -> None:
        with db.transaction():
            jobs.enqueue("test", {}, account_id=SYSTEM_ACCOUNT_ID)
            raise ZeroDivisionError

    with app.app_context(), pytest.raises(ZeroDivisionError):
        ask_and_fail()
    assert rows(app) == []
    assert run_jobs(app) == 0


def test_job_of_unknown_kind_raises_lookup_error(app: Flask) -> None:
    with app.app_context(), db.transaction(), pytest.raises(LookupError):
        jobs.enqueue("nonsense", {}, account_id=SYSTEM_ACCOUNT_ID)


def test_job_failure_is_retried_with_growing_delay_then_failed(app: Flask, define: Define) -> None:
    define(fail, attempts=4)
    ask(app)
    for attempt, delay in ((1, 10), (2, 40), (3, 160)):
        assert (run_jobs(app), run_jobs(app)) == (1, 0)
        ((row, due_in),) = rows(app)
        assert (row.status, row.attempts) == ("pending", attempt)
        assert delay - 5 < due_in <= delay
        make_due(app)
    assert run_jobs(app) == 1
    row = only(app)
    assert (row.status, row.attempts, row.last_error) == ("failed", 4, "OSError")
    assert row.finished_at is not None
    make_due(app)
    assert run_jobs(app) == 0


def test_job_retry_delay_is_at_most_one_hour(app: Flask, define: Define) -> None:
    define(fail, attempts=20)
    ask(app)
    for _ in range(8):
        run_jobs(app)
        ((_, due_in),) = rows(app)
        make_due(app)
    assert 3590 < due_in <= 3600


def test_job_failure_rolls_back_its_writes(app: Flask, define: Define) -> None:
    define(lambda payload: None, kind="other")

    def write_and_fail(payload: Mapping[str, Any]) -> None:
        with db.transaction():
            jobs.enqueue("other", {}, account_id=SYSTEM_ACCOUNT_ID)
            raise OSError

    define(write_and_fail)
    ask(app)
    assert run_jobs(app) == 1
    assert only(app).kind == "test"


def test_job_failure_does_not_delay_other_jobs(app: Flask, define: Define) -> None:
    done: list[int] = []

    def handle(payload: Mapping[str, Any]) -> None:
        if payload["n"] == 0:
            raise OSError
        done.append(payload["n"])

    define(handle)
    for n in range(5):
        ask(app, n=n)
    assert run_jobs(app) == 5
    assert sorted(done) == [1, 2, 3, 4]


def test_jobs_of_one_account_do_not_delay_other_accounts(app: Flask, define: Define) -> None:
    done = list[str]()
    define(lambda payload: done.append(payload["account_id"]))
    other = "019a9f00-0000-7000-8000-00000000000c"
    with app.app_context(), db.transaction():
        for _ in range(3 * worker.BATCH_SIZE):
            jobs.enqueue("test", {}, account_id=SYSTEM_ACCOUNT_ID)
    with app.app_context(), db.transaction():
        jobs.enqueue("test", {}, account_id=other)
    run_jobs(app)
    assert done.count(SYSTEM_ACCOUNT_ID) == 3 * worker.BATCH_SIZE
    assert done.index(other) <= worker.BATCH_SIZE


def test_job_of_kind_of_newer_release_stays_pending(
    app: Flask, define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    define(seen.append)
    ask(app)
    with monkeypatch.context() as older:
        older.delitem(jobs.KINDS, "test")
        assert run_jobs(app) == 1
    row = only(app)
    assert (row.status, row.last_error) == ("pending", "LookupError")
    make_due(app)
    run_jobs(app)
    assert (len(seen), only(app).status) == (1, "done")


@pytest.mark.parametrize("late", ["done", "failed"])
def test_job_worker_with_expired_lease_changes_nothing(
    app: Flask, define: Define, late: str
) -> None:
    runs: list[str] = []

    def handle(payload: Mapping[str, Any]) -> None:
        runs.append(threading.current_thread().name)
        if len(runs) > 1:
            return
        make_due(app)  # the lease runs out, and another worker takes over
        other = threading.Thread(target=run_jobs, args=[app], name="other")
        other.start()
        other.join()
        if late == "failed":
            raise OSError

    define(handle)
    ask(app)
    run_jobs(app)
    assert runs[1:] == ["other"]
    row = only(app)
    assert (row.status, row.attempts, row.last_error) == ("done", 2, None)


def test_job_under_lease_is_not_taken(app: Flask, define: Define) -> None:
    others: list[int] = []

    def handle(payload: Mapping[str, Any]) -> None:
        other = threading.Thread(target=lambda: others.append(run_jobs(app)))
        other.start()
        other.join()

    define(handle)
    ask(app)
    assert run_jobs(app) == 1
    assert others == [0]


def test_job_that_kills_its_workers_is_failed(app: Flask, define: Define) -> None:
    def die(payload: Mapping[str, Any]) -> None:
        raise SystemExit

    define(die, attempts=2)
    ask(app)
    for _ in range(2):
        with pytest.raises(SystemExit):
            run_jobs(app)
        assert only(app).status == "pending"
        make_due(app)
    run_jobs(app)
    assert (only(app).status, only(app).last_error) == ("failed", "WorkerLost")


def test_jobs_run_once_with_concurrent_workers(app: Flask, define: Define) -> None:
    done: list[int] = []
    define(lambda payload: done.append(payload["n"]))
    with app.app_context(), db.transaction():
        for n in range(50):
            jobs.enqueue("test", {"n": n}, account_id=SYSTEM_ACCOUNT_ID)
    tried = at_once(3, lambda _: run_jobs(app))
    assert sum(tried) == 50
    assert Counter(done) == Counter(range(50))
    assert {row.status for row, _ in rows(app)} == {"done"}


def test_job_lease_is_extended_while_running(
    app: Flask, define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LEASE_SECONDS", 2)
    stop, begun, go_on = (threading.Event() for _ in range(3))

    def handle(payload: Mapping[str, Any]) -> None:
        begun.set()
        assert go_on.wait(20)

    def work() -> None:
        with app.app_context():
            worker.serve(stop)

    define(handle)
    ask(app)
    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(10)
    time.sleep(2.5)
    with app.app_context():
        assert worker.run_due(Job.kind == "test") == 0
    assert only(app).status == "pending"
    go_on.set()
    assert until(lambda: only(app).status == "done")
    assert only(app).attempts == 1
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


def test_job_worker_leases_one_job_at_a_time(app: Flask, define: Define) -> None:
    due_while_running: list[int] = []

    def look(payload: Mapping[str, Any]) -> None:
        leased = [row for row, due_in in rows(app) if row.status == "pending" and due_in > 0]
        due_while_running.append(len(leased))

    define(look)
    for _ in range(3):
        ask(app)
    run_jobs(app)
    assert due_while_running == [1, 1, 1]


def test_job_worker_survives_database_outage(
    app: Flask, define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []
    define(lambda payload: done.append(payload["n"]))
    with app.app_context():
        with monkeypatch.context() as away:
            away.setattr(
                worker, "_find_due", lambda *_: db.connection().execute(sa.text("SELECT nothing"))
            )
            with pytest.raises(sa.exc.DBAPIError):
                worker.run_due()
        with db.transaction():
            jobs.enqueue("test", {"n": 1}, account_id=SYSTEM_ACCOUNT_ID)
        assert worker.run_due() == 1
    assert done == [1]


def test_embedded_worker_runs_due_jobs_until_stopped(app: Flask, define: Define) -> None:
    stop, done = threading.Event(), threading.Event()
    define(lambda payload: done.set())

    def work() -> None:
        with app.app_context():
            worker.serve(stop)

    thread = threading.Thread(target=work)
    thread.start()
    ask(app)
    assert done.wait(5)
    stop.set()
    thread.join(5)
    assert not thread.is_alive()


def test_job_worker_that_stops_begins_no_more_jobs(app: Flask, define: Define) -> None:
    """What it began would be cut off when its time is over, and done once more."""
    stop, begun, done = threading.Event(), threading.Event(), list[int]()

    def handle(payload: Mapping[str, Any]) -> None:
        begun.set()
        assert stop.wait(10)
        done.append(payload["n"])

    def work() -> None:
        with app.app_context():
            worker.serve(stop)

    define(handle)
    for n in range(3):
        ask(app, n=n)
    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(5)
    stop.set()
    thread.join(5)
    assert (thread.is_alive(), done) == (False, [0])


@pytest.mark.one_database
@pytest.mark.parametrize(
    "slow",
    [
        pytest.param("auth.send_verification", id="a mail server that hangs"),
        pytest.param("accounts.export", id="an export"),
        pytest.param("backups.make", id="a backup"),
        pytest.param("webhooks.send_security_log", id="a receiver of a security log"),
    ],
)
def test_slow_jobs_delay_only_their_kind(app: Flask, define: Define, slow: str) -> None:
    stop, mailed, done = (threading.Event() for _ in range(3))
    define(lambda payload: mailed.wait(20), kind=slow)
    define(lambda payload: done.set())
    for kind in (slow, "test"):
        ask(app, kind)

    def work() -> None:
        with app.app_context():
            worker.serve(stop)

    thread = threading.Thread(target=work)
    thread.start()
    assert done.wait(10)
    mailed.set()
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


def test_job_kinds_that_mail_are_marked(app: Flask) -> None:
    """Every kind of job whose handler mails is done by the line for mails, and no other."""
    for kind in jobs.KINDS.values():
        assert kind.mails == mails(kind.handler)


def mails(handler: Callable[..., None], seen: Collection[str] = ()) -> bool:
    """Whether a function sends a mail, or calls one of its module that does."""
    names, module = handler.__code__.co_names, sys.modules[handler.__module__]
    if {"mail", "mails"} & {*names} and {"send", "send_letter"} & {*names}:
        return True
    if "mail_link" in names:  # of app/auth/mail_tokens.py
        return True
    seen = {*seen, handler.__name__}
    called = [vars(module).get(name) for name in names if name not in seen]
    own = [one for one in called if isinstance(one, FunctionType)]
    return any(mails(one, seen) for one in own if one.__module__ == handler.__module__)


def test_periodic_job_is_planned_once_by_concurrent_workers(app: Flask) -> None:
    def plan(number: int) -> None:
        with app.app_context():
            worker.schedule_periodic()
            db.db.session.remove()

    at_once(4, plan)
    periodic = [name for name in jobs.kinds() if jobs.KINDS[name].period]
    assert sorted(row.kind for row, _ in rows(app)) == periodic


@pytest.mark.long
def test_periodic_job_failed_by_former_release_resumes(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    kind = jobs.Kind(seen.append, period=3600)

    def plan() -> None:
        with app.app_context():
            worker.schedule_periodic()
            db.db.session.remove()

    monkeypatch.setitem(jobs.KINDS, "test", kind)
    plan()
    with monkeypatch.context() as older:
        older.delitem(jobs.KINDS, "test")
        for _ in range(jobs.ATTEMPTS):
            make_due(app)
            run_jobs(app)
    assert [row.status for row, _ in rows(app) if row.kind == "test"] == ["failed"]
    plan()
    run_jobs(app)
    assert len(seen) == 1
    assert [row.status for row, _ in rows(app) if row.kind == "test"] == ["pending"]
    plan()
    run_jobs(app)
    assert len(seen) == 1


def test_job_worker_lines_share_one_stop_timeout(
    app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = [0.0]

    def join(thread: threading.Thread, timeout: float = 0) -> None:
        waited.append(timeout)

    loop = worker.Loop(lambda stop, woken: None, None)
    monkeypatch.setattr(worker, "_loops", dict.fromkeys("abc", loop))
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: sum(waited)))
    monkeypatch.setattr(threading.Thread, "join", join)
    stop = threading.Event()
    stop.set()
    with app.app_context():
        worker.serve(stop)
    assert waited == [0, worker.STOP_SECONDS, 0, 0]


def until(happened: Callable[[], Any], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if happened():
            return True
        time.sleep(0.02)
    return False


def test_idle_worker_waits_until_next_job_is_due(
    app: Flask, define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.hears, "is_set", lambda: True)  # as if PostgreSQL told of new rows
    define(lambda payload: None)
    with app.app_context():
        only = Job.account_id == SYSTEM_ACCOUNT_ID, Job.kind == "test"
        look = partial(leases.seconds_to_next, QUEUE, sa.and_(*only))
        assert look() == math.inf
        assert worker.patience(look) == IDLE_SECONDS
        with db.transaction():
            jobs.enqueue("test", {}, account_id=SYSTEM_ACCOUNT_ID, after=9)
        assert 5 < worker.patience(look) < 9.1
        with db.transaction() as session:
            session.execute(sa.update(Job).where(*only).values(due_at=database_now(-1)))
        assert worker.patience(look) == worker.SWEEP_SECONDS


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_job_wakes_workers_on_sqlite_and_other_writes_do_not(app: Flask, define: Define) -> None:
    define(lambda payload: None)
    with app.app_context():
        seen = worker.last_news()
        worker.schedule_periodic()
        assert worker.last_news() == seen
        with db.transaction():
            jobs.enqueue("test", {}, account_id=SYSTEM_ACCOUNT_ID)
            assert worker.last_news() == seen
        assert (told := worker.last_news()) != seen
        with db.transaction():
            jobs.enqueue("test", {}, account_id=SYSTEM_ACCOUNT_ID, after=IDLE_SECONDS)
        assert worker.last_news() == told
