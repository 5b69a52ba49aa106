"""The log of an instance is bounded; what later steps refer to is not taken from it."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.workflows.engine import run, step_log
from app.workflows.models import LOGS
from tests.builders import Caller, Cast, make_collection, make_record
from tests.console.browser import Browser
from tests.receivers import receiving
from tests.workflows.running import (
    action,
    create,
    instance,
    logs,
    make_workflow,
    outputs,
    ran,
    rows,
    work,
)

LONG = "x y" * 30_000


def stored(app: Flask) -> int:
    return sum(len(text or "") for log in logs(app) for text in (log.input, log.output))


@pytest.mark.one_database
def test_step_log_keeps_beginning_of_long_values(app: Flask, alice: Caller) -> None:
    with receiving() as receiver:
        body = "{{ trigger.a }}" * 10
        steps = [action(f"s{n}", "send_webhook", url=receiver.url, body=body) for n in range(10)]
        found = ran(app, alice, make_workflow(alice, steps), {"a": LONG})
        # What is sent is whole, whatever the log keeps.
        assert [len(one.body) for one in receiver.requests] == [900_000] * 10
    assert found["status"] == "completed"
    assert stored(app) < 10 * 20_000
    shown = found["step_logs"][0]["input"]
    assert (shown["truncated"], shown["bytes"] > 900_000) == (True, True)
    assert shown["beginning"].startswith('{"url":')
    assert len(alice.get(f"workflow-instances/{found['id']}").data) < 10 * 20_000 + 200_000


def test_instance_rerun_of_ended_instance(app: Flask, alice: Caller, root: Caller) -> None:
    make_collection(root)
    workflow = make_workflow(alice, [create("one", "{{ trigger.title }}")])
    ended = ran(app, alice, workflow, {"title": "given"})
    answer = alice.post(f"workflow-instances/{ended['id']}/rerun")
    assert answer.status_code == 202
    again = f"workflow-instances/{answer.json['instance_id']}"
    refused = alice.post(f"{again}/rerun")
    assert (refused.status_code, refused.json["error"]) == (409, "not_repeatable")
    work(app)
    assert alice.get(again).json["status"] == "completed"
    titles = [one["title"] for one in alice.get("records/posts").json["items"]]
    assert titles == ["given", "given"]


def test_instance_steps_use_full_outputs_despite_cut_log(
    app: Flask, alice: Caller, root: Caller
) -> None:
    make_collection(root)
    with receiving() as receiver:
        receiver.answer = lambda request: (503, "")
        title = "{{ steps.one.output.title }}"
        steps = [
            create("one", LONG),
            action("two", "send_webhook", url=receiver.url, body=title),
            create("three", title),
        ]
        failed = ran(app, alice, make_workflow(alice, steps))
        assert (failed["status"], failed["current_step"]) == ("failed", "two")
        receiver.answer = lambda request: (200, "")
        assert alice.post(f"workflow-instances/{failed['id']}/resume").status_code == 200
        work(app)
        assert {one.body.decode() for one in receiver.requests} == {LONG}
    found = instance(alice, failed["id"])
    assert (found["status"], outputs(found)["three"]["title"]) == ("completed", LONG)
    assert found["step_logs"][0]["output"]["truncated"] is True
    assert alice.get("records/posts").json["total"] == 2


def test_step_log_bytes_per_instance_are_limited(
    app: Flask, alice: Caller, root: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(root)
    monkeypatch.setattr(step_log, "MAX_LOG_BYTES", 20_000)
    loop = {"name": "l", "type": "loop", "items": list(range(20))}
    steps = [{**loop, "steps": [create("one", "x" * 1000)]}]
    found = ran(app, alice, make_workflow(alice, steps))
    assert (found["status"], alice.get("records/posts").json["total"]) == ("completed", 20)
    assert stored(app) < 20_000 + 40 * 400
    last = found["step_logs"][-1]
    assert last["output"]["truncated"] is True
    assert "Later inputs and outputs are not stored" in last["output"]["reason"]


def test_step_log_is_paged(app: Flask, cast: Cast) -> None:
    loop = {"name": "l", "type": "loop", "items": list(range(120))}
    ask = {"name": "c", "type": "condition", "expression": "true"}
    found = ran(app, cast.alice, make_workflow(cast.alice, [{**loop, "steps": [ask]}]))
    assert (len(found["step_logs"]), found["step_logs_total"]) == (100, 121)
    path = f"workflow-instances/{found['id']}/step-logs"
    page = cast.alice.get(f"{path}?skip=100&limit=100").json
    assert (len(page["items"]), page["total"]) == (21, 121)
    whole = cast.alice.get(f"{path}?limit=100").json["items"] + page["items"]
    assert len({log["id"] for log in whole}) == 121
    assert whole[:100] == found["step_logs"]
    assert cast.alice.get(f"{path}?limit=101").status_code == 422
    assert cast.charlie.get(path).status_code == 404
    assert cast.bob.get(path).status_code == 403
    one = f"workflows/{cast.alice.account_id}/instances/{found['id']}"
    browser = Browser(app, cast.alice)
    assert "Page 1 of 5" in browser.get(one).text
    assert "Page 5 of 5" in browser.get(f"{one}?page=5").text
    assert "This page does not exist" in browser.get(f"{one}?page=9").text


def test_step_log_of_older_version_is_readable(app: Flask, alice: Caller, root: Caller) -> None:
    make_collection(root)
    found = ran(app, alice, make_workflow(alice, [create("one"), create("two")]))
    whole = f'{{"title": "{LONG * 10}"}}'
    short = f'{{"title": "{LONG[:20_000]}"}}'
    with app.app_context(), db.transaction() as session:
        for name, text in (("one", whole), ("two", short)):
            mine = sa.update(LOGS).where(LOGS.c.step_name == name)
            session.execute(mine.values(input=text, output=None))
    one, two = instance(alice, found["id"])["step_logs"]
    assert one["input"] == {
        "truncated": True,
        "bytes": len(whole),
        "beginning": whole[: step_log.LONGEST_VALUE],
    }
    assert (one["output"], two["input"]) == (None, {"title": LONG[:20_000]})


def test_record_erasure_finds_values_cut_from_step_log(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    id = make_record(cast.alice, title="x")["id"]
    other = "0" * 20_000
    items: list[Any] = [{"who": "Eve Example", "pad": other, "id": id}, {"who": "", "pad": ""}]
    with receiving() as receiver:
        send = action("send", "send_webhook", url=receiver.url, body="{{ trigger.items }}")
        workflow = make_workflow(cast.alice, [send])
        ran(app, cast.alice, workflow, {"items": items})
    with app.app_context(), db.transaction() as session:
        # The log alone names the record, far behind.
        session.execute(sa.text("UPDATE workflow_instances SET context = '{}'"))
    assert "Eve Example" in str(logs(app))
    root = cast.root.acting_in("acme")
    assert root.post(f"records/posts/{id}/erase").status_code == 200
    assert "Eve Example" not in str(logs(app))


def test_step_log_cut_leaves_no_part_of_an_email() -> None:
    for place in range(step_log.LONGEST_VALUE - 40, step_log.LONGEST_VALUE + 5):
        text = f"{'x ' * (place // 2)}{'y' * (place % 2)} eve@secret.example {'z ' * 100}"
        cut = step_log.cut(text)
        assert ("eve" in cut) == ("eve@secret.example" in cut), place


def test_instance_written_bytes_are_limited(
    app: Flask, alice: Caller, root: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(root)
    monkeypatch.setattr(run, "MAX_WRITTEN_BYTES", 500_000)
    loop = {"name": "l", "type": "loop", "items": list(range(30))}
    found = ran(
        app, alice, make_workflow(alice, [{**loop, "steps": [create("one", LONG[:30_000])]}])
    )
    assert found["status"] == "failed"
    assert "stored more than" in found["error_message"]
    assert 5 < alice.get("records/posts").json["total"] < 20
    assert len(rows(app)) == 1
