"""Steps that reach outside: under one key, with the checks of webhooks, and no secret in logs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask

from app.accounts.models import Role
from app.db import db
from app.workflows.engine import external_steps
from tests.builders import Caller, Cast, change_user, make_collection, make_record, make_user
from tests.mailbox import outbox
from tests.receivers import Receiver
from tests.test_mail import Receiver as MailServer
from tests.test_mail import use as mail_by
from tests.workflows.running import action, instance, make_workflow, outputs, ran, work

SECRET = "s3cret-of-theirs"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def send(receiver: Receiver, name: str = "send", **config: Any) -> dict[str, Any]:
    return action(name, "send_webhook", url=receiver.url, **config)


def test_workflow_request_renders_templates_and_keeps_response(
    app: Flask, alice: Caller, receiver: Receiver
) -> None:
    receiver.answer = lambda request: (200, '{"id": 7, "ok": true}')
    headers = {"Authorization": f"Bearer {SECRET}", "X-Order": "{{ trigger.n }}"}
    body = {"n": "{{ trigger.n }}", "text": "Order {{ trigger.n }}"}
    steps = [send(receiver, headers=headers, body=body), send(receiver, "text", body="plain")]
    found = ran(app, alice, make_workflow(alice, steps), {"n": 3})
    assert found["status"] == "completed", found["error_message"]
    assert outputs(found)["send"] == {"status_code": 200, "body": {"id": 7, "ok": True}}
    first, second = receiver.requests
    assert first.json == {"n": 3, "text": "Order 3"}
    assert (first.headers["x-order"], first.headers["content-type"]) == ("3", "application/json")
    assert first.headers["authorization"] == f"Bearer {SECRET}"
    assert (second.body, second.headers["content-type"]) == (b"plain", "text/plain; charset=utf-8")
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]
    assert SECRET not in str(found)


def test_template_values_are_rendered_as_text_in_headers_and_subjects(
    app: Flask, alice: Caller, receiver: Receiver
) -> None:
    values = {"b": True, "n": 5.0, "o": {"a": 1}, "none": None}
    named = {name: f"{{{{ trigger.{name} }}}}" for name in values}
    headers = {f"X-{name}": text for name, text in named.items()}
    steps = [send(receiver, headers=headers)]
    for name, text in named.items():
        steps.append(action(name, "send_email", to=alice.email, subject=text, body=text))
    found = ran(app, alice, make_workflow(alice, steps), values)
    assert found["status"] == "completed", found["error_message"]
    (request,) = receiver.requests
    written = {"b": "true", "n": "5", "o": '{"a":1}', "none": ""}
    assert {name: request.headers[f"x-{name}"] for name in values} == written
    mails = outbox(app)
    assert {one["Subject"] or "" for one in mails} == set(written.values())
    assert not [one for one in mails if "null" in str(one) or "True" in str(one)]


def test_workflow_response_not_storable_as_json_is_kept_as_text(
    app: Flask, alice: Caller, receiver: Receiver
) -> None:
    receiver.answer = lambda request: (200, '{"n": 1e400}')
    found = ran(app, alice, make_workflow(alice, [send(receiver)]))
    assert (found["status"], len(receiver.requests)) == ("completed", 1)
    assert outputs(found)["send"]["body"] == '{"n": 1e400}'


def test_workflow_step_failure_closes_its_log(
    app: Flask, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any) -> Any:
        raise TypeError

    workflow = make_workflow(alice, [action("send", "send_webhook", url="http://localhost:1/")])
    monkeypatch.setattr(external_steps, "carry_out", broken)
    found = ran(app, alice, workflow)
    (log,) = found["step_logs"]
    assert (found["status"], log["status"]) == ("failed", "failed")
    assert log["error_message"] == found["error_message"]
    assert log["completed_at"] is not None


def test_workflow_request_is_retried_with_same_idempotency_key(
    app: Flask, alice: Caller, receiver: Receiver
) -> None:
    receiver.answer = lambda request: (503, "not now")
    loop = {"name": "l", "type": "loop", "items": [1, 2], "steps": [send(receiver)]}
    found = ran(app, alice, make_workflow(alice, [loop]))
    assert (found["status"], found["current_step"]) == ("failed", "send")
    assert found["error_message"] == "The receiver responded with 503."
    receiver.answer = lambda request: (204, "")
    alice.post(f"workflow-instances/{found['id']}/resume")
    work(app)
    again = instance(alice, found["id"])
    tries = [(one["step_name"], one["attempt"], one["status"]) for one in again["step_logs"]]
    assert tries == [
        ("l", 1, "completed"),
        ("send", 1, "failed"),
        ("send", 2, "completed"),
        ("send", 1, "completed"),
    ]
    keys = [one.headers["idempotency-key"] for one in receiver.requests]
    assert (keys[0], keys[1] != keys[2], len(keys)) == (keys[1], True, 3)


def test_workflow_branches_send_requests_concurrently(
    app: Flask, alice: Caller, receiver: Receiver
) -> None:
    met = threading.Barrier(4)

    def together(request: Any) -> tuple[int, str]:
        met.wait(10)  # until all four are here
        return 200 if "fail" not in request.body.decode() else 500, "ok"

    receiver.answer = together
    branches = [[send(receiver, f"s{n}", body=f"{{{{ trigger.b{n} }}}}")] for n in range(4)]
    workflow = make_workflow(alice, [{"name": "all", "type": "parallel", "branches": branches}])
    assert ran(app, alice, workflow, {"b0": "x"})["status"] == "completed"
    told = ran(app, alice, workflow, {"b1": "fail", "b2": "fail"})
    assert (told["status"], told["current_step"]) == ("failed", "s1, s2")
    states = {one["step_name"]: one["status"] for one in told["step_logs"]}
    assert states == {"s0": "completed", "s1": "failed", "s2": "failed", "s3": "completed"}


@pytest.mark.long
def test_workflow_slow_mail_server_gets_each_mail_once(
    app: Flask, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(MailServer):
        async def handle_DATA(self, *context: Any) -> str:
            await asyncio.sleep(0.5)
            return await super().handle_DATA(*context)

    addresses = [f"user{number}@x.example" for number in range(8)]
    workflow = make_workflow(alice, [action("m", "send_email", to=addresses, subject="s", body="")])
    with Slow() as server:
        mail_by(
            app,
            monkeypatch,
            f"smtp://127.0.0.1:{server.port}",
            webhook_timeout_seconds=2,
            workflow_lease_seconds=1,
            workflow_mail_recipients="anyone",
        )
        found = ran(app, alice, workflow)
    assert (found["status"], server.recipients) == ("completed", addresses)
    assert [log["attempt"] for log in found["step_logs"]] == [1]


def test_workflow_request_to_private_address_is_refused(
    app: Flask, alice: Caller, receiver: Receiver
) -> None:
    steps = [action("send", "send_webhook", url="{{ trigger.url }}")]
    workflow = make_workflow(alice, steps)
    settings = app.extensions["atrium.config"]
    app.extensions["atrium.config"] = replace(settings, webhook_allow_private=False)
    try:
        for url in (receiver.url, "http://localhost:1/", "gopher://x", "", 7):
            found = ran(app, alice, workflow, {"url": url})
            assert (found["status"], found["current_step"]) == ("failed", "send"), url
        refused = alice.post(
            "workflows", {"name": "x", "trigger": {"type": "manual"}, "steps": [send(receiver)]}
        )
        assert refused.json["details"][0]["code"] == "invalid_url"
    finally:
        app.extensions["atrium.config"] = settings
    assert receiver.requests == []


def test_workflow_of_former_admin_sends_nothing(app: Flask, cast: Cast, receiver: Receiver) -> None:
    workflow = make_workflow(cast.alice, [send(receiver)])
    admin = cast.root.acting_in("acme")
    with app.app_context():
        viewer = db.session.query(Role).filter_by(name="viewer").one().id
    change_user(app, cast.alice.id, role_id=viewer)
    found = ran(app, admin, workflow)
    assert (found["status"], receiver.requests) == ("failed", [])
    assert "no longer an admin" in found["error_message"]


def test_workflow_mail_is_sent_with_rendered_templates(app: Flask, cast: Cast) -> None:
    alice = cast.alice
    to = ["{{ trigger.to }}", cast.bob.email]
    mail = action(
        "mail", "send_email", to=to, subject="Hi\n{{ trigger.n }}", body="<b>{{ trigger.n }}</b>"
    )
    workflow = make_workflow(alice, [mail])
    found = ran(app, alice, workflow, {"to": alice.email, "n": 5})
    assert found["status"] == "completed", found["error_message"]
    sent = outbox(app)
    assert sorted(one["To"] for one in sent) == [alice.email, cast.bob.email]
    assert {one["Subject"] for one in sent} == {"Hi 5"}
    assert "&lt;b&gt;5" in str(sent[0])
    bad = ran(app, alice, workflow, {"to": f"{alice.email}\r\nBcc: a@b.example"})
    assert (bad["status"], len(outbox(app))) == ("failed", 2)


def test_instance_personal_data_needs_view_right(app: Flask, cast: Cast) -> None:
    fields = [{"name": "mail", "type": "email", "pii": True, "mask_type": "email"}]
    make_collection(cast.root, schema=fields)
    make_record(cast.alice, mail="eve@x.example")
    steps = [action("all", "query_records", collection="posts")]
    workflow = make_workflow(cast.alice, steps)
    found = ran(app, cast.alice, workflow)
    assert (found["withheld"], "eve@x.example" in str(found)) == (False, True)
    dora = {"email": "dora@acme.example", "role": "admin"}
    other = Caller(app, make_user(app, cast.alice.account_id, dora["email"], "admin"))
    seen = instance(other, found["id"])
    assert (seen["withheld"], seen["context"], seen["step_logs"][0]["output"]) == (True, {}, None)
    assert "eve" not in str(other.get("workflow-instances").json)
    # Whoever takes the workflow over sees by its steps what they may see themselves.
    other.put(
        f"workflows/{workflow['id']}",
        {"steps": [*steps, action("b", "query_records", collection="posts")]},
    )
    theirs = ran(app, other, workflow)
    assert theirs["status"] == "completed"
    assert outputs(theirs)["all"]["first"]["mail"] == "e***@x.example"
    assert theirs["withheld"] is False


def test_instance_personal_data_behind_references_needs_view_right(app: Flask, cast: Cast) -> None:
    alice = cast.alice
    make_collection(cast.root, "people", [{"name": "mail", "type": "email", "pii": True}])
    reference = {"name": "person", "type": "reference", "collection": "people"}
    schema = [{"name": "n", "type": "number"}, {**reference, "on_delete": "set_null"}]
    make_collection(cast.root, schema=schema)
    eve = make_record(alice, "people", mail="eve@x.example")
    make_record(alice, n=1, person=eve["id"])
    other = Caller(app, make_user(app, alice.account_id, "dora@acme.example", "admin"))
    grouped = {"functions": "count()", "group_by": ["n", "person.mail"]}
    found = 'person.mail = "eve@x.example"'
    item = action("item", "query_records", collection="posts", filter="n = {{ item.n }}")
    for step, withheld in (
        (action("a", "aggregate_records", collection="posts", **grouped), True),
        (action("a", "query_records", collection="posts", filter=found), True),
        (action("a", "query_records", collection="posts", sort="-person.mail"), True),
        (action("a", "query_records", collection="posts", filter="@any(people, mail ~ 'e')"), True),
        (
            {
                "name": "each",
                "type": "for_each",
                "collection": "posts",
                "sort": "person.mail",
                "steps": [item],
            },
            True,
        ),
        (action("a", "query_records", collection="posts", filter='person = ""'), False),
        (
            action("a", "aggregate_records", collection="posts", **grouped | {"group_by": "n"}),
            False,
        ),
    ):
        name = f"f{step['name']}{len(str(step))}"
        ended = ran(app, alice, make_workflow(alice, [step], name=name))
        assert ended["status"] == "completed", ended["error_message"]
        seen = instance(other, ended["id"])
        assert (seen["withheld"], "eve@" in str(seen)) == (withheld, False), step


def test_instance_personal_data_of_awaited_event_is_withheld(app: Flask, cast: Cast) -> None:
    fields = [{"name": "mail", "type": "email", "pii": True, "mask_type": "email"}]
    make_collection(cast.root, schema=fields)
    waits = {"name": "w", "type": "wait_event", "event": "records.create", "timeout": "1h"}
    workflow = make_workflow(cast.alice, [waits])
    assert ran(app, cast.alice, workflow)["status"] == "waiting"
    make_record(cast.alice, mail="eve@x.example")
    work(app)
    [found] = cast.alice.get("workflow-instances").json["items"]
    assert "eve@x.example" in str(instance(cast.alice, found["id"]))
    other = Caller(app, make_user(app, cast.alice.account_id, "dora@acme.example", "admin"))
    seen = instance(other, found["id"])
    assert (seen["withheld"], "eve@" in str(seen)) == (True, False)
