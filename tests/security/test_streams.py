"""Streams of the security log: signed batches without gaps, whatever fails."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask

from app import clock, db
from app.audit.security_log import sealing
from app.jobs import worker
from app.webhooks import security_streams
from tests.audit.chains import stand_alone
from tests.builders import Caller, Cast
from tests.receivers import Request, receiving
from tests.security.reading import events

STREAM = "account/security-log/stream"
ZEROS = "0" * 64


def start(owner: Caller, url: str, **changes: Any) -> dict[str, Any]:
    """A stream to a receiver, with its secret."""
    answer = owner.put(STREAM, {"url": url, **changes})
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json
    return made


def send(app: Flask, *, later: int = 0) -> None:
    """Do what a worker does, some seconds later."""
    with app.app_context(), time_machine.travel(clock.now() + timedelta(seconds=later), tick=True):
        sealing.seal_periodically({})
        security_streams.start_due({})
        worker.run_due()
        db.db.session.remove()


def proved(requests: Iterable[Request], *, after: int = 0, checksum: str = ZEROS) -> list[Any]:
    """The entries that a receiver has, each once; it proves that none is missing."""
    found = list[Any]()
    for request in requests:
        batch = request.json
        if batch["last_number"] <= after:
            continue  # sent again
        fresh = [entry for entry in batch["entries"] if entry["id"] > after]
        assert batch["first_number"] == batch["entries"][0]["id"]
        assert fresh[0]["id"] == after + 1
        assert fresh[0]["previous_hash"] == checksum
        assert batch["checksum"] == fresh[-1]["checksum"]
        after, checksum = batch["last_number"], batch["checksum"]
        found += fresh
    return found


def test_security_stream_receiver_gets_whole_log_with_signatures(app: Flask, cast: Cast) -> None:
    with receiving() as receiver:
        made = start(cast.alice, receiver.url)
        cast.alice.post("api-keys", {"name": "nightly"})
        send(app)
        cast.alice.post("groups", {"name": "finance"})
        send(app, later=200)
        found = proved(receiver.requests)
        assert [entry["id"] for entry in found] == [one["number"] for one in events(cast.alice)]
        (chain,) = stand_alone().verify(found).values()
        assert chain.fault is None
        request = receiver.requests[0]
        signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}."
        expected = hmac.new(made["secret"].encode(), signed.encode() + request.body, hashlib.sha256)
        signature = f"v1,{base64.b64encode(expected.digest()).decode()}"
        assert request.headers["webhook-signature"] == signature
        assert cast.alice.get(STREAM).json["sent_number"] == found[-1]["id"]


def test_security_stream_retries_until_receiver_is_up(app: Flask, cast: Cast) -> None:
    with receiving(lambda request: (503, "no")) as receiver:
        start(cast.alice, receiver.url)
        send(app)
        shown = cast.alice.get(STREAM).json
        assert shown["last_error"] == "The receiver responded with 503."
        assert (shown["sent_number"], shown["failing_since"] is None) == (0, False)
        count = len(receiver.requests)
        send(app)
        assert len(receiver.requests) == count, "it waits before it tries again"
        cast.alice.post("groups", {"name": "finance"})
        receiver.answer = lambda request: (200, "ok")
        send(app, later=4000)
        found = proved(receiver.requests[count:])
        assert [entry["id"] for entry in found] == [one["number"] for one in events(cast.alice)]
        assert cast.alice.get(STREAM).json["failing_since"] is None


def test_security_stream_sends_batches(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security_streams, "MAX_EVENTS", 2)
    with receiving() as receiver:
        start(cast.alice, receiver.url)
        for name in range(5):
            cast.alice.post("groups", {"name": str(name)})
        send(app)
        assert all(len(request.json["entries"]) <= 2 for request in receiver.requests)
        assert len(proved(receiver.requests)) == len(events(cast.alice))


def test_security_stream_starts_after_given_number(app: Flask, cast: Cast) -> None:
    cast.alice.post("groups", {"name": "finance"})
    last = events(cast.alice)[-1]
    with receiving() as receiver:
        start(cast.alice, receiver.url, after=last["number"])
        send(app)
        proved(receiver.requests, after=last["number"], checksum=last["checksum"])
        assert receiver.requests[0].json["first_number"] == last["number"] + 1


def test_security_stream_that_is_disabled_or_deleted_sends_nothing(app: Flask, cast: Cast) -> None:
    with receiving() as receiver:
        start(cast.alice, receiver.url, is_enabled=False)
        send(app)
        start(cast.alice, receiver.url)
        assert cast.alice.delete(STREAM).status_code == 204
        send(app)
        assert receiver.requests == []


def test_security_stream_test_works_while_disabled(cast: Cast) -> None:
    assert cast.alice.post(f"{STREAM}/test").status_code == 404
    with receiving() as receiver:
        start(cast.alice, receiver.url, is_enabled=False)
        answer = cast.alice.post(f"{STREAM}/test").json
        assert (answer["success"], answer["error"]) == (True, None)
        receiver.answer = lambda request: (503, "busy")
        answer = cast.alice.post(f"{STREAM}/test").json
        error = "The receiver responded with 503."
        assert answer == {"success": False, "response_body": "busy", "error": error}
        batch = {"account_id": cast.alice.account_id, "is_test": True, "entries": []}
        assert [request.json for request in receiver.requests] == [batch, batch]
    assert cast.alice.get(STREAM).json["failing_since"] is None


def test_security_stream_secret_is_shown_once_and_encrypted(app: Flask, cast: Cast) -> None:
    made = start(cast.alice, "http://127.0.0.1:9/")
    assert len(made["secret"]) == 64
    assert start(cast.alice, "http://127.0.0.1:10/")["secret"] is None
    assert "secret" not in cast.alice.get(STREAM).json
    rotated = cast.alice.post(f"{STREAM}/rotate-secret").json["secret"]
    with app.app_context():
        rows = db.connection().execute(sa.text("SELECT * FROM security_streams")).all()
        log = db.connection().execute(sa.text("SELECT * FROM audit_changes")).all()
    for secret in (made["secret"], rotated):
        assert secret not in f"{rows} {log}"


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "http://", "nonsense"])
def test_security_stream_with_bad_url_is_invalid_url(cast: Cast, url: str) -> None:
    answer = cast.alice.put(STREAM, {"url": url})
    assert (answer.status_code, answer.json["details"][0]["code"]) == (400, "invalid_url")
