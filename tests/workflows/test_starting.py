"""What may be started is bounded: pending instances of an account, and the width of a chain."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from flask import Flask

from app.context import trigger_depth
from app.workflows.engine import event_waits
from app.workflows.triggers import start_limits
from tests.builders import Caller, Cast, make_collection, make_record
from tests.receivers import receiving
from tests.workflows.running import (
    MANUAL,
    action,
    create,
    let_pass,
    make_workflow,
    ran,
    rows,
    start,
    work,
)
from tests.workflows.test_mailing import use

ON_CREATE = {"type": "event", "event": "records.create", "collection": "posts"}
WAIT = {"name": "w", "type": "wait_delay", "duration": "1d"}


@pytest.fixture
def posts(root: Caller) -> dict[str, Any]:
    return make_collection(root)


def states(app: Flask) -> Counter[str]:
    return Counter(row.status for row in rows(app))


def test_workflow_fork_bomb_is_limited(
    app: Flask, alice: Caller, posts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_limits, "MAX_PER_EVENT", 30)
    for _ in range(5):
        make_workflow(alice, [create("again")], ON_CREATE)
    hook = {"name": "h", "trigger": ON_CREATE, "actions": []}
    again = {"type": "create_record", "config": {"collection": "posts", "data": {"title": "x"}}}
    assert alice.post("hooks", {**hook, "actions": [again]}).status_code == 201
    make_record(alice, title="first")
    work(app)
    # Six by the event itself, thirty more, and one that says that there would have been others.
    assert states(app) == {"completed": 36, "cancelled": 1}
    (refused,) = [row for row in rows(app) if row.status == "cancelled"]
    assert "has started" in refused.error_message
    assert refused.context == "{}"
    assert alice.get("records/posts").json["total"] == 37
    # Each event of the outside has the same once more.
    make_record(alice, title="second")
    work(app)
    assert states(app) == {"completed": 72, "cancelled": 2}


def test_workflow_start_count_continues_through_requests(
    app: Flask, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_limits, "MAX_PER_EVENT", 3)
    answers = []

    def trigger(request: Any) -> tuple[int, str]:
        headers = {k: v for k, v in request.headers.items() if k.startswith("x-service-")}
        answers.extend(alice.post(path, headers=headers) for _ in range(2))
        return 200, ""

    with receiving(trigger) as receiver:
        made = make_workflow(
            alice, [action("send", "send_webhook", url=receiver.url)], {"type": "webhook"}
        )
        path = f"workflow-webhooks/{made['trigger']['token']}"
        alice.post(path)
        work(app)
    assert states(app) == {"completed": 4}
    refused = [one for one in answers if one.status_code != 202]
    assert {(one.status_code, one.json["error"]) for one in refused} == {(429, "limit_reached")}
    assert "further instances" in refused[0].json["message"]


def test_instance_pending_limit_per_account(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root)
    use(app, monkeypatch, workflow_pending_max=3)
    monkeypatch.setattr(start_limits, "MAX_REFUSED_PER_HOUR", 2)
    made = make_workflow(cast.alice, [], ON_CREATE)
    by_token = make_workflow(cast.alice, [], {"type": "webhook"})
    make_workflow(cast.alice, [], {"type": "schedule", "cron": "* * * * *"})
    for title in "abcde":
        make_record(cast.alice, title=title)
    assert states(app) == {"pending": 3, "cancelled": 2}
    assert "SERVICE_WORKFLOW_PENDING_MAX" in rows(app)[-1].error_message
    refused = [
        cast.alice.post(f"workflows/{made['id']}/trigger"),
        cast.alice.post(f"workflow-webhooks/{by_token['trigger']['token']}"),
    ]
    for answer in refused:
        assert (answer.status_code, answer.json["error"]) == (429, "limit_reached")
        assert "3 pending instances (SERVICE_WORKFLOW_PENDING_MAX)" in answer.json["message"]
    # What is refused and would tell nothing new is not stored either; other accounts go on.
    make_record(cast.alice, title="f")
    let_pass(app, 3600)
    assert states(app) == {"pending": 3, "cancelled": 2}
    start(cast.charlie, make_workflow(cast.charlie, []))
    work(app)
    start(cast.alice, made)
    work(app)
    assert states(app) == {"completed": 5, "cancelled": 2}


def test_instance_start_limit_per_transaction(
    app: Flask, alice: Caller, posts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_limits, "MAX_TRANSACTION_BYTES", 5000)
    make_workflow(alice, [], ON_CREATE)
    records = [{"title": "x" * 1000} for _ in range(10)]
    assert alice.post("records/posts/batch", {"records": records}).status_code == 201
    found = states(app)
    assert 0 < found["pending"] < 6
    assert found["pending"] + found["cancelled"] == 10


def test_instance_waiting_limit_per_account(
    app: Flask, alice: Caller, posts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(app, monkeypatch, workflow_waiting_max=2)
    workflow = make_workflow(alice, [WAIT], ON_CREATE)
    for title in "abc":
        make_record(alice, title=title)
        work(app)
    assert states(app) == {"waiting": 2, "cancelled": 1}
    answer = alice.post(f"workflows/{workflow['id']}/trigger")
    assert (answer.status_code, answer.json["error"]) == (429, "limit_reached")
    assert "SERVICE_WORKFLOW_WAITING_MAX" in answer.json["message"]


def test_instance_event_wait_limit(
    app: Flask, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_waits, "MAX_AWAITING", 2)
    waits = {"name": "w", "type": "wait_event", "event": "records.create", "timeout": "1h"}
    workflow = make_workflow(alice, [waits], MANUAL)
    assert [ran(app, alice, workflow)["status"] for _ in range(3)] == ["waiting"] * 2 + ["failed"]


def test_trigger_root_header_needs_signature(app: Flask) -> None:
    with app.app_context():
        headers = trigger_depth.headers(3, "r")
        assert trigger_depth.from_headers(None, headers[trigger_depth.ROOT_HEADER]).root == "r"
        for claimed in ("r", headers[trigger_depth.HEADER], "", None):
            assert trigger_depth.from_headers(None, claimed).root == "", claimed
