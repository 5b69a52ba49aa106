"""POST with an Idempotency-Key is carried out once, and answered alike."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.db.functions import database_now
from app.web import PREFIX, idempotency
from app.web.access import AccessLevel, access_of
from tests.builders import Caller, make_collection
from tests.parallel import at_once

KEY = {"Idempotency-Key": "k-1"}
REPLAYED = "Idempotent-Replayed"


@pytest.fixture
def posts(root: Caller) -> dict[str, Any]:
    schema = [{"name": "title", "type": "text"}, {"name": "code", "type": "text", "unique": True}]
    return make_collection(root, schema=schema)


def total(caller: Caller) -> int:
    """How many records there are."""
    found: int = caller.get("records/posts").json["total"]
    return found


def keys(app: Flask) -> list[Any]:
    """What is kept of keys."""
    with app.app_context():
        return list(db.connection().execute(sa.select(idempotency.TABLE)))


def age(app: Flask, seconds: int, **values: Any) -> None:
    """Make every key that much older."""
    with app.app_context(), db.transaction():
        older = sa.update(idempotency.TABLE).values(claimed_at=database_now(-seconds), **values)
        db.connection().execute(older)


def test_idempotency_key_repeat_returns_same_response(alice: Caller, posts: Any) -> None:
    first = alice.post("records/posts", {"title": "a"}, headers=KEY)
    again = alice.post("records/posts/", {"title": "a"}, headers=KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.data == first.data
    assert again.headers["ETag"] == first.headers["ETag"]
    assert (first.headers.get(REPLAYED), again.headers[REPLAYED]) == (None, "true")
    assert total(alice) == 1
    other = alice.post("records/posts", {"title": "a"}, headers={"Idempotency-Key": "k-2"})
    assert other.json["id"] != first.json["id"]


def test_idempotency_key_with_other_request_is_422(alice: Caller, posts: Any) -> None:
    alice.post("records/posts", {"title": "a"}, headers=KEY)
    for path, body in (
        ("records/posts", {"title": "b"}),
        ("records/posts/batch", {"records": [{"title": "a"}]}),
        ("groups", {"name": "finance"}),
    ):
        answer = alice.post(path, body, headers=KEY)
        assert (answer.status_code, answer.json["error"]) == (422, "validation_error")
        assert answer.json["detail"][0]["loc"] == ["header", "Idempotency-Key"]
    assert total(alice) == 1


def test_idempotency_keys_are_per_credential(
    app: Flask, alice: Caller, bob: Caller, posts: Any
) -> None:
    text = alice.post("api-keys", {"name": "nightly"}).json["key"]
    made = [
        caller.post("records/posts", {"title": "a"}, headers=KEY).json["id"]
        for caller in (alice, bob, Caller(app, Authorization=f"Bearer {text}"))
    ]
    assert len(set(made)) == 3


def test_idempotency_key_repeat_without_access_is_401(
    app: Flask, alice: Caller, bob: Caller, posts: Any
) -> None:
    bob.post("records/posts", {"title": "a"}, headers=KEY)
    assert alice.patch(f"account/users/{bob.id}", {"is_active": False}).status_code == 200
    assert bob.post("records/posts", {"title": "a"}, headers=KEY).status_code == 401


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_idempotency_key_length_is_1_to_255(alice: Caller, posts: Any, key: str) -> None:
    answer = alice.post("records/posts", {"title": "a"}, headers={"Idempotency-Key": key})
    assert (answer.status_code, total(alice)) == (422, 0)
    assert answer.json["detail"][0]["loc"] == ["header", "Idempotency-Key"]
    longest = {"Idempotency-Key": "k" * 255}
    assert alice.post("records/posts", {"title": "a"}, headers=longest).status_code == 201


def test_idempotency_key_of_failed_request_can_be_reused(
    app: Flask, alice: Caller, posts: Any
) -> None:
    assert alice.post("records/posts", {"title": 1}, headers=KEY).status_code == 400
    assert keys(app) == []
    taken = alice.post("records/posts", {"code": "x"})
    clash = alice.post("records/posts", {"code": "x"}, headers=KEY)
    assert (clash.status_code, clash.json["details"][0]["code"]) == (409, "not_unique")
    alice.delete(f"records/posts/{taken.json['id']}")
    assert alice.post("records/posts", {"code": "x"}, headers=KEY).status_code == 201
    assert alice.post("records/posts", {"code": "x"}, headers=KEY).headers[REPLAYED] == "true"


def test_idempotency_key_of_running_request_is_409_until_timeout(
    app: Flask, alice: Caller, posts: Any
) -> None:
    first = alice.post("records/posts", {"title": "a"}, headers=KEY)
    age(app, 30, status=None, answer=None)
    running = alice.post("records/posts", {"title": "a"}, headers=KEY)
    assert (running.status_code, running.json["error"]) == (409, "in_progress")
    age(app, 61)
    again = alice.post("records/posts", {"title": "a"}, headers=KEY)
    assert (again.status_code, REPLAYED in again.headers) == (201, False)
    assert again.json["id"] != first.json["id"]


def test_idempotency_key_of_concurrent_requests_runs_one(
    app: Flask, alice: Caller, posts: Any
) -> None:
    answers = at_once(8, lambda n: alice.post("records/posts", {"title": "a"}, headers=KEY))
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert total(alice) == 1
    (made,) = {answer.data for answer in answers if answer.status_code == 201}
    assert alice.post("records/posts", {"title": "a"}, headers=KEY).data == made


def test_idempotency_key_taken_over_rolls_back_late_request(
    app: Flask, alice: Caller, posts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = idempotency.save_response

    def overtaken(claim: idempotency.Claim, *answer: Any) -> None:
        finish(replace(claim, token="taken over"), *answer)

    monkeypatch.setattr(idempotency, "save_response", overtaken)
    late = alice.post("records/posts", {"title": "a"}, headers=KEY)
    assert (late.status_code, late.json["error"]) == (409, "in_progress")
    assert total(alice) == 0


SECRETS: list[tuple[str, Callable[[Caller], Any]]] = [
    ("api-keys", lambda caller: {"name": "nightly"}),
    ("invitations", lambda caller: {"email": "dora@acme.example"}),
    (
        "webhooks",
        lambda caller: {"url": "http://127.0.0.1:9/", "collection": "posts", "events": ["create"]},
    ),
]


@pytest.mark.parametrize(("path", "body"), SECRETS)
def test_idempotency_key_response_with_secret_is_not_stored(
    app: Flask, alice: Caller, posts: Any, path: str, body: Any
) -> None:
    first = alice.post(path, body(alice), headers=KEY)
    assert first.status_code == 201
    again = alice.post(path, body(alice), headers=KEY)
    assert (again.status_code, again.json["error"]) == (409, "already_done")
    assert again.json["id"] == first.json["id"]
    (kept,) = keys(app)
    assert kept.answer is None
    secrets = [value for name, value in first.json.items() if name in ("key", "token", "secret")]
    assert secrets
    assert all(secret not in str(tuple(kept)) for secret in secrets)


def test_idempotency_secret_responses_are_marked_in_description(app: Flask) -> None:
    described = app.test_client().get("/openapi.json").json
    for rule in app.url_map.iter_rules():
        view = app.view_functions[rule.endpoint]
        if not rule.rule.startswith(PREFIX) or "POST" not in (rule.methods or ()):
            continue
        if access_of(view).level is AccessLevel.PUBLIC or rule.rule.startswith(f"{PREFIX}/auth/"):
            continue
        path = re.sub(r"<(?:[a-z]+:)?([a-z_]+)>", r"{\1}", rule.rule)
        answers = described["paths"][path]["post"]["responses"]
        for answer in [a for code, a in answers.items() if code < "300"]:
            example = answer.get("content", {}).get("application/json", {}).get("example", {})
            names = {"key", "ticket", "token", "secret"}
            if path.endswith(("/setup-links", "/portal-sessions")):
                names.add("url")  # who has the address has the link
            shown = names & set(example)
            secret = access_of(view).shows_secret
            assert bool(shown) == (secret(example) if callable(secret) else secret), path


OPERATION = {"method": "POST", "collection": "posts", "body": {"title": "a"}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("accounts", {"name": "Initech"}),
        ("collections", {"name": "others", "schema": [{"name": "title", "type": "text"}]}),
        ("roles", {"name": "auditor"}),
        ("rules/validate", {"rule": "true", "operation": "list", "collectionFields": []}),
        ("records/posts/batch", {"records": [{"title": "a"}, {"title": "b"}]}),
        ("batch", {"operations": [OPERATION]}),
    ],
)
def test_idempotency_key_is_accepted_by_every_post(
    root: Caller, posts: Any, path: str, body: Any
) -> None:
    first = root.post(path, body, headers=KEY)
    assert first.status_code in (200, 201), first.json
    again = root.post(path, body, headers=KEY)
    assert (again.status_code, again.data) == (first.status_code, first.data)
    assert again.headers[REPLAYED] == "true"


def test_idempotency_key_of_multipart_ignores_boundary(alice: Caller, posts: Any) -> None:
    def send(boundary: str, text: str) -> Any:
        head = 'Content-Disposition: form-data; name="file"; filename="a.csv"'
        data = f"--{boundary}\r\n{head}\r\n\r\n{text}\r\n--{boundary}--\r\n"
        kind = f"multipart/form-data; boundary={boundary}"
        return alice.post("records/posts/import", data=data, content_type=kind, headers=KEY)

    first, again = send("one", "title\na"), send("two", "title\na")
    assert (first.json["imported"], again.data, total(alice)) == (1, first.data, 1)
    assert again.headers[REPLAYED] == "true"
    assert send("one", "title\nb").status_code == 422


def test_idempotency_key_fingerprint_reveals_no_password(
    app: Flask, root: Caller, bob: Caller
) -> None:
    path, body = f"users/{bob.id}/password", {"new_password": "Another-horse-2"}
    assert root.post(path, body, headers=KEY).status_code == 200
    (kept,) = keys(app)
    parts = (f"{PREFIX}/{path}".encode(), b"", json.dumps(body).encode())
    told = b"".join(hashlib.sha256(part).digest() for part in parts)
    guess = hashlib.sha256(told).hexdigest()
    assert guess not in str(tuple(kept))
    age(app, 0, request=guess)  # which is how former versions kept it
    assert root.post(path, body, headers=KEY).headers[REPLAYED] == "true"
    assert root.post(path, {"password": "Third-horse-3!"}, headers=KEY).status_code == 422


def test_idempotency_key_repeat_works_after_secret_key_rotation(
    app: Flask, bob: Caller, posts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = bob.post("api-keys", {"name": "nightly"}).json["key"]  # no token, which has an old key
    machine = Caller(app, Authorization=f"Bearer {text}")
    first = machine.post("records/posts", {"title": "a"}, headers=KEY)
    settings = app.extensions["atrium.config"]
    other = replace(settings, secret_key="k" * 40, secret_key_previous=(settings.secret_key,))
    monkeypatch.setitem(app.extensions, "atrium.config", other)
    again = machine.post("records/posts", {"title": "a"}, headers=KEY)
    assert (again.data, again.headers[REPLAYED]) == (first.data, "true")
    assert machine.post("records/posts", {"title": "b"}, headers=KEY).status_code == 422


def test_idempotency_key_is_ignored_for_sign_in_and_anonymous(
    app: Flask, root: Caller, alice: Caller
) -> None:
    make_collection(root, create_rule="")
    stranger = Caller(app).acting_in("acme")
    made = [stranger.post("records/posts", {"title": "a"}, headers=KEY) for _ in range(2)]
    assert [one.status_code for one in made] == [201, 201]
    for method in ("PUT", "PATCH"):
        path = f"records/posts/{made[0].json['id']}"
        assert alice(method, path, {"title": "b"}, headers=KEY).status_code == 200
    alice.post("auth/send-verification", {"email": alice.email}, headers=KEY)
    assert keys(app) == []


def test_idempotency_without_header_runs_no_statement(
    app: Flask, alice: Caller, posts: Any
) -> None:
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        statements.append(statement)

    with app.app_context():
        sa.event.listen(db.db.engine, "before_cursor_execute", note)
        assert alice.post("records/posts", {"title": "a"}).status_code == 201
        sa.event.remove(db.db.engine, "before_cursor_execute", note)
    assert statements
    assert not [one for one in statements if "idempotency" in one]


def test_idempotency_keys_expire_after_one_day(app: Flask, alice: Caller, posts: Any) -> None:
    first = alice.post("records/posts", {"title": "a"}, headers=KEY)
    age(app, 24 * 3600 - 60)
    assert alice.post("records/posts", {"title": "a"}, headers=KEY).data == first.data
    age(app, 24 * 3600 + 1)
    assert alice.post("records/posts", {"title": "a"}, headers=KEY).data != first.data
    age(app, 24 * 3600 + 1)
    alice.post("records/posts", {"title": "a"}, headers={"Idempotency-Key": "new"})
    with app.app_context():
        idempotency.purge({})
    assert [row.key for row in keys(app)] == ["new"]
