"""Versions of workflows side by side, and samples that run one."""

from __future__ import annotations

import html
import json
import re
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask

from app import clock, db
from app.console.automation import workflows
from app.console.automation.workflows import compare_versions
from app.outbound import header_values
from app.workflows.models import Workflow, WorkflowVersion
from tests.builders import OPEN, Cast, make_collection
from tests.console.browser import HOSTILE, Browser
from tests.workflows.running import MANUAL, action, create, instance, make_workflow, start, work

NAP = {"name": "nap", "type": "wait_delay", "duration": "1h"}
SHORT = {**NAP, "duration": "1m"}
OTHER = {**NAP, "name": "other"}


def loop(*steps: Any) -> dict[str, Any]:
    """A loop."""
    return {"name": "each", "type": "loop", "items": ["a"], "steps": list(steps)}


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ([NAP], [NAP], []),
        ([NAP], [SHORT], [("nap", "changed")]),
        ([NAP], [NAP, OTHER], [("other", "added")]),
        ([NAP, OTHER], [OTHER], [("nap", "removed")]),
        ([NAP, OTHER], [OTHER, NAP], [("Order of steps", "moved")]),
        ([NAP], [loop(NAP)], [("each", "added"), ("nap", "changed")]),
        ([loop(NAP)], [loop(SHORT)], [("nap", "changed")]),
        ([], [], []),
    ],
)
def test_workflow_versions_are_compared_by_step(
    old: Any, new: Any, changes: list[tuple[str, str]]
) -> None:
    assert [(one.name, one.kind) for one in compare_versions(old, new)] == changes


def test_workflow_step_difference_has_lines_unless_too_long() -> None:
    (change,) = compare_versions([NAP], [SHORT])
    lines = [(line.kind, line.text) for line in change.lines if line.kind]
    assert lines == [("removed", '  "duration": "1h"'), ("added", '  "duration": "1m"')]
    data = {f"f{n}": n for n in range(workflows.MAX_LINES_OF_STEP)}
    long = action("a", "create_record", collection="posts", data=data)
    (change,) = compare_versions([{**long, "next": None}], [long])
    assert (change.kind, change.lines) == ("changed", ())


def test_workflow_versions_page_compares_two_versions(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    sent = {"url": "https://x.example/", "headers": {"X-Token": "very secret"}}
    steps = [create("make", "first"), action("tell", "send_webhook", **sent)]
    flow = make_workflow(cast.alice, steps)
    admin = Browser(app, cast.alice)
    one = f"workflows/{cast.alice.account_id}/workflow/{flow['id']}"
    assert "There is only one version." in admin.get(f"{one}/versions").text
    start(cast.alice, flow)
    masked = {**sent, "headers": {"X-Token": "***"}}
    changed = [create("make", HOSTILE), action("tell", "send_webhook", **masked)]
    assert cast.alice.put(f"workflows/{flow['id']}", {"steps": changed}).status_code == 200
    for query in ("", "?old=1&new=2", "?old=x&new=99999999999999999999"):
        page = admin.get(f"{one}/versions{query}").text
        assert re.findall(r"<del>- +([^<]+)</del>", page) == ["&#34;title&#34;: &#34;first&#34;"]
        assert "<ins>+" in page
        assert "<script>alert" not in page
        assert "very secret" not in page
    back = admin.get(f"{one}/versions?old=2&new=1").text
    assert "first" in "".join(re.findall(r"<ins>[^<]+</ins>", back))
    assert "Choose two versions." in admin.get(f"{one}/versions?old=2&new=2").text
    assert Browser(app, cast.charlie).get(f"{one}/versions").status_code == 404
    for number, status in ((1, 404), (9, 404)):
        stranger = Browser(app, cast.charlie)
        assert stranger.send(f"{one}/versions/{number}/restore").status_code == status
    assert Browser(app, cast.bob).get(f"{one}/versions").status_code == 403


def test_workflow_version_shows_when_it_was_saved(app: Flask, cast: Cast) -> None:
    flow = make_workflow(cast.alice, [NAP])
    saved_at = clock.now() + timedelta(minutes=5)
    with time_machine.travel(saved_at):
        assert cast.alice.put(f"workflows/{flow['id']}", {"steps": [SHORT]}).status_code == 200
    with app.app_context(), db.transaction() as session:
        first = sa.update(WorkflowVersion).where(WorkflowVersion.version == 1)
        session.execute(first.values(saved_at=None))
    path = f"workflows/{cast.alice.account_id}/workflow/{flow['id']}/versions"
    page = Browser(app, cast.alice).get(path).text
    cells = re.findall(r'<td data-label="Saved">(.*?)</td>', page)
    assert f"{saved_at:%Y-%m-%d %H:%M} UTC" in cells[0]
    assert cells[1] == ""


def sample_of(page: str) -> Any:
    """The sample that a workflow's page offers."""
    (text,) = re.findall(r'name="given"[^>]*>([^<]*)</textarea>', page)
    return json.loads(html.unescape(text))


USES = [
    create("make", "{{ trigger.order.name }} {{ trigger.size }}"),
    {"name": "if", "type": "condition", "expression": "trigger.order.total > 1", "on_true": "each"},
    loop(create("inner", "{{ trigger.inner }} {{ item }}")),
]
ORDER = {"name": "", "total": ""}
FIELDS = [
    {"name": "title", "type": "text"},
    {"name": "state", "type": "select", "options": {"choices": ["new", "done"]}},
    {"name": "hidden", "type": "text"},
]


@pytest.mark.parametrize(
    ("trigger", "sample"),
    [
        (MANUAL, {"order": ORDER, "size": "", "inner": ""}),
        ({"type": "webhook"}, {"order": ORDER, "size": "", "inner": ""}),
        ({"type": "schedule", "cron": "0 4 * * *"}, {"cron": "0 4 * * *", "scheduled_for": None}),
    ],
)
def test_workflow_sample_has_what_steps_use(
    app: Flask, cast: Cast, trigger: dict[str, str], sample: dict[str, Any]
) -> None:
    make_collection(cast.root)
    flow = make_workflow(cast.alice, USES, trigger)
    page = Browser(app, cast.alice).get(f"workflows/{cast.alice.account_id}/workflow/{flow['id']}")
    found = sample_of(page.text)
    assert found | dict.fromkeys({"scheduled_for"} & found.keys()) == sample


@pytest.mark.parametrize("event", ["create", "update", "delete"])
def test_workflow_event_sample_has_viewable_fields_and_runs(
    app: Flask, cast: Cast, event: str
) -> None:
    make_collection(cast.root)
    make_collection(cast.root, "orders", FIELDS)
    rules = {**OPEN, "view_fields": ["title", "state"]}
    assert cast.root.put("collections/orders/rules", rules).status_code == 200
    trigger = {"type": "event", "event": f"records.{event}", "collection": "orders"}
    part = "previous" if event == "delete" else "record"
    flow = make_workflow(cast.alice, [create("make", f"{{{{ trigger.{part}.state }}}}")], trigger)
    admin = Browser(app, cast.alice)
    one = f"workflows/{cast.alice.account_id}/workflow/{flow['id']}"
    found = sample_of(admin.get(one).text)
    assert (found["event"], found["collection"]) == (f"records.{event}", "orders")
    assert (found["record"] is None) is (event == "delete")
    assert ("previous" in found) is (event != "create")
    values = found[part]
    assert (values["title"], values["state"], "hidden" in values) == ("text", "new", False)
    answer = admin.send(f"{one}/trigger", given=json.dumps(found))
    assert "/instances/" in answer.headers["Location"]
    work(app)
    ran = instance(cast.alice, answer.headers["Location"].rpartition("/")[2])
    assert ran["status"] == "completed"
    assert [post["title"] for post in cast.alice.get("records/posts").json["items"]] == ["new"]


def test_workflow_sample_form_error_keeps_input(app: Flask, cast: Cast) -> None:
    flow = make_workflow(cast.alice, [create("make")])
    one = f"workflows/{cast.alice.account_id}/workflow/{flow['id']}/trigger"
    answer = Browser(app, cast.alice).send(one, given='{\n "a" 1}')
    assert answer.status_code == 400
    assert "Line 2, column 6: expected &#39;:&#39; after key." in answer.text
    assert "\n{\n &#34;a&#34; 1}</textarea>" in answer.text


def test_workflow_version_restore_keeps_header_values(app: Flask, cast: Cast) -> None:
    admin, headers = Browser(app, cast.alice), {"X-Token": "very secret"}
    sent = {"url": "http://127.0.0.1:9/", "headers": headers}
    flow = make_workflow(cast.alice, [action("tell", "send_webhook", **sent)])
    start(cast.alice, flow)  # a version is kept while it has instances
    other = {"steps": [create("make", "second")]}
    assert cast.alice.put(f"workflows/{flow['id']}", other).status_code == 200
    one = f"workflows/{cast.alice.account_id}/workflow/{flow['id']}"
    assert "Restore version 1" in admin.get(f"{one}/versions").text
    assert "The steps of version 1 are restored." in admin.done(f"{one}/versions/1/restore")
    stored = cast.alice.get(f"workflows/{flow['id']}").json
    assert (stored["version"], stored["steps"][0]["name"]) == (3, "tell")
    assert stored["steps"][0]["config"]["headers"] == {"X-Token": "***"}
    with app.app_context():
        row = db.db.session.get_one(Workflow, (cast.alice.account_id, flow["id"]))
        value = row.steps[0]["config"]["headers"]["X-Token"]
        assert header_values.decrypt(value) == "very secret"
    assert admin.send(f"{one}/versions/9/restore").status_code == 404
