"""Pages of operator keys, service users, and whom workflows and webhooks belong to."""

from __future__ import annotations

import re

from flask import Flask

from tests.accounts.test_service_users import make_service
from tests.builders import Caller, Cast, make_collection
from tests.console.browser import Browser, beside
from tests.console.test_keys import SHOWN
from tests.webhooks import delivering
from tests.workflows import running


def test_operator_key_is_created_and_listed(app: Flask, cast: Cast) -> None:
    root = Browser(app, cast.root)
    assert "No operator keys yet." in root.get("operator-keys").text
    nothing = root.send("operator-keys/new", name="billing", expires_in="30")
    assert (nothing.status_code, beside(nothing, "scopes")) == (400, "Choose at least one.")
    sent = {"name": "billing", "scopes": ["users:read", "accounts:write"], "expires_in": "30"}
    (key,) = SHOWN.findall(root.done("operator-keys/new", **sent, ip_addresses="127.0.0.1"))
    program = Caller(app, **{"X-API-Key": key})
    assert program.post("accounts", {"name": "Initech"}).status_code == 201
    assert cast.root.post("api-keys", {"name": "plain"}).status_code == 201
    page = root.get("operator-keys").text
    assert "accounts:write, users:read" in page
    assert "plain" not in page
    (row,) = (one for one in cast.root.get("api-keys").json["items"] if one["name"] == "billing")
    assert (
        "<dt>Scopes</dt><dd>accounts:write, users:read</dd>" in root.get(f"keys/{row['id']}").text
    )
    assert Browser(app, cast.alice).client.get("/console/operator-keys").status_code == 403


def test_service_user_is_created_with_a_key(app: Flask, cast: Cast) -> None:
    admin = Browser(app, cast.alice)
    page = admin.done("team/service-users/new", name="Billing", role="editor")
    assert "Billing is created." in page
    assert "Send a reset link" not in page
    (bot,) = cast.alice.get("account/users?kind=service").json["items"]
    listed = admin.get("team?state=service").text
    assert "Billing</a>" in listed
    assert cast.bob.email not in listed
    assert "Billing" not in admin.get("team?state=not verified").text
    path = f"keys/new?user_id={bot['id']}"
    assert f'href="/console/{path}"' in page
    form = admin.get(path).text
    assert f'<option value="{bot["id"]}" selected>Billing</option>' in form
    (key,) = SHOWN.findall(admin.done("keys/new", name="x", user_id=bot["id"]))
    assert Caller(app, **{"X-API-Key": key}).get("auth/me").json["id"] == bot["id"]
    again = admin.send("team/service-users/new", name="billing", role="viewer")
    assert (again.status_code, bool(beside(again, "name"))) == (409, True)
    assert Browser(app, cast.bob).client.get("/console/team/service-users/new").status_code == 403


def test_service_user_joins_a_group_by_its_name(app: Flask, cast: Cast) -> None:
    bot, admin = make_service(cast.alice), Browser(app, cast.alice)
    group = cast.alice.post("groups", {"name": "bots"}).json["id"]
    assert "Billing bot" in admin.done(f"groups/{group}/members", email="billing bot")
    members = cast.alice.get(f"groups/{group}").json["users"]
    assert [one["id"] for one in members] == [bot["id"]]


def test_owner_of_workflow_and_webhook_is_chosen(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    bot, admin, of_acme = make_service(cast.alice), Browser(app, cast.alice), cast.alice.account_id
    webhook = delivering.make_webhook(cast.alice, "https://hooks.example.com/")["id"]
    workflow = running.make_workflow(cast.alice, [running.create("one")])["id"]
    for noun, path, id in (
        ("webhooks", f"webhooks/{of_acme}/{webhook}", webhook),
        ("workflows", f"workflows/{of_acme}/workflow/{workflow}", workflow),
    ):
        assert re.search(f'<option value="{bot["id"]}">Billing bot', admin.get(path).text)
        admin.done(f"{path}/owner", owner_id=bot["id"])
        assert cast.alice.get(f"{noun}/{id}").json["owner_id"] == bot["id"]
        refused = admin.send(f"{path}/owner", owner_id=cast.bob.id)
        assert refused.status_code == 400
        assert cast.alice.get(f"{noun}/{id}").json["owner_id"] == bot["id"]
