"""Roles: names that all accounts share (contract section 2)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import Caller, Cast


def make_role(root: Caller, name: str = "auditor") -> dict[str, Any]:
    answer = root.post("roles", {"name": name, "description": "Reads all."})
    assert answer.status_code == 201, answer.json
    made: dict[str, Any] = answer.json
    return made


def seeded(root: Caller) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = root.get("roles").json["items"]
    return found[:3]


def test_a_role_is_made_shown_changed_and_deleted(root: Caller) -> None:
    made = make_role(root)
    assert set(made) == {"id", "name", "description", "created_at", "updated_at"}
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


def test_a_taken_name_is_a_conflict(root: Caller) -> None:
    path = f"roles/{make_role(root)['id']}"
    for answer in (root.post("roles", {"name": "admin"}), root.patch(path, {"name": "viewer"})):
        assert (answer.status_code, answer.json["field"]) == (409, "name")
    assert root.get(path).json["name"] == "auditor"


def test_seeded_roles_keep_their_names_and_stay(root: Caller) -> None:
    for role in seeded(root):
        path = f"roles/{role['id']}"
        assert root.delete(path).status_code == 409
        assert root.patch(path, {"name": "other"}).status_code == 409
        body = {"name": role["name"], "description": role["description"]}
        assert root.put(path, body).json["name"] == role["name"]


@pytest.mark.parametrize("holder", ["user", "invitation"])
def test_a_role_in_use_stays(cast: Cast, holder: str) -> None:
    made = make_role(cast.root)
    if holder == "user":
        cast.root.patch(f"users/{cast.bob.id}", {"role_id": made["id"]})
    else:
        body = {"email": "dora@acme.example", "role_id": made["id"]}
        assert cast.alice.post("invitations", body).status_code == 201
    assert cast.root.delete(f"roles/{made['id']}").status_code == 409
    assert cast.root.get(f"roles/{made['id']}").json == made


def test_a_new_name_is_obeyed_by_the_next_request(cast: Cast) -> None:
    made = make_role(cast.root)
    cast.root.patch(f"users/{cast.bob.id}", {"role": "auditor"})
    assert cast.bob.get("auth/me").json["role"] == "auditor"
    cast.root.patch(f"roles/{made['id']}", {"name": "superadmin"})
    me = cast.bob.get("auth/me").json
    assert (me["role"], me["is_superadmin"]) == ("superadmin", False)
    assert cast.bob.get("roles").json["error"] == "superadmin_required"
    assert cast.bob.get("account").status_code == 403


def test_what_has_another_shape_is_422(root: Caller) -> None:
    for body in ({}, {"name": ""}, {"name": 7}, {"name": "x" * 101}, {"name": "x", "id": 9}):
        assert root.post("roles", body).status_code == 422
    for id in ("x", "-1", "99999999999"):
        answer = root.get(f"roles/{id}")
        assert (answer.status_code, answer.json["detail"][0]["loc"]) == (422, ["path", "role_id"])
    assert root.get("roles/99").status_code == 404
    assert root.get("roles?search=x").status_code == 422
