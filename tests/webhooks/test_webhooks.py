"""Webhooks as admins keep them: shapes, refusals, the secret, the limit."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import crypto, db
from app.accounts import groups
from app.accounts.models import ADMIN, PII_GROUP, Account, Group
from app.db import transaction
from app.outbound import address_policy
from app.webhooks import versions
from app.webhooks.models import DELIVERIES, Webhook
from tests.builders import Caller, Cast, make_collection, make_record, make_user
from tests.mailbox import run_jobs
from tests.parallel import at_once
from tests.receivers import receiving
from tests.webhooks.delivering import EVENTS, deliver, deliveries, let_pass, make_webhook

URL = "https://hooks.example.com/atrium?x=1"
FIELDS = {
    *("id", "account_id", "url", "collection", "events", "filter", "headers", "enabled"),
    *(
        "include_pii",
        "owner_id",
        "failing_since",
        "disabled_at",
        "disabled_reason",
        "created_at",
        "updated_at",
        "created_by",
    ),
    *("has_active_maker", "paused_at", "warnings"),
}


def test_webhook_secret_is_shown_once(app: Flask, alice: Caller) -> None:
    made = make_webhook(alice, URL)
    assert made.keys() == FIELDS | {"secret", "signing_secret"}
    assert len(made["secret"]) == 64
    assert int(made["secret"], 16)
    assert (made["events"], made["enabled"], made["filter"]) == (EVENTS, True, None)
    assert made["created_by"] == alice.id
    id = made["id"]
    shown = alice.get(f"webhooks/{id}")
    assert shown.json.keys() == FIELDS
    listed = alice.get("webhooks").json
    assert (listed["items"], listed["total"]) == ([shown.json], 1)
    changed = alice.put(f"webhooks/{id}", {"enabled": False})
    for answer in (shown, alice.get("webhooks"), changed):
        assert made["secret"] not in answer.text
        assert made["signing_secret"] not in answer.text
    with app.app_context():
        stored = db.db.session.scalars(sa.select(Webhook.secret)).one()
        assert made["secret"] not in stored
        assert crypto.decrypt(stored) == made["secret"]


def test_webhook_put_and_patch_keep_unsent_values(alice: Caller) -> None:
    made = make_webhook(alice, URL, headers={"X-A": "1"})
    for verb, change in (
        ("PUT", {"events": ["delete", "create", "delete"]}),
        ("PATCH", {"url": "https://other.example/", "filter": "", "headers": {"X-A": "2"}}),
        ("PUT", {"headers": None, "collection": "pages", "enabled": False}),
    ):
        answer = alice(verb, f"webhooks/{made['id']}", change)
        assert answer.status_code == 200, answer.json
    shown = alice.get(f"webhooks/{made['id']}").json
    assert shown["events"] == ["create", "delete"]
    assert (shown["url"], shown["filter"]) == ("https://other.example/", "")
    assert (shown["headers"], shown["collection"], shown["enabled"]) == (None, "pages", False)
    assert shown["created_at"] == made["created_at"] < shown["updated_at"]


def test_webhook_secret_can_be_chosen_and_replaced(app: Flask, alice: Caller) -> None:
    made = make_webhook(alice, URL, secret="mine")
    assert made["secret"] == "mine"
    assert "secret" not in alice.put(f"webhooks/{made['id']}", {"secret": "another"}).json
    with app.app_context():
        row = db.db.session.scalars(sa.select(Webhook)).one()
        assert crypto.decrypt(row.secret) == "another"
        assert crypto.decrypt(row.previous_secret or "") == "mine"


MALFORMED: list[tuple[dict[str, Any], list[str]]] = [
    ({"url": None}, ["url"]),
    ({"url": "https://a.example/" + "x" * 2048}, ["url"]),
    ({"collection": "x" * 101}, ["collection"]),
    ({"events": []}, ["events"]),
    ({"events": ["read"]}, ["events", "0"]),
    ({"events": "create"}, ["events"]),
    ({"headers": {"X": 1}}, ["headers", "X", "value"]),
    ({"headers": []}, ["headers"]),
    ({"enabled": 1}, ["enabled"]),
    ({"secret": "x" * 257}, ["secret"]),
    ({"account_id": "x"}, ["account_id"]),
]


@pytest.mark.parametrize(("change", "loc"), MALFORMED)
def test_webhook_body_with_wrong_shape_is_422(
    alice: Caller, change: dict[str, Any], loc: list[str]
) -> None:
    made = make_webhook(alice, URL)
    body = {"url": URL, "collection": "posts", "events": EVENTS} | change
    for answer in (alice.post("webhooks", body), alice.put(f"webhooks/{made['id']}", change)):
        assert answer.status_code == 422, answer.json
        assert [str(part) for part in answer.json["detail"][0]["loc"]] == ["body", *loc]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"url": "ftp://a.example/"}, "url", "invalid_url"),
    ({"url": "http://user@a.example/"}, "url", "invalid_url"),
    ({"collection": "no such name"}, "collection", "name_invalid"),
    ({"filter": "title ="}, "filter", "filter_invalid"),
    ({"filter": "(" * 40}, "filter", "filter_invalid"),
    ({"filter": "author.name = 'x'"}, "filter", "filter_invalid"),
    ({"headers": {"Host": "x"}}, "headers", "name_reserved"),
    ({"headers": {"content-LENGTH": "1"}}, "headers", "name_reserved"),
    ({"headers": {"Transfer-Encoding": "chunked"}}, "headers", "name_reserved"),
    ({"headers": {"X-Service-Signature": "x"}}, "headers", "name_reserved"),
    ({"headers": {"Webhook-Id": "x"}}, "headers", "name_reserved"),
    ({"headers": {"X_Service_Signature": "x"}}, "headers", "name_reserved"),
    ({"headers": {"Content_Length": "1"}}, "headers", "name_reserved"),
    ({"headers": {"X-A": "b\r\nX-Service-Event: c"}}, "headers", "pattern_mismatch"),
    ({"headers": {"X-A": "b\nc"}}, "headers", "pattern_mismatch"),
    ({"headers": {"X-A": "ü"}}, "headers", "pattern_mismatch"),
    ({"headers": {"X-A\r\nHost": "b"}}, "headers", "name_invalid"),
    ({"headers": {"X A": "b"}}, "headers", "name_invalid"),
    ({"headers": {"": "b"}}, "headers", "name_invalid"),
    ({"headers": {"X-A": "1", "x-a": "2"}}, "headers", "name_duplicate"),
]


@pytest.mark.parametrize(("change", "field", "code"), REFUSED)
def test_webhook_with_invalid_value_is_400(
    alice: Caller, change: dict[str, Any], field: str, code: str
) -> None:
    made = make_webhook(alice, URL)
    body = {"url": URL, "collection": "posts", "events": EVENTS} | change
    for answer in (alice.post("webhooks", body), alice.put(f"webhooks/{made['id']}", change)):
        assert answer.status_code == 400, answer.json
        assert (field, code) in [(one["field"], one["code"]) for one in answer.json["details"]]
    assert alice.get("webhooks").json["total"] == 1


def test_webhook_problems_are_reported_at_once(alice: Caller) -> None:
    body = {"url": "x", "collection": "1", "events": EVENTS, "filter": "(", "headers": {"a b": ""}}
    details = alice.post("webhooks", body).json["details"]
    assert {one["field"] for one in details} == {"url", "collection", "filter", "headers"}


def test_webhook_private_or_http_url_in_production_is_invalid_url(
    app: Flask, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_webhook(alice, "http://127.0.0.1:9/")
    settings = replace(app.extensions["atrium.config"], env="production")
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    for url in ("http://hooks.example.com/", "https://127.0.0.1/", "https://[fd00::1]/x"):
        for answer in (
            alice.post("webhooks", {"url": url, "collection": "posts", "events": EVENTS}),
            alice.put(f"webhooks/{made['id']}", {"url": url}),
        ):
            assert answer.status_code == 400
            assert answer.json["details"][0]["code"] == "invalid_url"
    # What was saved before is refused when it is to be reached.
    tested = alice.post(f"webhooks/{made['id']}/test").json
    assert (tested["success"], tested["status_code"]) == (False, None)
    assert tested["error"] == "Must start with https://."


@pytest.mark.parametrize("racing", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_webhook_limit_of_20_holds_in_race(app: Flask, alice: Caller, racing: int) -> None:
    for _ in range(19):
        make_webhook(alice, "http://127.0.0.1:9/")
    body = {"url": "http://127.0.0.1:9/", "collection": "posts", "events": EVENTS}
    answers = at_once(racing, lambda _: alice.post("webhooks", body))
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * (racing - 1)
    refused = next(answer for answer in answers if answer.status_code == 409)
    assert refused.json["error"] == "limit_reached"
    assert alice.get("webhooks").json["total"] == 20
    id = alice.get("webhooks").json["items"][0]["id"]
    alice.delete(f"webhooks/{id}")
    assert alice.post("webhooks", body).status_code == 201


def test_webhook_change_concurrent_with_deletion_is_404(app: Flask, alice: Caller) -> None:
    for _ in range(3):
        one = f"webhooks/{make_webhook(alice, 'http://127.0.0.1:9/')['id']}"
        calls = [
            lambda one=one: alice.delete(one),
            lambda one=one: alice.patch(one, {"enabled": False}),
            lambda one=one: alice.post(f"{one}/rotate-secret"),
            lambda one=one: alice.delete(one),
        ]
        answers = at_once(len(calls), lambda n, calls=calls: calls[n]())
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) <= {200, 204, 404}
        assert statuses.count(204) == 1


def test_webhook_creation_and_account_deletion_exclude_each_other(
    app: Flask, alice: Caller
) -> None:
    body = {"url": "http://127.0.0.1:9/", "collection": "posts", "events": EVENTS}
    with ThreadPoolExecutor(1) as meanwhile:
        with app.app_context(), transaction() as session:
            chosen = sa.select(Account).where(Account.id == alice.account_id)
            session.execute(chosen.with_for_update())
            made = meanwhile.submit(alice.post, "webhooks", body)
            time.sleep(0.5)
            versions.outdate(alice.account_id)
        assert made.result().status_code == 201


def test_webhook_test_is_sent_at_once_and_logged(app: Flask, alice: Caller) -> None:
    with receiving(lambda request: (202, "fine")) as receiver:
        made = make_webhook(alice, receiver.url, enabled=False)
        tested = alice.post(f"webhooks/{made['id']}/test").json
    assert (tested["success"], tested["status_code"]) == (True, 202)
    assert (tested["response_body"], tested["error"]) == ("fine", None)
    (request,) = receiver.requests
    assert request.json["event"] == request.headers["x-service-event"] == "webhook.test"
    (kept,) = alice.get(f"webhooks/{made['id']}/deliveries").json["items"]
    assert (kept["id"], kept["status"]) == (request.delivery, "delivered")
    assert kept["payload"] == request.json
    failed = alice.post(f"webhooks/{made['id']}/test").json
    assert (failed["success"], failed["status_code"]) == (False, None)
    assert "refused" in failed["error"]
    deliver(app)
    assert [row.status for row in deliveries(app)] == ["delivered", "failed"]


def test_webhook_access_per_role(cast: Cast) -> None:
    made = make_webhook(cast.alice, URL)
    for method, path in (
        ("GET", "webhooks"),
        ("GET", f"webhooks/{made['id']}"),
        ("DELETE", f"webhooks/{made['id']}"),
        ("POST", f"webhooks/{made['id']}/test"),
        ("POST", f"webhooks/{made['id']}/rotate-secret"),
        ("GET", f"webhooks/{made['id']}/deliveries"),
    ):
        assert cast.bob(method, path).status_code == 403
    assert cast.root.acting_in("acme").get("webhooks").json["total"] == 1
    assert cast.root.acting_in("*").get("webhooks").json["total"] == 1


@pytest.fixture
def outsider(app: Flask, cast: Cast) -> Caller:
    """Another admin of acme, who may not see personal data."""
    return Caller(app, make_user(app, cast.alice.account_id, "dan@acme.example", ADMIN))


def test_webhook_include_pii_requires_pii_access(
    app: Flask, alice: Caller, outsider: Caller
) -> None:
    body = {"url": URL, "collection": "posts", "events": EVENTS, "include_pii": True}
    assert outsider.post("webhooks", body).status_code == 403
    own = make_webhook(outsider, URL)
    assert outsider.put(f"webhooks/{own['id']}", {"include_pii": True}).status_code == 403
    made = make_webhook(alice, URL, include_pii=True)
    # Whoever may not see the data may not lead it elsewhere either.
    moved = outsider.put(f"webhooks/{made['id']}", {"url": "https://elsewhere.example/"})
    assert moved.status_code == 403
    assert alice.get(f"webhooks/{made['id']}").json["url"] == URL
    assert outsider.put(f"webhooks/{made['id']}", {"include_pii": False}).status_code == 200
    with app.app_context():
        group = db.db.session.scalars(
            sa.select(Group).where(Group.account_id == alice.account_id, Group.name == PII_GROUP)
        ).one()
        groups.add_member(alice.account_id, group.id, outsider.id, by=alice.id)
    assert outsider.put(f"webhooks/{own['id']}", {"include_pii": True}).status_code == 200


PERSON = [
    {"name": "title", "type": "text", "pii": True, "mask_type": "name"},
    {"name": "email", "type": "email", "pii": True, "mask_type": "email"},
    {"name": "phone", "type": "text", "pii": True, "mask_type": "phone"},
    {"name": "ssn", "type": "text", "pii": True, "mask_type": "ssn"},
    {"name": "salary", "type": "number", "pii": True},
    {"name": "card", "type": "text", "pii": True, "mask_type": "custom"}
    | {"options": {"mask": "****{last:4}"}},
    {"name": "greeting", "type": "computed", "return_type": "text"}
    | {"expression": "concat('Dear ', title)"},
    {"name": "city", "type": "text"},
]
ADA = {"title": "Ada Lovelace", "email": "ada@acme.example", "phone": "555-123-4567"}
ADA |= {"ssn": "123-45-6789", "card": "4111111111111111", "city": "London"}
MASKED = {"title": "A*** L***", "email": "a***@acme.example", "phone": "***-***-4567"}
MASKED |= {"ssn": "***-**-6789", "card": "****1111", "city": "London"}
MASKED |= {"salary": "********", "greeting": "********"}


def test_webhook_personal_data_is_masked_and_hidden_in_log(
    app: Flask, root: Caller, alice: Caller, outsider: Caller
) -> None:
    make_collection(root, schema=PERSON)
    with receiving(lambda request: (200, request.body.decode())) as receiver:
        masked = make_webhook(alice, receiver.url)
        full = make_webhook(alice, receiver.url, include_pii=True)
        made = make_record(alice, **ADA, salary=9)
        alice.patch(f"records/posts/{made['id']}", {"phone": None})
        deliver(app)
    told = {
        (one.json["webhook_id"], one.json["event"]): {
            key: {name: value for name, value in one.json[key].items() if name in MASKED}
            for key in ("record", "previous")
            if key in one.json
        }
        for one in receiver.requests
    }
    whole = {**ADA, "salary": 9, "greeting": "Dear Ada Lovelace"}
    for id, seen in ((masked["id"], MASKED), (full["id"], whole)):
        assert told[id, "records.create"] == {"record": seen}
        after = {**seen, "phone": None}
        assert told[id, "records.update"] == {"record": after, "previous": seen}
    for reader, sees in ((alice, True), (outsider, False)):
        path = f"webhooks/{full['id']}/deliveries"
        listed = reader.get(path)
        one = reader.get(f"{path}/{listed.json['items'][0]['id']}")
        for answer in (listed, one):
            assert ("Ada Lovelace" in answer.text) == sees
        assert "Ada Lovelace" not in reader.get(f"webhooks/{masked['id']}/deliveries").text


def test_webhook_personal_data_is_not_sent_after_include_pii_ends(
    app: Flask, root: Caller, alice: Caller, outsider: Caller
) -> None:
    make_collection(root, schema=PERSON)
    with receiving() as receiver, receiving() as other:
        receiver.answer = lambda request: (500, "not now")
        full = make_webhook(alice, receiver.url, include_pii=True)
        make_record(alice, **ADA)
        deliver(app)
        path = f"webhooks/{full['id']}"
        moved = outsider.put(path, {"include_pii": False, "url": other.url})
        assert moved.status_code == 200
        let_pass(app, 60)
        deliver(app)
        (told,) = alice.get(f"{path}/deliveries").json["items"]
        assert told["status"] == "failed"
        assert outsider.post(f"{path}/deliveries/{told['id']}/redeliver").status_code == 409
        since = {"since": full["created_at"]}
        assert outsider.post(f"{path}/deliveries/redeliver", since).json["count"] == 0
        run_jobs(app)
        deliver(app)
        assert (len(receiver.requests), len(other.requests)) == (1, 0)
        # A member of the group may have it sent again.
        assert alice.put(path, {"include_pii": True}).status_code == 200
        assert alice.post(f"{path}/deliveries/redeliver", since).json["count"] == 1


def test_webhook_test_success_clears_failing_since(app: Flask, root: Caller, alice: Caller) -> None:
    make_collection(root)
    with receiving(lambda request: (500, "not now")) as receiver:
        made = make_webhook(alice, receiver.url)
        path = f"webhooks/{made['id']}"
        make_record(alice, title="x")
        deliver(app)
        assert alice.get(path).json["failing_since"] is not None
        receiver.answer = lambda request: (200, "")
        assert alice.post(f"{path}/test").json["success"]
        assert alice.get(path).json["failing_since"] is None
        receiver.answer = lambda request: (500, "not now")
        make_record(alice, title="y")
        deliver(app)
        assert alice.get(path).json["failing_since"] is not None
        alice.patch(path, {"url": f"{receiver.url}/elsewhere"})
        assert alice.get(path).json["failing_since"] is None


def test_webhook_and_delivery_unknown_ids_are_404_and_malformed_422(
    app: Flask, alice: Caller, root: Caller
) -> None:
    made = make_webhook(alice, URL)
    other = make_webhook(alice, URL)
    make_collection(root)
    make_record(alice, title="x")
    with app.app_context():
        mine = DELIVERIES.c.webhook_id == made["id"]
        id = db.connection().scalar(sa.select(DELIVERIES.c.id).where(mine))
    assert alice.get(f"webhooks/{made['id']}/deliveries/{id}").status_code == 200
    assert alice.get(f"webhooks/{other['id']}/deliveries/{id}").status_code == 404
    assert alice.get("webhooks/nonsense").status_code == 422
    assert alice.get(f"webhooks/{made['id']}/deliveries/nonsense").status_code == 422
    assert alice.get(f"webhooks/{made['id']}/deliveries?status=lost").status_code == 422
    assert alice.get(f"webhooks/{made['id'].upper()}").status_code == 200


def test_webhook_url_with_internal_and_unknown_host_has_same_error(
    app: Flask, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(host: str, port: int) -> list[str]:
        if host == "git.internal":
            return ["10.0.0.7"]
        raise socket.gaierror

    settings = replace(app.extensions["atrium.config"], webhook_allow_private=False)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    monkeypatch.setattr(address_policy, "_resolve", resolve)
    provider = {"client_id": "x", "client_secret": "y"}
    step = {"name": "s", "type": "action", "action_type": "send_webhook"}
    answers = []
    for host in ("git.internal", "gone.internal"):
        url = f"https://{host}/"
        google = {"category": "auth_providers", "provider_name": "google"}
        sent = (
            ("webhooks", {"url": url, "collection": "posts", "events": EVENTS}),
            ("admin/configuration", {**google, "config": {**provider, "token_url": url}}),
            (
                "workflows",
                {
                    "name": "w",
                    "trigger": {"type": "manual"},
                    "steps": [{**step, "config": {"url": url}}],
                },
            ),
        )
        told = [alice.post(path, body) for path, body in sent]
        assert [one.status_code for one in told] == [400] * 3, [one.text for one in told]
        answers.append(
            [
                sorted(
                    one["message"] for one in found.json["details"] if "url" in str(one["field"])
                )
                for found in told
            ]
        )
    assert answers[0] == answers[1]
    assert all(address_policy.NOT_OPEN in found for found in answers[0])
