"""`{"$add": [...], "$remove": [...]}` in the place of a list."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.builders import Caller, make_collection, make_record
from tests.files.test_files import upload

TITLE = {"name": "title", "type": "text"}
CHOICES = [f"c{n}" for n in range(30)]
SCHEMA = [
    TITLE,
    {"name": "tags", "type": "text_list", "options": {"max_items": 20}},
    {"name": "kinds", "type": "multi_select", "options": {"choices": CHOICES}},
    {"name": "members", "type": "user", "multiple": True},
    {"name": "data", "type": "json"},
]


def problems(answer: Any) -> list[tuple[str | None, str]]:
    assert answer.status_code == 400, answer.json
    return [(one["field"], one["code"]) for one in answer.json["details"]]


@pytest.fixture
def posts(root: Caller) -> None:
    make_collection(root, schema=SCHEMA)


def test_list_change_adds_and_removes(posts: None, alice: Caller, bob: Caller) -> None:
    made = make_record(alice, tags=["a", "b"], members=[alice.id])
    path = f"records/posts/{made['id']}"
    body = {
        "tags": {"$add": ["c", "a", "e\u0301"], "$remove": ["b", "z"]},
        "kinds": {"$add": ["c2", "c1", "c2"]},
        "members": {"$add": [bob.id.upper()], "$remove": []},
    }
    answer = alice.patch(path, body)
    assert answer.status_code == 200, answer.json
    changed = answer.json
    assert changed["tags"] == ["a", "c", "\u00e9"]
    assert changed["kinds"] == ["c2", "c1"]
    assert changed["members"] == [alice.id, bob.id]
    assert alice.get("records/posts", query_string={"filter": "@contains(tags, 'c')"}).json["total"]
    history = alice.get(f"{path}/history").json["items"][0]["changes"]
    values = {one["field"]: (one["old_value"], one["new_value"]) for one in history}
    assert values["tags"] == (["a", "b"], ["a", "c", "\u00e9"])
    emptied = alice.patch(path, {"members": {"$remove": [alice.id, bob.id]}}).json
    assert emptied["members"] == []
    again = alice.patch(path, {"tags": {"$add": ["a"], "$remove": []}}).json
    assert (again["tags"], again["updated_at"]) == (changed["tags"], emptied["updated_at"])
    moved = alice.patch(path, {"tags": {"$add": ["a"], "$remove": ["a"]}}).json
    assert moved["tags"] == ["c", "\u00e9", "a"]


def test_list_change_of_files(root: Caller, alice: Caller) -> None:
    files = {"name": "files", "type": "file", "options": {"max_files": 2}}
    make_collection(root, schema=[files])
    one, two, three = (upload(alice)["id"] for _ in range(3))
    made = make_record(alice, files=[one])
    path = f"records/posts/{made['id']}"
    both = alice.patch(path, {"files": {"$add": [{"id": two}]}}).json["files"]
    assert [file["id"] for file in both] == [one, two]
    full = alice.patch(path, {"files": {"$add": [three]}})
    assert problems(full) == [("files", "too_many_files")]
    left = alice.patch(path, {"files": {"$add": [three], "$remove": [one]}}).json["files"]
    assert [file["id"] for file in left] == [two, three]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"tags": {"$push": ["a"]}}, "invalid_type"),
        ({"tags": {"$add": ["a"], "$set": []}}, "invalid_type"),
        ({"tags": {"$add": "a"}}, "invalid_type"),
        ({"tags": {"$remove": None}}, "invalid_type"),
        ({"tags": {"$add": [1]}}, "invalid_type"),
        ({"tags": {"$remove": [{"id": "a"}]}}, "invalid_type"),
        ({"tags": {"add": ["a"]}}, "invalid_type"),
        ({"tags": {}}, "invalid_type"),
        ({"tags": {"$add": ["a" * 201]}}, "too_long"),
        ({"tags": {"$add": list("abcdefghijklmnopqrstuvw")}}, "too_many_items"),
        ({"kinds": {"$add": ["none"]}}, "invalid_option"),
        ({"members": {"$add": ["01a22a0b-494e-7161-a88a-7806b170e983"]}}, "invalid_reference"),
        ({"title": {"$add": ["a"]}}, "invalid_type"),
    ],
)
def test_list_change_problems(posts: None, alice: Caller, body: dict[str, Any], code: str) -> None:
    made = make_record(alice, tags=["q"], members=[alice.id])
    path, name = f"records/posts/{made['id']}", next(iter(body))
    assert problems(alice.patch(path, body)) == [(name, code)]
    batch = {"records": [{"id": made["id"], "data": body}]}
    assert problems(alice.patch("records/posts/batch", batch)) == [(name, code)]
    assert alice.get(path).json == made


def test_list_change_is_for_patch_alone(posts: None, alice: Caller) -> None:
    change = {"tags": {"$add": ["a"]}}
    created = alice.post("records/posts", change)
    assert problems(created) == [("tags", "invalid_type")]
    assert "for PATCH" in created.json["details"][0]["message"]
    made = make_record(alice)
    replaced = alice.put(f"records/posts/{made['id']}", change)
    assert problems(replaced) == [("tags", "invalid_type")]
    value = {"data": {"$add": ["a"]}}  # JSON, not a list
    assert alice.patch(f"records/posts/{made['id']}", value).json["data"] == value["data"]


def test_list_change_is_judged_as_the_resulting_list(root: Caller, alice: Caller) -> None:
    rules = {"update_rule": "@contains(@request.data.tags, 'kept') || title = 'free'"}
    make_collection(root, schema=SCHEMA, **rules)
    made = make_record(alice, tags=["kept"])
    path = f"records/posts/{made['id']}"
    assert alice.patch(path, {"tags": {"$add": ["x"]}}).json["tags"] == ["kept", "x"]
    assert alice.patch(path, {"tags": {"$remove": ["kept"]}}).status_code == 403


def test_list_change_needs_rights_to_write_and_see(
    root: Caller, alice: Caller, bob: Caller
) -> None:
    closed = {"name": "closed", "type": "text_list", "writable_if": "@has_role(admin)"}
    unseen = {"name": "unseen", "type": "text_list", "readable_if": "@has_role(admin)"}
    masked = {"name": "masked", "type": "text_list", "pii": True}
    make_collection(root, schema=[TITLE, closed, unseen, masked])
    made = make_record(alice, closed=["a"], unseen=["a"], masked=["a"])
    path = f"records/posts/{made['id']}"
    change = {"$add": ["b"]}
    assert problems(bob.patch(path, {"closed": change})) == [("closed", "field_read_only")]
    assert problems(bob.patch(path, {"unseen": change})) == [("unseen", "invalid_type")]
    assert problems(bob.patch(path, {"masked": change})) == [("masked", "invalid_type")]
    assert bob.patch(path, {"unseen": ["c"]}).status_code == 200
    assert alice.patch(path, {"unseen": change}).json["unseen"] == ["c", "b"]


def test_list_change_in_upserts(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=[{**TITLE, "unique": True}, SCHEMA[1]])
    make_record(alice, title="a", tags=["x"])
    body = {"records": [{"title": "a", "tags": {"$add": ["y"]}}]}
    answer = alice.post("records/posts/batch?mode=upsert&on=title", body)
    assert answer.status_code == 200, answer.json
    assert answer.json["updated"][0]["tags"] == ["x", "y"]
    new = {"title": "b", "tags": {"$add": ["z", "y", "z"], "$remove": ["q"]}}
    both = {"records": [{"title": "a", "tags": {"$add": ["z"]}}, new]}
    answer = alice.post("records/posts/batch?mode=upsert&on=title", both)
    assert answer.status_code == 201, answer.json
    assert answer.json["updated"][0]["tags"] == ["x", "y", "z"]
    assert answer.json["created"][0]["tags"] == ["z", "y"]
    wrong = {"records": [{"title": "c", "tags": {"$push": ["z"]}}, {"title": "d", "tags": ["z"]}]}
    answer = alice.post("records/posts/batch?mode=upsert&on=title", wrong)
    assert problems(answer) == [("tags", "invalid_type")]


@pytest.mark.both_databases
def test_list_changes_in_parallel_lose_nothing(posts: None, alice: Caller) -> None:
    made = make_record(alice, tags=["a"], kinds=[])
    path = f"records/posts/{made['id']}"

    def add(number: int) -> int:
        body = {"tags": {"$add": [f"t{number}"]}, "kinds": {"$add": [f"c{number}"]}}
        return alice.patch(path, body).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(add, range(16))) == {200}
    after = alice.get(path).json
    assert sorted(after["tags"]) == sorted(["a", *(f"t{n}" for n in range(16))])
    assert sorted(after["kinds"]) == sorted(f"c{n}" for n in range(16))
