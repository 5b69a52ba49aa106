"""`GET /users/{id}/export`: what is held of a person."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app.accounts.models import User
from app.auth.models import ApiKey, SignInSession
from app.db import db
from app.portability import person
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_record, make_user

pytestmark = pytest.mark.both_databases
FIELDS = [
    {"name": "title", "type": "text"},
    {"name": "secret", "type": "text", "readable_if": "@has_role(admin)"},
    {"name": "assignee", "type": "user"},
    {"name": "watchers", "type": "user", "multiple": True},
]
KEYS = (
    *("exported_at", "account", "user", "groups", "sessions", "second_factors", "api_keys"),
    *("identities", "mailed_links", "invitations", "records", "files", "audit_log"),
    *("security_log", "hidden_records"),
)


def export(caller: Caller, user: Caller) -> Any:
    answer = caller.get(f"users/{user.id}/export")
    assert answer.status_code == 200, answer.json
    found = json.loads(answer.get_data())
    assert tuple(found) == KEYS
    return found


@pytest.fixture
def held(cast: Cast) -> Cast:
    """Records, a file, a key and an attribute of bob's."""
    rule = "title != 'hidden' || @has_role(admin)"
    make_collection(cast.root, "tasks", FIELDS, view_rule=rule, create_rule="true")
    attributes = {
        "fields": [
            {"name": "team", "type": "text", "visible_to": "members"},
            {"name": "score", "type": "number", "visible_to": "admin"},
        ]
    }
    assert cast.root.put("attributes/users", attributes).status_code == 200
    values = {"attributes": {"team": "red", "score": 7}}
    assert cast.alice.patch(f"account/users/{cast.bob.id}", values).status_code == 200
    make_record(cast.bob, "tasks", title="his own")
    make_record(cast.alice, "tasks", title="assigned", secret="x", assignee=cast.bob.id)
    make_record(cast.alice, "tasks", title="watched", watchers=[cast.alice.id, cast.bob.id])
    make_record(cast.alice, "tasks", title="hidden", assignee=cast.bob.id)
    make_record(cast.alice, "tasks", title="of nobody")
    return cast


def by_title(found: Any) -> dict[str, list[str]]:
    return {one["record"]["title"]: one["relations"] for one in found["records"]}


def test_person_exports_what_is_held_of_them(held: Cast) -> None:
    found = export(held.bob, held.bob)
    assert found["user"]["email"] == held.bob.email
    assert found["user"]["attributes"] == {"team": "red"}
    assert found["account"]["slug"] == "acme"
    assert by_title(found) == {
        "his own": ["created_by", "updated_by"],
        "assigned": ["assignee"],
        "watched": ["watchers"],
    }
    assert not any("secret" in one["record"] for one in found["records"])
    assert found["hidden_records"] == {"tasks": 1}
    changes = {(one["table_name"], one["operation"]) for one in found["audit_log"]}
    assert ("col_tasks", "CREATE") in changes or ("col_tasks", "INSERT") in changes
    others = [one for one in found["audit_log"] if one["user_id"] != held.bob.id]
    assert others, "an admin has changed his user"
    assert all(one["ip_address"] is None for one in others)
    assert all(one["actor"] is None for one in others)
    logs = json.dumps([found["audit_log"], found["security_log"]])
    assert not any(one in logs for one in (held.alice.email, held.alice.id, held.root.id))
    assert held.alice.email not in json.dumps(found)


def test_admin_exports_what_is_held_of_a_user(held: Cast) -> None:
    found = export(held.alice, held.bob)
    assert found["user"]["attributes"] == {"team": "red", "score": 7}
    assert by_title(found)["hidden"] == ["assignee"]
    assert {one["record"].get("secret") for one in found["records"]} >= {"x"}
    assert found["hidden_records"] == {}
    assert held.alice.id in {one["user_id"] for one in found["audit_log"]}


def test_admin_gets_ids_of_records_that_are_closed_to_admins(held: Cast) -> None:
    make_collection(held.root, "notes", FIELDS, view_rule="@owns_record()", create_rule="true")
    note = make_record(held.bob, "notes", title="private")
    [found] = [
        one for one in export(held.alice, held.bob)["records"] if one["collection"] == "notes"
    ]
    assert found == {
        "collection": "notes",
        "id": note["id"],
        "relations": ["created_by", "updated_by"],
        "record": None,
    }


def test_others_may_not_export_a_person(app: Flask, held: Cast) -> None:
    path = f"users/{held.bob.id}/export"
    assert held.charlie.get(path).status_code == 404, "another account's admin"
    colleague = Caller(app, make_user(app, held.alice.account_id, "eve@acme.example", "viewer"))
    assert colleague.get(path).status_code == 403
    assert colleague.get(f"users/{held.charlie.id}/export").status_code == 403
    assert Caller(app).get(path).status_code == 401
    scoped = held.bob.post(
        "api-keys", {"name": "k", "scopes": {"collections": ["tasks"], "operations": ["list"]}}
    )
    if scoped.status_code == 201:
        robot = Caller(app, **{"X-API-Key": scoped.json["key"]})
        assert robot.get(path).status_code == 403
    unknown = "019a9f00-0000-7000-8000-0000000000ff"
    assert held.alice.get(f"users/{unknown}/export").status_code == 404


def test_export_by_a_superadmin_is_in_the_security_log(held: Cast) -> None:
    export(held.root, held.bob)
    events = held.alice.get("account/security-log?kind=operator.records_read").json["items"]
    assert events
    assert events[0]["user_id"] == held.root.id


def test_export_has_no_secret(app: Flask, held: Cast) -> None:
    key = held.bob.post("api-keys", {"name": "mine"})
    text = json.dumps([export(held.bob, held.bob), export(held.alice, held.bob)])
    secrets = [PASSWORD]
    with app.app_context():
        for column, mine in (
            (User.password_hash, User.id == held.bob.id),
            (SignInSession.token_hash, SignInSession.user_id == held.bob.id),
            (ApiKey.key_hash, ApiKey.created_by == held.bob.id),
        ):
            secrets += filter(None, db.session.scalars(sa.select(column).where(mine)))
    if key.status_code == 201:
        secrets.append(key.json["key"])
    for secret in secrets:
        assert secret not in text


def test_archive_has_the_same_as_json_lines(held: Cast) -> None:
    answer = held.alice.get(f"users/{held.bob.id}/export?format=zip")
    assert (answer.status_code, answer.mimetype) == (200, "application/zip")
    archive = zipfile.ZipFile(io.BytesIO(answer.get_data()))
    assert archive.testzip() is None
    plain = export(held.alice, held.bob)
    records = [json.loads(line) for line in archive.read("records.jsonl").splitlines()]
    assert records == plain["records"]
    assert json.loads(archive.read("person.json"))["user"] == plain["user"]
    readme = archive.read("README.txt").decode()
    assert all(name in readme for name in archive.namelist() if name != "README.txt")
    assert held.alice.get(f"users/{held.bob.id}/export?format=csv").status_code == 422


def test_many_records_come_in_pieces(held: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIECE", "RECORDS_AT_ONCE", "CHANGES_AT_ONCE"):
        monkeypatch.setattr(person, name, 2)
    for number in range(7):
        make_record(held.bob, "tasks", title=f"task {number}")
    found = export(held.bob, held.bob)
    ids = [one["id"] for one in found["records"]]
    assert len(ids) == len({*ids}) == 10
    assert len(found["audit_log"]) == len({one["id"] for one in found["audit_log"]}) > 7
