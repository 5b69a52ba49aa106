"""Payloads of an account's deliveries take no more than a bound; what waits is never removed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask

from app import jobs
from app.webhooks import purge
from tests.builders import OPEN, Caller, Cast, make_collection
from tests.console.browser import Browser
from tests.mailbox import run_jobs
from tests.receivers import receiving
from tests.webhooks.delivering import attempts, deliver, deliveries, make_webhook

BOUND = 20_000
NOWHERE = "http://127.0.0.1:9/"
LARGE = "é" * 1000  # two bytes each


@pytest.fixture
def bounded(app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch) -> Cast:
    """A cast with a collection, whose deliveries may take 20,000 bytes."""
    changed = {"webhook_log_bytes": BOUND, "webhook_retry_delays": ()}
    settings = replace(app.extensions["atrium.config"], **changed)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    monkeypatch.setattr(purge, "BATCH_SIZE", 3)
    make_collection(cast.root, "posts", [{"name": "text", "type": "text"}])
    assert cast.root.put("collections/posts/rules", OPEN).status_code == 200
    return cast


def write(by: Caller, number: int) -> None:
    """Large records, one after the other."""
    for _ in range(number):
        assert by.post("records/posts", {"text": LARGE}).status_code == 201


def keep_bound(app: Flask) -> None:
    """What a worker does every 5 minutes."""
    with app.app_context():
        jobs.KINDS["webhooks.bound"].handler({})


def sizes(app: Flask, account_id: str) -> list[int]:
    """The bytes of an account's payloads, oldest first."""
    return [len(one.payload.encode()) for one in deliveries(app) if one.account_id == account_id]


def payloads(app: Flask) -> list[dict[str, Any]]:
    """What was written for all webhooks, oldest first."""
    return [json.loads(one.payload) for one in deliveries(app)]


def codes(webhook: dict[str, Any]) -> list[str]:
    """What a webhook is warned of."""
    return [one["code"] for one in webhook["warnings"]]


def test_delivery_log_bound_removes_oldest_finished_only(app: Flask, bounded: Cast) -> None:
    with receiving() as receiver, receiving() as others:
        made = make_webhook(bounded.alice, receiver.url)
        make_webhook(bounded.charlie, others.url)
        write(bounded.charlie, 2)
        write(bounded.alice, 25)
        deliver(app)
        assert len(receiver.requests) == 25
    rows = [one for one in deliveries(app) if one.account_id == bounded.alice.account_id]
    assert [one.size for one in rows] == sizes(app, bounded.alice.account_id)
    keep_bound(app)
    left = [one for one in deliveries(app) if one.account_id == bounded.alice.account_id]
    assert [one.id for one in left] == [one.id for one in rows[-len(left) :]]
    total = sum(one.size for one in left)
    assert total <= BOUND < total + rows[0].size
    assert {one.delivery_id for one in attempts(app)} == {one.id for one in deliveries(app)}
    assert len(sizes(app, bounded.charlie.account_id)) == 2
    assert codes(bounded.alice.get(f"webhooks/{made['id']}").json) == []


def test_delivery_log_bound_keeps_waiting_and_cuts_new_payloads(
    app: Flask, bounded: Cast, capfd: pytest.CaptureFixture[str]
) -> None:
    with receiving() as receiver:
        made = make_webhook(bounded.alice, receiver.url)
        make_webhook(bounded.charlie, NOWHERE)
        write(bounded.alice, 3)
        deliver(app)
        write(bounded.alice, 15)
        waiting = [one.id for one in deliveries(app)][3:]
        keep_bound(app)
        assert [one.id for one in deliveries(app)] == waiting
        write(bounded.alice, 1)
        new = payloads(app)[-1]
        assert (new["record"].keys(), new["truncated"]) == ({"id"}, True)
        write(bounded.charlie, 1)
        assert payloads(app)[-1]["record"]["text"] == LARGE

        path = f"webhooks/{made['id']}"
        for shown in (bounded.alice.get(path).json, bounded.alice.get("webhooks").json["items"][0]):
            assert codes(shown) == ["payloads_cut"]
        alice = Browser(app, bounded.alice)
        for page in (made["id"], "deliveries"):
            shown = alice.get(f"webhooks/{bounded.alice.account_id}/{page}").text
            assert "pending deliveries take more than 20,000 bytes" in shown
        assert "payloads cut" in capfd.readouterr().out

        keep_bound(app)
        assert "payloads" not in capfd.readouterr().out
        deliver(app)
        assert len([one for one in receiver.requests if one.delivery in waiting]) == 15
        keep_bound(app)
        assert sum(sizes(app, bounded.alice.account_id)) <= BOUND
        assert codes(bounded.alice.get(path).json) == []
        write(bounded.alice, 1)
        assert payloads(app)[-1]["record"]["text"] == LARGE
        assert "payloads whole again" in capfd.readouterr().out


def test_delivery_log_bound_keeps_deliveries_of_disabled_webhook(app: Flask, bounded: Cast) -> None:
    with receiving() as receiver:
        made = make_webhook(bounded.alice, receiver.url)
        write(bounded.alice, 15)
        path = f"webhooks/{made['id']}"
        assert bounded.alice.patch(path, {"enabled": False}).status_code == 200
        keep_bound(app)
        assert len(deliveries(app)) == 15
        assert codes(bounded.alice.get(path).json) == ["payloads_cut"]
        assert bounded.alice.patch(path, {"enabled": True}).status_code == 200
        deliver(app)
        assert len(receiver.requests) == 15


def test_delivery_log_bound_cuts_payloads_of_resent_deliveries(app: Flask, bounded: Cast) -> None:
    with receiving(lambda request: (500, "no")) as receiver:
        made = make_webhook(bounded.alice, receiver.url)
        path = f"webhooks/{made['id']}"
        write(bounded.alice, 12)
        keep_bound(app)
        deliver(app)
        assert bounded.alice.post(f"{path}/test").json["success"] is False
        *failed, tested = deliveries(app)
        again = bounded.alice.post(f"{path}/deliveries/{failed[0].id}/redeliver")
        sent = again.json["payload"]
        assert (sent["record"].keys(), sent["truncated"]) == ({"id"}, True)
        again = bounded.alice.post(f"{path}/deliveries/{tested.id}/redeliver")
        assert again.json["payload"] == json.loads(tested.payload)
        since = {"since": "2020-01-01T00:00:00Z"}
        assert bounded.alice.post(f"{path}/deliveries/redeliver", since).json["count"] == 11
        run_jobs(app)
        copies = [one for one in deliveries(app) if one.replay_of]
        assert len(copies) == 13
        assert max(one.size for one in copies) < 500
