"""Keys, workflows and webhooks that belong to service users, and outlive people."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from tests.accounts.test_service_users import make_service
from tests.builders import Caller, Cast, make_collection, make_record, make_user
from tests.console.browser import Browser
from tests.mailbox import body_of, outbox, run_jobs
from tests.webhooks import delivering
from tests.workflows import running

PERSONAL = [
    {"name": "title", "type": "text"},
    {"name": "email", "type": "email", "pii": True, "mask_type": "email"},
]


def key_of(app: Flask, admin: Caller, user: dict[str, Any], **values: Any) -> Caller:
    made = admin.post("api-keys", {"name": "bot", "user_id": user["id"], **values})
    assert made.status_code == 201, made.json
    assert (made.json["user_id"], made.json["account_id"]) == (user["id"], user["account_id"])
    return Caller(app, **{"X-API-Key": made.json["key"]})


def group_of(cast: Cast) -> str:
    groups = cast.alice.get("groups").json["items"]
    return str(next(one["id"] for one in groups if one["name"] == "pii_access"))


def admit(cast: Cast, user: dict[str, Any]) -> None:
    """Let the service user into pii_access."""
    path = f"groups/{group_of(cast)}/users"
    assert cast.alice.post(path, {"user_id": user["id"]}).status_code == 200


def test_key_of_a_service_user_acts_as_it(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    bot = make_service(cast.alice)
    key = key_of(app, cast.alice, bot)
    me = key.get("auth/me").json
    assert (me["id"], me["kind"], me["email"], me["role"]) == (bot["id"], "service", None, "editor")
    assert make_record(key, title="x")["created_by"] == bot["id"]
    assert key.get("account/users").status_code == 403  # an editor
    assert key.post("api-keys", {"name": "more"}).status_code == 403
    scoped = key_of(app, cast.alice, bot, scopes={"posts": ["list"]})
    assert scoped.get("records/posts").json["total"] == 1
    assert scoped.post("records/posts", {"title": "y"}).status_code == 403


def test_only_admins_make_keys_of_the_accounts_service_users(app: Flask, cast: Cast) -> None:
    bot = make_service(cast.alice)
    body = {"name": "x", "user_id": bot["id"]}
    assert cast.bob.post("api-keys", body).status_code == 403
    assert cast.charlie.post("api-keys", body).status_code == 400
    assert cast.root.post("api-keys", body).status_code == 400
    for user_id in (cast.bob.id, cast.charlie.id, cast.root.id):
        answer = cast.alice.post("api-keys", {"name": "x", "user_id": user_id})
        assert [one["field"] for one in answer.json["details"]] == ["user_id"]
    assert cast.alice.post("api-keys", {**body, "user_id": cast.alice.id}).status_code == 201
    acting = cast.root.acting_in("acme").post("api-keys", body)
    assert (acting.status_code, acting.json["account_id"]) == (201, cast.alice.account_id)


def test_admins_rotate_and_revoke_keys_of_service_users(app: Flask, cast: Cast) -> None:
    bot = make_service(cast.alice)
    key = key_of(app, cast.alice, bot)
    id = cast.alice.get("api-keys").json["items"][0]["id"]
    rotated = cast.alice.post(f"api-keys/{id}/rotate", {"overlap_seconds": 0})
    assert rotated.status_code == 200, rotated.json
    assert key.get("auth/me").status_code == 401
    fresh = Caller(app, **{"X-API-Key": rotated.json["key"]})
    assert fresh.get("auth/me").status_code == 200
    assert cast.charlie.post(f"api-keys/{id}/rotate").status_code == 404
    assert cast.alice.post(f"api-keys/{id}/revoke").status_code == 200
    assert fresh.get("auth/me").status_code == 401


def test_service_user_in_pii_access_is_named_by_members_only(app: Flask, cast: Cast) -> None:
    bot = make_service(cast.alice)
    admit(cast, bot)
    dora = Caller(app, make_user(app, cast.alice.account_id, "dora@acme.example", "admin"))
    webhook = {"url": "https://hooks.example.com/x", "collection": "posts", "events": ["create"]}
    workflow = {"name": "w", "trigger": {"type": "manual"}, "steps": []}
    tries = (
        ("api-keys", {"name": "x", "user_id": bot["id"]}),
        ("webhooks", {**webhook, "owner_id": bot["id"]}),
        ("workflows", {**workflow, "owner_id": bot["id"]}),
        ("hooks", {"name": "h", "trigger": {"type": "manual"}, "owner_id": bot["id"]}),
    )
    for path, body in tries:
        for other in (dora, cast.root.acting_in("acme")):
            assert other.post(path, body).status_code == 403, path
        made = cast.alice.post(path, body)
        assert made.status_code == 201, made.json
        if path == "api-keys":
            assert dora.post(f"api-keys/{made.json['id']}/rotate").status_code == 403
        else:
            assert made.json["owner_id"] == bot["id"]
    # Whoever may not name it becomes the owner of what they change.
    (flow,) = cast.alice.get("workflows").json["items"]
    changed = dora.patch(f"workflows/{flow['id']}", {"steps": []})
    assert changed.json["owner_id"] == dora.id


@pytest.mark.parametrize("gone", ["deactivated", "deleted"])
def test_what_belongs_to_a_service_user_ends_with_it(app: Flask, cast: Cast, gone: str) -> None:
    make_collection(cast.root)
    bot = make_service(cast.alice, role="admin")
    key = key_of(app, cast.alice, bot)
    url = "https://hooks.example.com/"
    webhook = delivering.make_webhook(cast.alice, url, owner_id=bot["id"])
    steps = [running.create("one")]
    flow = running.make_workflow(cast.alice, steps, owner_id=bot["id"])
    assert key.get("account/users").status_code == 200
    path = f"account/users/{bot['id']}"
    if gone == "deleted":
        assert cast.alice.delete(path).status_code == 204
    else:
        assert cast.alice.patch(path, {"is_active": False}).status_code == 200
    assert key.get("account/users").status_code == 401
    shown = cast.alice.get(f"webhooks/{webhook['id']}").json
    assert shown["paused_at"] is not None
    assert running.ran(app, cast.alice, flow)["status"] == "failed"
    for thing in ("webhooks", "workflows"):
        body = {"owner_id": bot["id"]}
        one = webhook if thing == "webhooks" else flow
        assert cast.alice.patch(f"{thing}/{one['id']}", body).status_code == 400


def test_what_belongs_to_a_service_user_outlives_people(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    dora = Caller(app, make_user(app, cast.alice.account_id, "dora@acme.example", "admin"))
    bot = make_service(dora, role="editor")
    webhook = delivering.make_webhook(dora, "https://hooks.example.com/", owner_id=bot["id"])
    own = delivering.make_webhook(dora, "https://own.example.com/")
    flow = running.make_workflow(dora, [running.create("one")], owner_id=bot["id"])
    # An admin who changes them does not become the owner.
    steps = [running.create("one"), running.create("two")]
    assert cast.alice.patch(f"workflows/{flow['id']}", {"steps": steps}).status_code == 200
    path = f"webhooks/{webhook['id']}"
    assert cast.alice.patch(path, {"events": ["create"]}).json["owner_id"] == bot["id"]
    assert cast.alice.delete(f"account/users/{dora.id}").status_code == 204
    assert cast.alice.get(path).json["paused_at"] is None
    assert cast.alice.get(path).json["has_active_maker"] is True
    assert cast.alice.get(f"webhooks/{own['id']}").json["paused_at"] is not None
    assert running.ran(app, cast.alice, flow)["status"] == "completed"
    made = cast.alice.get("records/posts").json["items"]
    assert {one["created_by"] for one in made} == {bot["id"]}
    taken = cast.alice.patch(f"workflows/{flow['id']}", {"owner_id": cast.alice.id})
    assert taken.json["owner_id"] == cast.alice.id


def test_what_a_person_made_for_a_service_user_is_shown_to_those_who_stay(
    app: Flask, cast: Cast
) -> None:
    make_collection(cast.root)
    dora = Caller(app, make_user(app, cast.alice.account_id, "dora@acme.example", "admin"))
    bot = make_service(cast.alice)
    owned = {"owner_id": bot["id"]}
    key_of(app, cast.alice, bot)  # not of dora
    key_of(app, dora, bot)
    delivering.make_webhook(dora, "https://hooks.example.com/", **owned)
    running.make_workflow(dora, [running.create("one")], **owned)
    hook = {"name": "h", "trigger": {"type": "manual"}, "actions": [], **owned}
    assert dora.post("hooks", hook).status_code == 201
    assert cast.alice.delete(f"account/users/{dora.id}").status_code == 204
    left = cast.alice.get(f"account/users/{dora.id}/left").json["items"]
    assert sorted(one["kind"] for one in left) == ["api_key", "hook", "webhook", "workflow"]
    assert {one["of_service"] for one in left} == {True}
    page = Browser(app, cast.alice).get(f"team/left/{dora.id}").text
    for one in left:
        assert one["id"] in page
    run_jobs(app)
    (mail,) = [one for one in outbox(app) if one["To"] == cast.alice.email]
    assert "4 keys, workflows and webhooks of service users" in body_of(mail)
    (key,) = (one for one in left if one["kind"] == "api_key")
    assert cast.alice.post(f"api-keys/{key['id']}/revoke").status_code == 200
    left = cast.alice.get(f"account/users/{dora.id}/left").json["items"]
    assert "api_key" not in {one["kind"] for one in left}


def test_webhook_of_a_service_user_shows_its_view(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, "people", PERSONAL)
    bot = make_service(cast.alice)
    url = "https://hooks.example.com/"
    body = {"collection": "people", "include_pii": True, "owner_id": bot["id"]}
    webhook = delivering.make_webhook(cast.alice, url, **body)
    make_record(cast.alice, "people", title="x", email="ann@people.example")
    (delivery,) = cast.alice.get(f"webhooks/{webhook['id']}/deliveries").json["items"]
    path = f"webhooks/{webhook['id']}/deliveries/{delivery['id']}"
    assert "ann@people.example" not in cast.alice.get(path).text


def test_setup_link_of_a_service_user_outlives_people(app: Flask, cast: Cast) -> None:
    dora = Caller(app, make_user(app, cast.alice.account_id, "dora@acme.example", "admin"))
    bot, editor = make_service(dora, role="admin"), make_service(dora, name="Other")
    for owner_id in (editor["id"], cast.alice.id, cast.charlie.id):
        refused = dora.post("account/setup-links", {"name": "IT", "owner_id": owner_id})
        assert [one["field"] for one in refused.json["details"]] == ["owner_id"]
    made = dora.post("account/setup-links", {"name": "IT", "owner_id": bot["id"]}).json
    own = dora.post("account/setup-links", {"name": "IT"}).json
    assert (made["created_by"], own["created_by"]) == (bot["id"], dora.id)
    assert cast.alice.delete(f"account/users/{dora.id}").status_code == 204
    opened = [Browser(app).send(one["url"].rpartition("/console/")[2]) for one in (made, own)]
    assert [one.status_code for one in opened] == [303, 403]


def test_scim_token_and_receiver_of_a_service_user_outlive_people(app: Flask, cast: Cast) -> None:
    dora = Caller(app, make_user(app, cast.alice.account_id, "dora@acme.example", "admin"))
    bot, editor = make_service(dora, role="admin"), make_service(dora, name="Other")
    stream = {"url": "https://siem.example.com/"}
    for owner_id in (editor["id"], cast.alice.id, cast.charlie.id):
        for answer in (
            dora.post("account/scim/tokens", {"owner_id": owner_id}),
            dora.put("account/security-log/stream", stream | {"owner_id": owner_id}),
        ):
            assert answer.status_code == 400
            assert [one["field"] for one in answer.json["details"]] == ["owner_id"]
    token = dora.post("account/scim/tokens", {"owner_id": bot["id"]}).json
    assert dora.post("account/scim/tokens").json["created_by"] == dora.id
    made = dora.put("account/security-log/stream", stream | {"owner_id": bot["id"]}).json
    assert (token["created_by"], made["owner_id"]) == (bot["id"], bot["id"])
    # Whoever changes the address does not become the owner.
    changed = cast.alice.put("account/security-log/stream", {"url": "https://other.example.com/"})
    assert changed.json["owner_id"] == bot["id"]
    assert cast.alice.delete(f"account/users/{dora.id}").status_code == 204
    shown = cast.alice.get("account/security-log/stream").json
    assert (shown["paused_at"], shown["created_by"]) == (None, bot["id"])
    left = cast.alice.get(f"account/users/{dora.id}/left").json["items"]
    assert sorted((one["kind"], one["of_service"]) for one in left) == [
        ("scim_token", False),
        ("scim_token", True),
        ("security_stream", True),
    ]
    demoted = cast.alice.patch(f"account/users/{bot['id']}", {"role": "editor"})
    assert demoted.status_code == 200, demoted.json
    assert cast.alice.get("account/security-log/stream").json["paused_at"] is not None
    taken = cast.alice.put("account/security-log/stream", stream)
    assert (taken.json["owner_id"], taken.json["paused_at"]) == (cast.alice.id, None)


def test_console_lets_set_ups_belong_to_service_users(app: Flask, cast: Cast) -> None:
    admin, account_id = Browser(app, cast.alice), cast.alice.account_id
    make_service(cast.alice, name="Editor")
    link = {"name": "IT", "features": ["sso"], "days": "3"}
    stream = {"url": "https://siem.example.com/", "is_enabled": "true"}
    forms: dict[str, dict[str, object]] = {
        f"sso/{account_id}/setup-links": link,
        f"sso/{account_id}/scim": {},
        f"security-log/{account_id}/receiver": stream,
    }
    for page in forms:
        assert "owner_id" not in admin.get(page).text, "no admin among the service users"
    bot = make_service(cast.alice, role="admin")
    for page, form in forms.items():
        shown = admin.get(page).text
        assert f'<option value="{bot["id"]}"' in shown
        assert "Editor" not in shown
        admin.done(page, owner_id=bot["id"], **form)
    (made,) = cast.alice.get("account/setup-links").json["items"]
    (token,) = cast.alice.get("account/scim/tokens").json["items"]
    owner_id = cast.alice.get("account/security-log/stream").json["owner_id"]
    assert {made["created_by"], token["created_by"], owner_id} == {bot["id"]}
    assert f'<option value="{bot["id"]}" selected' in admin.get(page).text


def test_service_user_takes_no_name_of_another(app: Flask, cast: Cast) -> None:
    names = ("Billing", "Reports")
    made = [
        cast.alice.post("account/users", {"kind": "service", "name": name, "role": "viewer"}).json
        for name in names
    ]
    key = cast.alice.post("api-keys", {"name": "x", "user_id": made[0]["id"]}).json["key"]
    program = Caller(app, **{"X-API-Key": key})
    assert program.patch("auth/me", {"name": "reports"}).status_code == 409
    assert program.patch("auth/me", {"name": None}).status_code == 400
    assert program.patch("auth/me", {"name": "Invoices"}).json["name"] == "Invoices"
    again = {"kind": "service", "name": "billing", "role": "viewer"}
    assert cast.alice.post("account/users", again).status_code == 201
