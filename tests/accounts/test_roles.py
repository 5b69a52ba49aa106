"""Roles: names that all accounts share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.auth.test_invitations import expire
from tests.builders import PASSWORD, Caller, Cast
from tests.parallel import at_once


def make_role(root: Caller, name: str = "auditor") -> dict[str, Any]:
    answer = root.post("roles", {"name": name, "description": "Reads all."})
    assert answer.status_code == 201, answer.json
    made: dict[str, Any] = answer.json
    return made


def seeded(root: Caller) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = root.get("roles").json["items"]
    return found[:3]


def test_role_create_read_update_delete(root: Caller) -> None:
    made = make_role(root)
    assert set(made) == {"id", "name", "description", "console", "created_at", "updated_at"}
    assert made["console"] is False
    path = f"roles/{made['id']}"
    assert root.get(path).json == made
    listed = root.get("roles").json
    assert [one["name"] for one in listed["items"]] == ["admin", "editor", "viewer", "auditor"]
    assert (listed["total"], root.get("roles?skip=3").json["items"]) == (4, [made])
    for method, name in (("PUT", "reader"), ("PATCH", "checker")):
        answer = root(method, path, {"name": name, "description": None})
        assert (answer.status_code, answer.json["name"]) == (200, name)
        assert answer.json["description"] is None
    assert root.delete(path).status_code == 204
    assert root.get(path).status_code == 404
    assert root.delete(path).status_code == 404


def test_role_with_taken_name_is_409(root: Caller) -> None:
    path = f"roles/{make_role(root)['id']}"
    for answer in (root.post("roles", {"name": "admin"}), root.patch(path, {"name": "viewer"})):
        assert (answer.status_code, answer.json["field"]) == (409, "name")
    assert root.get(path).json["name"] == "auditor"


def test_seeded_role_rename_and_deletion_are_409(root: Caller) -> None:
    for role in seeded(root):
        path = f"roles/{role['id']}"
        assert root.delete(path).status_code == 409
        assert root.patch(path, {"name": "other"}).status_code == 409
        body = {"name": role["name"], "description": role["description"]}
        assert root.put(path, body).json["name"] == role["name"]


@pytest.mark.parametrize("holder", ["user", "invitation"])
def test_role_deletion_while_in_use_is_409(cast: Cast, holder: str) -> None:
    made = make_role(cast.root)
    if holder == "user":
        cast.root.patch(f"users/{cast.bob.id}", {"role_id": made["id"]})
    else:
        body = {"email": "dora@acme.example", "role_id": made["id"]}
        assert cast.alice.post("invitations", body).status_code == 201
    assert cast.root.delete(f"roles/{made['id']}").status_code == 409
    assert cast.root.get(f"roles/{made['id']}").json == made


CLOSED = ("accepted", "cancelled", "expired")


def invite(cast: Cast, role: int, state: str) -> str:
    """An invitation with that role, in that state; returns its id."""
    body = {"email": f"{state}@acme.example", "role_id": role}
    made = cast.alice.post("invitations", body).json
    path, id = f"invitations/{made['id']}", str(made["id"])
    if state == "cancelled":
        assert cast.alice.delete(path).status_code == 204
    if state == "accepted":
        password = {"password": PASSWORD}
        joined = Caller(cast.root.app).post(f"invitations/{made['token']}/accept", password)
        body = {"role": "viewer"}
        assert cast.root.patch(f"users/{joined.json['user']['id']}", body).status_code == 200
    if state == "expired":
        expire(cast.root.app, id)
    return id


def test_role_deletion_ignores_closed_invitations(cast: Cast) -> None:
    made = make_role(cast.root)
    other = invite(cast, 3, "cancelled")
    ids = {state: invite(cast, made["id"], state) for state in CLOSED}
    pending = invite(cast, made["id"], "pending")
    assert cast.root.delete(f"roles/{made['id']}").status_code == 409
    before = {one["id"]: one for one in cast.alice.get("invitations").json["items"]}
    assert {before[id]["role"] for id in (*ids.values(), pending)} == {"auditor"}
    assert cast.alice.delete(f"invitations/{pending}").status_code == 204
    assert cast.root.delete(f"roles/{made['id']}").status_code == 204
    after = {one["id"]: one for one in cast.alice.get("invitations").json["items"]}
    for state, id in ids.items():
        assert after[id] == {**before[id], "role": None, "role_id": None}, state
        assert after[id]["status"] == state
        assert cast.alice.post(f"invitations/{id}/resend").status_code == 409, state
    assert after[other] == before[other]


def test_role_deletion_refusal_keeps_role_on_closed_invitations(cast: Cast) -> None:
    made = make_role(cast.root)
    cancelled = invite(cast, made["id"], "cancelled")
    cast.root.patch(f"users/{cast.bob.id}", {"role_id": made["id"]})
    assert cast.root.delete(f"roles/{made['id']}").status_code == 409
    (shown,) = cast.alice.get("invitations").json["items"]
    assert (shown["id"], shown["role"]) == (cancelled, "auditor")


def test_role_deletion_concurrent_with_invitation_resend(cast: Cast) -> None:
    made = make_role(cast.root)
    path = f"invitations/{invite(cast, made['id'], 'expired')}/resend"
    calls = [lambda: cast.alice.post(path), lambda: cast.root.delete(f"roles/{made['id']}")]
    sent, deleted = (a.status_code for a in at_once(2, lambda n: calls[n]()))
    assert (sent, deleted) in {(200, 409), (409, 204)}


def test_role_rename_applies_to_next_request(cast: Cast) -> None:
    made = make_role(cast.root)
    cast.root.patch(f"users/{cast.bob.id}", {"role": "auditor"})
    assert cast.bob.get("auth/me").json["role"] == "auditor"
    cast.root.patch(f"roles/{made['id']}", {"name": "superadmin"})
    me = cast.bob.get("auth/me").json
    assert (me["role"], me["is_superadmin"]) == ("superadmin", False)
    assert cast.bob.get("roles").json["error"] == "superadmin_required"
    assert cast.bob.get("account").status_code == 403


def test_role_body_with_wrong_shape_is_422(root: Caller) -> None:
    for body in ({}, {"name": ""}, {"name": 7}, {"name": "x" * 101}, {"name": "x", "id": 9}):
        assert root.post("roles", body).status_code == 422
    for id in ("x", "-1", "99999999999"):
        answer = root.get(f"roles/{id}")
        assert (answer.status_code, answer.json["detail"][0]["loc"]) == (422, ["path", "role_id"])
    assert root.get("roles/99").status_code == 404
    assert root.get("roles?search=x").status_code == 422


@pytest.mark.parametrize("name", ["Admin", " admin", "ADMIN\n", "\uff41dmin"])
def test_role_names_differing_only_in_case_are_409(root: Caller, name: str) -> None:
    path = f"roles/{make_role(root)['id']}"
    for answer in (root.post("roles", {"name": name}), root.patch(path, {"name": name})):
        assert (answer.status_code, answer.json["field"]) == (409, "name")
    assert root.patch(path, {"name": " Auditor "}).json["name"] == "Auditor"
    assert root.post("roles", {"name": "auditor"}).status_code == 409


@pytest.mark.parametrize(
    "name", ["a\nb", "a\tb", "a\u2028b", " ", "\u200b", "a\x7f", "ad\u200bmin"]
)
def test_role_name_with_control_characters_is_name_invalid(root: Caller, name: str) -> None:
    path = f"roles/{make_role(root)['id']}"
    for answer in (root.post("roles", {"name": name}), root.patch(path, {"name": name})):
        assert answer.status_code == 400
        assert [one["code"] for one in answer.json["details"]] == ["name_invalid"]
    assert root.get(path).json["name"] == "auditor"
