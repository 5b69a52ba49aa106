"""Links to files end with their makers, are recorded, and can all be ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from itsdangerous import URLSafeSerializer

from app import clock
from app.collections import table
from app.files import links
from tests import builders
from tests.builders import Caller, Cast, make_collection
from tests.files.test_files import PNG, SCHEMA, upload
from tests.sql import statements

WEEK = 7 * 24 * 3600
EDITING = {"update_rule": "@has_role(admin) || created_by = @request.auth.id"}


def path_of(answer: Any) -> str:
    """The path of a link that was made."""
    assert answer.status_code == 201, answer.text
    path: str = answer.json["url"].partition("/api/v1/")[2]
    return path


def link(caller: Caller, file: str) -> str:
    """The path of a new link that works for a week."""
    return path_of(caller.post(f"files/{file}/link", {"expires_in": WEEK}))


def events(cast: Cast, kind: str) -> list[dict[str, Any]]:
    """The events of a kind in acme's security log."""
    answer = cast.alice.get(f"account/security-log?kind={kind}")
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json["items"]
    return items


@pytest.fixture
def file(cast: Cast) -> str:
    """A file of a record of alice's."""
    secret = {"name": "secret", "type": "file", "pii": True}
    make_collection(cast.root, schema=[*SCHEMA, secret], **EDITING)
    made = upload(cast.alice)["id"]
    assert cast.alice.post("records/posts", {"title": "a", "avatar": made}).status_code == 201
    return str(made)


def deactivate(cast: Cast, file: str) -> Any:
    return cast.alice.patch(f"account/users/{cast.bob.id}", {"is_active": False})


def delete(cast: Cast, file: str) -> Any:
    return cast.alice.delete(f"account/users/{cast.bob.id}")


def close_rule(cast: Cast, file: str) -> Any:
    return cast.root.put("collections/posts/rules", {"view_rule": "@has_role(admin)"})


def hide_field(cast: Cast, file: str) -> Any:
    return cast.root.put("collections/posts/rules", {"view_fields": ["title"]})


def hide_record(cast: Cast, file: str) -> Any:
    return cast.root.put("collections/posts/rules", {"view_rule": 'title = "b"'})


def remove_record(cast: Cast, file: str) -> Any:
    record = cast.alice.get("records/posts").json["items"][0]["id"]
    return cast.alice.delete(f"records/posts/{record}")


@pytest.mark.parametrize(
    "end", [deactivate, delete, close_rule, hide_field, hide_record, remove_record]
)
def test_file_link_ends_when_maker_loses_view_right(
    cast: Cast, anyone: Caller, file: str, end: Any
) -> None:
    path = link(cast.bob, file)
    assert anyone.get(path).data == PNG
    assert end(cast, file).status_code in (200, 204)
    assert anyone.get(path).status_code == 404
    assert anyone.get(f"{path}?thumb=16x16").status_code == 404


def test_file_link_of_pii_field_ends_with_pii_access(
    cast: Cast, anyone: Caller, file: str, app: Flask
) -> None:
    record = cast.alice.get("records/posts").json["items"][0]["id"]
    secret = upload(cast.alice)["id"]
    assert cast.alice.patch(f"records/posts/{record}", {"secret": secret}).status_code == 200
    assert cast.bob.post(f"files/{secret}/link").status_code == 404
    path = link(cast.alice, secret)
    assert anyone.get(path).data == PNG
    groups = cast.alice.get("groups").json["items"]
    (pii,) = [one["id"] for one in groups if one["name"] == "pii_access"]
    left = cast.alice.delete(f"groups/{pii}/members/{cast.alice.id}")
    if left.status_code != 204:
        left = cast.alice.delete(f"groups/{pii}/users/{cast.alice.id}")
    assert left.status_code in (200, 204), left.text
    assert anyone.get(path).status_code == 404


def test_file_link_of_api_key_ends_with_the_key(
    cast: Cast, anyone: Caller, file: str, app: Flask
) -> None:
    made = cast.bob.post("api-keys", {"name": "key"}).json
    key = Caller(app, **{"X-API-Key": made["key"]})
    path, bobs = link(key, file), link(cast.bob, file)
    assert anyone.get(path).data == PNG
    revoked = cast.bob.delete(f"api-keys/{made['id']}")
    assert revoked.status_code in (200, 204), revoked.text
    assert anyone.get(path).status_code == 404
    assert anyone.get(bobs).status_code == 200


def test_file_link_of_upload_ends_with_its_deletion(cast: Cast, anyone: Caller) -> None:
    waiting = upload(cast.bob)["id"]
    path = link(cast.bob, waiting)
    assert anyone.get(path).data == PNG
    assert cast.bob.delete(f"files/{waiting}").status_code == 204
    assert anyone.get(path).status_code == 404


def test_file_link_by_superadmin_works_in_acting_account(
    cast: Cast, anyone: Caller, file: str
) -> None:
    assert anyone.get(link(cast.root.acting_in("acme"), file)).data == PNG


def test_file_link_keeps_second_factor_state_of_maker(
    cast: Cast, anyone: Caller, file: str, app: Flask
) -> None:
    assert close_rule(cast, file).status_code == 200
    assert cast.bob.post(f"files/{file}/link").status_code == 404
    rule = {"view_rule": "@has_role(admin) && @request.auth.mfa = false"}
    assert cast.root.put("collections/posts/rules", rule).status_code == 200
    assert anyone.get(link(cast.alice, file)).status_code == 200


def test_file_links_deletion_ends_all_links_of_file(cast: Cast, anyone: Caller, file: str) -> None:
    bobs, alices = link(cast.bob, file), link(cast.alice, file)
    for caller, status in ((cast.bob, 403), (cast.charlie, 404), (anyone, 401)):
        assert caller.delete(f"files/{file}/links").status_code == status
    assert {anyone.get(path).status_code for path in (bobs, alices)} == {200}
    assert cast.alice.delete(f"files/{file}/links").status_code == 204
    for path in (bobs, alices):
        answer = anyone.get(path)
        assert (answer.status_code, answer.json["error"]) == (403, "link_invalid")
    assert anyone.get(link(cast.bob, file)).data == PNG
    assert [one["user_id"] for one in events(cast, "file_link.ended")] == [cast.alice.id]
    assert cast.alice.delete(f"files/{builders.PASSWORD}/links").status_code == 404


def test_file_links_deletion_requires_update_right(cast: Cast, anyone: Caller, file: str) -> None:
    own = upload(cast.bob)["id"]
    assert cast.bob.post("records/posts", {"avatar": own}).status_code == 201
    path = link(cast.bob, own)
    assert cast.bob.delete(f"files/{own}/links").status_code == 204
    assert anyone.get(path).status_code == 403


def test_file_link_creation_and_use_are_recorded(
    cast: Cast, anyone: Caller, file: str, app: Flask
) -> None:
    path = link(cast.bob, file)
    (made,) = events(cast, "file_link.created")
    record = cast.alice.get("records/posts").json["items"][0]["id"]
    assert (made["user_id"], made["target_id"]) == (cast.bob.id, record)
    assert made["target_type"].startswith(table.PREFIX)
    assert made["details"]["file_id"] == file
    assert events(cast, "file_link.used") == []
    etag = anyone.get(path).headers["ETag"]
    for headers in ({}, {"Range": "bytes=0-3"}, {"If-None-Match": etag}):
        assert anyone.get(path, headers=headers).status_code in (200, 206, 304)
    (used,) = events(cast, "file_link.used")  # one for an address and hour
    assert (used["user_id"], used["details"]["made_by"]) == ("anonymous", cast.bob.id)
    assert (used["target_id"], bool(used["ip_address"])) == (record, True)
    anyone.get(path, environ_overrides={"REMOTE_ADDR": "192.0.2.7"})
    assert len(events(cast, "file_link.used")) == 2
    with time_machine.travel(clock.now() + timedelta(hours=2)):
        anyone.get(path)
    with time_machine.travel(clock.now() + timedelta(seconds=1)):
        assert len(events(cast, "file_link.used")) == 3
    token = path.rpartition("/")[2]
    assert token not in cast.alice.get("account/security-log").text


def test_file_link_of_earlier_release_works_until_links_are_ended(
    cast: Cast, anyone: Caller, file: str, app: Flask
) -> None:
    """It does not say who made it, and has a week at most."""
    end = int(clock.now().timestamp()) + 60
    with app.app_context():
        key = app.extensions["atrium.config"].secret_key
        former = URLSafeSerializer(key, salt=links.FORMER_SALT)
        path = f"files/link/{former.dumps([cast.alice.account_id, file, end])}"
        expired = former.dumps([cast.alice.account_id, file, end - 60])
        mixed = former.dumps([cast.alice.account_id, file, end])[:-1] + "x"
    assert anyone.get(path).data == PNG
    for other in (expired, mixed):
        assert anyone.get(f"files/link/{other}").status_code == 403
    assert cast.alice.delete(f"files/{file}/links").status_code == 204
    assert anyone.get(path).status_code == 403


def linked(caller: Caller, path: str) -> list[dict[str, Any]]:
    """The records of a list."""
    answer = caller.get(path)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json["items"]
    return items


def path_in(value: Any) -> str:
    """The path of the address in a file value."""
    path: str = value["url"].partition("/api/v1/")[2]
    return path


def test_list_has_links_to_files(cast: Cast, anyone: Caller, file: str, app: Flask) -> None:
    papers = [upload(cast.alice, name=f"{n}.png")["id"] for n in range(3)]
    made = cast.alice.post("records/posts", {"title": "b", "papers": papers}).json
    plain = linked(cast.bob, "records/posts")
    counts = []
    for query in ("", "?file_links=60", "?file_links=604800&cursor="):
        with statements(app) as sent:
            items = linked(cast.bob, f"records/posts{query}")
        counts.append(sum(not one.startswith("INSERT") for one in sent))
    assert counts[1] <= counts[0] + 3  # however many files there are
    assert counts[1] == counts[2]
    values = [*items[0]["papers"], items[1]["avatar"]]
    assert [one["id"] for one in values] == [*papers, file]
    for value in values:
        assert anyone.get(path_in(value)).data == PNG
        assert set(value) == {"id", "name", "size", "mime_type", "sha256", "url", "expires_at"}
        with time_machine.travel(clock.now() + timedelta(days=8)):
            assert anyone.get(path_in(value)).status_code == 403
    assert {one["avatar"] and one["avatar"]["url"] for one in plain} != {None}
    assert linked(cast.bob, "records/posts") == plain
    one = f"records/posts/{made['id']}"
    usual, signed = cast.bob.get(one), cast.bob.get(f"{one}?file_links=60")
    assert signed.headers["ETag"] == usual.headers["ETag"]
    assert anyone.get(path_in(signed.json["papers"][2])).data == PNG
    kept = cast.alice.patch(one, {"papers": signed.json["papers"]})
    assert kept.json["papers"] == usual.json["papers"]
    named = linked(cast.bob, "records/posts?file_links=60&fields=title")
    assert [set(one) for one in named] == [{"id", "title"}] * 2


def test_links_of_list_are_recorded_and_ended_like_others(
    cast: Cast, anyone: Caller, file: str
) -> None:
    (value,) = [one["avatar"] for one in linked(cast.bob, "records/posts?file_links=3600")]
    (event,) = events(cast, "file_link.created")
    assert (event["user_id"], event["target_type"]) == (cast.bob.id, "col_posts")
    assert event["details"] == {"files": 1, "file_ids": [file], "expires_at": value["expires_at"]}
    path = path_in(value)
    assert anyone.get(f"{path}?thumb=16x16&fit=cover").status_code == 400  # no real image
    assert cast.alice.delete(f"files/{file}/links").status_code == 204
    assert anyone.get(path).status_code == 403


@pytest.mark.parametrize("end", [deactivate, close_rule, hide_field, hide_record, remove_record])
def test_link_of_list_ends_when_maker_loses_view_right(
    cast: Cast, anyone: Caller, file: str, end: Any
) -> None:
    (item,) = linked(cast.bob, "records/posts?file_links=3600")
    assert anyone.get(path_in(item["avatar"])).data == PNG
    assert end(cast, file).status_code in (200, 204)
    assert anyone.get(path_in(item["avatar"])).status_code == 404


def test_list_links_only_to_files_that_caller_may_view(
    cast: Cast, anyone: Caller, file: str, app: Flask
) -> None:
    secret = upload(cast.alice)["id"]
    record = linked(cast.alice, "records/posts")[0]["id"]
    assert cast.alice.patch(f"records/posts/{record}", {"secret": secret}).status_code == 200
    (item,) = linked(cast.bob, "records/posts?file_links=60")
    assert item["secret"] == "********"
    (item,) = linked(cast.alice, "records/posts?file_links=60")
    assert anyone.get(path_in(item["secret"])).data == PNG
    for change in (hide_record, hide_field, close_rule):
        (plain,) = linked(cast.bob, "records/posts")
        assert change(cast, file).status_code == 200
        assert linked(cast.bob, "records/posts?file_links=60") == [plain]
        restored = {"view_rule": "true", "view_fields": "*"}
        assert cast.root.put("collections/posts/rules", restored).status_code == 200
    opened = {"list_rule": "", "view_rule": ""}
    assert cast.root.put("collections/posts/rules", opened).status_code == 200
    anonymous = Caller(app, **{"X-Account-ID": "acme"})
    for path in ("records/posts", f"records/posts/{record}"):
        assert anonymous.get(path).status_code == 200
        assert anonymous.get(f"{path}?file_links=60").status_code == 401
    theirs = linked(cast.root.acting_in("*"), "records/posts?file_links=60")
    assert anyone.get(path_in(theirs[0]["avatar"])).data == PNG
    assert linked(cast.charlie, "records/posts?file_links=60") == []


def test_expanded_records_have_links_to_files(cast: Cast, anyone: Caller, file: str) -> None:
    refers = {"name": "post", "type": "reference", "collection": "posts"}
    scan = {"name": "scan", "type": "file"}
    make_collection(cast.root, "notes", [refers, scan])
    post, id = linked(cast.alice, "records/posts")[0]["id"], upload(cast.alice)["id"]
    assert cast.alice.post("records/notes", {"post": post, "scan": id}).status_code == 201
    (note,) = linked(cast.bob, "records/notes?expand=post.notes_via_post&file_links=60")
    (inner,) = note["expand"]["post"]["expand"]["notes_via_post"]["items"]
    for value in (note["scan"], inner["scan"], note["expand"]["post"]["avatar"]):
        assert anyone.get(path_in(value)).data == PNG
    closed = cast.root.put("collections/notes/rules", {"view_rule": "post = null"})
    assert closed.status_code == 200
    answer = cast.bob.get(f"records/posts/{post}?expand=notes_via_post&file_links=60").json
    (inner,) = answer["expand"]["notes_via_post"]["items"]
    assert anyone.get(path_in(inner["scan"])).status_code == 401
    assert anyone.get(path_in(answer["avatar"])).data == PNG


@pytest.mark.parametrize("seconds", ["59", "604801", "x", "", "-60"])
def test_seconds_of_links_are_bounded(cast: Cast, file: str, seconds: str) -> None:
    for path in ("records/posts", f"records/posts/{file}"):
        assert cast.bob.get(f"{path}?file_links={seconds}").status_code == 422
    query = "as_of=2026-01-01T00:00:00Z&file_links=60"
    assert cast.bob.get(f"records/posts/{file}?{query}").status_code == 400
    assert cast.bob.get("records/posts/export?format=json&file_links=60").status_code == 400
