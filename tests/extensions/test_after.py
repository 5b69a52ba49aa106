"""Handlers that run after the commit: once each, with the rights of whoever made the change."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask

from app import db, events, jobs
from app.events import RecordChanged
from app.extend import (
    Caller,
    Refused,
    after_create,
    after_delete,
    after_update,
    before_create,
)
from app.extensions import jobs as handler_jobs
from app.extensions.loading import loaded
from app.jobs import JobState, worker
from app.workflows.triggers.start import MAX_DEPTH
from tests.builders import Caller as Client
from tests.builders import Cast, change_user, make_collection, make_record
from tests.extensions.running import data_of, jobs_of, make_due, run_due
from tests.mailbox import outbox
from tests.security.reading import events as log_events

Calls = list[tuple[Any, ...]]


def titles(client: Client, collection: str = "posts") -> list[str]:
    """The titles of all records, sorted."""
    items = client.get(f"records/{collection}?limit=100").json["items"]
    return sorted(one["title"] for one in items)


def after_posts(function: Callable[..., Any]) -> Callable[[], None]:
    """An extension whose handler runs after a post was created."""

    def shop() -> None:
        after_create("posts")(function)

    return shop


def test_handlers_get_stored_values_once(app: Flask, cast: Cast) -> None:
    calls: Calls = []

    def shop() -> None:
        @after_create("Posts")
        def created(caller: Caller, record: Any) -> None:
            calls.append(("create", caller.user and caller.user.id, record))

        @after_update("posts")
        def updated(caller: Caller, old: Any, record: Any) -> None:
            calls.append(("update", old["title"], record["title"]))

        @after_delete("posts")
        def deleted(caller: Caller, record: Any) -> None:
            calls.append(("delete", record["title"], caller.kind))

    make_collection(cast.root)
    with loaded(shop):
        made = make_record(cast.alice, title="a")
        cast.bob.patch(f"records/posts/{made['id']}", {"title": "b"})
        cast.alice.delete(f"records/posts/{made['id']}")
        assert calls == []
        assert (run_due(app), run_due(app)) == (3, 0)
    account = {"account_id": cast.alice.account_id}
    ((_, user, record), *others) = sorted(calls)
    assert (user, record) == (cast.alice.id, {**made, **account})
    assert others == [("delete", "b", "user"), ("update", "a", "b")]
    assert {one.status for one in jobs_of(app)} == {JobState.DONE}
    assert {str(one.payload) for one in jobs_of(app)} == {"{}"}


def test_handlers_hear_every_door_and_cascade(app: Flask, cast: Cast) -> None:
    calls: Calls = []

    def noted(caller: Caller, record: Any) -> None:
        calls.append((record["title"],))

    def shop() -> None:
        for name in ("posts", "comments"):
            after_delete(name)(after_create(name)(noted))

    make_collection(cast.root)
    reference = {"name": "post", "type": "reference", "collection": "posts"}
    schema = [{"name": "title", "type": "text"}, {**reference, "on_delete": "cascade"}]
    make_collection(cast.root, "comments", schema)
    with loaded(shop):
        batch = {"records": [{"title": str(n)} for n in range(3)]}
        made = cast.alice.post("records/posts/batch", batch).json
        post = make_record(cast.alice, title="last")
        make_record(cast.alice, "comments", title="of it", post=post["id"])
        run_due(app)
        assert sorted(calls) == [("0",), ("1",), ("2",), ("last",), ("of it",)], made
        calls.clear()
        cast.alice.delete(f"records/posts/{post['id']}")
        run_due(app)
        assert sorted(calls) == [("last",), ("of it",)]


def test_job_says_what_was_raised_whatever_its_class(app: Flask, cast: Cast) -> None:
    def cancelled(caller: Caller, record: Any) -> None:
        raise asyncio.CancelledError

    make_collection(cast.root)
    with loaded(after_posts(cancelled)):
        make_record(cast.alice)
        run_due(app)
        (job,) = jobs_of(app)
    assert job.last_error.startswith("CancelledError in test_after.py, line ")


def test_change_that_is_rolled_back_has_no_job(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=[{"name": "title", "type": "text", "unique": True}])
    with loaded(after_posts(lambda caller, record: None)):
        make_record(cast.alice, title="a")
        batch = {"records": [{"title": "b"}, {"title": "a"}]}
        assert cast.alice.post("records/posts/batch", batch).status_code == 409
        assert len(jobs_of(app)) == 1


def test_without_handlers_nothing_is_subscribed(app: Flask, cast: Cast) -> None:
    before = len(events._subscribers[RecordChanged])
    with loaded(after_posts(lambda caller, record: None)):
        assert len(events._subscribers[RecordChanged]) == before + 1
    assert len(events._subscribers[RecordChanged]) == before
    assert not [kind for kind in jobs.KINDS if kind.startswith(handler_jobs.PREFIX)]


def test_writes_happen_at_the_end_and_all_or_none(app: Flask, cast: Cast) -> None:
    tries: list[str] = []

    def copy(caller: Caller, record: Any) -> None:
        notes = caller.records("notes")
        made = notes.create({"title": f"of {record['title']}"})
        notes.update(first, {"title": "changed"})
        notes.delete(second)
        assert notes.count() == 2
        tries.append(made["id"])
        if len(tries) == 1:
            raise ZeroDivisionError

    for name in ("posts", "notes"):
        make_collection(cast.root, name)
    first, second = (make_record(cast.alice, "notes", title=title)["id"] for title in "xy")
    with loaded(after_posts(copy)):
        make_record(cast.alice, title="a")
        run_due(app)
        assert titles(cast.alice, "notes") == ["x", "y"]
        make_due(app)
        run_due(app)
    assert titles(cast.alice, "notes") == ["changed", "of a"]
    made = cast.alice.get(f"records/notes/{tries[1]}").json
    assert made["created_by"] == cast.alice.id
    entries = cast.alice.get(f"account/audit-logs?record_id={tries[1]}").json["items"]
    assert entries[0]["actor"] == {"kind": "extension", "id": "shop", "name": "shop"}


def test_failure_quotes_no_keys_that_cannot_be_fields(app: Flask, cast: Cast) -> None:
    def write(caller: Caller, record: Any) -> None:
        caller.records("posts").create({"ann.secret@example.org": 1})

    make_collection(cast.root)
    with loaded(after_posts(write)):
        make_record(cast.alice, title="a")
        run_due(app)
    error = jobs_of(app)[0].last_error
    assert error.startswith("InvalidValues (unknown_field)")
    assert "ann" not in error


def test_refused_write_undoes_the_others(app: Flask, cast: Cast) -> None:
    def write(caller: Caller, record: Any) -> None:
        caller.records("notes").create({"title": "good"})
        caller.records("notes").create({"nonsense": "1234-5678"})

    for name in ("posts", "notes"):
        make_collection(cast.root, name)
    with loaded(after_posts(write)):
        make_record(cast.alice, title="a")
        run_due(app)
    assert titles(cast.alice, "notes") == []
    (job,) = jobs_of(app)
    assert job.status == JobState.PENDING
    assert job.last_error.startswith("InvalidValues (nonsense: ")
    assert "1234" not in job.last_error


def test_failing_job_is_retried_for_an_hour_then_run_again_by_hand(app: Flask, cast: Cast) -> None:
    broken, tries = [True], Calls()

    def fail(caller: Caller, record: Any) -> None:
        tries.append((caller.idempotency_key,))
        if broken:
            raise KeyError(record["title"])

    make_collection(cast.root)
    with loaded(after_posts(fail)):
        make_record(cast.alice, title="secret")
        delays = []
        for _ in range(5):
            run_due(app)
            (job,) = jobs_of(app)
            assert job.status == JobState.PENDING
            with app.app_context():
                now = db.connection().execute(handler_now()).scalar_one()
            delays.append(round((job.due_at - now).total_seconds()))
            make_due(app)
        assert delays[0] in range(8, 11)
        assert 3000 < sum(delays) <= 3600
        run_due(app)
        (job,) = jobs_of(app)
        assert (job.status, job.attempts) == (JobState.FAILED, 6)
        assert job.last_error.startswith("KeyError in test_after.py, line ")
        assert "secret" not in job.last_error
        assert job.kind == "extensions.shop.fail"
        broken.clear()
        with app.app_context():
            jobs.retry(job.account_id, job.id)
        run_due(app)
        (job,) = jobs_of(app)
    assert job.status == JobState.DONE
    assert len(tries) == 7
    assert len(set(tries)) == 1


def handler_now() -> Any:
    """A statement that reads the database's clock."""
    import sqlalchemy as sa

    from app.db.functions import database_now

    return sa.select(database_now())


def test_handlers_that_trigger_each_other_come_to_an_end(app: Flask, cast: Cast) -> None:
    def again(caller: Caller, record: Any) -> None:
        caller.records("posts").create({"title": record["title"] + "x"})

    make_collection(cast.root)
    with loaded(after_posts(again)):
        make_record(cast.alice, title="")
        while run_due(app):
            pass
    assert len(titles(cast.alice)) == 1 + MAX_DEPTH
    *done, last = jobs_of(app)
    assert {one.status for one in done} == {JobState.DONE}
    assert (last.status, last.last_error) == (JobState.FAILED, handler_jobs.TOO_DEEP)


def test_chain_of_handlers_is_bounded_in_width(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(caller: Caller, record: Any) -> None:
        for n in range(2):
            caller.records("posts").create({"title": f"{record['title']}{n}"})

    monkeypatch.setattr(handler_jobs, "MAX_PER_CHAIN", 9)
    make_collection(cast.root)
    with loaded(after_posts(twice)):
        make_record(cast.alice, title="")
        while run_due(app):
            pass
    refused = [one for one in jobs_of(app) if one.status == JobState.FAILED]
    assert [one.last_error for one in refused] == [handler_jobs.TOO_WIDE]
    assert len(jobs_of(app)) == 1 + 9 + 1
    assert len(titles(cast.alice)) == 1 + 2 * 10


def test_caller_has_the_rights_of_now(app: Flask, cast: Cast) -> None:
    calls, counts = Calls(), list[int]()

    def look(caller: Caller, record: Any) -> None:
        calls.append((str(caller.kind), caller.user and caller.user.id))
        counts.append(caller.records("notes").count())

    make_collection(cast.root)
    make_collection(cast.root, "notes", list_rule='@request.auth.role = "admin"')
    make_record(cast.alice, "notes", title="x")
    with loaded(after_posts(look)):
        make_record(cast.alice, title="a")
        make_record(cast.bob, title="b")
        run_due(app)
        assert sorted(calls) == sorted([("user", cast.alice.id), ("user", cast.bob.id)])
        assert sorted(counts) == [0, 1]
        calls.clear()
        make_record(cast.alice, title="c")
        change_user(app, cast.alice.id, is_active=False)
        run_due(app)
    assert (calls, len(counts)) == ([("anonymous", None)], 2)
    assert jobs_of(app)[-1].last_error.startswith("Unauthorized")


@pytest.mark.parametrize("is_revoked_within", [False, True])
def test_key_that_was_revoked_meanwhile_has_no_rights(
    app: Flask, cast: Cast, *, is_revoked_within: bool
) -> None:
    kinds: list[str] = []
    made = cast.alice.post("api-keys", {"name": "k"}).json

    def revoke() -> None:
        assert cast.alice.delete(f"api-keys/{made['id']}").status_code == 204

    def write(caller: Caller, record: Any) -> None:
        kinds.append(caller.kind)
        caller.records("notes").create({"title": "by key"})
        if record["title"] == "b" and is_revoked_within:
            revoke()

    make_collection(cast.root)
    make_collection(cast.root, "notes", create_rule='@request.auth.id != ""')
    client = Client(app, **{"X-API-Key": made["key"]})
    with loaded(after_posts(write)):
        make_record(client, title="a")
        run_due(app)
        make_record(client, title="b")
        if not is_revoked_within:
            revoke()
        run_due(app)
    assert kinds == ["api_key", "api_key" if is_revoked_within else "anonymous"]
    assert titles(cast.alice, "notes") == ["by key"]
    refused = "Forbidden" if is_revoked_within else "Unauthorized"
    assert jobs_of(app)[-1].last_error.startswith(refused)


def test_limits_of_a_key_stay(app: Flask, cast: Cast) -> None:
    key = cast.alice.post("api-keys", {"name": "k", "scopes": {"collections": ["posts"]}})
    assert key.status_code == 201, key.json
    client = Client(app, **{"X-API-Key": key.json["key"]})

    def write(caller: Caller, record: Any) -> None:
        caller.records("notes").create({"title": caller.kind})

    for name in ("posts", "notes"):
        make_collection(cast.root, name)
    with loaded(after_posts(write)):
        make_record(client, title="a")
        run_due(app)
        (job,) = jobs_of(app)
        assert job.last_error.startswith("ScopeDenied")
        make_record(cast.alice, title="b")
        run_due(app)
    assert titles(cast.alice, "notes") == ["user"]


def test_service_and_operator_write_with_the_mark(app: Flask, cast: Cast) -> None:
    robot = {"kind": "service", "name": "robot", "role": "admin"}
    assert cast.alice.post("account/users", robot).status_code == 201

    def write(caller: Caller, record: Any) -> None:
        with caller.as_service("robot") as service:
            service.records("notes").create({"title": "service"})
        with caller.as_operator("a test") as operator:
            operator.records("locked").create({"title": "operator"})

    make_collection(cast.root)
    make_collection(cast.root, "notes", create_rule='@request.auth.role = "admin"')
    make_collection(cast.root, "locked", create_rule=None)
    with loaded(after_posts(write)):
        make_record(cast.bob, title="a")
        run_due(app)
    assert [one.last_error for one in jobs_of(app)] == [None]
    assert titles(cast.alice, "notes") == ["service"]
    assert titles(cast.alice, "locked") == ["operator"]


def test_worker_that_lost_its_lease_writes_nothing(app: Flask, cast: Cast) -> None:
    tries: list[int] = []

    def write(caller: Caller, record: Any) -> None:
        tries.append(len(tries))
        caller.records("notes").create({"title": str(tries[-1])})
        if len(tries) == 1:
            make_due(app)
            run_due(app)

    for name in ("posts", "notes"):
        make_collection(cast.root, name)
    with loaded(after_posts(write)):
        make_record(cast.alice, title="a")
        run_due(app)
        make_due(app)
        run_due(app)
    assert titles(cast.alice, "notes") == ["1"]
    assert [one.status for one in jobs_of(app)] == [JobState.DONE]


def test_lease_lasts_five_minutes(app: Flask, cast: Cast) -> None:
    due: list[float] = []

    def look(caller: Caller, record: Any) -> None:
        (job,) = jobs_of(app)
        now = db.connection().execute(handler_now()).scalar_one()
        due.append((job.due_at - now).total_seconds())

    make_collection(cast.root)
    with loaded(after_posts(look)):
        make_record(cast.alice, title="a")
        run_due(app)
    assert 290 < due[0] <= 300


@pytest.mark.parametrize("is_stuck", [False, True], ids=["in Python", "outside of Python"])
def test_endless_handler_is_cut_and_others_go_on(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch, is_stuck: bool
) -> None:
    monkeypatch.setattr(handler_jobs, "MAX_SECONDS", 0.3)
    monkeypatch.setattr(handler_jobs, "GRACE_SECONDS", 0.5)
    released, done = threading.Event(), Calls()

    def endless(caller: Caller, record: Any) -> None:
        caller.records("notes").create({"title": record["title"]})
        if is_stuck:
            released.wait(20)
        while not is_stuck:
            pass

    def quick(caller: Caller, record: Any) -> None:
        done.append(())

    def shop() -> None:
        after_create("posts")(endless)
        after_create("posts")(quick)

    for name in ("posts", "notes"):
        make_collection(cast.root, name)
    with loaded(shop):
        make_record(cast.alice, title="a")
        begun = time.monotonic()
        run_due(app)
        assert time.monotonic() - begun < 5
        assert done == [()]
        (job,) = jobs_of(app, "shop.endless")
        assert (job.status, job.last_error) == ("pending", "shop.endless took longer than 0.3 s.")
        released.set()
    assert titles(cast.alice, "notes") == []


@pytest.mark.long
def test_worker_goes_on_beside_endless_handlers(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job has a thread, and each other kind of work a loop of its own."""
    released, stop = threading.Event(), threading.Event()
    done, begun = Calls(), Calls()

    def endless(caller: Caller, record: Any) -> None:
        if record["title"] == "endless":
            begun.append(())
            released.wait(60)
        done.append((record["title"],))

    def serve() -> None:
        with app.app_context():
            worker.serve(stop)

    make_collection(cast.root)
    with loaded(after_posts(endless)):
        for _ in range(handler_jobs.AT_ONCE - 1):
            make_record(cast.alice, title="endless")
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            assert until(lambda: len(begun) == handler_jobs.AT_ONCE - 1)
            make_record(cast.alice, title="quick")
            assert (
                cast.alice.post("account/users", {"email": "zoe@acme.example"}).status_code == 201
            )
            assert until(lambda: done == [("quick",)])
            assert until(lambda: len(outbox(app)) == 1)
            released.set()
            assert until(lambda: len(done) == handler_jobs.AT_ONCE)
        finally:
            released.set()
            stop.set()
            thread.join(30)
    assert {one.status for one in jobs_of(app)} == {JobState.DONE}


def until(reached: Callable[[], bool], seconds: float = 20) -> bool:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not reached() and time.monotonic() < end:
        time.sleep(0.02)
    return reached()


def test_handler_that_ends_its_process_fails_its_job_alone(app: Flask, cast: Cast) -> None:
    def leave(caller: Caller, record: Any) -> None:
        raise SystemExit(record["title"])

    def hoard(caller: Caller, record: Any) -> None:
        raise MemoryError

    def refuse(caller: Caller, record: Any) -> None:
        raise Refused("title", code="bad", message=record["title"])

    def shop() -> None:
        for function in (leave, hoard, refuse):
            after_create("posts")(function)

    make_collection(cast.root)
    with loaded(shop):
        make_record(cast.alice, title="secret")
        assert run_due(app) == 3
    errors = sorted(one.last_error.split()[0] for one in jobs_of(app))
    assert errors == ["MemoryError", "Refused", "SystemExit"]
    assert not any("secret" in one.last_error for one in jobs_of(app))


def test_erasure_reaches_pending_and_failed_jobs(app: Flask, cast: Cast) -> None:
    def fail(caller: Caller, record: Any) -> None:
        raise ZeroDivisionError

    make_collection(cast.root)
    with loaded(after_posts(fail)):
        gone, kept = (make_record(cast.alice, title=title) for title in ("secret", "open"))
        by_bob = make_record(cast.bob, title=f"mail {cast.bob.email.upper()}")
        assert "secret" not in str([one.payload for one in jobs_of(app)])
        erased = cast.root.acting_in("acme").post(f"records/posts/{gone['id']}/erase")
        assert erased.status_code == 200, erased.json
        data = [data_of(app, one)[0] for one in jobs_of(app)]
        assert data[0] == {"id": gone["id"]}
        assert data[1]["title"] == "open"
        assert cast.root.post(f"users/{cast.bob.id}/erase").status_code == 200
        text = str([(data_of(app, one), one.payload) for one in jobs_of(app)])
        assert cast.bob.id not in text
        assert cast.bob.email not in text.lower()
        assert by_bob["id"] in text
        assert kept["id"] in text


def test_failed_jobs_stand_in_the_console_with_their_extension(app: Flask, cast: Cast) -> None:
    from tests.console.browser import Browser

    def fail(caller: Caller, record: Any) -> None:
        raise ZeroDivisionError

    make_collection(cast.root)
    with loaded(after_posts(fail)):
        make_record(cast.alice, title="a")
        for _ in range(handler_jobs.ATTEMPTS):
            run_due(app)
            make_due(app)
        (job,) = jobs_of(app)
        browser = Browser(app, cast.root)
        page = browser.get("jobs?status=failed").text
        assert "Extension: shop.fail" in page
        assert "ZeroDivisionError" in page
        browser.done(f"jobs/{job.account_id}/{job.id}/retry")
        (job,) = jobs_of(app)
        assert job.status == JobState.PENDING


def test_writes_of_a_job_are_no_reads_of_the_operator(app: Flask, cast: Cast) -> None:
    def close(caller: Caller, record: Any) -> None:
        with caller.as_operator("close it") as operator:
            operator.records("posts").update(record["id"], {"title": "closed"})
            operator.records("notes").create({"title": "a note"})

    def look(caller: Caller, record: Any) -> None:
        with caller.as_operator("look") as operator:
            operator.records("notes").list()

    for name in ("posts", "notes"):
        make_collection(cast.root, name)
    make_record(cast.alice, "notes", title="old")

    def shop() -> None:
        after_create("posts")(close)
        before_create("notes")(look)

    with loaded(shop):
        make_record(cast.bob, title="a")
        run_due(app)
        assert [one.last_error for one in jobs_of(app)] == [None]
    (read,) = log_events(cast.alice, kind="operator.records_read")  # of the hook alone
    assert (read["target_type"], read["details"]["count"]) == ("col_notes", 1)
