"""The inputs of a trigger, and triggers in words."""

from __future__ import annotations

import pytest
from flask import Flask

from app.console.automation import triggers
from tests.builders import Cast, make_collection
from tests.console.browser import Browser, beside
from tests.workflows.running import ran

CREATED = {"type": "event", "event": "records.create", "collection": "posts"}
NIGHTLY = {"type": "schedule", "cron": "0 4 * * *"}
SAVED = [
    ({"type": "manual", "cron": "0 4 * * *"}, {"type": "manual"}),
    ({**NIGHTLY, "event": "x"}, NIGHTLY),
    ({**CREATED, "condition": ""}, CREATED),
    ({**CREATED, "condition": "title = 'a'"}, {**CREATED, "condition": "title = 'a'"}),
    ({"type": "event", "event": "records.delete"}, {"type": "event", "event": "records.delete"}),
]
REFUSED = [
    ({"type": "schedule", "cron": "soon"}, "cron", "Five fields are needed"),
    ({"type": "schedule"}, "cron", "Five fields are needed"),
    ({**CREATED, "collection": "a b"}, "collection", "not a valid collection name"),
    ({**CREATED, "condition": "title ="}, "condition", ""),
    ({**CREATED, "event": "fly"}, "event", "Must be one of"),
    ({"type": "fly"}, "type", "Must be one of"),
]
WORDS = [
    ("* * * * *", "Every minute"),
    ("*/15 * * * *", "Every 15 minutes"),
    ("*/7 * * * *", "*/7 * * * *"),
    ("5 * * * *", "Every hour at minute 5"),
    ("0 4 * * *", "Every day at 04:00"),
    ("30 16 * * 1-5", "Monday to Friday at 16:30"),
    ("0 9 * * MON", "Every Monday at 09:00"),
    ("0 9 * * 7", "Every Sunday at 09:00"),
    ("0 9 1 * *", "On day 1 of each month at 09:00"),
    ("0 9 1 * 1", "0 9 1 * 1"),
    ("0 9 1 1 *", "0 9 1 1 *"),
    ("0 9,17 * * *", "0 9,17 * * *"),
    ("0 9 * * 1,3", "0 9 * * 1,3"),
]


def inputs(trigger: dict[str, str]) -> dict[str, str]:
    return {f"trigger_{name}": value for name, value in trigger.items()}


@pytest.mark.parametrize(("sent", "expected"), SAVED)
def test_trigger_form_inputs_round_trip_to_json(
    app: Flask, cast: Cast, sent: dict[str, str], expected: dict[str, str]
) -> None:
    make_collection(cast.root)
    admin, home = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}/workflow"
    admin.done(f"{home}/new", name="Flow", steps="[]", trigger="{", **inputs(sent))
    (flow,) = cast.alice.get("workflows").json["items"]
    assert flow["trigger"] == expected
    page = admin.get(f"{home}/{flow['id']}").text
    assert f'<option value="{expected["type"]}" selected>' in page
    as_json = {"trigger_type": "json", "trigger": '{"type": "manual"}'}
    admin.done(f"{home}/{flow['id']}", name="Flow", steps="[]", **as_json)
    assert cast.alice.get(f"workflows/{flow['id']}").json["trigger"] == {"type": "manual"}


@pytest.mark.parametrize(("sent", "name", "message"), REFUSED)
def test_trigger_form_errors_are_shown_beside_inputs(
    app: Flask, cast: Cast, sent: dict[str, str], name: str, message: str
) -> None:
    new = f"workflows/{cast.alice.account_id}/workflow/new"
    answer = Browser(app, cast.alice).send(new, name="Flow", steps="[]", **inputs(sent))
    assert answer.status_code == 400
    assert message in beside(answer, f"trigger_{name}")
    assert beside(answer, f"trigger_{name}")


def test_workflow_page_shows_webhook_trigger_address(app: Flask, cast: Cast) -> None:
    admin, home = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}/workflow"
    page = admin.done(f"{home}/new", name="Flow", steps="[]", trigger_type="webhook")
    (flow,) = cast.alice.get("workflows").json["items"]
    token = flow["trigger"]["token"]
    assert f"/workflow-webhooks/{token}</code>" in page
    again = {"name": "Other", "steps": "[]", "trigger_type": "webhook"}
    assert token in admin.done(f"{home}/{flow['id']}", **again)


@pytest.mark.parametrize(("cron", "words"), WORDS)
def test_schedule_in_words_for_common_cron_expressions(app: Flask, cron: str, words: str) -> None:
    with app.test_request_context():
        assert triggers.of_schedule(cron) == words


def test_workflow_list_links_last_instance(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    admin, home = Browser(app, cast.alice), f"workflows/{cast.alice.account_id}"
    body = {"trigger_type": "schedule", "trigger_cron": "0 4 * * *", "steps": "[]"}
    admin.done(f"{home}/workflow/new", name="Flow", **body)
    (flow,) = cast.alice.get("workflows").json["items"]
    page = admin.get(home).text
    assert ("Every day at 04:00" in page, "/instances/" in page) == (True, False)
    last = [ran(app, cast.alice, flow)["id"] for _ in range(2)][1]
    page = admin.get(home).text
    assert f"/instances/{last}" in page
    assert page.count("/instances/") == 1
