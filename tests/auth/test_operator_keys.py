"""Operator keys: what each scope opens over all routes, and what none of them touches."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.auth.key_scopes import of_operator
from app.web.access import OPERATOR_SCOPES, AccessLevel, access_of
from tests.auth.test_read_only_keys import ANY_ID, OPERATIONS, filled
from tests.builders import PASSWORD, Caller, Cast, make_account, make_collection, make_record
from tests.security.reading import events

CASES = Path(__file__).parents[1] / "cases" / "operator_keys.txt"
SCOPES = dict(line.split() for line in CASES.read_text().splitlines())
CLOSED, PUBLIC = "closed", "public"


def operator(app: Flask, root: Caller, *scopes: str, **values: Any) -> Caller:
    """A program with a new operator key."""
    answer = root.post("api-keys", {"name": "provisioning", "scopes": list(scopes), **values})
    assert answer.status_code == 201, answer.json
    assert answer.json["scopes"] == list(scopes)
    return Caller(app, **{"X-API-Key": answer.json["key"]})


@pytest.fixture
def keys(app: Flask, cast: Cast) -> dict[str, Caller]:
    """A key per scope, one of all, and per scope one of all others; all act in acme."""
    made = {scope: operator(app, cast.root, scope) for scope in OPERATOR_SCOPES}
    made["all"] = operator(app, cast.root, *OPERATOR_SCOPES)
    for scope in OPERATOR_SCOPES:
        others = [one for one in OPERATOR_SCOPES if scope not in of_operator([one])]
        made[f"all but {scope}"] = operator(app, cast.root, *others)
    return {name: caller.acting_in("acme") for name, caller in made.items()}


def test_table_has_every_operation_as_it_is_declared(app: Flask) -> None:
    rules = {
        (method, re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)): rule.endpoint
        for rule in app.url_map.iter_rules()
        for method in rule.methods or ()
    }
    declared = {}
    for name, method, path in OPERATIONS:
        access = access_of(app.view_functions[rules[method, path]])
        scope = access.operator_scope(method) or CLOSED
        declared[name] = PUBLIC if access.level is AccessLevel.PUBLIC else scope
    assert declared == SCOPES
    assert set(SCOPES.values()) <= {*OPERATOR_SCOPES, CLOSED, PUBLIC}


@pytest.mark.one_database
def test_every_route_opens_to_its_scope_alone(
    app: Flask, cast: Cast, keys: dict[str, Caller]
) -> None:
    make_collection(cast.root)
    for name, method, path in OPERATIONS:
        scope, body = SCOPES[name], {} if method != "GET" else None
        if scope == PUBLIC:
            continue
        if scope == CLOSED:
            answer = keys["all"](method, filled(path), body)
            assert (answer.status_code, answer.json["error"]) == (403, "scope_denied"), name
            continue
        refused = keys[f"all but {scope}"](method, filled(path), body)
        assert (refused.status_code, refused.json["error"]) == (403, "scope_denied"), name
        assert refused.json["message"] == f"This operator key lacks the scope {scope}."
        answer = keys[scope](method, filled(path), body)
        assert answer.status_code < 500, (name, answer.text)
        assert "scope_denied" not in answer.text, (name, answer.text)
        assert "recent_sign_in" not in answer.text, (name, answer.text)


def test_writing_includes_reading_of_the_same(app: Flask, cast: Cast) -> None:
    key = operator(app, cast.root, "users:write").acting_in("acme")
    assert key.get("account/users").status_code == 200
    assert key.get("webhooks").status_code == 403


def test_only_superadmins_with_a_recent_sign_in_make_operator_keys(app: Flask, cast: Cast) -> None:
    body = {"name": "x", "scopes": ["accounts:read"]}
    refused = cast.alice.post("api-keys", body)
    assert (refused.status_code, refused.json["error"]) == (403, "superadmin_required")
    of_key = operator(app, cast.root, *OPERATOR_SCOPES).post("api-keys", body)
    assert of_key.status_code == 403
    for scopes in ([], ["accounts"], ["accounts:admin"], ["portal:read"], ["users:read"] * 2, [1]):
        answer = cast.root.post("api-keys", {"name": "x", "scopes": scopes})
        assert answer.status_code == 422, scopes
    both = cast.root.acting_in("acme").post("api-keys", {**body, "user_id": cast.bob.id})
    assert both.status_code == 400


def test_operator_key_names_one_account(app: Flask, cast: Cast) -> None:
    key = operator(app, cast.root, *OPERATOR_SCOPES)
    for reference in ("acme", cast.alice.account_id):
        own = key.acting_in(reference).get("account/users").json["items"]
        assert {one["id"] for one in own} == {cast.alice.id, cast.bob.id}
    assert key.acting_in("nobody").get("account/users").status_code == 404
    assert key.acting_in("*").get("account/users").status_code == 400
    for path in ("account/users", "records/posts", "webhooks", "changes", "account"):
        assert key.get(path).status_code == 400, path
        for reference in ("system", SYSTEM_ACCOUNT_ID, "SY0000"):
            assert key.acting_in(reference).get(path).status_code == 403, path
    make_collection(cast.root)
    make_record(cast.root, title="of the operator")
    acting = key.acting_in("acme")
    query = f"records/posts?account_id={SYSTEM_ACCOUNT_ID}"
    assert acting.get(query).json["items"] == []
    plain = cast.alice.post("api-keys", {"name": "x"}).json["key"]
    of_account = Caller(app, **{"X-API-Key": plain, "X-Account-ID": "globex"})
    assert of_account.get("account/users").status_code == 403


def test_operator_key_provisions_an_account(app: Flask, cast: Cast) -> None:
    key = operator(
        app, cast.root, "accounts:write", "users:write", "workflows:write", "webhooks:write"
    )
    made = key.post("accounts", {"name": "Initech"})
    assert made.status_code == 201, made.json
    account_id = made.json["id"]
    service = {"kind": "service", "name": "Root bot", "role": "admin"}
    assert key.acting_in(account_id).post("account/users", service).status_code == 403
    early = key.acting_in(account_id).post("account/users", {**service, "role": "viewer"})
    for path in (f"users/{early.json['id']}", f"account/users/{early.json['id']}"):
        promoted = key.acting_in(account_id).patch(path, {"role": "admin"})
        assert promoted.status_code == 403
    admin = {"email": "ida@initech.example", "role": "admin", "account_id": account_id}
    assert key.post("users", admin).status_code == 201
    second = key.post("users", {**admin, "email": "eve@initech.example"})
    assert second.status_code == 403
    acting = key.acting_in(account_id)
    bot = acting.post("account/users", {"kind": "service", "name": "Bot", "role": "editor"})
    assert bot.status_code == 201, bot.json
    member = {"email": "mia@initech.example", "role": "viewer"}
    mia = acting.post("account/users", member)
    assert mia.status_code == 201
    promoted = acting.patch(f"account/users/{mia.json['id']}", {"role": "admin"})
    assert promoted.status_code == 403
    assert key.patch(f"users/{mia.json['id']}", {"role": "admin"}).status_code == 403
    workflow = {"name": "w", "trigger": {"type": "manual"}, "steps": []}
    webhook = {"url": "https://hooks.example.com/x", "collection": "posts", "events": ["create"]}
    for path, body in (("workflows", workflow), ("webhooks", webhook)):
        unowned = acting.post(path, body)
        assert unowned.status_code == 400, unowned.json
        assert [one["field"] for one in unowned.json["details"]] == ["owner_id"]
        for other in (cast.root.id, mia.json["id"], cast.alice.id):
            assert acting.post(path, {**body, "owner_id": other}).status_code == 400
        owned = acting.post(path, {**body, "owner_id": bot.json["id"]})
        assert (owned.status_code, owned.json["owner_id"]) == (201, bot.json["id"])
    only_users = operator(app, cast.root, "users:write")
    other = make_account(app, "umbrella")
    body = {**admin, "account_id": other, "email": "x@umbrella.example"}
    assert only_users.post("users", body).status_code == 403


def test_operator_key_does_not_touch_the_instance(app: Flask, cast: Cast) -> None:
    key = operator(app, cast.root, *OPERATOR_SCOPES)
    root, system = f"users/{cast.root.id}", SYSTEM_ACCOUNT_ID
    tries = [
        ("GET", root, None),
        ("PATCH", root, {"name": "x"}),
        ("DELETE", root, None),
        ("POST", f"{root}/resend-verification", None),
        ("PUT", f"{root}/password", {"send_reset_link": True}),
        ("POST", f"{root}/verify", None),
        ("POST", "users", {"email": "x@system.example", "account_id": system}),
        ("GET", f"accounts/{system}/users", None),
        ("PATCH", f"accounts/{system}", {"name": "x"}),
        ("DELETE", f"accounts/{system}", None),
        ("GET", "api-keys", None),
        ("POST", "api-keys", {"name": "x"}),
        ("PATCH", "product", {"links": {"sign_in": "https://evil.example/{token}"}}),
        ("GET", "admin/configuration", None),
        ("POST", "admin/configuration", {}),
        ("PATCH", "roles/2", {"name": "x"}),
        ("POST", "roles", {"name": "x"}),
        ("POST", "account-templates/default/apply", {}),
    ]
    for method, path, body in tries:
        answer = key(method, path, body)
        assert answer.status_code == 403, (method, path, answer.json)
    listed = key.get("users?limit=100").json["items"]
    assert system not in {one["account_id"] for one in listed}
    assert len(listed) == 3
    assert key.get(f"users?account_id={system}").json["total"] == 0
    for part in ("roles", "product", "accounts", "account_templates", "directory", "plans"):
        body = {"manifest": {"version": 1, part: {}}}
        for path, more in (("plan", {}), ("apply", {"plan_hash": "x"})):
            answer = key.post(f"manifest/{path}", {**body, **more})
            assert (answer.status_code, answer.json["error"]) == (403, "scope_denied"), part


def test_operator_key_does_not_touch_pii_access(app: Flask, cast: Cast) -> None:
    key = operator(app, cast.root, *OPERATOR_SCOPES).acting_in("acme")
    group = next(g for g in key.get("groups").json["items"] if g["name"] == "pii_access")["id"]
    assert key.post(f"groups/{group}/users", {"user_id": cast.bob.id}).status_code == 403
    assert key.delete(f"groups/{group}/users/{cast.alice.id}").status_code == 403
    assert key.patch(f"groups/{group}", {"description": "x"}).status_code == 403
    assert key.delete(f"groups/{group}").status_code == 409
    invited = {"email": "x@acme.example", "groups": ["pii_access"]}
    assert key.post("invitations", invited).status_code == 403
    bot = key.post("account/users", {"kind": "service", "name": "Bot"}).json["id"]
    assert cast.alice.post(f"groups/{group}/users", {"user_id": bot}).status_code == 200
    workflow = {"name": "w", "trigger": {"type": "manual"}, "steps": [], "owner_id": bot}
    assert key.post("workflows", workflow).status_code == 403
    for body in ({"email": "x@acme.example"},):
        assert key.patch(f"account/users/{cast.bob.id}", body).status_code == 403
    changed = key.patch("account", {"allowed_redirect_uris": ["https://evil.example/"]})
    assert changed.status_code == 403
    assert key.patch("account", {"name": "Acme Ltd"}).status_code == 200


def test_operator_key_obeys_its_addresses_on_every_request(app: Flask, cast: Cast) -> None:
    key = operator(app, cast.root, "users:read", ip_addresses=["192.0.2.0/24"]).acting_in("acme")

    def status(address: str) -> int:
        environ = {"REMOTE_ADDR": address}
        return key.get("account/users", environ_overrides=environ).status_code

    assert [status(one) for one in ("192.0.2.7", "198.51.100.7", "192.0.2.8")] == [200, 403, 200]
    assert key.get("account/users").status_code == 403


def test_operator_key_ends_with_its_maker_and_its_revocation(app: Flask, cast: Cast) -> None:
    key = operator(app, cast.root, "users:read").acting_in("acme")
    assert key.get("account/users").status_code == 200
    listed = cast.root.get("api-keys").json["items"]
    assert cast.root.post(f"api-keys/{listed[0]['id']}/revoke").status_code == 200
    assert key.get("account/users").status_code == 401


def test_operator_key_is_in_the_log_of_the_account(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    key = operator(app, cast.root, *OPERATOR_SCOPES).acting_in("acme")
    make_record(cast.alice, title="hers")
    assert key.get("account/users").status_code == 200
    assert key.get("records/posts").status_code == 200
    seen = events(cast.alice, kind="operator.request")
    key_id = cast.root.get("api-keys").json["items"][0]["id"]
    assert {one["details"]["api_key_id"] for one in seen} == {key_id}
    assert [one["details"]["route"] for one in seen] == ["/api/v1/account/users"]
    read = events(cast.alice, kind="operator.records_read")
    assert [one["details"]["api_key_id"] for one in read] == [key_id]
    assert events(cast.charlie, user_id=cast.root.id) == []


def test_read_only_operator_key_writes_nothing(app: Flask, cast: Cast) -> None:
    key = operator(app, cast.root, "users:write", read_only=True).acting_in("acme")
    answer = key.post("account/users", {"email": "x@acme.example"})
    assert (answer.status_code, answer.json["error"]) == (403, "read_only_key")
    assert key.get("account/users").status_code == 200


PORTAL = {"pages": ["team", "audit_log"], "return_url": "https://app.example.com/"}


def open_portal(app: Flask, url: str) -> Any:
    client = app.test_client()
    answer = client.get(url.removeprefix(app.extensions["atrium.config"].base_url))
    return client, answer


def test_operator_key_opens_a_portal_as_an_admin(app: Flask, cast: Cast) -> None:
    allowed = {"allowed_redirect_uris": [PORTAL["return_url"]]}
    assert cast.alice.patch("account", allowed).status_code == 200
    root_key = operator(app, cast.root, "portal:write")
    key = root_key.acting_in("acme")
    assert key.post("account/portal-sessions", PORTAL).status_code == 400
    for user_id in (cast.bob.id, cast.charlie.id, cast.root.id):
        answer = key.post("account/portal-sessions", {**PORTAL, "user_id": user_id})
        assert answer.status_code == 400
    assert root_key.post("account/portal-sessions", PORTAL).status_code in (400, 403)
    made = key.post("account/portal-sessions", {**PORTAL, "user_id": cast.alice.id})
    assert made.status_code == 201, made.json
    client, first = open_portal(app, made.json["url"])
    assert first.status_code in (302, 303)
    page = first.headers["Location"]
    assert client.get(page).status_code == 200
    listed = cast.root.get("api-keys").json["items"][0]["id"]
    assert cast.root.delete(f"api-keys/{listed}").status_code == 204
    assert client.get(page).status_code != 200


def test_account_and_password_doors_stay_closed(app: Flask, cast: Cast) -> None:
    key = operator(app, cast.root, *OPERATOR_SCOPES)
    with_password = {
        "email": "x@acme.example",
        "password": PASSWORD,
        "account_id": cast.alice.account_id,
    }
    assert key.post("users", with_password).status_code == 403
    acting = key.acting_in("acme")
    for method, path in (
        ("DELETE", f"users/{cast.bob.id}/second-factors"),
        ("POST", f"users/{cast.bob.id}/verify"),
        ("POST", "realtime/tickets"),
        ("POST", f"files/{ANY_ID}/link"),
        ("GET", "audit-logs"),
        ("GET", "account/security-log"),
        ("POST", "account/export"),
    ):
        answer = acting(method, path, {} if method == "POST" else None)
        assert (answer.status_code, answer.json["error"]) == (403, "scope_denied"), path
