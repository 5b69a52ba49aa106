"""Values of headers in steps: encrypted at rest, never shown, and sent nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet
from flask import Flask

from app import db
from app.workflows.models import Workflow, WorkflowVersion
from tests.builders import Caller, Cast, make_user
from tests.console.browser import Browser
from tests.receivers import Receiver, receiving
from tests.workflows.running import MANUAL, action, instance, make_workflow, ran, start, work
from tests.workflows.test_mailing import use

SECRET = "WF-HDR-SECRET-99"
BEARER = {"Authorization": f"Bearer {SECRET}", "X-Order": "{{ trigger.n }}"}
SHOWN = {"Authorization": "***", "X-Order": "***"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def send(url: str, headers: Any = BEARER, name: str = "send", **config: Any) -> dict[str, Any]:
    return action(name, "send_webhook", url=url, headers=headers, **config)


def nested(step: dict[str, Any]) -> list[dict[str, Any]]:
    """The step within a loop within a branch."""
    loop = {"name": "l", "type": "loop", "items": [1], "steps": [step]}
    return [{"name": "p", "type": "parallel", "branches": [[loop]]}]


def everything(app: Flask) -> str:
    """All that the database holds."""
    with app.app_context():
        tables = db.Base.metadata.sorted_tables
        found = [list(db.connection().execute(sa.select(table))) for table in tables]
        db.db.session.remove()
    return str(found)


def sent(receiver: Receiver) -> list[tuple[str, str]]:
    return [(one.headers["authorization"], one.headers["x-order"]) for one in receiver.requests]


def test_workflow_header_values_are_encrypted_and_hidden(
    app: Flask, alice: Caller, receiver: Receiver
) -> None:
    key = {"Idempotency-Key": "k1"}
    body = {"name": "flow", "trigger": MANUAL, "steps": nested(send(receiver.url))}
    answers = [alice.post("workflows", body, headers=key) for _ in range(2)]
    made = answers[0].json
    path = f"workflows/{made['id']}"
    found = ran(app, alice, made, {"n": 7})
    assert sent(receiver) == [(f"Bearer {SECRET}", "7")]
    answers += [alice.get(path), alice.get("workflows"), alice.put(path, {"name": "other"})]
    assert {one.status_code for one in answers} == {200, 201}
    shown = [step["config"]["headers"] for step in [made["steps"][0]["branches"][0][0]["steps"][0]]]
    assert shown == [SHOWN]
    page = Browser(app, alice).get(f"workflows/{alice.account_id}/workflow/{made['id']}").text
    texts = [*(one.text for one in answers), str(found), page, everything(app)]
    assert [place for place, text in enumerate(texts) if SECRET in text] == []


def test_hook_header_values_are_encrypted_and_kept(
    app: Flask, alice: Caller, receiver: Receiver
) -> None:
    actions = [{"type": "send_webhook", "config": send(receiver.url)["config"]}]
    hook = alice.post("hooks", {"name": "h", "trigger": MANUAL, "actions": actions}).json
    path = f"hooks/{hook['id']}"
    assert hook["actions"][0]["config"]["headers"] == SHOWN
    changed = alice.patch(path, {"actions": hook["actions"], "condition": "trigger.n > 1"})
    assert changed.status_code == 200, changed.json
    assert alice.patch(path, {"condition": None}).json["actions"] == hook["actions"]
    alice.post(f"{path}/trigger", {"n": 3})
    work(app)
    assert sent(receiver) == [(f"Bearer {SECRET}", "3")]
    assert SECRET not in everything(app)
    moved = [{**hook["actions"][0], "config": send("https://evil.example/", SHOWN)["config"]}]
    refused = alice.patch(path, {"actions": moved, "condition": "trigger.n > 1"})
    assert refused.status_code == 400
    fields = [one["field"] for one in refused.json["details"]]
    assert fields == [f"actions[0].config.headers.{name}" for name in SHOWN]


def test_workflow_header_mask_sent_back_changes_nothing(
    app: Flask, alice: Caller, receiver: Receiver
) -> None:
    made = make_workflow(alice, nested(send(receiver.url)))
    path = f"workflows/{made['id']}"
    again = alice.put(path, {"steps": made["steps"]})
    assert (again.status_code, again.json["version"]) == (200, 1)
    # So does the value itself, for whoever has it; header names are the same in any case.
    assert alice.put(path, {"steps": nested(send(receiver.url))}).json["version"] == 1
    lower = {"authorization": "***", "X-Order": "new", "X-More": "more"}
    assert alice.put(path, {"steps": nested(send(receiver.url, lower))}).json["version"] == 2
    ran(app, alice, made)
    assert sent(receiver) == [(f"Bearer {SECRET}", "new")]
    body = {"name": "f", "trigger": json.dumps(MANUAL), "steps": json.dumps(made["steps"])}
    browser = Browser(app, alice)
    one = f"workflows/{alice.account_id}/workflow/{made['id']}"
    assert "is saved" in browser.done(one, **body, seen="")


def test_workflow_header_value_is_not_kept_for_other_host(
    app: Flask, cast: Cast, receiver: Receiver
) -> None:
    dora = Caller(app, make_user(app, cast.alice.account_id, "dora@acme.example", "admin"))
    made = make_workflow(cast.alice, [send(receiver.url)])
    path = f"workflows/{made['id']}"
    refused = [
        [send("http://localhost:1/", SHOWN)],
        [send(f"{receiver.url}x", SHOWN)],
        [send("{{ trigger.url }}", SHOWN)],
        [send(receiver.url, SHOWN, "other")],
        [send(receiver.url, {**SHOWN, "X-New": "***"})],
        [send(receiver.url, {}), *nested(send(receiver.url, SHOWN, "second"))],
    ]
    for steps in refused:
        answer = dora.put(path, {"steps": steps})
        assert answer.status_code == 400, steps
        assert {one["code"] for one in answer.json["details"]} == {"required"}
        assert "Enter the value" in answer.json["details"][0]["message"]
    field = dora.put(path, {"steps": refused[-1]}).json["details"][0]["field"]
    assert field == "steps[1].branches[0][0].steps[0].config.headers.Authorization"
    new = {"name": "x", "trigger": MANUAL, "steps": [send(receiver.url, SHOWN)]}
    assert dora.post("workflows", new).status_code == 400
    assert cast.alice.get(path).json["version"] == 1


def test_workflow_header_value_is_not_kept_for_host_template(
    app: Flask, alice: Caller, receiver: Receiver
) -> None:
    host = receiver.url.removeprefix("http://").partition("/")[0]
    first = action("first", "query_records", collection="hosts")
    steps = [first, send("http://{{ steps.first.output.first.host }}/x")]
    made = make_workflow(alice, steps)
    path = f"workflows/{made['id']}"
    assert alice.put(path, {"steps": made["steps"]}).json["version"] == 1
    other = action("first", "query_records", collection="others")
    refused = alice.put(path, {"steps": [other, made["steps"][1]]})
    assert refused.status_code == 400
    assert "template" in refused.json["details"][0]["message"]
    fixed = make_workflow(alice, [first, send(f"http://{host}/{{{{ trigger.n }}}}")])
    kept = alice.put(f"workflows/{fixed['id']}", {"steps": [other, fixed["steps"][1]]})
    assert kept.status_code == 200, kept.json


@pytest.mark.not_on_citus("it locks rows of all accounts itself, or goes back to former migrations")
def test_workflow_header_values_of_older_versions_are_reencrypted(
    app: Flask, alice: Caller, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, runner = make_workflow(alice, nested(send(receiver.url))), app.test_cli_runner()
    plain: Any = nested(send(receiver.url))
    with app.app_context(), db.transaction() as session:
        for table in (Workflow.__table__, WorkflowVersion.__table__):
            session.execute(sa.update(table).values(steps=plain))
    waits = start(alice, made, {"n": 1})
    assert SECRET in everything(app)
    for count in (4, 0):
        told = runner.invoke(args=["reencrypt"])
        assert (told.exit_code, told.stdout.split()[0]) == (0, str(count)), told.output
    assert SECRET not in everything(app)
    old, new = app.extensions["atrium.config"].encryption_key, Fernet.generate_key().decode()
    use(app, monkeypatch, encryption_key=(new, *old))
    assert runner.invoke(args=["reencrypt"]).stdout.split()[0] == "4"
    use(app, monkeypatch, encryption_key=(new,))
    work(app)
    assert (instance(alice, waits)["status"], sent(receiver)) == (
        "completed",
        [(f"Bearer {SECRET}", "1")],
    )
    again = alice.put(f"workflows/{made['id']}", {"steps": made["steps"]}).json
    assert (again["version"], again["steps"]) == (1, made["steps"])
    use(app, monkeypatch, encryption_key=(Fernet.generate_key().decode(),))
    failed = ran(app, alice, made, {"n": 2})
    assert (failed["status"], len(receiver.requests)) == ("failed", 1)
    assert "Enter them again" in failed["error_message"]
    assert runner.invoke(args=["reencrypt"]).exit_code == 1
