"""Uploads that wait for a record: who may make, see and delete them, and how many there may be."""

from __future__ import annotations

import io
from typing import Any

import pytest
from flask import Flask

from app.console.shell.guard import FILE
from app.files import purge, uploads
from tests import builders
from tests.builders import PASSWORD, Caller, Cast, make_collection
from tests.console.browser import Browser, token
from tests.files.test_files import PNG, SCHEMA, blobs, run, upload

FORM = {"content_type": "multipart/form-data"}


def send(caller: Caller, **to: Any) -> Any:
    """The answer to an upload of one byte."""
    return caller.post("files/upload", data={"file": (io.BytesIO(b"x"), "a.txt")}, **to)


def fill(caller: Caller, monkeypatch: pytest.MonkeyPatch, room: int = 3) -> None:
    """Use up a caller's room, which is made small."""
    monkeypatch.setattr(uploads, "MAX_UNTAKEN_OF_USER", room)
    assert [send(caller).status_code for _ in range(room)] == [201] * room


def waiting(caller: Caller) -> list[dict[str, Any]]:
    """The uploads that a caller sees waiting."""
    answer = caller.get("files/waiting")
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json["items"]
    assert answer.json["total"] == len(items)
    return items


@pytest.mark.slow
def test_upload_limit_per_user_is_429_and_spares_others(cast: Cast) -> None:
    assert {send(cast.bob).status_code for _ in range(100)} == {201}
    refused = send(cast.bob)
    assert (refused.status_code, refused.json["error"]) == (429, "rate_limited")
    assert "your uploads" in refused.json["message"]
    assert send(cast.alice).status_code == 201


def test_upload_limit_of_user_spares_records_with_files(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root, schema=SCHEMA)
    fill(cast.bob, monkeypatch)
    assert send(cast.bob).status_code == 429
    for caller in (cast.alice, cast.bob):
        form = {"title": "a", "avatar": (io.BytesIO(PNG), "a.png")}
        assert caller.post("records/posts", data=form).status_code == 201
    assert send(cast.alice).status_code == 201
    assert cast.bob.delete(f"files/{waiting(cast.bob)[0]['id']}").status_code == 204
    assert send(cast.bob).status_code == 201


def test_upload_limit_of_account_spares_records_with_files(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root, schema=SCHEMA)
    monkeypatch.setattr(uploads, "MAX_UNTAKEN", 2)
    assert [send(one).status_code for one in (cast.alice, cast.bob, cast.alice)] == [201, 201, 429]
    form = {"title": "a", "avatar": (io.BytesIO(PNG), "a.png")}
    assert cast.alice.post("records/posts", data=form).status_code == 201
    assert send(cast.charlie).status_code == 201


def test_upload_byte_limit_per_user_is_429(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_USER_SIZE", 0)
    assert send(cast.bob).status_code == 429


@pytest.mark.parametrize(
    ("rules", "fields", "status"),
    [
        ({}, "file", 201),
        ({}, "text", 403),
        ({"create_rule": None}, "file", 201),
        ({"create_rule": None, "update_rule": None}, "file", 403),
        ({"create_rule": "@has_role(admin)", "update_rule": None}, "file", 403),
        ({"create_rule": "@has_role(viewer)", "update_rule": None}, "file", 201),
        ({"create_fields": ["title"], "update_fields": ["title"]}, "file", 403),
    ],
)
def test_upload_without_writable_file_field_is_403(
    cast: Cast, app: Flask, rules: dict[str, Any], fields: str, status: int
) -> None:
    drawers = cast.root.get("collections").json["items"]
    for one in drawers:
        assert cast.root.delete(f"collections/{one['id']}").status_code == 200
    schema = [{"name": "title", "type": "text"}, {"name": "other", "type": fields}]
    make_collection(cast.root, schema=schema, **rules)
    answer = send(cast.bob)
    assert answer.status_code == status, answer.text
    assert len(blobs(app)) == (status == 201)


def test_upload_part_for_json_field_is_invalid_type(cast: Cast, app: Flask) -> None:
    """The JSON that would name it is no record's file."""
    make_collection(cast.root, schema=[{"name": "meta", "type": "json"}], create_rule="")
    for caller in (cast.bob, Caller(app, **{"X-Account-ID": "acme"})):
        answer = caller.post("records/posts", data={"meta": (io.BytesIO(b"x"), "a")}, **FORM)
        assert (answer.status_code, answer.json["details"][0]["code"]) == (400, "invalid_type")
    assert waiting(cast.alice) == []


@pytest.mark.parametrize("end", ["deactivated", "deleted"])
def test_uploads_are_removed_with_deactivated_or_deleted_user(
    cast: Cast, app: Flask, end: str
) -> None:
    kept, _ = upload(cast.alice), [upload(cast.bob) for _ in range(2)]
    if end == "deleted":
        assert cast.alice.delete(f"account/users/{cast.bob.id}").status_code == 204
    else:
        changed = cast.alice.patch(f"account/users/{cast.bob.id}", {"is_active": False})
        assert changed.status_code == 200, changed.text
    assert [one["id"] for one in waiting(cast.alice)] == [kept["id"]]
    run(app, purge.remove)
    assert len(blobs(app)) == 1


def test_uploads_survive_password_change(cast: Cast) -> None:
    upload(cast.bob)
    body = {"current_password": PASSWORD, "new_password": "Another-horse-2x"}
    changed = cast.bob.post("auth/change-password", body)
    assert changed.status_code == 200, changed.text
    assert len(waiting(cast.alice)) == 1


def test_uploads_of_account_are_listed_and_deleted_by_admin(cast: Cast, app: Flask) -> None:
    own, bobs, other = upload(cast.alice), upload(cast.bob, name="bob.png"), upload(cast.charlie)
    shown = waiting(cast.alice)
    assert [(one["id"], one["uploaded_by"]) for one in shown] == [
        (bobs["id"], cast.bob.id),
        (own["id"], cast.alice.id),
    ]
    assert (shown[0]["name"], shown[0]["mime_type"]) == ("bob.png", "image/png")
    assert shown[0]["created_at"] < shown[0]["expires_at"]
    assert [one["id"] for one in waiting(cast.bob)] == [bobs["id"]]
    assert [one["id"] for one in waiting(cast.charlie)] == [other["id"]]
    assert [one["id"] for one in waiting(cast.root.acting_in("acme"))] == [bobs["id"], own["id"]]
    assert cast.root.acting_in("*").get("files/waiting").status_code == 400
    page = cast.alice.get("files/waiting?limit=1&page=2").json
    assert ([one["id"] for one in page["items"]], page["total"]) == ([own["id"]], 2)

    made = cast.alice.post("api-keys", {"name": "k", "scopes": {"collections": ["posts"]}}).json
    key = Caller(app, **{"X-API-Key": made["key"]})
    assert key.get("files/waiting").json["error"] == "scope_denied"
    for caller in (cast.charlie, key):
        assert caller.delete(f"files/{bobs['id']}").status_code == 404
    assert cast.alice.delete(f"files/{bobs['id']}").status_code == 204
    assert cast.root.delete(f"files/{own['path']}").status_code == 404
    assert cast.root.acting_in("acme").delete(f"files/{own['path']}").status_code == 204
    assert waiting(cast.alice) == []


def test_console_usage_page_deletes_uploads_of_user(cast: Cast, app: Flask) -> None:
    path = f"usage/{cast.alice.account_id}"
    browser = Browser(app, cast.alice)
    assert 'id="uploads"' not in browser.get(path).text
    for _ in range(3):
        upload(cast.bob)
    kept, other = upload(cast.alice), upload(cast.charlie)
    page = browser.get(path).text
    assert f"{path}/uploads/{cast.bob.id}/delete" in page
    for caller in (cast.bob, cast.charlie):
        refused = Browser(app, caller).send(f"{path}/uploads/{cast.alice.id}/delete")
        assert refused.status_code in (403, 404)
    assert "3 uploads are deleted." in browser.done(f"{path}/uploads/{cast.bob.id}/delete")
    browser.done(f"{path}/uploads/{cast.charlie.id}/delete")
    assert [one["id"] for one in waiting(cast.alice)] == [kept["id"]]
    assert [one["id"] for one in waiting(cast.charlie)] == [other["id"]]


def test_console_upload_without_writable_file_field_is_403(cast: Cast, app: Flask) -> None:
    for one in cast.root.get("collections").json["items"]:
        cast.root.delete(f"collections/{one['id']}")
    builders.make_collection(cast.root)
    browser = Browser(app, cast.alice)
    path = f"/console/accounts/{cast.alice.account_id}/files?field=a&name=a.txt"
    headers = {"X-CSRFToken": token(browser.client)}
    answer = browser.client.post(path, data=b"x", headers=headers, content_type=FILE)
    assert (answer.status_code, answer.text) == (403, uploads.NO_FILE_FIELD)
    assert blobs(app) == []
