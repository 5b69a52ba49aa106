"""Groups: sets of users of one account, kept by its admins."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
from flask import Flask

from app import db
from app.accounts import service as accounts
from app.accounts.models import ADMIN, User
from tests.builders import Caller, Cast, make_user, password_hash
from tests.console.browser import Browser, alert
from tests.parallel import at_once
from tests.sql import statements

KEYS = {"id", "account_id", "name", "description", "is_system", "created_at", "updated_at"}
RANDOM_ID = "019a9f00-0000-7000-8000-00000000dead"


def make_group(caller: Caller, name: str = "finance") -> dict[str, Any]:
    answer = caller.post("groups", {"name": name})
    assert answer.status_code == 201, answer.json
    made: dict[str, Any] = answer.json
    return made


def pii(caller: Caller) -> str:
    (found,) = caller.get("groups?search=pii_access").json["items"]
    return str(found["id"])


def groups_of(caller: Caller) -> list[str]:
    found: list[str] = caller.get("auth/me").json["groups"]
    return found


@pytest.mark.both_databases
def test_group_create_read_update_delete(cast: Cast) -> None:
    made = make_group(cast.alice)
    assert set(made) == KEYS
    assert (made["account_id"], made["is_system"]) == (cast.alice.account_id, False)
    path = f"groups/{made['id']}"
    assert cast.alice.get(path).json == {**made, "users": []}
    listed = cast.alice.get("groups").json
    assert [one["name"] for one in listed["items"]] == ["finance", "pii_access"]
    assert listed["total"] == 2
    for part in ("fin", "FIN"):  # without regard to case, like other searches
        assert cast.alice.get(f"groups?search={part}").json["total"] == 1
    assert cast.charlie.get("groups").json["total"] == 1
    for method, name in (("PUT", "money"), ("PATCH", "cash")):
        answer = cast.alice(method, path, {"name": name, "description": "Sees figures."})
        assert (answer.status_code, answer.json["name"]) == (200, name)
    assert cast.alice.delete(path).status_code == 204
    assert cast.alice.get(path).status_code == 404


def test_group_names_are_unique_per_account(cast: Cast) -> None:
    path = f"groups/{make_group(cast.alice)['id']}"
    make_group(cast.charlie)
    for answer in (
        cast.alice.post("groups", {"name": "finance"}),
        cast.alice.post("groups", {"name": "pii_access"}),
        cast.alice.patch(path, {"name": "pii_access"}),
    ):
        assert (answer.status_code, answer.json["field"]) == (409, "name")


def test_pii_access_group_rename_and_deletion_are_409(cast: Cast) -> None:
    path = f"groups/{pii(cast.alice)}"
    assert cast.alice.delete(path).status_code == 409
    assert cast.alice.patch(path, {"name": "other"}).status_code == 409
    described = cast.alice.patch(path, {"name": "pii_access", "description": "x"})
    assert (described.status_code, described.json["is_system"]) == (200, True)
    assert groups_of(cast.alice) == ["pii_access"]


@pytest.mark.parametrize("word", ["users", "members"])
def test_group_membership_applies_to_next_request(cast: Cast, word: str) -> None:
    path = f"groups/{make_group(cast.alice)['id']}"
    assert groups_of(cast.bob) == []
    for _ in range(2):
        assert cast.alice.post(f"{path}/{word}", {"user_id": cast.bob.id}).status_code == 200
    assert groups_of(cast.bob) == ["finance"]
    assert [one["id"] for one in cast.alice.get(path).json["users"]] == [cast.bob.id]
    cast.alice.patch(path, {"name": "money"})
    assert groups_of(cast.bob) == ["money"]
    answer = cast.alice.delete(f"{path}/{word}/{cast.bob.id}")
    assert (answer.status_code, answer.data) == (204, b"")
    assert groups_of(cast.bob) == []
    assert cast.alice.delete(f"{path}/{word}/{cast.bob.id}").status_code == 404
    cast.alice.post(f"{path}/{word}", {"user_id": cast.bob.id})
    assert cast.alice.delete(path).status_code == 204
    assert groups_of(cast.bob) == []


def test_group_membership_with_user_or_group_of_other_account_is_404(cast: Cast) -> None:
    mine, theirs = make_group(cast.alice)["id"], make_group(cast.charlie)["id"]
    for group, user in ((mine, cast.charlie.id), (theirs, cast.bob.id), (mine, RANDOM_ID)):
        assert cast.alice.post(f"groups/{group}/users", {"user_id": user}).status_code == 404
        assert cast.alice.delete(f"groups/{group}/users/{user}").status_code == 404
    assert cast.alice.post(f"groups/{mine}/users", {"user_id": "nonsense"}).status_code == 404
    assert groups_of(cast.charlie) == ["pii_access"]
    for method in ("GET", "PATCH", "DELETE"):
        body = {"name": "x"} if method == "PATCH" else None
        assert cast.alice(method, f"groups/{theirs}", body).status_code == 404
    assert cast.charlie.get(f"groups/{theirs}").json["name"] == "finance"


def test_group_requests_of_superadmin_apply_to_acting_account(cast: Cast) -> None:
    acting = cast.root.acting_in("acme")
    path = f"groups/{make_group(acting)['id']}"
    assert acting.post(f"{path}/users", {"user_id": cast.bob.id}).status_code == 200
    assert groups_of(cast.bob) == ["finance"]
    assert cast.root.get(path).status_code == 404
    everywhere = cast.root.acting_in("*")
    assert everywhere.get("groups").json["total"] == 4
    assert everywhere.post("groups", {"name": "x"}).status_code == 400
    assert everywhere.delete(path).status_code == 400


def test_group_body_with_wrong_shape_is_422(alice: Caller) -> None:
    for body in ({}, {"name": ""}, {"name": 7}, {"name": "x", "account_id": RANDOM_ID}):
        assert alice.post("groups", body).status_code == 422
    path = f"groups/{pii(alice)}"
    for body in ({}, {"user_id": 7}, {"user_id": RANDOM_ID, "role": "x"}):
        assert alice.post(f"{path}/users", body).status_code == 422
    assert alice.get("groups/7").json["detail"][0]["loc"] == ["path", "group_id"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # the other goes by what there is
@pytest.mark.parametrize("path", ["auth/me", "account/users"])
def test_group_lookup_for_users_uses_group_members_user_index(
    app: Flask, cast: Cast, path: str
) -> None:
    with statements(app) as sent:
        assert cast.alice.get(path).status_code == 200
    asked = [one for one in sent if "JOIN groups" in one]
    assert asked
    with app.app_context():
        for one in asked:
            explain = db.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {one}", one.parameters)
            plan = str(explain.all())
            assert "ix_group_members_user (account_id=? AND user_id=?)" in plan, plan


def test_group_change_does_not_read_its_members(app: Flask, cast: Cast) -> None:
    group = make_group(cast.alice)["id"]
    assert cast.alice.post(f"groups/{group}/users", {"user_id": cast.bob.id}).status_code == 200
    assert (groups_of(cast.alice), groups_of(cast.bob)) == (["pii_access"], ["finance"])
    with statements(app) as sent:
        assert cast.alice.patch(f"groups/{group}", {"name": "sales"}).status_code == 200
    assert [one for one in sent if "users.email" in one] == []
    assert groups_of(cast.bob) == ["sales"]


def test_group_concurrent_joins_make_one_membership(cast: Cast) -> None:
    path = f"groups/{make_group(cast.alice)['id']}"
    body = {"user_id": cast.bob.id}
    statuses = at_once(4, lambda i: cast.alice.post(f"{path}/users", body).status_code)
    assert statuses == [200] * 4
    assert groups_of(cast.bob) == ["finance"]


@pytest.mark.parametrize("change", [{"name": "money"}, None], ids=["rename", "delete"])
def test_group_rename_or_deletion_bumps_version_of_concurrent_joiner(
    app: Flask, cast: Cast, change: dict[str, str] | None
) -> None:
    made, bob = make_group(cast.alice), (cast.bob.account_id, cast.bob.id)
    sent = ("PATCH" if change else "DELETE", f"groups/{made['id']}", change)
    other = Thread(target=cast.alice, args=sent)
    with app.app_context(), db.transaction() as session:
        before = session.get_one(User, bob).version
        accounts.join_group(session.get_one(User, bob), made["name"])  # as by an invitation
        other.start()
        other.join(0.3)  # where the database does not have it wait
    other.join()
    with app.app_context():
        assert db.db.session.get_one(User, bob).version == before + 2
    assert groups_of(cast.bob) == (["money"] if change else [])


def outsider(app: Flask, cast: Cast) -> Caller:
    """An admin of acme who is not in pii_access."""
    return Caller(app, make_user(app, cast.alice.account_id, "dora@acme.example", ADMIN))


def test_pii_access_member_is_added_only_by_a_member(app: Flask, cast: Cast) -> None:
    dora, path = outsider(app, cast), f"groups/{pii(cast.alice)}/users"
    for user_id in (dora.id, cast.bob.id, cast.alice.id):
        answer = dora.post(path, {"user_id": user_id})
        assert (answer.status_code, answer.json["error"]) == (403, "forbidden")
    assert groups_of(dora) == groups_of(cast.bob) == []
    assert cast.alice.post(path, {"user_id": dora.id}).status_code == 200
    assert dora.post(path, {"user_id": cast.bob.id}).status_code == 200
    assert groups_of(dora) == groups_of(cast.bob) == ["pii_access"]


def test_pii_access_former_member_cannot_rejoin_alone(cast: Cast) -> None:
    path = f"groups/{pii(cast.alice)}/users"
    assert cast.alice.delete(f"{path}/{cast.alice.id}").status_code == 204
    assert cast.alice.post(path, {"user_id": cast.alice.id}).status_code == 403
    assert groups_of(cast.alice) == []
    acting = cast.root.acting_in("acme")
    assert acting.post(path, {"user_id": cast.alice.id}).status_code == 200
    assert groups_of(cast.alice) == ["pii_access"]


def test_pii_access_superadmin_cannot_add_themself(app: Flask, cast: Cast) -> None:
    path = f"groups/{pii(cast.root)}/users"
    for caller in (cast.root, cast.root.acting_in("system")):
        assert caller.post(path, {"user_id": cast.root.id}).status_code == 403
    assert groups_of(cast.root) == []
    with app.app_context():
        hash, email = password_hash(), "rita@system.example"
        rita = Caller(app, accounts.create_superadmin(email, hash, pii_access=True))
    assert rita.post(path, {"user_id": cast.root.id}).status_code == 200
    assert groups_of(cast.root) == ["pii_access"]


@pytest.mark.parametrize("named", ["id", "name"])
def test_pii_access_invitation_requires_member_as_inviter(
    app: Flask, cast: Cast, named: str
) -> None:
    dora, root = outsider(app, cast), cast.root
    for inviter, account, status in (
        (dora, cast.alice, 403),
        (root, root, 403),
        (cast.alice, cast.alice, 201),
        (root.acting_in("acme"), cast.alice, 201),
    ):
        wanted = [pii(account) if named == "id" else "pii_access"]
        before = inviter.get("invitations").json["total"]
        body = {"email": "guest@acme.example", "groups": wanted}
        assert inviter.post("invitations", body).status_code == status
        assert inviter.get("invitations").json["total"] - before == (status == 201)


def test_pii_access_invitation_resend_requires_member(app: Flask, cast: Cast) -> None:
    dora, alice = outsider(app, cast), cast.alice
    body = {"email": "guest@acme.example", "groups": ["pii_access"]}
    made = alice.post("invitations", body).json
    path = f"invitations/{made['id']}"
    assert dora.post(f"{path}/resend").status_code == 403
    page = Browser(app, make_caller(cast, dora.email))
    assert page.send(f"team/{path}/resend").status_code == 403
    assert alice.get(f"invitations/{made['token']}").json["is_valid"]  # the link is still this one
    for member in (alice, cast.root.acting_in("acme")):
        assert member.post(f"{path}/resend").status_code == 200


def test_pii_access_refusal_in_console_form_is_403_with_reason(app: Flask, cast: Cast) -> None:
    outsider(app, cast)
    group_id = pii(cast.alice)
    page = Browser(app, make_caller(cast, "dora@acme.example"))
    for answer in (
        page.send(f"groups/{group_id}/members", email=cast.bob.email),
        page.send("team/invite", email="guest@acme.example", role="viewer", groups=group_id),
    ):
        assert (answer.status_code, "Only a member of pii_access" in alert(answer)) == (403, True)
    assert groups_of(cast.bob) == []


def make_caller(cast: Cast, email: str) -> Caller:
    """Somebody of acme, to sign in to the console as."""
    caller = Caller(cast.alice.app)
    caller.email, caller.slug = email, cast.alice.slug
    return caller


@pytest.mark.parametrize("name", ["Finance", " finance", "FINANCE ", "ﬁnance"])
def test_group_names_differing_only_in_case_are_409(cast: Cast, name: str) -> None:
    path = f"groups/{make_group(cast.alice)['id']}"
    other = f"groups/{make_group(cast.alice, 'other')['id']}"
    for answer in (
        cast.alice.post("groups", {"name": name}),
        cast.alice.patch(other, {"name": name}),
    ):
        assert (answer.status_code, answer.json["field"]) == (409, "name")
    renamed = cast.alice.patch(path, {"name": name})
    assert (renamed.status_code, renamed.json["name"]) == (200, name.strip())
    assert cast.charlie.post("groups", {"name": name}).status_code == 201
    assert cast.alice.post("groups", {"name": "PII_Access"}).status_code == 409


@pytest.mark.parametrize(
    "name", ["a\nb", "a\tb", "a\u2028b", " ", "\u200b", "a\x7f", "fin\u200bance"]
)
def test_group_name_with_control_characters_is_name_invalid(cast: Cast, name: str) -> None:
    path = f"groups/{make_group(cast.alice)['id']}"
    for answer in (
        cast.alice.post("groups", {"name": name}),
        cast.alice.patch(path, {"name": name}),
    ):
        assert answer.status_code == 400
        assert [one["code"] for one in answer.json["details"]] == ["name_invalid"]
    assert cast.alice.get(path).json["name"] == "finance"


def test_group_concurrent_creation_with_one_name_is_201_once(cast: Cast) -> None:
    names = ["money", "Money", "MONEY", "mOney"]
    seen = at_once(4, lambda i: cast.alice.post("groups", {"name": names[i]}).status_code)
    assert sorted(seen) == [201, 409, 409, 409]
