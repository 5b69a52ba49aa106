"""Mails of workflows: to members only, within limits, and they say which account has them sent."""

from __future__ import annotations

from dataclasses import replace
from email.utils import parseaddr
from typing import Any

import pytest
from flask import Flask

from tests.builders import (
    Caller,
    Cast,
    change_user,
    make_account,
    make_collection,
    make_record,
    make_user,
)
from tests.mailbox import body_of, outbox
from tests.workflows.running import MANUAL, action, make_workflow, ran, start, work

LOOP = {"name": "all", "type": "loop", "items": "{{ trigger.lists }}"}


def mail(to: Any, name: str = "mail") -> dict[str, Any]:
    return action(name, "send_email", to=to, subject="Renew your password", body="Here.")


def use(app: Flask, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    settings = replace(app.extensions["atrium.config"], **changes)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)


def test_workflow_mail_to_stranger_fails(app: Flask, cast: Cast) -> None:
    lists = [[f"user{n}@list{one}.example" for n in range(20)] for one in range(3)]
    workflow = make_workflow(cast.alice, [{**LOOP, "steps": [mail("{{ item }}")]}])
    found = ran(app, cast.alice, workflow, {"lists": lists})
    assert (found["status"], found["current_step"], outbox(app)) == ("failed", "mail", [])
    assert "SERVICE_WORKFLOW_MAIL_RECIPIENTS" in found["error_message"]
    one_of_them = [cast.alice.email, "stranger@x.example"]
    found = ran(app, cast.alice, workflow, {"lists": [one_of_them]})
    assert (found["status"], outbox(app)) == ("failed", [])


def test_workflow_mail_goes_to_active_verified_members_only(app: Flask, cast: Cast) -> None:
    other = make_account(app, "elsewhere")
    unverified = make_user(app, cast.alice.account_id, "new@x.example", verified=False)
    inactive = make_user(app, cast.alice.account_id, "gone@x.example")
    change_user(app, inactive.id, is_active=False)
    stranger = make_user(app, other, "theirs@x.example")
    workflow = make_workflow(cast.alice, [mail("{{ trigger.to }}")])
    for email in (unverified.email, inactive.email, stranger.email, cast.charlie.email):
        assert ran(app, cast.alice, workflow, {"to": email})["status"] == "failed", email
    assert ran(app, cast.alice, workflow, {"to": cast.bob.email.upper()})["status"] == "completed"
    assert [one["To"].lower() for one in outbox(app)] == [cast.bob.email]


def test_hook_mail_to_stranger_fails(app: Flask, alice: Caller) -> None:
    actions = [{"type": "send_email", "config": mail("stranger@x.example")["config"]}]
    hook = alice.post(
        "hooks", {"name": "h", "trigger": {"type": "manual"}, "actions": actions}
    ).json
    assert alice.post(f"hooks/{hook['id']}/trigger").status_code == 202
    work(app)
    (done,) = alice.get(f"hooks/{hook['id']}/executions").json["items"]
    assert (done["status"], outbox(app)) == ("failed", [])


def test_workflow_mail_limits_per_account_and_mailbox(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(app, monkeypatch, workflow_mails_per_day=4, workflow_mails_per_mailbox=2)
    workflow = make_workflow(cast.alice, [mail("{{ trigger.to }}")])
    alice, bob = {"to": cast.alice.email}, {"to": cast.bob.email}
    states = [ran(app, cast.alice, workflow, to)["status"] for to in (alice, alice, bob)]
    assert states == ["completed"] * 3
    refused = ran(app, cast.alice, workflow, alice)
    assert refused["status"] == "failed"
    assert "2 mails to" in refused["error_message"]
    assert "SERVICE_WORKFLOW_MAILS_PER_MAILBOX" in refused["error_message"]
    carol = make_user(app, cast.alice.account_id, "carol@acme.example")
    assert ran(app, cast.alice, workflow, bob)["status"] == "completed"
    over = ran(app, cast.alice, workflow, {"to": carol.email})
    assert (over["status"], len(outbox(app))) == ("failed", 4)
    assert "SERVICE_WORKFLOW_MAILS_PER_DAY" in over["error_message"]
    theirs = make_workflow(cast.charlie, [mail(cast.charlie.email)])
    assert ran(app, cast.charlie, theirs)["status"] == "completed"


def test_workflow_mail_refused_is_retried_by_resume_only(
    app: Flask, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(app, monkeypatch, workflow_mails_per_mailbox=0)
    found = ran(app, alice, make_workflow(alice, [mail(alice.email)]))
    work(app)
    assert (found["status"], len(found["step_logs"]), outbox(app)) == ("failed", 1, [])
    use(app, monkeypatch, workflow_mails_per_mailbox=1)
    assert alice.post(f"workflow-instances/{found['id']}/resume").status_code == 200
    work(app)
    assert len(outbox(app)) == 1


def test_workflow_mail_names_its_account(
    app: Flask, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(app, monkeypatch, workflow_mail_recipients="anyone")
    start(alice, make_workflow(alice, [mail("stranger@x.example")]))
    work(app)
    (sent,) = outbox(app)
    account = alice.get("account").json
    assert parseaddr(sent["From"]) == (f"{account['name']} by Atrium", "atrium@localhost")
    assert (sent["To"], sent["Auto-Submitted"]) == ("stranger@x.example", "auto-generated")
    for kind in ("plain", "html"):
        assert f"{account['name']} ({account['account_code']})" in body_of(sent, kind)


def group_of(caller: Caller, name: str, *members: Caller) -> str:
    """A new group of the caller's account; returns its id."""
    made = caller.post("groups", {"name": name}).json
    for one in members:
        answer = caller.post(f"groups/{made['id']}/members", {"user_id": one.id})
        assert answer.status_code in (200, 201), answer.json
    return str(made["id"])


@pytest.mark.both_databases
def test_workflow_mail_reaches_users_roles_and_groups_once(app: Flask, cast: Cast) -> None:
    alice, account = cast.alice, str(cast.alice.account_id)
    unverified = make_user(app, account, "new@x.example", verified=False)
    gone = make_user(app, account, "gone@x.example")
    change_user(app, gone.id, is_active=False)
    group_of(alice, "On call", alice, cast.bob)
    to = [{"group": "on call"}, {"role": "viewer"}, {"user": alice.id}, cast.bob.email.upper()]
    found = ran(app, alice, make_workflow(alice, [mail(to)]))
    assert (found["status"], found["error_message"]) == ("completed", None)
    assert sorted(one["To"] for one in outbox(app)) == sorted([alice.email, cast.bob.email])
    assert sorted(found["step_logs"][0]["input"]["to"]) == sorted([alice.email, cast.bob.email])
    flow = make_workflow(alice, [mail({"user": "{{ trigger.who }}"})])
    for who in (unverified.id, gone.id, cast.charlie.id, cast.root.id, "x", None):
        refused = ran(app, alice, flow, {"who": who})
        assert refused["status"] == "failed", who
    assert ran(app, alice, make_workflow(alice, [mail({"role": "editor"})]))["status"] == "failed"
    assert len(outbox(app)) == 2


@pytest.mark.both_databases
def test_workflow_mail_follows_renamed_roles_and_groups(app: Flask, cast: Cast) -> None:
    alice = cast.alice
    group = group_of(alice, "Leads", cast.bob)
    role = cast.root.post("roles", {"name": "Agent"}).json["id"]
    to = [{"group": "Leads"}, {"role": "Agent"}, alice.email]
    loop = {**LOOP, "items": [1], "steps": [mail(to)]}
    flow = make_workflow(alice, [loop])
    theirs = make_workflow(cast.charlie, [mail([{"group": "Leads"}])])
    assert theirs["warnings"][0]["code"] == "group_missing"
    assert cast.root.delete(f"roles/{role}").status_code == 409
    assert alice.delete(f"groups/{group}").status_code == 409
    assert alice.patch(f"groups/{group}", {"name": "Heads"}).status_code == 200
    assert cast.root.patch(f"roles/{role}", {"name": "Clerk"}).status_code == 200
    now = alice.get(f"workflows/{flow['id']}").json["steps"][0]["steps"][0]["config"]["to"]
    assert now == [{"group": "Heads"}, {"role": "Clerk"}, alice.email]
    unchanged = cast.charlie.get(f"workflows/{theirs['id']}").json
    assert unchanged["steps"] == theirs["steps"]


def test_workflow_mail_to_field_needs_the_operator(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root, "people", [{"name": "email", "type": "email"}])
    for email in ("one@customer.example", "two@customer.example", None):
        make_record(cast.alice, "people", email=email)
    each = {"name": "each", "type": "for_each", "collection": "people", "on_error": "continue"}
    to_field = make_workflow(cast.alice, [{**each, "steps": [mail({"field": "email"})]}])
    by_template = make_workflow(cast.alice, [{**each, "steps": [mail("{{ item.email }}")]}])
    found = ran(app, cast.alice, to_field)
    assert (found["context"]["steps"]["each"]["output"]["failed"], outbox(app)) == (3, [])
    use(app, monkeypatch, workflow_mail_recipients="fields", mails_per_new_account=3)
    found = ran(app, cast.alice, by_template)
    assert (found["context"]["steps"]["each"]["output"]["failed"], outbox(app)) == (3, [])
    found = ran(app, cast.alice, to_field)
    told = found["context"]["steps"]["each"]["output"]
    assert (told["count"], told["failed"]) == (3, 1)
    assert "no email address" in told["errors"][0]["error"]
    assert [one["To"] for one in outbox(app)] == ["one@customer.example", "two@customer.example"]
    # The account's mails to strangers are limited, whatever names them.
    found = ran(app, cast.alice, to_field)
    assert found["context"]["steps"]["each"]["output"]["failed"] == 2
    assert len(outbox(app)) == 3


def test_workflow_mail_to_field_of_trigger(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(app, monkeypatch, workflow_mail_recipients="fields")
    make_collection(cast.root, "people", [{"name": "email", "type": "email"}])
    trigger = {"type": "event", "event": "records.create", "collection": "people"}
    make_workflow(cast.alice, [mail({"field": "email"})], trigger)
    make_record(cast.alice, "people", email="new@customer.example")
    work(app)
    assert [one["To"] for one in outbox(app)] == ["new@customer.example"]


def test_workflow_mail_recipients_that_are_none_are_400(alice: Caller) -> None:
    for to in ({}, {"role": ""}, {"role": "viewer", "user": "x"}, {"team": "x"}, {"user": 5}, 5):
        steps = [mail(to)]
        answer = alice.post("workflows", {"name": "x", "trigger": MANUAL, "steps": steps})
        assert [one["field"] for one in answer.json["details"]] == ["steps[0].config.to"], to
    answer = alice.post(
        "workflows", {"name": "x", "trigger": MANUAL, "steps": [mail({"role": "z"})]}
    )
    told = [(one["field"], one["code"]) for one in answer.json["details"]]
    assert told == [("steps[0].config.to", "unknown_role")]
