"""The operator's webhooks: who manages them, what they are sent, and in which order."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, db
from app.collections.models import Collection
from app.operator import sealing
from app.webhooks.models import DELIVERIES, Webhook
from tests.builders import Caller, Cast, make_account, make_collection, make_record, make_user
from tests.operator.reading import events, position, told
from tests.receivers import receiving
from tests.webhooks.delivering import deliver

HOOKS = "operator/webhooks"
URL = "http://127.0.0.1:9/billing"


def make_hook(root: Caller, url: str = URL, **values: Any) -> dict[str, Any]:
    """A new webhook of the operator, with its secret."""
    answer = root.post(HOOKS, {"url": url, "types": ["account.*"], **values})
    assert answer.status_code == 201, answer.json
    made: dict[str, Any] = answer.json
    return made


def seal(app: Flask) -> None:
    """Number what happened, as a worker does."""
    with app.app_context():
        sealing.settle()


def test_webhook_shows_its_secret_once(cast: Cast) -> None:
    made = make_hook(cast.root)
    assert made["signing_secret"].startswith("whsec_")
    shown = cast.root.get(f"{HOOKS}/{made['id']}").json
    assert shown == {k: v for k, v in made.items() if "secret" not in k}
    assert (shown["is_active"], shown["collections"]) == (True, [])
    assert cast.root.get(HOOKS).json["items"] == [shown]
    rotated = cast.root.post(f"{HOOKS}/{made['id']}/rotate-secret").json
    assert rotated["secret"] != made["secret"]
    changed = cast.root.patch(f"{HOOKS}/{made['id']}", {"is_active": False}).json
    assert changed["is_active"] is False
    assert cast.root.delete(f"{HOOKS}/{made['id']}").status_code == 204
    assert cast.root.get(f"{HOOKS}/{made['id']}").status_code == 404


def test_webhooks_of_operator_and_accounts_are_apart(cast: Cast) -> None:
    made = make_hook(cast.root)
    assert cast.root.get("webhooks").json["items"] == []
    assert cast.root.get(f"webhooks/{made['id']}").status_code == 404
    assert cast.root.delete(f"webhooks/{made['id']}").status_code == 404
    body = {"url": URL, "collection": "posts", "events": ["create"]}
    own = cast.root.post("webhooks", body).json
    assert cast.root.get(f"{HOOKS}/{own['id']}").status_code == 404
    assert [one["id"] for one in cast.root.get(HOOKS).json["items"]] == [made["id"]]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"types": ["user.nothing"]}, "invalid_option"),
        ({"types": ["records.*"]}, "required"),
        ({"types": ["records.create"], "collections": ["no name"]}, "name_invalid"),
        ({"types": ["user.*"], "url": "ftp://x.example"}, "invalid_url"),
    ],
)
def test_invalid_webhooks_are_refused(root: Caller, body: dict[str, Any], code: str) -> None:
    answer = root.post(HOOKS, {"url": URL, **body})
    assert answer.status_code == 400, answer.json
    assert [one["code"] for one in answer.json["details"]] == [code]


def test_webhooks_are_for_superadmins(cast: Cast, anyone: Caller) -> None:
    made = make_hook(cast.root)
    for path in (HOOKS, f"{HOOKS}/{made['id']}", f"{HOOKS}/{made['id']}/deliveries"):
        assert anyone.get(path).status_code == 401
        assert cast.alice.get(path).status_code == 403
    assert cast.alice.post(HOOKS, {"url": URL, "types": ["user.*"]}).status_code == 403


def test_event_is_delivered_as_it_is_listed(app: Flask, cast: Cast) -> None:
    with receiving() as receiver:
        made = make_hook(cast.root, receiver.url, types=["account.created"])
        after = position(cast.root)
        make_account(app, "initech")
        seal(app)
        deliver(app)
        (request,) = receiver.requests
        (event,) = events(cast.root, after, types="account.created")
        assert request.json == event
        assert request.headers["x-service-event"] == "account.created"
        assert request.headers["webhook-signature"].startswith("v1,")
        path = f"{HOOKS}/{made['id']}/deliveries"
        (listed,) = cast.root.get(path, query_string={"event": "account.created"}).json["items"]
        assert (listed["status"], listed["payload"]) == ("delivered", event)
        elsewhere = cast.root.acting_in(cast.alice.account_id).get(path)
        assert [one["id"] for one in elsewhere.json["items"]] == [listed["id"]]
        again = cast.root.post(f"{path}/{listed['id']}/redeliver")
        assert again.status_code == 202, again.json
        deliver(app)
        assert receiver.requests[1].json == event
        assert receiver.requests[1].headers["x-service-replay-of"] == listed["id"]
        one = cast.root.get(f"{path}/{listed['id']}").json
        assert [attempt["status_code"] for attempt in one["attempts"]] == [200]
        tested = cast.root.post(f"{HOOKS}/{made['id']}/test").json
        assert tested["success"] is True
        assert receiver.requests[2].json["type"] == "webhook.test"


def test_looks_at_events_are_in_the_log_of_their_account(app: Flask, cast: Cast) -> None:
    made = make_hook(cast.root, types=["group.*"])
    group = cast.alice.post("groups", {"name": "sales"}).json["id"]
    cast.alice.post(f"groups/{group}/users", {"user_id": cast.bob.id})
    seal(app)

    def looks(owner: Caller) -> int:
        path = "account/security-log?kind=operator.request&limit=100"
        return len(owner.get(path).json["items"])

    path = f"{HOOKS}/{made['id']}/deliveries"
    before = looks(cast.alice), looks(cast.charlie)
    (sent,) = cast.root.get(path).json["items"]
    assert cast.root.get(f"{path}/{sent['id']}").status_code == 200
    assert cast.root.get("operator/events", query_string={"types": "group.*"}).status_code == 200
    assert looks(cast.alice) - before[0] == 3
    assert cast.root.get("operator/events", query_string={"types": "quota.*"}).status_code == 200
    assert looks(cast.alice) - before[0] == 3


def test_events_of_account_are_sent_in_order_past_failures(app: Flask, cast: Cast) -> None:
    """A delivery that waits for its retry holds up its own account, and no other."""
    with receiving() as receiver:
        make_hook(cast.root, receiver.url, types=["group.*"])
        receiver.answer = lambda request: (
            (503, "later") if request.json["account_id"] == cast.alice.account_id else (200, "ok")
        )
        for caller in (cast.alice, cast.charlie):
            group = caller.post("groups", {"name": "sales"}).json
            for _ in range(3):
                member = {"user_id": caller.id}
                assert caller.post(f"groups/{group['id']}/users", member).status_code < 300
                caller.delete(f"groups/{group['id']}/users/{caller.id}")
        seal(app)
        deliver(app)
        sent = [request.json["account_id"] for request in receiver.requests]
        assert sent.count(cast.alice.account_id) == 1
        assert sent.count(cast.charlie.account_id) == 6
        receiver.requests.clear()
        receiver.answer = lambda request: (200, "ok")
        with app.app_context(), db.transaction() as session:
            waiting = sa.update(DELIVERIES).where(DELIVERIES.c.status == "retrying")
            session.execute(waiting.values(due_at=clock.now() - timedelta(minutes=1)))
        deliver(app)
        own = events(cast.root, types="group.*")
        of_alice = [one["id"] for one in own if one["account_id"] == cast.alice.account_id]
        assert [request.json["id"] for request in receiver.requests] == of_alice[-6:]


def test_failed_delivery_lets_next_one_go(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving() as receiver:
        make_hook(cast.root, receiver.url, types=["account.*"])
        receiver.answer = lambda request: (
            (500, "no") if request.json["type"] == "account.created" else (200, "ok")
        )
        settings = replace(app.extensions["atrium.config"], webhook_retry_delays=())
        monkeypatch.setitem(app.extensions, "atrium.config", settings)
        made = cast.root.post("accounts", {"name": "Initech"}).json
        cast.root.patch(f"accounts/{made['id']}", {"name": "Initrode"})
        seal(app)
        deliver(app)
        assert [one.json["type"] for one in receiver.requests] == [
            *("account.created", "account.updated")
        ]


def test_inactive_webhook_holds_what_waits(app: Flask, cast: Cast) -> None:
    with receiving() as receiver:
        made = make_hook(cast.root, receiver.url)
        for name in ("One", "Two"):
            cast.root.post("accounts", {"name": name})
        seal(app)
        cast.root.patch(f"{HOOKS}/{made['id']}", {"is_active": False})
        deliver(app)
        cast.root.post("accounts", {"name": "Three"})
        seal(app)
        assert receiver.requests == []
        cast.root.patch(f"{HOOKS}/{made['id']}", {"is_active": True})
        deliver(app)
        assert len([one for one in receiver.requests if "created" in one.json["type"]]) == 2


def test_records_of_named_collections_are_events(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    make_collection(cast.root, "other")
    after = position(cast.root)
    make_record(cast.alice, title="before")
    made = make_hook(cast.root, types=["records.*"], collections=["posts", "later"])
    record = make_record(cast.alice, title="a")
    make_record(cast.alice, "other", title="b")
    cast.alice.patch(f"records/posts/{record['id']}", {"title": "c"})
    cast.alice.delete(f"records/posts/{record['id']}")
    make_collection(cast.root, "later")
    later = make_record(cast.alice, "later", title="d")
    about = {"collection": "posts", "record_id": record["id"]}
    assert told(cast.root, after, types="records.*") == [
        ("records.create", about),
        ("records.update", about),
        ("records.delete", about),
        ("records.create", {"collection": "later", "record_id": later["id"]}),
    ]
    cast.root.delete(f"{HOOKS}/{made['id']}")
    make_record(cast.alice, title="after")
    assert len(told(cast.root, after, types="records.*")) == 4
    with app.app_context():
        assert not db.db.session.scalars(sa.select(Collection.announced)).all().count(True)


def test_named_collection_is_followed_to_its_new_name(app: Flask, cast: Cast) -> None:
    collection = make_collection(cast.root)
    made = make_hook(cast.root, types=["records.create"], collections=["Posts"])
    path = f"collections/{collection['id']}"
    plan = cast.root.post(f"{path}/plan", {"name": "articles"}).json
    body = {"name": "articles", "plan_hash": plan.get("plan_hash")}
    answer = cast.root.patch(path, body)
    assert answer.status_code == 200, answer.json
    assert cast.root.get(f"{HOOKS}/{made['id']}").json["collections"] == ["articles"]
    after = position(cast.root)
    make_record(cast.alice, "articles", title="a")
    assert [type for type, _ in told(cast.root, after)] == ["records.create"]


def test_webhook_of_superadmin_who_leaves_waits_for_another(app: Flask, cast: Cast) -> None:
    other = Caller(app, make_user(app, cast.root.account_id, "deputy@system.example", "admin"))
    with receiving() as receiver:
        made = make_hook(other, receiver.url)
        assert cast.root.delete(f"account/users/{other.id}").status_code in (202, 204)
        assert cast.root.get(f"{HOOKS}/{made['id']}").json["paused_at"]
        cast.root.post("accounts", {"name": "Initech"})
        seal(app)
        deliver(app)
        assert receiver.requests == []
        assert cast.root.post(f"{HOOKS}/{made['id']}/take-over").json["paused_at"] is None
        deliver(app)
        assert [one.json["type"] for one in receiver.requests][:1] == ["account.created"]


def test_21st_webhook_is_refused(root: Caller) -> None:
    for _ in range(20):
        make_hook(root)
    answer = root.post(HOOKS, {"url": URL, "types": ["user.*"]})
    assert (answer.status_code, answer.json["error"]) == (409, "limit_reached")


def test_sealers_beside_each_other_number_each_event_once(app: Flask, cast: Cast) -> None:
    with receiving() as receiver:
        make_hook(cast.root, receiver.url, types=["account.created"])
        after = position(cast.root)
        for number in range(30):
            make_account(app, f"tenant-{number}")
        sealers = [threading.Thread(target=seal, args=[app]) for _ in range(4)]
        for one in sealers:
            one.start()
        for one in sealers:
            one.join()
        with app.app_context():
            rows = db.connection().execute(sa.select(DELIVERIES.c.event_number)).scalars().all()
        assert len(rows) == len(set(rows)) == 30
        deliver(app)
        assert len(receiver.requests) == 30
        assert len(events(cast.root, after, types="account.created")) == 30


def test_webhook_that_failed_for_days_is_disabled(app: Flask, cast: Cast) -> None:
    with receiving() as receiver:
        made = make_hook(cast.root, receiver.url)
        receiver.answer = lambda request: (500, "no")
        cast.root.post("accounts", {"name": "Initech"})
        seal(app)
        deliver(app)
        with app.app_context(), db.transaction() as session:
            days = clock.now() - timedelta(days=6)
            session.execute(sa.update(Webhook).values(failing_since=days))
            session.execute(sa.update(DELIVERIES).values(due_at=days))
        deliver(app)
        shown = cast.root.get(f"{HOOKS}/{made['id']}").json
        assert (shown["is_active"], shown["disabled_reason"]) == (False, "failing")
