"""SCIM tokens: who makes them, what they open, and when they stop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from flask import Flask

from app import db
from app.auth.models import ScimToken
from app.context import tenancy
from tests.builders import Caller, Cast
from tests.scim.conftest import TOKENS, Directory


def test_scim_token_is_shown_once_and_stored_as_hash(app: Flask, cast: Cast) -> None:
    made = cast.alice.post(TOKENS).json
    assert made["token"].startswith("svc_scim_AA0001_")
    assert made["token"].endswith(made["hint"])
    listed = cast.alice.get(TOKENS).json
    assert listed["base_url"] == "http://atrium.test/scim/v2"
    assert [one["id"] for one in listed["items"]] == [made["id"]]
    assert made["token"] not in str(listed)
    with app.app_context(), tenancy.across_accounts():
        row = db.db.session.scalars(sa.select(ScimToken)).one()
        assert made["token"] not in str(vars(row))
    log = cast.root.get("audit-logs?limit=100").text
    assert made["token"][-10:] not in log


def test_scim_tokens_can_be_two_and_third_is_409(cast: Cast) -> None:
    first, second = Directory(cast.alice), Directory(cast.alice)
    assert cast.alice.post(TOKENS).status_code == 409
    assert [one.get("Users").status_code for one in (first, second)] == [200, 200]
    older = cast.alice.get(TOKENS).json["items"][1]
    assert older["last_used_at"]
    assert cast.alice.delete(f"{TOKENS}/{older['id']}").status_code == 204
    assert [one.get("Users").status_code for one in (first, second)] == [401, 200]
    assert cast.alice.post(TOKENS).status_code == 201


def test_scim_with_other_credential_is_401_and_scim_token_elsewhere_too(
    cast: Cast, okta: Directory
) -> None:
    key = cast.alice.post("api-keys", {"name": "k"}).json["key"]
    keyed = Caller(cast.alice.app, Authorization=f"Bearer {key}")
    for caller in (cast.alice, cast.root, keyed, Caller(cast.alice.app)):
        answer = caller.get("/scim/v2/Users")
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.content_type == "application/scim+json"
        assert answer.json["schemas"] == ["urn:ietf:params:scim:api:messages:2.0:Error"]
    for path in ("auth/me", "account/users", TOKENS, "records/posts", "openapi.json"):
        caller = Caller(cast.alice.app, Authorization=f"Bearer {okta.token}")
        assert caller.get(path).status_code in (401, 404), path


def test_scim_token_creation_by_api_key_or_system_account_is_403(cast: Cast) -> None:
    key = cast.alice.post("api-keys", {"name": "k"}).json["key"]
    keyed = Caller(cast.alice.app, Authorization=f"Bearer {key}")
    assert keyed.post(TOKENS).status_code == 403
    made = cast.alice.post(TOKENS).json
    assert keyed.delete(f"{TOKENS}/{made['id']}").status_code == 403
    assert cast.root.post(TOKENS).status_code == 403
    assert cast.bob.post(TOKENS).status_code == 403


def test_scim_token_of_suspended_account_is_401(cast: Cast, okta: Directory) -> None:
    path = f"accounts/{cast.alice.account_id}"
    assert okta.get("Users").status_code == 200
    cast.root.patch(path, {"is_active": False})
    assert okta.get("Users").status_code == 401
    cast.root.patch(path, {"is_active": True})
    assert okta.get("Users").status_code == 200


def test_scim_request_naming_other_account_is_403(cast: Cast, okta: Directory) -> None:
    for headers in ({"X-Account-ID": "globex"}, {"Host": "globex.atrium.test"}):
        answer = okta.get("Users", headers=headers)
        assert answer.status_code == 403, headers
    own: dict[str, Any] = {"X-Account-ID": "acme"}
    assert okta.get("Users", headers=own).status_code == 200


def test_scim_objects_of_other_account_are_invisible(
    cast: Cast, okta: Directory, entra: Directory
) -> None:
    user, group = okta.make_user(), okta.make_group("finance")
    before = okta.get("Users").json
    for path in (f"Users/{user['id']}", f"Groups/{group['id']}"):
        unknown = path[:-4] + "dead"
        for method, body in (
            ("GET", None),
            ("PUT", {"userName": "a@b.example", "displayName": "x"}),
            ("PATCH", {"Operations": [{"op": "replace", "value": {"displayName": "x"}}]}),
            ("DELETE", None),
        ):
            answers = [entra(method, one, body) for one in (path, unknown)]
            assert [one.status_code for one in answers] == [404, 404]
            assert answers[0].json == answers[1].json
    for query in (f'id eq "{user["id"]}"', 'userName sw "d"', 'userName pr or userName ne "x"'):
        listed = entra.get("Users", query_string={"filter": query}).json
        assert "acme" not in str(listed)
    body = {"displayName": "theirs", "members": [{"value": user["id"]}]}
    assert entra.post("Groups", body).status_code == 400
    assert entra.get("Groups").json["totalResults"] == 1
    assert okta.get("Users").json == before
    # The same name is free in another account.
    assert entra.make_user()["userName"] == user["userName"]


def test_scim_changes_are_audited_with_token_as_actor(cast: Cast, okta: Directory) -> None:
    user = okta.make_user(name={"givenName": "Dora"})
    entries = cast.root.get(f"audit-logs?table_name=users&record_id={user['id']}").json["items"]
    token = cast.alice.get(TOKENS).json["items"][0]
    assert {(one["user_id"], one["user_name"]) for one in entries} == {(token["id"], "SCIM")}


def test_scim_rate_limit_is_per_token(cast: Cast, app: Flask) -> None:
    first, second = Directory(cast.alice), Directory(cast.charlie)
    settings = app.extensions["atrium.config"]
    app.extensions["atrium.config"] = replace(settings, rate_limit="2/minute")
    try:
        assert [first.get("Users").status_code for _ in range(3)] == [200, 200, 429]
        answer = first.get("Users")
        assert answer.headers["Retry-After"]
        assert answer.json["status"] == "429"
        assert second.get("Users").status_code == 200
    finally:
        app.extensions["atrium.config"] = settings
