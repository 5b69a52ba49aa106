"""Collections whose records nobody changes without an electronic signature."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from webauthn.helpers import bytes_to_base64url

from tests.audit.chains import entries, verified
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_record
from tests.passkeys import Authenticator

TITLE = [{"name": "title", "type": "text"}]
DEMANDED = {"require_signature": True}
SIGNED = {"X-ES-Username": "bob@acme.example", "X-ES-Password": PASSWORD, "X-ES-Reason": "seen"}


def test_signature_is_required_for_every_write(cast: Cast) -> None:
    make_collection(cast.root, schema=TITLE, options=DEMANDED)
    signed = cast.alice.post("records/posts", {"title": "a"}, headers=SIGNED)
    assert signed.status_code == 201, signed.text
    path = f"records/posts/{signed.json['id']}"
    writes: list[tuple[str, str, Any]] = [
        ("POST", "records/posts", {"title": "b"}),
        ("PUT", path, {"title": "b"}),
        ("PATCH", path, {"title": "b"}),
        ("DELETE", path, None),
        ("POST", f"{path}/erase", None),
    ]
    before = len(entries(cast.root))
    for method, where, body in writes:
        answer = cast.alice(method, where, body)
        assert answer.status_code == 428, (method, answer.text)
        assert answer.json["error"] == "signature_required"
    assert cast.alice("PATCH", path, {"title": 1}).status_code == 400
    wrong = cast.alice("PATCH", path, {"title": "b"}, headers={**SIGNED, "X-ES-Password": "x"})
    assert wrong.status_code == 401
    assert cast.alice.get("records/posts").json["items"] == [signed.json]
    assert len(entries(cast.root)) == before
    assert cast.alice("PATCH", path, {"title": "b"}, headers=SIGNED).status_code == 200
    last = entries(cast.root, table_name="col_posts")[-1]
    assert (last["es_username"], last["es_reason"]) == ("bob@acme.example", "seen")
    assert verified(cast.root)["valid"]


def test_signature_is_required_for_cascading_deletion(cast: Cast) -> None:
    make_collection(cast.root, schema=TITLE)
    held: dict[str, Any] = {"name": "post", "type": "reference", "collection": "posts"}
    make_collection(cast.root, "notes", [{**held, "on_delete": "cascade"}], options=DEMANDED)
    post = make_record(cast.alice, title="a")["id"]
    cast.alice.post("records/notes", {"post": post}, headers=SIGNED)
    assert cast.alice.delete(f"records/posts/{post}").status_code == 428
    assert cast.alice.get("records/notes").json["total"] == 1
    assert cast.alice.delete(f"records/posts/{post}", headers=SIGNED).status_code == 204
    assert cast.alice.get("records/notes").json["total"] == 0


def test_require_signature_option_is_stored_and_changed(cast: Cast) -> None:
    posts = make_collection(cast.root, schema=TITLE)
    path = f"collections/{posts['id']}"
    assert posts["options"] == {"require_signature": False}
    assert cast.root.patch(path, {"options": DEMANDED}).json["options"] == DEMANDED
    assert cast.root.put(path, {"schema": TITLE}).json["options"] == DEMANDED
    assert cast.root.get(path).json["options"] == DEMANDED
    assert cast.alice.post("records/posts", {"title": "b"}).status_code == 428
    for options in ({"require_signature": 1}, {"signature": True}, []):
        assert cast.root.patch(path, {"options": options}).status_code == 422
    exported = cast.root.get("collections/export").json
    assert exported["collections"][0]["options"] == DEMANDED
    cast.root.delete(path)
    body = {"data": exported, "strategy": "update"}
    assert cast.root.post("collections/import", body).status_code == 200
    assert cast.alice.post("records/posts", {"title": "b"}).status_code == 428
    body["data"]["collections"][0]["options"] = {"require_signature": False}
    assert cast.root.post("collections/import", body).status_code == 200
    assert cast.alice.post("records/posts", {"title": "b"}).status_code == 201
    told = entries(cast.root, table_name="collections", operation="UPDATE")
    assert "options" in {entry["column_name"] for entry in told}


def test_signature_headers_are_read_as_utf_8_or_latin_1(cast: Cast) -> None:
    make_collection(cast.root, schema=TITLE)
    for text in ("Prüfung, 検査".encode().decode("latin-1"), "Pr\xfcfung"):
        headers = {**SIGNED, "X-ES-Reason": text}
        assert cast.alice.post("records/posts", {"title": "a"}, headers=headers).status_code == 201
    told = {one["es_reason"] for one in entries(cast.root, table_name="col_posts")}
    assert told == {"Prüfung, 検査", "Prüfung"}


@pytest.fixture
def key(cast: Cast) -> Authenticator:
    """A passkey of bob."""
    body = {"account": cast.bob.slug, "email": cast.bob.email, "password": PASSWORD}
    token = Caller(cast.bob.app).post("auth/login", body).json["token"]
    session = Caller(cast.bob.app, Authorization=f"Bearer {token}")
    offered = session.post("auth/mfa/passkeys/options", {}).json
    key = Authenticator(f"http://{offered['options']['rp']['id']}")
    new = {"token": offered["token"], "credential": key.create(offered["options"])}
    assert session.post("auth/mfa/passkeys", new).status_code == 200
    return key


def signed_by(key: Authenticator, caller: Caller, **changed: str) -> dict[str, str]:
    """The headers of a signature by passkey."""
    offered = caller.post("auth/signatures/options", {"reason": "seen"}).json
    sent = {"token": offered["token"], "assertion": key.get(offered["options"])}
    passkey = bytes_to_base64url(json.dumps(sent).encode())
    signed = {"X-ES-Username": "bob@acme.example", "X-ES-Passkey": passkey, "X-ES-Reason": "seen"}
    return signed | changed


def test_passkey_signature_is_stored_in_the_chain(cast: Cast, key: Authenticator) -> None:
    make_collection(cast.root, schema=TITLE, options=DEMANDED)
    headers = signed_by(key, cast.alice)
    assert cast.alice.post("records/posts", {"title": "a"}, headers=headers).status_code == 201
    last = entries(cast.root, table_name="col_posts")[-1]
    assert (last["es_username"], last["es_reason"]) == ("bob@acme.example", "seen")
    assert last["extra_metadata"] == {"es_method": "passkey"}
    assert verified(cast.root)["valid"]
    again = cast.alice.post("records/posts", {"title": "b"}, headers=headers)
    assert again.status_code == 401, "a signature is for one write"


def test_feed_has_changes_signed_by_passkey(cast: Cast, key: Authenticator) -> None:
    posts = make_collection(cast.root, schema=TITLE, options=DEMANDED)
    made = cast.alice.post("records/posts", {"title": "a"}, headers=signed_by(key, cast.alice))
    path = f"records/posts/{made.json['id']}"
    changed = cast.alice.patch(path, {"title": "b"}, headers=signed_by(key, cast.alice))
    kind = {"name": "kind", "type": "text", "default": "x"}
    filled = cast.root.acting_in(cast.bob.account_id).patch(
        *(f"collections/{posts['id']}", {"schema": [*TITLE, kind]}),
        headers=signed_by(key, cast.alice),
    )
    assert filled.status_code == 200, filled.text
    assert cast.alice.delete(path, headers=signed_by(key, cast.alice)).status_code == 204
    filling = {"collection": "posts", "count": 1, "es_method": "passkey"}
    told = [one["extra_metadata"] for one in entries(cast.root, table_name="col_posts")]
    assert filling in told, "it names no record, and is no change in the feed"
    items = cast.alice.get("changes").json["items"]
    assert [(one["event"], one["record"]) for one in items if one["event"] != "records.reset"] == [
        ("records.create", {**made.json, "kind": None}),
        ("records.update", {**changed.json, "kind": None}),
        ("records.delete", None),
    ]


def other_reason(key: Authenticator, cast: Cast) -> dict[str, str]:
    return signed_by(key, cast.alice, **{"X-ES-Reason": "something else"})


def other_signer(key: Authenticator, cast: Cast) -> dict[str, str]:
    return signed_by(key, cast.alice, **{"X-ES-Username": cast.alice.email})


def unverified(key: Authenticator, cast: Cast) -> dict[str, str]:
    key.verifies = False
    return signed_by(key, cast.alice)


def no_json(key: Authenticator, cast: Cast) -> dict[str, str]:
    return signed_by(key, cast.alice, **{"X-ES-Passkey": "bm8"})


@pytest.mark.parametrize("forge", [other_reason, other_signer, unverified, no_json])
def test_passkey_signature_that_is_forged_is_401(
    cast: Cast, key: Authenticator, forge: Callable[[Authenticator, Cast], dict[str, str]]
) -> None:
    make_collection(cast.root, schema=TITLE, options=DEMANDED)
    answer = cast.alice.post("records/posts", {"title": "a"}, headers=forge(key, cast))
    assert answer.status_code == 401, answer.json
    assert cast.alice.get("records/posts").json["total"] == 0
