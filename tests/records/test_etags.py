"""ETag, If-Match and If-None-Match on single records."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from flask import Flask

from app.accounts import service as accounts
from app.accounts.models import PII_GROUP, User
from app.db import db, transaction
from tests.builders import Caller, make_collection, make_drawer, make_record
from tests.parallel import at_once

SCHEMA = [
    {"name": "title", "type": "text"},
    {"name": "secret", "type": "text"},
    {"name": "mail", "type": "email", "pii": True, "mask_type": "email"},
]


def etag(caller: Caller, path: str) -> str:
    """The ETag of what the caller gets."""
    answer = caller.get(path)
    assert answer.status_code == 200
    return str(answer.headers["ETag"])


@pytest.fixture
def path(root: Caller, alice: Caller) -> str:
    make_collection(root, schema=SCHEMA)
    made = make_record(alice, title="a", secret="s", mail="ann@x.example")
    return f"records/posts/{made['id']}"


def test_etag_is_sent_with_every_record_response(alice: Caller, path: str) -> None:
    seen = etag(alice, path)
    assert seen == etag(alice, path) == etag(alice, f"{path}?fields=title")
    for method, body in (("PUT", {"title": "b"}), ("PATCH", {"title": "c"})):
        answer = alice(method, path, body)
        assert answer.headers["ETag"] != seen
        seen = answer.headers["ETag"]
        assert seen == etag(alice, path)
    made = alice.post("records/posts", {"title": "d"})
    assert made.headers["ETag"] == etag(alice, f"records/posts/{made.json['id']}")
    assert "ETag" in alice.get(path, headers={"Origin": "http://x.example"}).headers


def test_etag_changes_with_view_rights_and_fields(
    app: Flask, root: Caller, bob: Caller, path: str
) -> None:
    seen = [etag(bob, path)]
    with app.app_context(), transaction():
        accounts.join_group(db.session.get(User, (bob.account_id, bob.id)), PII_GROUP)
    seen.append(etag(bob, path))
    rules = "collections/posts/rules"
    assert root.put(rules, {"view_fields": ["title", "secret"]}).status_code == 200
    seen.append(etag(bob, path))
    assert root.put(rules, {"view_fields": ["title"]}).status_code == 200
    seen.append(etag(bob, path))
    # What the caller does not see changes nothing but when it was changed.
    assert root.acting_in("acme").patch(path, {"secret": "t"}).status_code == 200
    seen.append(etag(bob, path))
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_if_match_with_old_etag_is_412(alice: Caller, path: str, method: str) -> None:
    old = etag(alice, path)
    now = alice.patch(path, {"title": "b"}).headers["ETag"]
    before = alice.get(path).json
    for header in (old, f"W/{old}", '"x"', "x", "", f"{now}x", f"W/{now}x"):
        answer = alice(
            method, path, {"title": "c"} if method != "DELETE" else None, {"If-Match": header}
        )
        assert (answer.status_code, answer.json["error"]) == (412, "precondition_failed"), header
        assert answer.json["message"]
    assert alice.get(path).json == before


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_if_match_with_current_etag_is_accepted(alice: Caller, path: str, method: str) -> None:
    body = {"title": "c"} if method != "DELETE" else None
    if method != "DELETE":
        for header in ('"x", {}', "W/{}", '"x", W/{}', "*"):
            seen = header.format(etag(alice, path))
            assert alice(method, path, body, {"If-Match": seen}).status_code == 200
    expected = 204 if method == "DELETE" else 200
    assert alice(method, path, body, {"If-Match": etag(alice, path)}).status_code == expected
    gone = alice(method, "records/posts/nothing", body, {"If-Match": "*"})
    assert gone.status_code == 404


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_if_none_match_with_current_etag_on_write_is_412(
    alice: Caller, path: str, method: str
) -> None:
    seen, before = etag(alice, path), alice.get(path).json
    body = {"title": "c"} if method != "DELETE" else None
    for header in (seen, f"W/{seen}", f'"x", {seen}', "*"):
        answer = alice(method, path, body, {"If-None-Match": header})
        assert (answer.status_code, answer.json["error"]) == (412, "precondition_failed"), header
    both = {"If-Match": seen, "If-None-Match": seen}
    assert alice(method, path, body, both).status_code == 412
    assert alice.get(path).json == before
    for header in ('"x"', ""):
        if method != "DELETE":
            assert alice(method, path, body, {"If-None-Match": header}).status_code == 200
    fits = {"If-Match": etag(alice, path), "If-None-Match": '"x"'}
    assert alice(method, path, body, fits).status_code == (204 if method == "DELETE" else 200)
    gone = alice(method, "records/posts/nothing", body, {"If-None-Match": "*"})
    assert gone.status_code == 404


def test_if_match_applies_to_restore_and_upload_deletion(
    root: Caller, alice: Caller, path: str
) -> None:
    make_drawer(root)
    alice.patch(path, {"title": "b"})
    first = alice.get(f"{path}/history").json["items"][-1]["audit_id"]
    body, unless = {"audit_id": first}, {"If-None-Match": "*"}
    assert alice.post(f"{path}/restore", body, headers=unless).status_code == 412
    made = alice.post("files/upload", data={"file": (BytesIO(b"a"), "a.txt")}).json["file"]["id"]
    for headers in ({"If-None-Match": "*"}, {"If-Match": '"x"'}):
        assert alice.delete(f"files/{made}", headers=headers).status_code == 412
    seen = {"If-Match": etag(alice, f"files/{made}"), "If-None-Match": '"x"'}
    assert alice.delete(f"files/{made}", headers=seen).status_code == 204


def test_record_batch_with_if_match_is_400(alice: Caller, path: str) -> None:
    for header in ("If-Match", "If-None-Match"):
        answer = alice.post("records/posts/batch", {"records": [{}]}, headers={header: "*"})
        assert answer.status_code == 400


def test_if_match_concurrent_changes_succeed_once(alice: Caller, path: str) -> None:
    seen = {"If-Match": etag(alice, path)}
    answers = at_once(6, lambda n: alice.patch(path, {"title": str(n)}, headers=seen))
    assert sorted(answer.status_code for answer in answers) == [200] + [412] * 5


def test_if_match_without_update_right_is_403(root: Caller, bob: Caller, path: str) -> None:
    root.put("collections/posts/rules", {"update_rule": "@has_role('admin')"})
    answer = bob.patch(path, {"title": "x"}, headers={"If-Match": '"x"'})
    assert (answer.status_code, answer.json["error"]) == (403, "rule_denied")


def test_if_none_match_with_current_etag_on_read_is_304(alice: Caller, path: str) -> None:
    seen = etag(alice, path)
    for header in (seen, f"W/{seen}", f'"x", {seen}', "*"):
        answer = alice.get(path, headers={"If-None-Match": header})
        assert (answer.status_code, answer.data) == (304, b"")
        assert answer.headers["ETag"] == seen
        assert "X-Correlation-ID" in answer.headers
    assert alice.get(path, headers={"If-None-Match": '"x"'}).status_code == 200
    alice.patch(path, {"title": "b"})
    assert alice.get(path, headers={"If-None-Match": seen}).status_code == 200


def test_etag_with_time_dependent_field_allows_if_match_and_no_304(
    root: Caller, alice: Caller
) -> None:
    age = {"expression": "date_diff(now(), created_at, 'seconds') + n", "return_type": "number"}
    schema: list[dict[str, Any]] = [
        {"name": "n", "type": "number"},
        {"name": "age", "type": "computed", **age},
    ]
    make_collection(root, "ages", schema)
    path = f"records/ages/{make_record(alice, 'ages', n=1)['id']}"
    seen = etag(alice, path)
    assert alice.get(path, headers={"If-None-Match": seen}).status_code == 200
    assert alice.patch(path, {"n": 2}, headers={"If-Match": seen}).status_code == 200
    assert etag(alice, path) != seen
