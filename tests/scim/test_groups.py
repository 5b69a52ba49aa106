"""Groups: roles by group as at sign-in, `pii_access`, and bounds."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.accounts.models import PII_GROUP, VIEWER, Role, User
from app.context import tenancy
from app.ids import new_id
from app.sso.scim import groups as scim_groups
from app.sso.scim.models import DirectoryUser
from tests.builders import Caller, Cast
from tests.scim.conftest import Directory
from tests.scim.sequences import patch

MAPPING = [{"group": "Admins", "role": "admin"}, {"group": "Finance", "role": "editor"}]


def map_roles(admin: Caller, *, allow_admin: bool = False) -> None:
    """Map groups to roles, as for sign-in."""
    body = {"sso_group_roles": MAPPING[0 if allow_admin else 1 :], "sso_allow_admin": allow_admin}
    assert admin.patch("account", body).status_code == 200


def role_of(cast: Cast, user_id: str) -> str:
    return str(cast.alice.get(f"account/users/{user_id}").json["role"])


def members(op: str, *user_ids: str) -> dict[str, Any]:
    values = [{"value": user_id} for user_id in user_ids]
    return patch({"op": op, "path": "members", "value": values})


def pii_group(admin: Caller) -> str:
    listed = admin.get("groups").json["items"]
    return next(str(one["id"]) for one in listed if one["name"] == PII_GROUP)


def test_scim_groups_give_and_take_roles(cast: Cast, okta: Directory) -> None:
    map_roles(cast.alice)
    dora, group = okta.make_user()["id"], okta.make_group("Finance")["id"]
    assert role_of(cast, dora) == "viewer"
    okta.patch(f"Groups/{group}", members("add", dora))
    assert role_of(cast, dora) == "editor"
    okta.patch(f"Groups/{group}", members("remove", dora))
    assert role_of(cast, dora) == "viewer"
    okta.put(f"Groups/{group}", {"displayName": "Finance", "members": [{"value": dora}]})
    assert role_of(cast, dora) == "editor"
    okta.patch(f"Groups/{group}", patch({"op": "replace", "value": {"displayName": "Others"}}))
    assert role_of(cast, dora) == "editor"  # the mapping follows
    mapping = cast.alice.get("account").json["sso_group_roles"]
    assert mapping == [{"group": "Others", "role": "editor"}]
    okta.patch(f"Groups/{group}", patch({"op": "replace", "value": {"displayName": "Finance"}}))
    assert role_of(cast, dora) == "editor"
    assert okta.delete(f"Groups/{group}").status_code == 204
    assert role_of(cast, dora) == "viewer"


def test_scim_groups_neither_have_nor_change_service_users(cast: Cast, okta: Directory) -> None:
    body = {"kind": "service", "name": "Bot", "role": "viewer"}
    bot = cast.alice.post("account/users", body).json["id"]
    dora, group = okta.make_user()["id"], okta.make_group("Finance")["id"]
    refused = okta.patch(f"Groups/{group}", members("add", bot))
    assert refused.status_code == 400, refused.json
    assert cast.alice.post(f"groups/{group}/users", {"user_id": bot}).status_code == 200
    wanted = {"displayName": "Finance", "members": [{"value": dora}]}
    assert okta.put(f"Groups/{group}", wanted).status_code == 200
    shown = okta.get(f"Groups/{group}").json["members"]
    assert [one["value"] for one in shown] == [dora]
    assert okta.patch(f"Groups/{group}", members("remove", dora)).status_code == 200
    assert cast.alice.get(f"account/users/{bot}").json["groups"] == ["Finance"]


def test_scim_role_change_ends_sessions(app: Flask, cast: Cast, okta: Directory) -> None:
    map_roles(cast.alice)
    dora = okta.make_user()
    with app.app_context():
        user = db.db.session.scalars(sa.select(User).where(User.id == dora["id"])).one()
        caller = Caller(app, user)
    assert caller.get("auth/me").json["role"] == "viewer"
    okta.make_group("Finance", dora["id"])
    assert caller.get("auth/me").json["role"] == "editor"


def test_scim_groups_keep_role_set_by_hand(cast: Cast, okta: Directory) -> None:
    map_roles(cast.alice)
    dora = okta.make_user()["id"]
    cast.alice.patch(f"account/users/{dora}", {"role": "viewer"})
    group = okta.make_group("Finance", dora, cast.bob.id)["id"]
    assert [role_of(cast, one) for one in (dora, cast.bob.id)] == ["viewer", "viewer"]
    cast.alice.patch(f"account/users/{dora}", {"role": "editor"})
    okta.patch(f"Groups/{group}", members("remove", dora))
    assert role_of(cast, dora) == "editor"


def test_scim_group_gives_admin_role_only_if_allowed(cast: Cast, okta: Directory) -> None:
    dora, group = okta.make_user()["id"], okta.make_group("Admins")["id"]
    map_roles(cast.alice)
    okta.patch(f"Groups/{group}", members("add", dora))
    assert role_of(cast, dora) == "viewer"
    map_roles(cast.alice, allow_admin=True)
    okta.patch(f"Users/{dora}", patch({"op": "replace", "value": {"displayName": "D"}}))
    assert role_of(cast, dora) == "admin"
    # Once it is off again, the next change takes the role back.
    assert cast.alice.patch("account", {"sso_allow_admin": False}).status_code == 200
    okta.patch(f"Groups/{group}", patch({"op": "replace", "path": "externalId", "value": "x"}))
    okta.patch(f"Users/{dora}", patch({"op": "replace", "value": {"displayName": "E"}}))
    assert role_of(cast, dora) == "viewer"


def test_scim_group_made_by_hand_gives_role_after_takeover(cast: Cast, okta: Directory) -> None:
    map_roles(cast.alice)
    dora = okta.make_user()["id"]
    group = cast.alice.post("groups", {"name": "Finance"}).json["id"]
    cast.alice.post(f"groups/{group}/users", {"user_id": dora})
    okta.patch(f"Users/{dora}", patch({"op": "replace", "value": {"displayName": "D"}}))
    assert role_of(cast, dora) == "viewer"
    external = patch({"op": "add", "path": "externalId", "value": "X"})
    assert okta.patch(f"Groups/{group}", external).json["externalId"] == "X"
    assert role_of(cast, dora) == "editor"


def test_scim_change_of_pii_access_group_is_403(cast: Cast, okta: Directory) -> None:
    group, dora = pii_group(cast.alice), okta.make_user()["id"]
    before = okta.get(f"Groups/{group}").json
    for method, body in (
        ("PATCH", members("add", dora)),
        ("PATCH", members("remove", cast.alice.id)),
        ("PATCH", patch({"op": "replace", "path": "displayName", "value": "x"})),
        ("PUT", {"displayName": PII_GROUP, "members": [{"value": dora}]}),
        ("DELETE", None),
    ):
        assert okta(method, f"Groups/{group}", body).status_code == 403, method
    for name, status in ((PII_GROUP, 409), ("PII_access", 409), ("pii\u200b_access", 400)):
        assert okta.post("Groups", {"displayName": name}).status_code == status
    other = okta.make_group("x")["id"]
    rename = patch({"op": "replace", "path": "displayName", "value": PII_GROUP})
    assert okta.patch(f"Groups/{other}", rename).status_code == 409
    assert okta.get(f"Groups/{group}").json == before


@pytest.mark.one_database
def test_scim_group_with_member_outside_account_is_400(cast: Cast, okta: Directory) -> None:
    group = okta.make_group("a", cast.bob.id)
    for value in (cast.charlie.id, cast.root.id, group["id"], "x", "", None, 5, "x" * 200, "a\0b"):
        body = {"Operations": [{"op": "add", "path": "members", "value": [{"value": value}]}]}
        answer = okta.patch(f"Groups/{group['id']}", body)
        assert answer.status_code == 400, value
    assert okta.get(f"Groups/{group['id']}").json == group


@pytest.mark.one_database
def test_scim_group_etag_covers_members(okta: Directory, cast: Cast) -> None:
    group = okta.make_group("a")
    path, etag = f"Groups/{group['id']}", group["meta"]["version"]
    cast.alice.post(f"groups/{group['id']}/users", {"user_id": cast.bob.id})
    for method, body in (
        ("PUT", {"displayName": "b"}),
        ("PATCH", members("add")),
        ("DELETE", None),
    ):
        assert okta(method, path, body, headers={"If-Match": etag}).status_code == 412
    newer = okta.get(path).headers["ETag"]
    assert okta.get(path, headers={"If-None-Match": newer}).status_code == 304
    assert okta.delete(path, headers={"If-Match": newer}).status_code == 204


@pytest.mark.one_database
def test_scim_group_members_over_limit_are_413(
    okta: Directory, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scim_groups, "MAX_CHANGED", 2)
    ids = [okta.make_user(f"u{number}@acme.example")["id"] for number in range(3)]
    group = okta.make_group("a")["id"]
    path = f"Groups/{group}"
    values = [{"value": id} for id in ids]
    for method, body in (
        ("PUT", {"displayName": "a", "members": values}),
        ("PATCH", members("add", *ids)),
        ("PATCH", patch({"op": "replace", "value": {"members": values}})),
        ("PATCH", patch(*({"op": "add", "path": "members", "value": [one]} for one in values))),
    ):
        assert okta(method, path, body).status_code == 413
    assert okta.post("Groups", {"displayName": "b", "members": values}).status_code == 413
    assert okta.patch(path, members("add", *ids[:2])).status_code == 200
    assert okta.put(path, {"displayName": "a", "members": values}).status_code == 200
    monkeypatch.setattr(scim_groups, "MAX_WORK", 2)
    assert okta.patch(path, members("remove", ids[0])).status_code == 413
    monkeypatch.setattr(scim_groups, "MAX_LISTED", 2)
    for listed in (okta.get(path), okta.get("Groups")):
        assert (listed.status_code, listed.json["scimType"]) == (400, "tooMany")
    assert okta.get(f"{path}?excludedAttributes=members").status_code == 200
    assert okta.get("Groups?attributes=displayName").status_code == 200


def test_scim_lists_run_constant_number_of_statements(
    app: Flask, cast: Cast, okta: Directory
) -> None:
    def statements(path: str) -> int:
        counted: list[str] = []
        with app.app_context():
            engine = db.db.engine

        def count(*args: Any) -> None:
            counted.append(args[2])

        sa.event.listen(engine, "before_cursor_execute", count)
        assert okta.get(path).status_code == 200
        sa.event.remove(engine, "before_cursor_execute", count)
        return len(counted)

    okta.make_group("first", okta.make_user()["id"])
    few = [statements(path) for path in ("Users", "Groups")]
    ids = [okta.make_user(f"u{number}@acme.example")["id"] for number in range(10)]
    for number in range(5):
        okta.make_group(f"group {number}", *ids)
    assert [statements(path) for path in ("Users", "Groups")] == few


@pytest.mark.long
def test_scim_group_of_1000_members_gives_role(app: Flask, cast: Cast, okta: Directory) -> None:
    """Within the second that a transaction may take on SQLite, on a machine for itself."""
    map_roles(cast.alice)
    account_id, ids = cast.alice.account_id, [new_id() for _ in range(1000)]
    with app.app_context(), tenancy.in_account(account_id), db.transaction() as session:
        role_id = session.scalars(sa.select(Role.id).where(Role.name == VIEWER)).one()
        key = [{"account_id": account_id, "id": id} for id in ids]
        users = [one | {"email": one["id"], "email_key": one["id"]} for one in key]
        db.connection().execute(
            sa.insert(User.__table__), [one | {"role_id": role_id} for one in users]
        )
        rows = [
            {
                "account_id": account_id,
                "user_id": id,
                "user_name": id,
                "user_name_key": id,
                "attributes": {},
                "given_role_id": role_id,
            }
            for id in ids
        ]
        db.connection().execute(sa.insert(DirectoryUser.__table__), rows)
    group = okta.make_group("Finance")["id"]
    assert okta.patch(f"Groups/{group}", members("add", *ids)).status_code == 200
    assert {role_of(cast, id) for id in (ids[0], ids[-1])} == {"editor"}
    assert okta.delete(f"Groups/{group}").status_code == 204
    assert {role_of(cast, id) for id in (ids[0], ids[-1])} == {"viewer"}


@pytest.mark.parametrize("value", [[], "", {}, [{}], [{"value": ""}], [{"display": "Dora"}]])
def test_scim_patch_remove_with_empty_value_removes_no_member(
    okta: Directory, value: object
) -> None:
    dora = okta.make_user()["id"]
    path = f"Groups/{okta.make_group('Finance', dora)['id']}"
    operation = {"op": "remove", "path": "members", "value": value}
    answer = okta.patch(path, patch(operation))
    assert answer.status_code in (200, 400), answer.text
    assert [one["value"] for one in okta.get(path).json["members"]] == [dora]
    # Without a value, all go (RFC 7644, section 3.5.2.2).
    everybody = {"op": "remove", "path": "members"}
    assert okta.patch(path, patch(everybody)).status_code == 200
    assert okta.get(path).json.get("members", []) == []


@pytest.mark.parametrize("kind", ["Users", "Groups"])
def test_scim_if_none_match_with_current_etag_on_write_is_412(okta: Directory, kind: str) -> None:
    made = okta.make_user() if kind == "Users" else okta.make_group("Finance")
    path, etag = f"{kind}/{made['id']}", made["meta"]["version"]
    change = {"op": "replace", "value": {"externalId": "x"}}
    changes = (
        ("PUT", {**made, "externalId": "x"}),
        ("PATCH", patch(change)),
        ("DELETE", None),
    )
    for method, body in changes:
        for header in ("*", etag, f'"x", {etag}', etag.removeprefix("W/")):
            answer = okta(method, path, body, headers={"If-None-Match": header})
            assert (answer.status_code, answer.json["status"]) == (412, "412"), (method, header)
    assert okta.get(path).json == made
    for method, body in changes:
        answer = okta(method, path, body, headers={"If-None-Match": '"x"'})
        assert answer.status_code in (200, 204), (method, answer.text)
