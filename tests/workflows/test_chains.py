"""A chain of triggers ends at depth 8, by whatever it goes on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from flask import Flask

from app import clock
from app.context import trigger_depth
from tests.builders import Caller, make_collection, make_record
from tests.receivers import Receiver, Request, receiving
from tests.webhooks.delivering import deliver, deliveries, make_webhook
from tests.workflows.running import action, create, instance, make_workflow, rows, work

ON_CREATE = {"type": "event", "event": "records.create", "collection": "posts"}
ENDED = [*((n, "completed") for n in range(1, 9)), (9, "cancelled")]
MOST = 20  # of what a test lets happen, where nothing else ends the chain


@pytest.fixture
def posts(root: Caller) -> dict[str, Any]:
    return make_collection(root)


def states(app: Flask) -> list[tuple[int, str]]:
    return [(row.depth, row.status) for row in rows(app)]


def send(receiver: Receiver) -> dict[str, Any]:
    return action("send", "send_webhook", url=receiver.url)


def deep(app: Flask, depth: int) -> dict[str, str]:
    with app.app_context():
        return trigger_depth.headers(depth)


def test_trigger_depth_limit_of_record_events(app: Flask, alice: Caller, posts: Any) -> None:
    make_workflow(alice, [create("again")], ON_CREATE)
    make_record(alice, title="first")
    work(app)
    assert states(app) == ENDED
    assert "longer than 8" in rows(app)[-1].error_message
    assert alice.get("records/posts").json["total"] == 9


def test_trigger_depth_limit_of_workflow_webhooks(app: Flask, alice: Caller) -> None:
    with receiving() as receiver:
        made = make_workflow(alice, [send(receiver)], {"type": "webhook"})
        path = f"workflow-webhooks/{made['trigger']['token']}"
        begun = [alice.post(path, headers=deep(app, depth)).json for depth in (7, 8)]
        alice.post(f"workflows/{made['id']}/trigger", headers=deep(app, 8))
        work(app)
        (sent,) = [request.headers[trigger_depth.HEADER.lower()] for request in receiver.requests]
    with app.app_context():
        assert trigger_depth.from_headers(sent, None).depth == 8
    refused = instance(alice, begun[1]["instance_id"])
    assert (refused["status"], "longer than 8" in refused["error_message"]) == ("cancelled", True)
    assert alice.get("workflow-instances?status=cancelled").json["total"] == 2


def test_trigger_depth_limit_of_record_writes_by_requests(
    app: Flask, alice: Caller, posts: Any
) -> None:
    def write(request: Request) -> tuple[int, str]:
        if len(receiver.requests) < MOST:
            headers = {k: v for k, v in request.headers.items() if k.startswith("x-service-")}
            alice.post("records/posts", {"title": "again"}, headers=headers)
        return 200, ""

    with receiving(write) as receiver:
        make_workflow(alice, [send(receiver)], ON_CREATE)
        make_record(alice, title="first")
        work(app)
    assert states(app) == ENDED


def test_trigger_depth_limit_of_webhook_deliveries(app: Flask, alice: Caller, posts: Any) -> None:
    def trigger(request: Request) -> tuple[int, str]:
        headers = {k: v for k, v in request.headers.items() if k.startswith("x-service-")}
        return alice.post(path, headers=headers).status_code, ""

    with receiving(trigger) as receiver:
        made = make_workflow(alice, [create("again")], {"type": "webhook"})
        path = f"workflow-webhooks/{made['trigger']['token']}"
        webhook = make_webhook(alice, receiver.url, events=["create"])
        make_record(alice, title="first")
        for _ in range(10):
            deliver(app)
            work(app)
        assert states(app) == ENDED
        # What is sent again goes on where it was.
        last = deliveries(app)[-1]
        again = f"webhooks/{webhook['id']}/deliveries/{last.id}/redeliver"
        assert alice.post(again).status_code == 202, again
        assert (last.depth, deliveries(app)[-1].depth) == (8, 8)


def test_trigger_depth_header_needs_recent_signature(
    app: Flask, alice: Caller, posts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_workflow(alice, [], ON_CREATE)
    then = clock.now()
    deepest = deep(app, 8)[trigger_depth.HEADER]
    for claimed in ("999", "8", "x", "", f"{deepest}x", deepest):
        alice.post("records/posts", {"title": "x"}, headers={trigger_depth.HEADER: claimed})
    monkeypatch.setattr(clock, "now", lambda: then + timedelta(hours=2))
    with app.app_context():
        assert trigger_depth.from_headers(deepest, None).depth == 0
    assert [row.depth for row in rows(app)] == [1, 1, 1, 1, 1, 9]
