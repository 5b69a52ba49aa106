"""The request of a delivery as it was sent, for those who may see its payload."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from flask import Flask

from tests.builders import ADMIN, OPEN, Caller, Cast, make_collection, make_record, make_user
from tests.console.browser import Browser
from tests.receivers import receiving
from tests.webhooks.delivering import attempts, deliver, deliveries, make_webhook

PRE = r'<pre class="text"[^>]* aria-label="{}">(.*?)</pre>'
STRANGE = "Grüße 😀 </script> \\ \" ' \u2028"
SIGNATURES = {"X-Service-Signature", "webhook-signature"}


def shown(page: str, label: str) -> str:
    """The text of a part of the page."""
    (found,) = re.findall(PRE.format(label), page, re.DOTALL)
    return html.unescape(re.sub(r"</?span[^>]*>", "", found))


def path_of(app: Flask, owner: Caller) -> str:
    """The page of the newest delivery."""
    row = deliveries(app)[-1]
    return f"webhooks/{owner.account_id}/{row.webhook_id}/deliveries/{row.id}"


@pytest.mark.both_databases
def test_console_delivery_shows_sent_headers_of_each_attempt(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    with receiving(lambda request: (500, "no")) as receiver:
        made = make_webhook(cast.alice, receiver.url, headers={"X-Token": "very secret"})
        record = make_record(cast.alice, title=STRANGE)
        deliver(app)
        rotated = cast.alice.post(f"webhooks/{made['id']}/rotate-secret").json
        path = f"webhooks/{made['id']}/deliveries"
        (id,) = (row.id for row in deliveries(app))
        assert cast.alice.post(f"{path}/{id}/redeliver").json["id"] == id
        deliver(app)
    view = cast.alice.get(f"{path}/{id}").json
    for attempt, sent in zip(view["attempts"], receiver.requests, strict=True):
        request = attempt["request"]
        assert (request["method"], request["url"]) == ("POST", receiver.url)
        assert request["headers"].pop("X-Token") == "***"
        for name, value in request["headers"].items():
            assert sent.headers[name.lower()] == value
        assert request["headers"].keys() >= SIGNATURES
    last = view["attempts"][-1]["request"]["headers"]["webhook-signature"]
    assert len(last.split()) == 2
    admin = Browser(app, cast.alice)
    pages = {n: admin.get(f"{path_of(app, cast.alice)}?attempt={n}").text for n in ("1", "2", "")}
    for number, page in pages.items():
        sent = receiver.requests[0 if number == "1" else 1]
        assert f"webhook-signature: {sent.headers['webhook-signature']}" in shown(page, "Headers")
        assert shown(page, "Body as sent").encode() == sent.body
        for secret in (made["secret"], rotated["secret"], made["signing_secret"], "very secret"):
            assert secret not in page
    assert record["id"] in shown(pages["1"], "Payload")
    upcoming = admin.get(f"{path_of(app, cast.alice)}?attempt=next").text
    assert "The next attempt would send this now" in upcoming
    assert "X-Token: ***" in shown(upcoming, "Headers")


@pytest.fixture
def hidden(app: Flask, cast: Cast) -> Any:
    """A delivery of alice's that waits, whose record dora may not see; the record's id."""
    fields = [{"name": "title", "type": "text"}]
    make_collection(cast.root, "diary", fields)
    rules = {**OPEN, "view_rule": "@owns_record()", "view_fields": "*"}
    assert cast.root.put("collections/diary/rules", rules).status_code == 200
    with receiving(lambda request: (500, "echo")) as receiver:
        make_webhook(cast.alice, receiver.url, collection="diary")
        record = cast.alice.post("records/diary", {"title": "mine"}).json
        deliver(app)
    return record["id"]


def test_delivery_signature_headers_are_hidden_with_payload(
    app: Flask, cast: Cast, hidden: str
) -> None:
    dora = Caller(app, make_user(app, cast.alice.account_id, "dora@acme.example", ADMIN))
    (attempt,) = attempts(app)
    signatures = {attempt.request["headers"][name] for name in SIGNATURES}
    for query in ("", "?attempt=1", "?attempt=next"):
        page = Browser(app, dora).get(f"{path_of(app, cast.alice)}{query}").text
        assert ("X-Service-Delivery" in page) is (query != "?attempt=next")
        assert 'aria-label="Python"' not in page
        assert 'aria-label="Body as sent"' not in page
        for signature in (*signatures, "webhook-signature", "mine"):
            assert signature not in page, signature
    row = deliveries(app)[0]
    path = f"webhooks/{row.webhook_id}/deliveries/{row.id}"
    (seen,) = dora.get(path).json["attempts"]
    assert not SIGNATURES & seen["request"]["headers"].keys()
    (owned,) = cast.alice.get(path).json["attempts"]
    assert owned["request"]["headers"].keys() >= SIGNATURES


def test_delivery_list_filter_by_record_needs_view_right(
    app: Flask, cast: Cast, hidden: str
) -> None:
    cast.alice.post("records/diary", {"title": "another"})
    row = deliveries(app)[0]
    dora = Caller(app, make_user(app, cast.alice.account_id, "dora@acme.example", ADMIN))
    for caller, number in ((cast.alice, 1), (dora, 0), (cast.root.acting_in("acme"), 1)):
        path = f"webhooks/{row.webhook_id}/deliveries?record_id="
        for id in (hidden, hidden.upper()):
            assert caller.get(f"{path}{id}").json["total"] == number
        assert caller.get(f"{path}nothing").json["total"] == 0
        page = Browser(app, caller).get(f"webhooks/{row.account_id}/deliveries?record={hidden}")
        assert page.text.count('<th scope="row">') == number
        assert ("1 waiting for a retry" in page.text) is bool(number)
        since = {"since": "2020-01-01", "record_id": hidden}
        answer = caller.post(f"webhooks/{row.webhook_id}/deliveries/redeliver", since)
        assert answer.json["count"] == number


def test_record_erasure_removes_delivery_signatures(app: Flask, cast: Cast, hidden: str) -> None:
    assert attempts(app)[0].request is not None
    assert cast.alice.delete(f"records/diary/{hidden}").status_code == 204
    assert cast.alice.post(f"records/diary/{hidden}/erase").status_code == 200
    assert [one.request for one in attempts(app)] == [None]
