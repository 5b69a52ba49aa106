"""What a webhook is sent is what its maker may view; values of its headers are nobody's to read."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.webhooks import outbox
from app.webhooks.models import Webhook
from tests.builders import Caller, Cast, make_collection, make_user
from tests.console.browser import Browser
from tests.receivers import receiving
from tests.webhooks.delivering import deliver, deliveries, make_webhook

URL = "https://hooks.example.com/atrium"
FIELDS = [
    {"name": "title", "type": "text"},
    {"name": "hidden", "type": "text"},
    {"name": "ssn", "type": "text", "pii": True, "mask_type": "ssn"},
]
OPEN = dict.fromkeys(("list_rule", "create_rule", "update_rule", "delete_rule"), "true")


@pytest.fixture
def diary(cast: Cast) -> Cast:
    """A collection whose records only their owners view, and of them one field is hidden."""
    make_collection(cast.root, "diary", FIELDS)
    rules = {**OPEN, "view_rule": "@owns_record()", "view_fields": ["title", "ssn"]}
    assert cast.root.put("collections/diary/rules", rules).status_code == 200
    return cast


def payloads(app: Flask) -> list[dict[str, Any]]:
    """What was written for all webhooks, oldest first."""
    return [json.loads(one.payload) for one in deliveries(app)]


def write(by: Caller, **values: Any) -> dict[str, Any]:
    """A new record of the diary."""
    answer = by.post("records/diary", {"title": "t", "hidden": "h", "ssn": "123-45-6789", **values})
    assert answer.status_code == 201, answer.json
    made: dict[str, Any] = answer.json
    return made


def test_webhook_payload_is_limited_to_view_of_owner(app: Flask, diary: Cast) -> None:
    make_webhook(diary.alice, URL, collection="diary")
    write(diary.bob)
    assert payloads(app) == []
    write(diary.alice)
    (sent,) = payloads(app)
    assert sent["record"]["title"] == "t"
    assert "hidden" not in sent["record"]
    assert sent["record"]["ssn"] == "***-**-6789"


def test_webhook_filter_on_field_hidden_from_owner_is_ignored(app: Flask, diary: Cast) -> None:
    """Where it names such a field it cannot be evaluated: the webhook fires, whatever the value."""
    make_webhook(diary.alice, URL, collection="diary", filter="hidden = 'x'")
    write(diary.alice, hidden="x")
    write(diary.alice, hidden="y")
    assert len(payloads(app)) == 2


def test_webhook_of_superadmin_is_unmasked_and_hidden_from_admins(app: Flask, diary: Cast) -> None:
    acting = Caller(app, **{**diary.root.headers, "X-Account-ID": "acme"})
    made = make_webhook(acting, URL, collection="diary")
    write(diary.bob)
    (sent,) = payloads(app)
    assert sent["record"]["hidden"] == "h"
    path = f"webhooks/{made['id']}/deliveries"
    (shown,) = diary.alice.get(path).json["items"]
    assert shown["payload"]["record"] is None
    (seen,) = acting.get(path).json["items"]
    assert seen["payload"]["record"]["hidden"] == "h"


def test_webhook_payload_of_superadmin_is_not_sent_after_takeover(app: Flask, diary: Cast) -> None:
    acting = Caller(app, **{**diary.root.headers, "X-Account-ID": "acme"})
    with receiving() as receiver:
        made = make_webhook(acting, receiver.url, collection="diary")
        write(diary.bob)
        write(diary.bob)
        assert diary.alice.post(f"webhooks/{made['id']}/take-over").status_code == 200
        deliver(app)
        assert receiver.requests == []
        one = deliveries(app)[0].id
        again = diary.alice.post(f"webhooks/{made['id']}/deliveries/{one}/redeliver")
        assert again.status_code == 409, again.json


def test_webhook_personal_data_waiting_is_not_sent_after_owner_left_group(
    app: Flask, cast: Cast
) -> None:
    make_collection(cast.root, "diary", FIELDS)
    assert (
        cast.root.put("collections/diary/rules", {**OPEN, "view_rule": "true"}).status_code == 200
    )
    (group,) = (g for g in cast.alice.get("groups").json["items"] if g["name"] == "pii_access")
    paul = Caller(app, make_user(app, cast.alice.account_id, "paul@acme.example", "admin"))
    cast.alice.post(f"groups/{group['id']}/users", {"user_id": paul.id})
    with receiving() as receiver:
        make_webhook(paul, receiver.url, collection="diary", include_pii=True)
        write(cast.bob)
        assert cast.alice("DELETE", f"groups/{group['id']}/users/{paul.id}").status_code == 204
        deliver(app)
        assert receiver.requests == []


def test_webhook_filter_sees_record_as_its_owner(app: Flask, diary: Cast) -> None:
    """A record that leaves what the maker may view is matched by what it was before."""
    rules = {**OPEN, "view_rule": "title != 'private'"}
    assert diary.root.put("collections/diary/rules", rules).status_code == 200
    made = write(diary.bob, title="public")
    make_webhook(diary.alice, URL, collection="diary", filter="title = 'private'")
    changed = diary.bob.patch(f"records/diary/{made['id']}", {"title": "private"})
    assert changed.status_code == 200
    assert payloads(app) == []


def test_webhook_url_change_makes_caller_its_owner(app: Flask, diary: Cast) -> None:
    acting = Caller(app, **{**diary.root.headers, "X-Account-ID": "acme"})
    made = make_webhook(acting, URL, collection="diary")
    moved = diary.alice.patch(f"webhooks/{made['id']}", {"url": "https://mine.example/"})
    assert moved.json["created_by"] == diary.alice.id
    write(diary.bob)
    assert payloads(app) == []


def test_webhook_include_pii_needs_owner_in_pii_access(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, "diary", FIELDS)
    rules = {**OPEN, "view_rule": "true"}
    assert cast.root.put("collections/diary/rules", rules).status_code == 200
    paul = Caller(app, make_user(app, cast.alice.account_id, "paul@acme.example", "admin"))
    (group,) = (g for g in cast.alice.get("groups").json["items"] if g["name"] == "pii_access")
    joined = cast.alice.post(f"groups/{group['id']}/users", {"user_id": paul.id})
    assert joined.status_code in (200, 201, 204), joined.json
    made = make_webhook(paul, URL, collection="diary", include_pii=True)
    write(cast.bob)
    left = cast.alice("DELETE", f"groups/{group['id']}/users/{paul.id}")
    assert left.status_code == 204
    write(cast.bob)
    assert cast.alice("DELETE", f"account/users/{paul.id}").status_code == 204
    write(cast.bob)
    sent = [one["record"]["ssn"] for one in payloads(app)]
    assert sent == ["123-45-6789", "***-**-6789", "***-**-6789"]
    shown = cast.alice.get(f"webhooks/{made['id']}").json
    assert shown["has_active_maker"] is False
    page = Browser(app, cast.alice).get(f"webhooks/{cast.alice.account_id}/{made['id']}").text
    assert "Take over" in page
    taken = cast.alice.post(f"webhooks/{made['id']}/take-over")
    assert (taken.json["created_by"], taken.json["has_active_maker"]) == (cast.alice.id, True)


def test_webhook_payload_of_small_change_is_stored_small(app: Flask, cast: Cast) -> None:
    fields = [{"name": "text", "type": "text"}, {"name": "n", "type": "number"}]
    make_collection(cast.root, "posts", fields)
    rules = {**OPEN, "view_rule": "true"}
    assert cast.root.put("collections/posts/rules", rules).status_code == 200
    record = cast.alice.post("records/posts", {"text": "x" * 900_000, "n": 0}).json
    for _ in range(20):
        make_webhook(cast.alice, URL)
    assert cast.alice.patch(f"records/posts/{record['id']}", {"n": 1}).status_code == 200
    rows = deliveries(app)
    assert len(rows) == 20
    assert sum(row.size for row in rows) < 20_000
    sent = json.loads(rows[0].payload)
    assert sent["truncated"] is True
    assert sent["record"] == sent["previous"] == {"id": record["id"]}


def test_webhook_payload_bytes_per_request_are_limited(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_STORED_BYTES", 10_000)
    make_collection(cast.root, "posts", [{"name": "text", "type": "text"}])
    rules = {**OPEN, "view_rule": "true"}
    assert cast.root.put("collections/posts/rules", rules).status_code == 200
    make_webhook(cast.alice, URL)
    batch = {"records": [{"text": "x" * 1000}] * 30}
    assert cast.alice.post("records/posts/batch", batch).status_code == 201
    sent = payloads(app)
    whole = [one for one in sent if "truncated" not in one]
    assert (len(sent), 0 < len(whole) < 10) == (30, True)


def test_webhook_header_values_are_encrypted_and_hidden(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    with receiving() as receiver:
        made = make_webhook(cast.alice, receiver.url, headers={"X-Key": "HDR-SECRET-7781"})
        one = f"webhooks/{made['id']}"
        kept = cast.alice.patch(one, {"headers": {"X-Key": "***", "X-More": "1"}})
        assert kept.json["headers"] == {"X-Key": "***", "X-More": "***"}
        with app.app_context():
            stored = db.db.session.scalars(sa.select(Webhook.headers)).one()
        assert "HDR-SECRET-7781" not in json.dumps(stored)
        tested = cast.alice.post(f"{one}/test")
        assert tested.json["success"], tested.json
        assert receiver.requests[-1].headers["x-key"] == "HDR-SECRET-7781"
    for answer in (made, cast.alice.get(one).json, cast.alice.get("webhooks").json, tested.json):
        assert "HDR-SECRET-7781" not in json.dumps(answer)


@pytest.mark.parametrize("headers", [None, {"headers": {"X-Key": "***"}}])
def test_webhook_url_change_to_other_host_requires_header_values(
    cast: Cast, headers: dict[str, Any] | None
) -> None:
    made = make_webhook(cast.alice, URL, headers={"X-Key": "secret"})
    change = {"url": "https://mine.example/", **(headers or {})}
    refused = cast.alice.patch(f"webhooks/{made['id']}", change)
    assert (refused.status_code, refused.json["details"][0]["code"]) == (400, "required")
    again = {"url": "https://mine.example/", "headers": {"X-Key": "another"}}
    assert cast.alice.patch(f"webhooks/{made['id']}", again).status_code == 200


def test_webhook_with_unknown_collection_has_warning(app: Flask, cast: Cast) -> None:
    made = make_webhook(cast.alice, URL, collection="pots")
    (warning,) = made["warnings"]
    assert (warning["field"], warning["code"]) == ("collection", "collection_missing")
    page = Browser(app, cast.alice).get(f"webhooks/{cast.alice.account_id}/{made['id']}").text
    assert "does not exist yet" in page
    make_collection(cast.root, "pots")
    assert cast.alice.get(f"webhooks/{made['id']}").json["warnings"] == []
