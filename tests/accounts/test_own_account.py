"""The own account as its admins run it: settings, team, roles, and the open collections."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from app.accounts.models import EDITOR
from tests.builders import Caller, Cast, make_collection, make_user
from tests.mailbox import link_in, outbox, run_jobs

DEFAULTS = {
    "allowed_redirect_uris": [],
    "default_redirect_uri": None,
    "cors_origins": [],
    "frame_ancestors": [],
    "sso_provisioning": None,
    "sso_email_domains": [],
    "sso_group_roles": [],
    "sso_allow_admin": False,
    "sso_ignored_groups": [],
    "sso_tokens_in_fragment": False,
    "mfa": "optional",
    "mfa_roles": [],
    "mfa_grace_days": 0,
    "password_sign_in": True,
    "magic_link": False,
    "new_device_mail": True,
    "session_idle_hours": None,
    "session_max_hours": None,
    "mail_from": None,
    "mail_from_active": False,
    "mail_from_advice": None,
}
SETTINGS = {
    "allowed_redirect_uris": ["https://app.example.com/in?x=1", "http://localhost:3000/in"],
    "default_redirect_uri": "https://app.example.com/in",
    "cors_origins": ["https://app.example.com", "http://localhost:3000"],
}


def test_own_account_shows_settings(alice: Caller) -> None:
    answer = alice.get("account")
    assert answer.status_code == 200
    shown = answer.json
    assert {key: shown[key] for key in DEFAULTS} == DEFAULTS
    assert (shown["id"], shown["slug"], shown["account_code"]) == (
        alice.account_id,
        "acme",
        "AA0001",
    )
    rest = {"id", "slug", "account_code", "name", "is_active", "created_at", "updated_at"}
    rest |= {"attributes", "may_brand", "plan", "flags", "quotas"}
    assert set(shown) == {*DEFAULTS, *rest}


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_own_account_name_and_settings_change_by_put_and_patch(cast: Cast, method: str) -> None:
    answer = cast.alice(method, "account", {"name": "Acme Ltd", **SETTINGS})
    assert answer.status_code == 200
    assert {key: answer.json[key] for key in SETTINGS} == SETTINGS
    assert answer.json["name"] == "Acme Ltd"
    assert cast.alice.get("account").json == answer.json
    part = cast.alice(method, "account", {"default_redirect_uri": None}).json
    assert part["default_redirect_uri"] is None
    assert part["cors_origins"] == SETTINGS["cors_origins"]
    assert cast.charlie.get("account").json["name"] == "Globex"
    assert cast.charlie.get("account").json["cors_origins"] == []


MALFORMED: list[dict[str, Any]] = [
    {"slug": "other"},
    {"is_active": False},
    {"settings": {}},
    {"account_code": "AA0009"},
    {"id": "x"},
    {"name": ""},
    {"name": None},
    {"cors_origins": "https://x.example"},
    {"cors_origins": [None]},
    {"allowed_redirect_uris": ["https://x.example"] * 51},
]


def test_own_account_body_with_wrong_shape_is_422(alice: Caller) -> None:
    before = alice.get("account").json
    for body in MALFORMED:
        assert alice.patch("account", body).status_code == 422, body
    assert alice.get("account").json == before


NO_ADDRESSES = [
    "",
    "x",
    "//evil.example",
    "https:evil.example",
    "https://",
    "https:///x",
    "javascript:alert(1)",
    "ftp://x.example",
    "https://user@x.example/",
    "https://@x.example/",
    "https://a.example\\@evil.example/",
    "https://x.example/#part",
    "https://x.example/#",
    "https://x.example/\n",
    "https://x.exa\tmple/",
    "https://[::1",
    "https://x.example:99999/",
    "https://x example/",
    'https://x.example/"',
]


def test_own_account_url_settings_with_bad_url_are_invalid_url(alice: Caller) -> None:
    for uri in NO_ADDRESSES:
        body = {"allowed_redirect_uris": [uri], "cors_origins": [uri], "default_redirect_uri": uri}
        answer = alice.patch("account", body)
        assert answer.status_code == 400, uri
        assert {one["field"] for one in answer.json["details"]} == set(body)
        assert {one["code"] for one in answer.json["details"]} == {"invalid_url"}
    assert alice.get("account").json["allowed_redirect_uris"] == []


NO_ORIGINS = [
    "https://x.example/",
    "https://X.example",
    "*",
    "null",
    "https://*",
    "https://*.a.example",
    "https://a.*.example",
    "https://a..example",
    "https://%61.example",
    "https://a.example?x",
    "https://a.example:443",
    "http://a.example:80",
    "https://a.example:0444",
    "https://a.example:70000",
    "https://a.example:",
]


def test_cors_origin_with_bad_format_is_invalid_url(alice: Caller) -> None:
    for origin in NO_ORIGINS:
        answer = alice.patch("account", {"cors_origins": ["https://ok.example", origin]})
        found = [(one["field"], one["code"]) for one in answer.json["details"]]
        assert found == [("cors_origins", "invalid_url")], origin
    exact = ["https://a-b.example:8443", "http://a.example:443", "http://[::1]:3000"]
    assert alice.patch("account", {"cors_origins": exact}).json["cors_origins"] == exact


def test_team_list_holds_only_users_of_own_account(cast: Cast) -> None:
    team = cast.alice.get("account/users?sort_by=email&sort_order=asc").json
    assert [one["email"] for one in team["items"]] == [cast.alice.email, cast.bob.email]
    assert team["total"] == 2
    assert cast.alice.get("account/users?account_id=x").status_code == 422
    acting = cast.root.acting_in("acme").get("account/users?sort_by=email&sort_order=asc").json
    assert acting == team
    assert cast.root.get("account/users").json["total"] == 1
    assert cast.root.acting_in("*").get("account/users").status_code == 400


def test_new_team_member_sets_password_by_mailed_link(app: Flask, cast: Cast) -> None:
    body = {"email": "Dora@acme.example", "name": "Dora", "role": "editor"}
    answer = cast.alice.post("account/users", body)
    assert answer.status_code == 201
    assert (answer.json["role"], answer.json["account_id"]) == ("editor", cast.alice.account_id)
    run_jobs(app)
    assert [mail["To"] for mail in outbox(app)] == ["Dora@acme.example"]
    assert "/welcome/reset-password?token=AA0001-" in link_in(outbox(app)[0])
    taken = cast.alice.post("account/users", {"email": "dora@ACME.example"})
    assert (taken.status_code, taken.json["field"]) == (409, "email")


@pytest.mark.parametrize("extra", [{"password": "Correct-horse-1"}, {"account_id": "x"}])
def test_new_team_member_with_password_or_account_id_is_422(
    alice: Caller, extra: dict[str, str]
) -> None:
    body = {"email": "dora@acme.example", **extra}
    assert alice.post("account/users", body).status_code == 422
    assert alice.get("account/users").json["total"] == 2


def test_team_member_read_update_delete(cast: Cast) -> None:
    path = f"account/users/{cast.bob.id}"
    assert cast.alice.get(path).json["role"] == "viewer"
    answer = cast.alice.patch(path, {"name": "Bob", "role": "editor"})
    assert (answer.status_code, answer.json["name"], answer.json["role"]) == (200, "Bob", EDITOR)
    assert cast.bob.get("auth/me").json["role"] == "editor"
    assert cast.alice.delete(path).status_code == 204
    assert cast.alice.get(path).status_code == 404
    assert cast.bob.get("auth/me").status_code == 401
    assert cast.alice.delete(path).status_code == 404


@pytest.mark.parametrize("method", ["GET", "PATCH", "PUT", "DELETE"])
def test_team_member_of_other_account_is_404(cast: Cast, method: str) -> None:
    body = {"is_active": False} if method in ("PATCH", "PUT") else None
    for caller in (cast.alice, cast.root):
        answer = caller(method, f"account/users/{cast.charlie.id}", body)
        assert answer.status_code == 404
    assert cast.charlie.get("auth/me").json["is_active"] is True


def test_role_list_is_visible_to_account_admin(alice: Caller) -> None:
    answer = alice.get("account/roles").json
    assert [one["name"] for one in answer["items"]] == ["admin", "editor", "viewer"]
    keys = {"id", "name", "description", "console", "created_at", "updated_at"}
    assert set(answer["items"][0]) == keys
    assert alice.get("account/roles?limit=1").json["total_pages"] == 3


@pytest.fixture
def collections(root: Caller) -> None:
    schema = [{"name": name, "type": "text"} for name in ("title", "secret")]
    closed = dict.fromkeys(
        ("list_rule", "view_rule", "create_rule", "update_rule", "delete_rule"), None
    )
    make_collection(root, "closed", schema, **closed)
    make_collection(root, "inbox", schema, **{**closed, "create_rule": "true"})
    make_collection(root, "listed", schema, **{**closed, "list_rule": ""}, list_fields=["title"])
    make_collection(root, "seen", schema, list_fields=["title"], view_fields=["secret"])


def test_open_collections_show_only_readable_fields(cast: Cast, collections: None) -> None:
    answer = cast.bob.get("account/collections").json
    shown = {one["name"]: [field["name"] for field in one["schema"]] for one in answer["items"]}
    assert shown == {"inbox": [], "listed": ["title"], "seen": ["title", "secret"]}
    for item in answer["items"]:
        assert set(item) == {"id", "name", "schema", "fields"}
        assert item["schema"] == item["fields"]
    assert (answer["total"], answer["page"], answer["total_pages"]) == (3, 1, 1)
    second = cast.bob.get("account/collections?skip=1&limit=1").json
    assert ([one["name"] for one in second["items"]], second["total"]) == (["listed"], 3)


def test_open_collections_follow_rule_changes_at_once(cast: Cast, collections: None) -> None:
    cast.root.put("collections/closed/rules", {"view_rule": "true", "view_fields": ["title"]})
    cast.root.put("collections/inbox/rules", {"create_rule": None})
    answer = cast.bob.get("account/collections").json
    assert [one["name"] for one in answer["items"]] == ["closed", "listed", "seen"]
    assert "secret" not in str(answer["items"][0])


def test_open_collections_of_superadmin_are_all_collections(cast: Cast, collections: None) -> None:
    answer = cast.root.get("account/collections").json
    assert [len(one["fields"]) for one in answer["items"]] == [2, 2, 2, 2]


def test_open_collections_without_credential_are_401(app: Flask, cast: Cast) -> None:
    for caller in (Caller(app), Caller(app).acting_in("acme")):
        assert caller.get("account/collections").status_code == 401


def test_editor_on_account_admin_routes_is_403(app: Flask, alice: Caller) -> None:
    editor = Caller(app, make_user(app, alice.account_id, "eve@acme.example", EDITOR))
    for path in ("account", "account/users", "account/roles", "groups", "invitations"):
        assert editor.get(path).status_code == 403
    assert editor.get("account/collections").status_code == 200
