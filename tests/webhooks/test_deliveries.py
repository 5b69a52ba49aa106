"""Deliveries: written with the change, signed, retried by the table, never lost."""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask
from standardwebhooks.webhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from app import clock, db, jobs
from app.ids import new_id
from app.jobs import turns, worker
from app.jobs.rq_queues import WEBHOOKS
from app.webhooks import delivery, dispatch, filters, queue, receiver_queues, resend
from app.webhooks.models import DELIVERIES, Webhook
from app.webhooks.receiver_queues import Lane
from tests.builders import Caller, Cast, make_collection, make_record
from tests.mailbox import body_of, outbox, run_jobs
from tests.receivers import Request, hang, hostile, receiving
from tests.sql import statements
from tests.webhooks.delivering import (
    attempts,
    deliver,
    deliveries,
    due_in,
    let_pass,
    make_webhook,
)

# The queue's statements are tested on both databases: what is claimed, recorded, made again.
NOWHERE = "http://127.0.0.1:9/"
DELAYS = (60, 300, 1800, 7200, 43200)


@pytest.fixture(autouse=True)
def posts(root: Caller) -> dict[str, Any]:
    fields = [
        {"name": "title", "type": "text", "unique": True},
        {"name": "n", "type": "number"},
        {"name": "extra", "type": "json"},
    ]
    return make_collection(root, schema=fields)


def make_records(caller: Caller, number: int) -> None:
    """So many records, and as many deliveries for each webhook, in one transaction."""
    records = [{"title": str(n)} for n in range(number)]
    assert caller.post("records/posts/batch", {"records": records}).status_code == 201


def log_of(caller: Caller, webhook: dict[str, Any], query: str = "") -> Any:
    """The delivery log as the API shows it."""
    return caller.get(f"webhooks/{webhook['id']}/deliveries{query}").json


@pytest.mark.both_databases
def test_delivery_payload_has_record_as_changed(app: Flask, alice: Caller) -> None:
    with receiving() as receiver:
        webhook = make_webhook(alice, receiver.url)
        made = make_record(alice, title="Grüße", n=1, extra={"b": 1, "a": [1.5]})
        changed = alice.patch(f"records/posts/{made['id']}", {"n": 2}).json
        alice.delete(f"records/posts/{made['id']}")
        deliver(app)
    told = [request.json for request in receiver.requests]
    told.sort(key=lambda one: one["timestamp"])
    about = {"collection": "posts", "webhook_id": webhook["id"], "account_id": alice.account_id}
    for one in told:
        assert abs(clock.parse(one.pop("timestamp")) - clock.now()).total_seconds() < 60
    assert told == [
        {"event": "records.create", "record": made, **about},
        {"event": "records.update", "record": changed, "previous": made, **about},
        {"event": "records.delete", "record": None, "previous": changed, **about},
    ]
    assert [row.status for row in deliveries(app)] == ["delivered"] * 3


def test_delivery_is_made_only_for_matching_event_and_collection(
    app: Flask, cast: Cast, root: Caller
) -> None:
    make_collection(root, "pages")
    wanted = make_webhook(cast.alice, NOWHERE, events=["update"], collection="POSTS")
    make_webhook(cast.alice, NOWHERE, collection="pages")
    make_webhook(cast.alice, NOWHERE, enabled=False)
    make_webhook(cast.charlie, NOWHERE)
    made = make_record(cast.alice, title="x")
    assert deliveries(app) == []
    cast.alice.patch(f"records/posts/{made['id']}", {"n": 2})
    assert [row.webhook_id for row in deliveries(app)] == [wanted["id"]]


def test_delivery_follows_webhook_changes_at_next_write(app: Flask, alice: Caller) -> None:
    make_record(alice, title="0")  # caches that there are none
    webhook = make_webhook(alice, NOWHERE)
    make_record(alice, title="1")
    alice.put(f"webhooks/{webhook['id']}", {"enabled": False})
    make_record(alice, title="2")
    alice.patch(f"webhooks/{webhook['id']}", {"enabled": True})
    make_record(alice, title="3")
    alice.delete(f"webhooks/{webhook['id']}")
    make_record(alice, title="4")
    told = [row.payload.partition('"title":"')[2][0] for row in deliveries(app)]
    assert told == ["1", "3"]


def test_delivery_follows_webhook_changes_of_other_process(app: Flask, alice: Caller) -> None:
    make_record(alice, title="0")
    before = dict(app.extensions["atrium.caches"]["webhooks"]._values)
    make_webhook(alice, NOWHERE)
    app.extensions["atrium.caches"]["webhooks"]._values.update(before)  # as another process has it
    make_record(alice, title="1")
    assert len(deliveries(app)) == 1


def test_delivery_of_superadmin_write_belongs_to_other_account(app: Flask, cast: Cast) -> None:
    make_webhook(cast.alice, NOWHERE)
    body = {"title": "x", "account_id": cast.alice.account_id}
    assert cast.root.post("records/posts", body).status_code == 201
    assert [row.account_id for row in deliveries(app)] == [cast.alice.account_id]


def test_delivery_costs_one_statement_and_none_without_webhook(app: Flask, alice: Caller) -> None:
    def cost(title: str) -> int:
        with statements(app) as sent:
            make_record(alice, title=title)
        return len(sent)

    cost("warm")
    without = cost("without")
    make_webhook(alice, NOWHERE)
    cost("warm again")
    assert cost("with") == without + 1


@pytest.mark.both_databases
def test_delivery_is_not_made_for_rolled_back_change(app: Flask, alice: Caller) -> None:
    make_webhook(alice, NOWHERE)
    make_record(alice, title="x")
    assert alice.post("records/posts", {"title": "x"}).status_code == 409
    assert alice.post("records/posts", {"title": 1}).status_code == 400
    assert len(deliveries(app)) == 1


def test_delivery_signatures_cover_exact_body_bytes(app: Flask, alice: Caller) -> None:
    with receiving() as receiver:
        webhook = make_webhook(alice, receiver.url, headers={"X-Mine": "yes"})
        make_record(alice, title="Grüße 😀")
        deliver(app)
    (request,) = receiver.requests
    digest = hmac.new(webhook["secret"].encode(), request.body, hashlib.sha256).hexdigest()
    assert request.headers["x-service-signature"] == f"sha256={digest}"
    assert "x-service-signature-previous" not in request.headers
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-service-event"] == "records.create"
    assert request.headers["x-service-webhook-id"] == webhook["id"]
    assert request.headers["x-mine"] == "yes"
    (row,) = deliveries(app)
    assert request.headers["webhook-id"] == request.delivery == row.id
    assert request.body.decode() == row.payload
    Verifier(webhook["signing_secret"]).verify(request.body, request.headers)
    with pytest.raises(WebhookVerificationError):
        Verifier(webhook["signing_secret"]).verify(request.body + b" ", request.headers)


def test_delivery_is_signed_with_both_secrets_for_a_day_after_rotation(
    app: Flask, alice: Caller
) -> None:
    with receiving() as receiver:
        webhook = make_webhook(alice, receiver.url, secret="chosen by the caller")
        rotated = alice.post(f"webhooks/{webhook['id']}/rotate-secret").json
        assert len(rotated["secret"]) == 64
        make_record(alice, title="x")
        deliver(app)
        make_record(alice, title="y")
        with time_machine.travel(clock.parse(rotated["previous_valid_until"]), tick=True):
            deliver(app)
            after = receiver.requests[1]
            Verifier(rotated["signing_secret"]).verify(after.body, after.headers)
    during = receiver.requests[0]
    for secret in (webhook["signing_secret"], rotated["signing_secret"]):
        Verifier(secret).verify(during.body, during.headers)
    older = hmac.new(b"chosen by the caller", during.body, hashlib.sha256).hexdigest()
    assert during.headers["x-service-signature-previous"] == f"sha256={older}"
    assert len(during.headers["webhook-signature"].split()) == 2
    assert len(after.headers["webhook-signature"].split()) == 1
    assert "x-service-signature-previous" not in after.headers


def test_delivery_waiting_in_worker_follows_webhook_url_change(app: Flask, alice: Caller) -> None:
    go_on = threading.Event()

    def ten_then_none(request: Request) -> tuple[int, str]:
        if len(before.requests) > 10:
            go_on.wait(30)
        return 200, "ok"

    with receiving(ten_then_none) as before, receiving() as after:
        webhook = make_webhook(alice, before.url)
        make_records(alice, 60)
        with working(app):
            while len(before.requests) < 20:
                time.sleep(0.01)
            rotated = alice.post(f"webhooks/{webhook['id']}/rotate-secret").json
            alice.patch(f"webhooks/{webhook['id']}", {"url": after.url})
            time.sleep(receiver_queues.FRESH_SECONDS)
            go_on.set()
            while len(before.requests) + len(after.requests) < 60:
                time.sleep(0.01)
    assert len(before.requests) <= 10 + receiver_queues.PROVEN_LIMIT
    for request in after.requests:
        Verifier(rotated["signing_secret"]).verify(request.body, request.headers)
    assert {row.status for row in deliveries(app)} == {"delivered"}


@contextmanager
def working(app: Flask) -> Iterator[None]:
    """A worker's line of work, for a while."""
    stop, woken = threading.Event(), threading.Event()
    threads = [threading.Thread(target=run, args=[app, stop, woken]) for run in (_work, _watch)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        woken.set()
        for thread in threads:
            thread.join(30)


@pytest.mark.both_databases
def test_delivery_is_retried_by_schedule_then_failed(app: Flask, alice: Caller) -> None:
    with receiving(lambda request: (500, "no\0t now")) as receiver:
        webhook = make_webhook(alice, receiver.url)
        make_record(alice, title="x")
        for number, delay in enumerate(DELAYS, 1):
            deliver(app)
            deliver(app)  # nothing is due any more
            (row,) = deliveries(app)
            assert (row.status, row.attempt_number) == ("retrying", number)
            assert delay - 5 < (due_in(app) or 0) <= delay
            shown = log_of(alice, webhook)["items"][0]
            assert clock.parse(shown["next_retry_at"]) == row.due_at
            let_pass(app, delay - 6)
            deliver(app)
            assert len(receiver.requests) == number
            let_pass(app, 6)
        deliver(app)
        let_pass(app, 10 * 86400)
        deliver(app)
    shown = log_of(alice, webhook)["items"][0]
    assert (shown["status"], shown["attempt_number"]) == ("failed", 6)
    assert (shown["next_retry_at"], shown["delivered_at"]) == (None, None)
    one = alice.get(f"webhooks/{webhook['id']}/deliveries/{shown['id']}").json
    assert [attempt["attempt_number"] for attempt in one["attempts"]] == [1, 2, 3, 4, 5, 6]
    assert {attempt["status_code"] for attempt in one["attempts"]} == {500}
    assert one["attempts"][0]["response_body"] == shown["response_body"] == "no\ufffdt now"
    assert one["attempts"][0]["error"] == "The receiver responded with 500."
    assert len({request.delivery for request in receiver.requests}) == 1
    assert len({request.body for request in receiver.requests}) == 1


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_delivery_with_any_2xx_is_delivered(app: Flask, alice: Caller, status: int) -> None:
    with receiving(lambda request: (status, "")) as receiver:
        make_webhook(alice, receiver.url)
        make_record(alice, title="x")
        deliver(app)
    assert deliveries(app)[0].status == "delivered"


@pytest.mark.parametrize("status", [301, 304, 400, 404, 410, 500, 599])
def test_delivery_with_other_status_is_retrying(app: Flask, alice: Caller, status: int) -> None:
    with receiving(lambda request: (status, "")) as receiver:
        make_webhook(alice, receiver.url)
        make_record(alice, title="x")
        deliver(app)
        assert len(receiver.requests) == 1
    assert deliveries(app)[0].status == "retrying"


def test_delivery_is_delivered_after_receiver_recovers(app: Flask, alice: Caller) -> None:
    webhook = make_webhook(alice, NOWHERE)
    make_record(alice, title="x")
    deliver(app)
    shown = log_of(alice, webhook, "?status=retrying")["items"][0]
    assert shown["response_status"] is None
    assert "refused" in shown["error"]
    with receiving() as receiver:
        alice.put(f"webhooks/{webhook['id']}", {"url": receiver.url})
        let_pass(app, 60)
        deliver(app)
    assert log_of(alice, webhook)["items"][0]["status"] == "delivered"
    assert alice.get(f"webhooks/{webhook['id']}").json["failing_since"] is None


@pytest.mark.both_databases
def test_delivery_list_filters(app: Flask, alice: Caller) -> None:
    with receiving(lambda one: (200 if b'"n":1' in one.body else 500, "")) as receiver:
        webhook = make_webhook(alice, receiver.url)
        for n in (1, 1, 0):
            make_record(alice, title=f"{n}{time.monotonic_ns()}", n=n)
        deliver(app)
    make_record(alice, title="waits")
    counts = {
        status: log_of(alice, webhook, f"?status={status}")["total"]
        for status in ("pending", "delivered", "retrying", "failed")
    }
    assert counts == {"pending": 1, "delivered": 2, "retrying": 1, "failed": 0}
    everything = log_of(alice, webhook)["items"]
    assert [one["id"] for one in everything] == [row.id for row in reversed(deliveries(app))]
    assert log_of(alice, webhook, "?limit=1&offset=1")["items"] == everything[1:2]
    assert log_of(alice, webhook, "?limit=1&skip=2")["items"] == everything[2:3]


@pytest.mark.both_databases
def test_delivery_can_be_resent(app: Flask, alice: Caller) -> None:
    with receiving() as receiver:
        webhook = make_webhook(alice, receiver.url)
        make_record(alice, title="x")
        path = f"webhooks/{webhook['id']}/deliveries/{deliveries(app)[0].id}/redeliver"
        assert alice.post(path).status_code == 409  # it is still on its way
        deliver(app)
        again = alice.post(path)
        assert (again.status_code, again.json["status"]) == (202, "pending")
        deliver(app)
        third = alice.post(path.replace(deliveries(app)[0].id, again.json["id"]))
        deliver(app)
    first, second, last = receiver.requests
    assert "x-service-replay-of" not in first.headers
    assert second.headers["x-service-replay-of"] == first.delivery
    assert last.headers["x-service-replay-of"] == first.delivery
    assert [second.delivery, last.delivery] == [again.json["id"], third.json["id"]]
    assert first.body == second.body == last.body


@pytest.mark.both_databases
def test_delivery_resend_since_time_covers_failed_ones_once(app: Flask, alice: Caller) -> None:
    with receiving() as receiver:
        webhook = make_webhook(alice, receiver.url)
        for n in range(6):
            make_record(alice, title=str(n))
        rows = deliveries(app)
        with app.app_context(), db.transaction() as session:
            ids = [row.id for row in rows[:5]]
            over = {"status": "failed", "due_at": None}
            session.execute(sa.update(DELIVERIES).where(DELIVERIES.c.id.in_(ids)).values(**over))
        ask = f"webhooks/{webhook['id']}/deliveries/redeliver"
        body = {"since": clock.iso(rows[2].created_at)}
        answer = alice.post(ask, body)
        assert (answer.status_code, answer.json["count"]) == (202, 3)
        alice.post(ask, body)
        run_jobs(app)
        deliver(app)
        assert alice.post(ask, body).json["count"] == 0
    replayed = [one.headers.get("x-service-replay-of") for one in receiver.requests]
    assert sorted(filter(None, replayed)) == [row.id for row in rows[2:5]]
    assert len(receiver.requests) == 4


def set_status(app: Flask, status: str, *ids: str) -> None:
    """Let deliveries have come to an end."""
    with app.app_context(), db.transaction() as session:
        over = {"status": status, "due_at": None}
        session.execute(sa.update(DELIVERIES).where(DELIVERIES.c.id.in_(ids)).values(**over))


@pytest.mark.both_databases
def test_delivery_resend_covers_newest_failed_copy_only(app: Flask, alice: Caller) -> None:
    with receiving() as receiver:
        webhook = make_webhook(alice, receiver.url)
        home = f"webhooks/{webhook['id']}/deliveries"
        make_records(alice, 4)
        first = sorted(row.id for row in deliveries(app))
        begun = deliveries(app)[0].created_at
        set_status(app, "failed", *first)
        again = [alice.post(f"{home}/{id}/redeliver").json for id in first[:3]]
        set_status(app, "failed", *(one["id"] for one in again[:2]))
        set_status(app, "delivered", again[2]["id"], first[1])  # as if the first had come late
        # Of the first there is one that failed since then: what it repeats failed before.
        assert alice.post(f"{home}/redeliver", {"since": again[0]["created_at"]}).json["count"] == 1
        run_jobs(app)
        assert alice.post(f"{home}/redeliver", {"since": clock.iso(begun)}).json["count"] == 1
        run_jobs(app)
        deliver(app)
        assert alice.post(f"{home}/redeliver", {"since": clock.iso(begun)}).json["count"] == 0
    replayed = [one.headers["x-service-replay-of"] for one in receiver.requests]
    assert sorted(replayed) == [first[0], first[3]]


@pytest.mark.parametrize("part", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_delivery_resend_of_many_large_ones_has_bounded_memory(
    app: Flask, alice: Caller, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """All sizes are a part of the real ones."""
    monkeypatch.setattr(resend, "MAX_BATCH_BYTES", resend.MAX_BATCH_BYTES // part)
    webhook = make_webhook(alice, NOWHERE)
    make_records(alice, 60)
    rows = deliveries(app)
    set_status(app, "failed", *(row.id for row in rows))
    payload = f'"{"x" * (2_000_000 // part)}"'
    large = {"payload": payload, "size": len(payload)}
    with app.app_context(), db.transaction() as session:
        session.execute(sa.update(DELIVERIES).values(large))
    since = {"since": clock.iso(rows[0].created_at)}
    assert alice.post(f"webhooks/{webhook['id']}/deliveries/redeliver", since).json["count"] == 60
    tracemalloc.start()
    run_jobs(app)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert log_of(alice, webhook, "?status=pending&limit=1")["total"] == 60
    assert peak < 80 * 2**20 / part


@pytest.mark.both_databases
def test_delivery_of_disabled_webhook_waits_until_enabled(app: Flask, alice: Caller) -> None:
    status = [500]
    with receiving(lambda request: (status[0], "")) as receiver:
        webhook = make_webhook(alice, receiver.url)
        path = f"webhooks/{webhook['id']}"
        make_record(alice, title="tried")
        deliver(app)
        make_record(alice, title="not yet")
        alice.put(path, {"enabled": False})
        deliver(app)
        shown = log_of(alice, webhook)["items"]
        states = [(one["status"], one["attempt_number"], one["next_retry_at"]) for one in shown]
        assert states == [("pending", 0, None), ("retrying", 1, None)]
        assert len(receiver.requests) == 1
        assert alice.post(f"{path}/deliveries/{shown[1]['id']}/redeliver").status_code == 409
        status[0] = 200
        alice.put(path, {"enabled": True})
        deliver(app)
    assert [row.status for row in deliveries(app)] == ["delivered"] * 2
    assert [row.attempt_number for row in deliveries(app)] == [2, 1]
    assert len(attempts(app)) == 3


@pytest.mark.not_on_citus("it locks rows of all accounts itself, or goes back to former migrations")
@pytest.mark.both_databases
def test_delivery_claimed_from_disabled_webhook_waits(app: Flask, alice: Caller) -> None:
    webhook = make_webhook(alice, NOWHERE)
    make_record(alice, title="x")
    with app.app_context(), db.transaction() as session:
        session.execute(sa.update(Webhook).values(enabled=False))
    deliver(app)
    assert [(row.status, row.due_at) for row in deliveries(app)] == [("pending", None)]
    assert attempts(app) == []
    alice.put(f"webhooks/{webhook['id']}", {"enabled": True})
    with app.app_context():
        (due,) = queue.look(10, [])
        work = queue.claim(alice.account_id, [due.id], 60)
        laid_by = [delivery.Result(one, new_id(), clock.now(), 0, held=True) for one in work]
        queue.record(alice.account_id, laid_by)  # it was disabled yet when the worker looked
        assert len(queue.look(10, [])) == 1


@pytest.mark.both_databases
def test_deliveries_of_deleted_webhook_are_removed(app: Flask, cast: Cast) -> None:
    kept = make_webhook(cast.alice, NOWHERE)
    gone = make_webhook(cast.alice, NOWHERE)
    make_webhook(cast.charlie, NOWHERE)
    for who in (cast.alice, cast.charlie):
        make_record(who, title="x")
    assert cast.alice.delete(f"webhooks/{gone['id']}").status_code == 204
    deliver(app)
    run_jobs(app)
    assert sorted(row.account_id for row in deliveries(app)) == sorted(
        [cast.alice.account_id, cast.charlie.account_id]
    )
    assert {row.webhook_id for row in deliveries(app)} > {kept["id"]}
    assert len(attempts(app)) == 2
    cast.root.delete(f"accounts/{cast.alice.account_id}")
    run_jobs(app)
    assert {row.account_id for row in deliveries(app)} == {cast.charlie.account_id}
    with app.app_context():
        assert db.db.session.scalars(sa.select(Webhook.account_id)).all() == [
            cast.charlie.account_id
        ]


@pytest.mark.both_databases
def test_webhook_is_disabled_after_five_days_of_failure(app: Flask, cast: Cast) -> None:
    alice, day = cast.alice, 86400
    webhook = make_webhook(alice, "http://127.0.0.1:9/with-a-secret-path")
    make_record(alice, title="x")
    deliver(app)
    let_pass(app, 4 * day)
    deliver(app)
    assert alice.get(f"webhooks/{webhook['id']}").json["enabled"] is True
    let_pass(app, day)
    make_record(alice, title="y")
    deliver(app)
    shown = alice.get(f"webhooks/{webhook['id']}").json
    assert shown["enabled"] is False
    assert shown["updated_at"] == shown["disabled_at"] > webhook["updated_at"]
    run_jobs(app)
    (letter,) = outbox(app)
    assert letter["To"] == alice.email
    assert "with-a-secret-path" not in letter.as_string()
    assert webhook["id"] in body_of(letter)
    assert "failed for five days" in " ".join(body_of(letter).split())
    before = len(deliveries(app))
    make_record(alice, title="z")
    assert len(deliveries(app)) == before
    shown = alice.put(f"webhooks/{webhook['id']}", {"enabled": True}).json
    assert (shown["enabled"], shown["disabled_at"], shown["failing_since"]) == (True, None, None)


def test_webhook_is_disabled_when_receiver_is_410(app: Flask, alice: Caller) -> None:
    with receiving(lambda request: (410, "moved away")) as receiver, receiving() as other:
        gone, stays = make_webhook(alice, receiver.url), make_webhook(alice, other.url)
        make_record(alice, title="x")
        deliver(app)
        shown = alice.get(f"webhooks/{gone['id']}").json
        assert (shown["enabled"], shown["disabled_reason"]) == (False, "gone")
        assert shown["disabled_at"]
        assert alice.get(f"webhooks/{stays['id']}").json["enabled"] is True
        run_jobs(app)
        (letter,) = outbox(app)
        for text in (body_of(letter), body_of(letter, "html")):
            assert gone["id"] in text
            assert "answered 410 Gone" in text
            assert "five days" not in text
        receiver.answer = lambda request: (200, "back")
        enabled = alice.patch(f"webhooks/{gone['id']}", {"enabled": True}).json
        assert (enabled["disabled_at"], enabled["disabled_reason"]) == (None, None)
        deliver(app)  # it has waited
        assert {row.status for row in deliveries(app)} == {"delivered"}


@pytest.mark.parametrize(
    ("status", "asked", "delay"),
    [
        (429, "5", 5),
        (503, "5", 5),
        (503, "0", 1),
        (503, "999999999", DELAYS[0]),
        (429, "Wed, 21 Oct 2015 07:28:00 GMT", 1),
        (429, "soon", DELAYS[0]),
        (429, "-3", DELAYS[0]),
        (500, "5", DELAYS[0]),
    ],
)
def test_delivery_retry_respects_shorter_retry_after(
    app: Flask, alice: Caller, status: int, asked: str, delay: int
) -> None:
    with receiving(lambda request: (status, "busy")) as receiver:
        receiver.headers["Retry-After"] = asked
        make_webhook(alice, receiver.url)
        make_record(alice, title="x")
        deliver(app)
        assert max(-5, delay - 5) < (due_in(app) or 0) <= delay


def test_delivery_list_shows_who_resent(app: Flask, cast: Cast) -> None:
    alice, root = cast.alice, cast.root.acting_in("acme")
    with receiving(lambda request: (500, "no")) as receiver:
        webhook = make_webhook(alice, receiver.url)
        make_record(alice, title="x")
        deliver(app)
        deliveries_at = f"webhooks/{webhook['id']}/deliveries"
        (first,) = log_of(alice, webhook)["items"]
        assert first["requested_by"] is None
        now = alice.post(f"{deliveries_at}/{first['id']}/redeliver").json  # a retry
        assert (now["id"], now["requested_by"]) == (first["id"], alice.id)
        deliver(app)
        set_status(app, "failed", first["id"])
        again = root.post(f"{deliveries_at}/redeliver", {"ids": [first["id"]]})
        assert again.json["count"] == 1
        newest = log_of(alice, webhook)["items"][0]
        assert (newest["replay_of"], newest["requested_by"]) == (first["id"], root.id)
        set_status(app, "failed", newest["id"])
        since = {"since": first["created_at"]}
        assert alice.post(f"{deliveries_at}/redeliver", since).json["count"] == 1
        run_jobs(app)
        assert log_of(alice, webhook)["items"][0]["requested_by"] == alice.id


@pytest.mark.both_databases
def test_webhook_stays_enabled_after_one_success_in_five_days(app: Flask, alice: Caller) -> None:
    status = [500]
    with receiving(lambda request: (status[0], "")) as receiver:
        webhook = make_webhook(alice, receiver.url)
        for n, status[0] in enumerate((500, 200, 500, 500)):
            make_record(alice, title=str(n))
            deliver(app)
            let_pass(app, 3 * 86400)
    assert alice.get(f"webhooks/{webhook['id']}").json["enabled"] is True
    assert run_jobs(app) == 0


def test_webhook_filter_that_is_false_makes_no_delivery(
    app: Flask, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def only_large(text: Any, event: Any, record: Any, *about_caller: Any) -> bool:
        seen.append((text, event.previous, event.by.email))
        return bool(record["n"] > 1)

    make_webhook(alice, NOWHERE, filter="")
    monkeypatch.setattr(filters, "matches", only_large)
    make_record(alice, title="small", n=1)
    make_record(alice, title="large", n=2)
    assert seen == [("", None, alice.email)] * 2
    assert len(deliveries(app)) == 1


@pytest.mark.both_databases
def test_deliveries_are_sent_once_with_concurrent_workers(app: Flask, alice: Caller) -> None:
    with receiving() as receiver:
        make_webhook(alice, receiver.url)
        make_records(alice, 60)
        threads = [threading.Thread(target=deliver, args=[app]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    counted = Counter(request.delivery for request in receiver.requests)
    assert counted == Counter(row.id for row in deliveries(app))
    assert {row.status for row in deliveries(app)} == {"delivered"}


@pytest.mark.both_databases
def test_delivery_claimed_by_dead_worker_is_retaken_after_lease(app: Flask, alice: Caller) -> None:
    with receiving() as receiver:
        make_webhook(alice, receiver.url)
        make_record(alice, title="x")
        (row,) = deliveries(app)
        with app.app_context():
            assert len(queue.claim(row.account_id, [row.id], 70)) == 1
            assert queue.claim(row.account_id, [row.id], 70) == []
        deliver(app)
        assert receiver.requests == []
        let_pass(app, 69)
        deliver(app)
        assert receiver.requests == []
        let_pass(app, 2)
        deliver(app)
    assert len(receiver.requests) == 1


@pytest.mark.both_databases
def test_delivery_worker_with_expired_lease_changes_nothing(app: Flask, alice: Caller) -> None:
    make_webhook(alice, NOWHERE)
    make_record(alice, title="x")
    (row,) = deliveries(app)
    with app.app_context():
        (late,) = queue.claim(row.account_id, [row.id], 70)
    let_pass(app, 71)
    with app.app_context():
        (second,) = queue.claim(row.account_id, [row.id], 70)
        due = deliveries(app)[0].due_at
        queue.release([late])
        assert deliveries(app)[0].due_at == due
        failed = delivery.Result(late, new_id(), clock.now(), 5, error="late")
        queue.record(row.account_id, [failed])
        assert deliveries(app)[0].status == "pending"
        delivered = delivery.Result(second, new_id(), clock.now(), 5, 200, "ok")
        for _ in range(2):  # as after a commit whose answer was lost
            queue.record(row.account_id, [delivered])
    (row,) = deliveries(app)
    assert (row.status, row.attempt_number) == ("delivered", 1)
    assert [one.error for one in attempts(app)] == ["late", None]


@pytest.mark.both_databases
def test_delivery_attempts_are_stored_by_one_constant_statement(
    app: Flask, database: str, alice: Caller
) -> None:
    """SQLite's driver keeps each text that it has seen, of as much memory as it is long."""
    make_webhook(alice, NOWHERE)
    make_records(alice, 6)
    left = [row.id for row in deliveries(app)]
    written = []
    while left:
        chosen, left = left[: len(written) + 1], left[len(written) + 1 :]
        with app.app_context(), statements(app) as sent:
            claimed = queue.claim(alice.account_id, chosen, 70)
            outcomes = [delivery.Result(one, new_id(), clock.now(), 5, 200) for one in claimed]
            queue.record(alice.account_id, outcomes)
        written.append([text for text in sent if text.startswith("INSERT INTO webhook_attempts")])
    assert [len(texts) for texts in written] == [1, 1, 1]
    assert database != "sqlite" or written[0] == written[1] == written[2]
    assert len(attempts(app)) == 6


@pytest.mark.both_databases
def test_delivery_schedule_ignores_worker_clock(app: Flask, alice: Caller) -> None:
    with receiving(lambda request: (500, "")) as receiver:
        make_webhook(alice, receiver.url)
        make_record(alice, title="x")
        deliver(app)
        for hours in (-3, 3):
            with time_machine.travel(clock.now().timestamp() + hours * 3600, tick=True):
                deliver(app)
            assert len(receiver.requests) == 1
        let_pass(app, 60)
        with time_machine.travel(clock.now().timestamp() - 3 * 3600, tick=True):
            deliver(app)
        assert len(receiver.requests) == 2
    assert 290 < (due_in(app) or 0) <= 300


def test_delivery_to_hanging_receiver_does_not_delay_others(app: Flask, cast: Cast) -> None:
    # What hangs is cut off before the worker is told to stop, which would wait for it.
    with working(app), hostile(hang) as nowhere, receiving() as receiver:
        for _ in range(15):
            make_webhook(cast.alice, nowhere, events=["create"])
        make_records(cast.alice, 10)
        make_webhook(cast.charlie, receiver.url)
        make_records(cast.charlie, 40)
        deadline = time.monotonic() + 15  # a hanging receiver takes 30
        while len(receiver.requests) < 40 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(receiver.requests) == 40


def _work(app: Flask, stop: threading.Event, woken: threading.Event) -> None:
    with app.app_context(), turns.serving(WEBHOOKS, woken):
        dispatch.work(stop, woken)


def _watch(app: Flask, stop: threading.Event, woken: threading.Event) -> None:
    with app.app_context():
        seen = worker.last_news()
        while not stop.wait(worker.WATCH_SECONDS):
            if seen != (seen := worker.last_news()):
                woken.set()


def test_delivery_threads_per_account_are_limited(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "ACCOUNT_THREADS", 6)
    lock, under_way, seen = threading.Lock(), [0], list[int]()
    are_many = threading.Event()

    def slowly(request: Request) -> tuple[int, str]:
        with lock:
            under_way[0] += 1
            seen.append(under_way[0])
            if under_way[0] > 4:
                are_many.set()
        if not are_many.wait(10):
            are_many.set()  # they never will be
        time.sleep(0.01)  # lets more come than may
        with lock:
            under_way[0] -= 1
        return 200, "ok"

    with receiving(slowly) as busy, receiving() as quiet:
        for _ in range(3):
            make_webhook(cast.alice, busy.url)
        make_webhook(cast.charlie, quiet.url)
        make_records(cast.alice, 40)
        make_record(cast.charlie, title="x")
        deliver(app)
    assert len(seen) == 3 * 40
    assert 4 < max(seen) <= 6
    assert len(quiet.requests) == 1


def test_receiver_queue_limit_grows_and_shrinks_with_response_time() -> None:
    work = delivery.Work("a", "d", 1, "w", "records.create", "{}", 0, None)

    def result(milliseconds: int, status: int | None) -> delivery.Result:
        return delivery.Result(work, "r", clock.now(), milliseconds, status)

    lane = Lane()
    assert lane.limit(0) == receiver_queues.UNKNOWN_LIMIT
    lane.note(result(20, 200))
    assert lane.limit(0) == receiver_queues.PROVEN_LIMIT
    lane.running["d"] = 100
    assert lane.limit(100 + receiver_queues.SLOW_SECONDS + 1) == receiver_queues.SLOW_LIMIT
    lane.note(result(30_000, None))
    assert lane.limit(0) == receiver_queues.SLOW_LIMIT
    lane.note(result(20, 500))
    assert lane.limit(0) == receiver_queues.UNKNOWN_LIMIT


@pytest.mark.both_databases
def test_delivery_worker_that_stops_releases_unsent_work(app: Flask, alice: Caller) -> None:
    def slowly(request: Request) -> tuple[int, str]:
        time.sleep(0.2)
        return 200, "ok"

    with receiving(slowly) as receiver:
        make_webhook(alice, receiver.url)
        make_records(alice, 60)
        with working(app):
            while not receiver.requests:
                time.sleep(0.01)
            time.sleep(0.3)
        sent = {request.delivery for request in receiver.requests}
        done = {row.id for row in deliveries(app) if row.status == "delivered"}
        assert sent == done
        assert len(sent) < 60
        deliver(app)
    assert Counter(request.delivery for request in receiver.requests) == Counter(
        row.id for row in deliveries(app)
    )


@pytest.mark.both_databases
def test_deliveries_are_purged_by_age_unless_waiting(app: Flask, alice: Caller) -> None:
    with receiving() as receiver:
        make_webhook(alice, receiver.url)
        make_record(alice, title="old")
        deliver(app)
    make_record(alice, title="waiting")
    ids = [row.id for row in deliveries(app)]
    for days, kept in ((29, ids), (31, ids[1:])):
        with time_machine.travel(clock.now() + timedelta(days=days), tick=True), app.app_context():
            jobs.KINDS["webhooks.purge"].handler({})
        assert [row.id for row in deliveries(app)] == kept
    assert attempts(app) == []


@pytest.mark.both_databases
def test_delivery_attempt_without_delivery_is_purged(app: Flask, alice: Caller) -> None:
    make_webhook(alice, NOWHERE)
    for title in ("gone", "kept"):
        make_record(alice, title=title)
    gone, kept = deliveries(app)
    with app.app_context():
        work = queue.claim(alice.account_id, [gone.id, kept.id], 70)
        with db.transaction() as session:
            session.execute(sa.delete(DELIVERIES).where(DELIVERIES.c.id == gone.id))
        made = [delivery.Result(one, new_id(), clock.now(), 5, error="no") for one in work]
        queue.record(alice.account_id, made)
        assert len(attempts(app)) == 2
        with time_machine.travel(clock.now() + timedelta(days=31), tick=True):
            jobs.KINDS["webhooks.purge"].handler({})
    assert [one.delivery_id for one in attempts(app)] == [kept.id]


@pytest.mark.not_on_citus("it locks rows of all accounts itself, or goes back to former migrations")
def test_webhook_with_unreadable_secret_does_not_affect_others(app: Flask, alice: Caller) -> None:
    with receiving() as receiver:
        broken = make_webhook(alice, receiver.url)
        make_webhook(alice, receiver.url)
        with app.app_context(), db.transaction() as session:
            session.execute(sa.update(Webhook).where(Webhook.id == broken["id"]).values(secret="x"))
        make_record(alice, title="x")
        deliver(app)
    assert len(receiver.requests) == 1
    assert "secret cannot be decrypted" in log_of(alice, broken)["items"][0]["error"]


def test_delivery_retry_delays_follow_settings(
    app: Flask, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(app.extensions["atrium.config"], webhook_retry_delays=(7,))
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    make_webhook(alice, NOWHERE)
    make_record(alice, title="x")
    deliver(app)
    assert 5 < (due_in(app) or 0) <= 7
    let_pass(app, 7)
    deliver(app)
    assert deliveries(app)[0].status == "failed"
