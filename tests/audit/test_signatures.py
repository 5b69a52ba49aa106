"""Collections whose records nobody changes without an electronic signature."""

from __future__ import annotations

from typing import Any

from tests.audit.chains import entries, verified
from tests.builders import PASSWORD, Cast, make_collection, make_record

TITLE = [{"name": "title", "type": "text"}]
DEMANDED = {"require_signature": True}
SIGNED = {"X-ES-Username": "bob@acme.example", "X-ES-Password": PASSWORD, "X-ES-Reason": "seen"}


def test_every_write_needs_a_signature(cast: Cast) -> None:
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


def test_a_deletion_that_reaches_such_a_collection_needs_one_too(cast: Cast) -> None:
    make_collection(cast.root, schema=TITLE)
    held: dict[str, Any] = {"name": "post", "type": "reference", "collection": "posts"}
    make_collection(cast.root, "notes", [{**held, "on_delete": "cascade"}], options=DEMANDED)
    post = make_record(cast.alice, title="a")["id"]
    cast.alice.post("records/notes", {"post": post}, headers=SIGNED)
    assert cast.alice.delete(f"records/posts/{post}").status_code == 428
    assert cast.alice.get("records/notes").json["total"] == 1
    assert cast.alice.delete(f"records/posts/{post}", headers=SIGNED).status_code == 204
    assert cast.alice.get("records/notes").json["total"] == 0


def test_the_option_is_kept_changed_and_moved(cast: Cast) -> None:
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


def test_a_signature_is_read_as_utf_8_or_else_latin_1(cast: Cast) -> None:
    make_collection(cast.root, schema=TITLE)
    for text in ("Prüfung, 検査".encode().decode("latin-1"), "Pr\xfcfung"):
        headers = {**SIGNED, "X-ES-Reason": text}
        assert cast.alice.post("records/posts", {"title": "a"}, headers=headers).status_code == 201
    told = {one["es_reason"] for one in entries(cast.root, table_name="col_posts")}
    assert told == {"Prüfung, 検査", "Prüfung"}
