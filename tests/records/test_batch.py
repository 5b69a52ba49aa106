"""Batches: many records in one request, all of them or none."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from tests.builders import Caller, make_collection, make_record
from tests.parallel import at_once
from tests.sql import statements

SCHEMA: list[dict[str, Any]] = [
    {"name": "title", "type": "text", "required": True},
    {"name": "code", "type": "text", "unique": True},
    {"name": "n", "type": "number", "default": 7},
    {"name": "live", "type": "boolean"},
    {"name": "day", "type": "date"},
    {"name": "at", "type": "datetime"},
    {"name": "data", "type": "json"},
    {"name": "double", "type": "computed", "expression": "n * 2", "return_type": "number"},
]
URL = "records/posts/batch"


@pytest.fixture
def posts(root: Caller) -> dict[str, Any]:
    return make_collection(root, schema=SCHEMA)


def stored(caller: Caller) -> list[dict[str, Any]]:
    """All records, in the order in which they were made."""
    found: list[dict[str, Any]] = caller.get("records/posts?sort=created_at&limit=100").json[
        "items"
    ]
    return found


def told(answer: Any) -> list[tuple[int | None, str, str]]:
    """The place, field and code of every problem."""
    return [(one.get("index"), one["field"], one["code"]) for one in answer.json["details"]]


def test_record_batch_is_stored_with_its_deliveries(root: Caller, alice: Caller) -> None:
    make_collection(root)
    hook = {"url": "https://hooks.example/", "collection": "posts", "events": ["create"]}
    made = alice.post("webhooks", hook).json["id"]
    for count in (2, 4):  # the first has still to find out what there is
        answer = alice.post(URL, {"records": [{"title": "a"}, {"title": "b"}]})
        assert answer.status_code == 201
        assert len(stored(alice)) == count
        assert alice.get(f"webhooks/{made}/deliveries").json["total"] == count


def test_record_batch_creates_same_records_as_single_requests(alice: Caller, posts: Any) -> None:
    bodies = [
        {"title": "Grüße 🎈", "code": "a", "live": True, "day": "2026-02-28"},
        {"title": "b", "n": 2**63 - 1, "at": "2026-11-20T12:00:00+02:00"},
        {"title": "c", "n": None, "data": {"z": [1, 2.5, None]}, "live": False},
        {"title": "d", "n": 0.1},
    ]
    answer = alice.post(URL, {"records": bodies})
    assert (answer.status_code, answer.json["count"]) == (201, 4)
    created = answer.json["created"]
    assert created == stored(alice)
    system = {"id", "account_id", "created_at", "updated_at", "created_by", "updated_by"}
    singly = [make_record(alice, **{**body, "code": None}) for body in bodies]
    for one, other in zip(created, singly, strict=True):
        assert list(one) == list(other)
        assert {n: one[n] for n in one.keys() - system - {"code"}} == {
            n: other[n] for n in other.keys() - system - {"code"}
        }


def test_record_batch_reports_all_problems_and_stores_nothing(alice: Caller, posts: Any) -> None:
    bodies = [{"title": "a"}, {"n": "x"}, {"title": None, "nothing": 1}, {"title": "d", "id": "x"}]
    answer = alice.post(URL, {"records": bodies})
    assert answer.status_code == 400
    assert sorted(told(answer)) == [
        (1, "n", "invalid_type"),
        (1, "title", "required_missing"),
        (2, "nothing", "unknown_field"),
        (2, "title", "required_null"),
        (3, "id", "field_read_only"),
    ]
    assert stored(alice) == []


@pytest.mark.one_database
def test_record_batch_reports_first_hundred_problems_and_count(alice: Caller, posts: Any) -> None:
    wrong = {"live": 1, **{f"x{n}": n for n in range(99)}}
    records = [{"title": "fine"}, *[wrong] * 1000]
    made = make_record(alice, title="here")
    changes = [{"id": made["id"], "data": {f"x{n}": n for n in range(9000)}}]
    for method, sent, count in (("POST", records, 999 * 101), ("PATCH", changes, 9000)):
        answer = alice(method, "records/posts/batch", {"records": sent[:1000]})
        assert (answer.status_code, answer.json["count"]) == (400, count)
        assert len(answer.json["details"]) == 100
        assert {one["index"] for one in answer.json["details"]} == {method == "POST"}
        assert len(answer.data) < 20_000
    assert "count" not in alice.post("records/posts/batch", {"records": [{"live": 1}]}).json


def test_record_batch_reports_first_hundred_unknown_ids_and_count(
    alice: Caller, posts: Any
) -> None:
    answer = alice("DELETE", "records/posts/batch", {"ids": [f"none-{n}" for n in range(1000)]})
    assert (answer.status_code, answer.json["count"]) == (404, 1000)
    assert [one["index"] for one in answer.json["details"]] == list(range(100))


def test_record_batch_unique_conflicts_name_their_records(
    alice: Caller, charlie: Caller, posts: Any
) -> None:
    there = make_record(alice, title="a", code="taken")
    make_record(charlie, title="a", code="free")
    bodies = [{"title": "x", "code": code} for code in ("free", "taken", "new", "new", None, None)]
    answer = alice.post(URL, {"records": bodies})
    assert (answer.status_code, answer.json["error"]) == (409, "conflict")
    assert told(answer) == [(1, "code", "not_unique"), (3, "code", "not_unique")]
    assert answer.json["field"] == "code"
    assert stored(alice) == [there]
    # With faults of other kinds, they are told along.
    mixed = alice.post(URL, {"records": [*bodies, {"n": "x"}]})
    lacking = [(6, "n", "invalid_type"), (6, "title", "required_missing")]
    assert (mixed.status_code, sorted(told(mixed))) == (400, sorted([*told(answer), *lacking]))
    made = alice.post(URL, {"records": [bodies[0], bodies[2]]}).json["created"]
    codes = [{"code": "new"}, {"title": None}, {"title": "y"}]
    items = [
        {"id": one["id"], "data": data} for one, data in zip([*made, there], codes, strict=True)
    ]
    assert told(alice.patch(URL, {"records": items})) == [
        (0, "code", "not_unique"),
        (1, "title", "required_null"),
    ]


def test_record_batch_update_changes_only_sent_values(alice: Caller, posts: Any) -> None:
    made = alice.post(URL, {"records": [{"title": t, "code": t} for t in "abc"]}).json["created"]
    changes = [
        {"id": made[2]["id"], "data": {"n": 1.5, "live": True}},
        {"id": made[0]["id"], "data": {"title": "A", "n": None, "day": "2026-01-31"}},
    ]
    answer = alice.patch(URL, {"records": changes})
    assert (answer.status_code, answer.json["count"]) == (200, 2)
    c, a = answer.json["updated"]
    assert (c["title"], c["n"], c["live"], c["double"]) == ("c", 1.5, True, 3)
    assert (a["title"], a["n"], a["day"], a["double"]) == ("A", None, "2026-01-31", None)
    assert c["updated_at"] > made[2]["updated_at"]
    assert stored(alice) == [a, made[1], c]


def test_record_batch_with_unknown_or_repeated_id_changes_nothing(
    alice: Caller, charlie: Caller, posts: Any
) -> None:
    mine, theirs = make_record(alice, title="a"), make_record(charlie, title="b")
    for stranger in (theirs["id"], "nothing"):
        items = [{"id": id, "data": {"title": "x"}} for id in (mine["id"], stranger)]
        changed = alice.patch(URL, {"records": items})
        assert (changed.status_code, told(changed)) == (404, [(1, "id", "not_found")])
        deleted = alice.delete(URL, json={"ids": [mine["id"], stranger]})
        assert (deleted.status_code, told(deleted)) == (404, [(1, "id", "not_found")])
    twice = [{"id": mine["id"], "data": {"title": t}} for t in "xy"]
    for answer in (
        alice.patch(URL, {"records": twice}),
        alice.delete(URL, json={"ids": [mine["id"]] * 2}),
    ):
        assert (answer.status_code, told(answer)) == (400, [(1, "id", "not_unique")])
    assert (stored(alice), stored(charlie)) == ([mine], [theirs])


def test_record_batch_deletion_cascades(root: Caller, alice: Caller, posts: Any) -> None:
    link = {"name": "post", "type": "reference", "collection": "posts"}
    make_collection(root, "notes", [{**link, "on_delete": "cascade"}])
    make_collection(root, "holds", [link])
    made = [make_record(alice, title=t) for t in "abc"]
    note = make_record(alice, "notes", post=made[0]["id"])
    hold = make_record(alice, "holds", post=made[1]["id"])
    ids = [one["id"] for one in made[:2]]
    assert alice.delete(URL, json={"ids": ids}).status_code == 409
    assert stored(alice) == made
    assert alice.delete(f"records/holds/{hold['id']}").status_code == 204
    answer = alice.delete(URL, json={"ids": ids})
    assert (answer.status_code, answer.json) == (200, {"deleted": ids, "count": 2})
    assert stored(alice) == made[2:]
    assert alice.get(f"records/notes/{note['id']}").status_code == 404


def test_record_batch_applies_rules_field_lists_and_masks_per_record(
    root: Caller, alice: Caller, bob: Caller
) -> None:
    mine = "created_by = @request.auth.id"
    schema = [*SCHEMA, {"name": "mail", "type": "email", "pii": True, "mask_type": "email"}]
    make_collection(
        root,
        schema=schema,
        create_rule="n < 10",
        update_rule=f"{mine} && @request.data.title != 'no'",
        delete_rule=mine,
        create_fields=["title", "n", "mail"],
    )
    refused = bob.post(URL, {"records": [{"title": "a"}, {"title": "b", "n": 10}]})
    assert (refused.status_code, refused.json["error"]) == (403, "rule_denied")
    assert [one["index"] for one in refused.json["details"]] == [1]
    denied = bob.post(URL, {"records": [{"title": "a"}, {"title": "b", "code": "x"}]})
    assert (denied.json["error"], told(denied)) == ("field_denied", [(1, "code", "field_denied")])
    made = bob.post(URL, {"records": [{"title": "a", "mail": "ann@x.example"}] * 2}).json["created"]
    assert [one["mail"] for one in made] == ["a***@x.example"] * 2
    others = make_record(alice, title="hers")
    for id, title in ((others["id"], "x"), (made[1]["id"], "no")):
        items = [{"id": made[0]["id"], "data": {}}, {"id": id, "data": {"title": title}}]
        answer = bob.patch(URL, {"records": items})
        assert (answer.status_code, answer.json["details"][0]["index"]) == (403, 1)
    assert bob.delete(URL, json={"ids": [made[0]["id"], others["id"]]}).status_code == 403
    # A masked value that comes back is not meant as a change.
    items = [{"id": one["id"], "data": {"mail": one["mail"], "n": 1}} for one in made]
    assert bob.patch(URL, {"records": items}).status_code == 200
    assert [one["mail"] for one in stored(alice)][:2] == ["ann@x.example"] * 2
    assert len(stored(alice)) == 3


def test_record_batch_looks_up_references_in_one_statement(
    app: Flask, root: Caller, alice: Caller
) -> None:
    make_collection(root)
    link = {"name": "post", "type": "reference", "collection": "posts"}
    make_collection(root, "notes", [link, {**link, "name": "other"}])
    ids = [make_record(alice, title=str(i))["id"] for i in range(8)]
    bodies = [{"post": a, "other": b} for a, b in zip(ids, reversed(ids), strict=True)]
    with statements(app) as sent:
        answer = alice.post("records/notes/batch", {"records": bodies})
    assert answer.status_code == 201
    assert len([one for one in sent if '"posts"' in one or "col_posts" in one]) == 1
    bodies[3]["other"] = bodies[5]["post"] = "nothing"
    answer = alice.post("records/notes/batch", {"records": bodies})
    assert told(answer) == [(3, "other", "invalid_reference"), (5, "post", "invalid_reference")]


def test_record_upsert_updates_by_unique_field_and_creates_the_rest(
    alice: Caller, charlie: Caller, posts: Any
) -> None:
    there = make_record(alice, title="old", code="a", n=1)
    theirs = make_record(charlie, title="old", code="b")
    url = f"{URL}?mode=upsert&on=code"
    bodies = [{"title": "B", "code": "b"}, {"code": "a", "title": "A"}]
    answer = alice.post(url, {"records": bodies})
    assert (answer.status_code, answer.json["count"]) == (201, 2)
    (created,), (updated,) = answer.json["created"], answer.json["updated"]
    assert (created["code"], created["n"], created["account_id"]) == ("b", 7, alice.account_id)
    assert (updated["id"], updated["title"], updated["n"]) == (there["id"], "A", 1)
    again = alice.post(url, {"records": bodies})
    assert (again.status_code, again.json["created"], again.json["count"]) == (200, [], 2)
    assert stored(charlie) == [theirs]
    wrong = [{"title": "x"}, {"code": "c"}, {"code": "a", "n": "x"}, {"code": "a", "title": "y"}]
    assert told(alice.post(url, {"records": wrong})) == [
        (0, "code", "required_missing"),
        (3, "code", "not_unique"),
    ]
    assert told(alice.post(url, {"records": wrong[1:3]})) == [
        (0, "title", "required_missing"),
        (1, "n", "invalid_type"),
    ]
    for on in ("title", "nothing", "id"):
        answer = alice.post(f"{URL}?mode=upsert&on={on}", {"records": bodies})
        assert (answer.status_code, told(answer)) == (400, [(None, "on", "invalid_option")])


REFUSING: list[tuple[str, list[dict[str, Any]], int]] = [
    (URL, [{"title": "no"}], 403),
    (URL, [{"title": "no"}, {"title": "mine", "code": "bob"}], 403),
    (URL, [{"title": "no"}, {"title": "mine", "n": "x"}], 400),
    (f"{URL}?mode=upsert&on=code", [{"title": "no"}], 403),
    (f"{URL}?mode=upsert&on=code", [{"title": "no", "n": "x"}], 400),
    (f"{URL}?mode=upsert&on=code", [{"title": "no"}, {"title": "mine", "code": "bob"}], 403),
    ("records/posts", [{"title": "no"}], 403),
]


@pytest.mark.parametrize(("url", "bodies", "status"), REFUSING)
@pytest.mark.parametrize("update_rule", ["created_by = @request.auth.id", None])
def test_record_write_denied_by_rule_does_not_reveal_taken_value(
    root: Caller,
    alice: Caller,
    bob: Caller,
    url: str,
    bodies: list[dict[str, Any]],
    status: int,
    update_rule: str | None,
) -> None:
    make_collection(
        root,
        schema=SCHEMA,
        create_rule="title = 'mine' || @has_role(admin)",
        view_rule="created_by = @request.auth.id",
        update_rule=update_rule,
    )
    make_record(bob, title="mine", code="bob")
    make_record(alice, title="hers", code="taken")
    answers = []
    for code in ("taken", "free"):
        sent = [{**bodies[0], "code": code}, *bodies[1:]]
        answers.append(bob.post(url, {"records": sent} if "batch" in url else sent[0]))
    assert answers[0].status_code == status, answers[0].json
    taken, free = ({**answer.json, "explain_id": None} for answer in answers)  # it has the time
    assert taken == free


def test_record_upsert_conflict_with_hidden_record_is_409(
    root: Caller, alice: Caller, bob: Caller
) -> None:
    rules = {"view_rule": "@owns_record()", "update_rule": "@owns_record()"}
    make_collection(root, schema=SCHEMA, **rules)
    hers = make_record(alice, title="hers", code="a")
    body = {"records": [{"title": "new", "code": "b"}, {"title": "his", "code": "a"}]}
    answer = bob.post(f"{URL}?mode=upsert&on=code", body)
    assert (answer.status_code, told(answer)) == (409, [(1, "code", "not_unique")])
    root.put("collections/posts/rules", {"update_rule": "@request.data.title = 'his'"})
    answer = bob.post(f"{URL}?mode=upsert&on=code", body)
    assert (answer.status_code, answer.json["updated"][0]["id"]) == (201, hers["id"])


def test_record_upserts_that_are_concurrent_create_each_record_once(
    app: Flask, alice: Caller, posts: Any
) -> None:
    bodies = [{"title": "x", "code": str(i)} for i in range(20)]
    url = f"{URL}?mode=upsert&on=code"
    answers = at_once(6, lambda n: alice.post(url, {"records": bodies[:: 1 if n % 2 else -1]}))
    assert {answer.status_code for answer in answers} <= {200, 201}
    assert sum(len(answer.json["created"]) for answer in answers) == 20
    assert len(stored(alice)) == 20


NO_BATCHES: list[tuple[str, Any, list[Any]]] = [
    ("POST", {"records": []}, ["body", "records"]),
    ("POST", {"records": [{}] * 1001}, ["body", "records"]),
    ("POST", {"records": [1]}, ["body", "records", 0]),
    ("POST", {}, ["body", "records"]),
    ("PATCH", {"records": [{"id": "x"}]}, ["body", "records", 0, "data"]),
    ("PATCH", {"records": [{"id": 1, "data": {}}]}, ["body", "records", 0, "id"]),
    ("DELETE", {"ids": [1]}, ["body", "ids", 0]),
    ("DELETE", {"ids": ["x"], "other": 1}, ["body", "other"]),
]


@pytest.mark.one_database
def test_record_batch_body_with_wrong_shape_is_422(alice: Caller, posts: Any) -> None:
    for method, body, loc in NO_BATCHES:
        answer = alice(method, URL, body)
        assert answer.status_code == 422
        assert answer.json["detail"][0]["loc"] == loc


def test_record_batch_of_1000_is_created_updated_and_deleted(alice: Caller, posts: Any) -> None:
    bodies = [{"title": f"t{i}", "code": f"c{i}", "n": i} for i in range(1000)]
    created = alice.post(URL, {"records": bodies}).json["created"]
    assert [one["n"] for one in created] == list(range(1000))
    items = [{"id": one["id"], "data": {"n": -one["n"], "data": [1]}} for one in created]
    updated = alice.patch(URL, {"records": items}).json["updated"]
    assert [one["double"] for one in updated] == [-2 * i for i in range(1000)]
    ids = [one["id"] for one in created]
    assert alice.delete(URL, json={"ids": ids}).json["count"] == 1000
    assert alice.get("records/posts").json["total"] == 0


def test_record_batch_statement_length_is_bounded_on_sqlite(
    app: Flask, database: str, alice: Caller, posts: Any
) -> None:
    """Its driver keeps the last 128 texts of each connection, a megabyte of a thousand rows."""
    lengths: dict[str, list[int]] = {"INSERT INTO": [], "UPDATE": []}
    for number in (60, 130):
        bodies = [{"title": f"t{i}", "n": i} for i in range(number)]
        with statements(app) as sent:
            created = alice.post(URL, {"records": bodies}).json["created"]
            items = [{"id": one["id"], "data": {"n": -one["n"]}} for one in created]
            updated = alice.patch(URL, {"records": items}).json["updated"]
        assert [one["n"] for one in updated] == [-i for i in range(number)]
        for write, found in lengths.items():
            found.append(max(len(text) for text in sent if f"{write} col_posts " in text))
    for fewer, more in lengths.values():
        assert fewer == more if database == "sqlite" else fewer < more


def test_record_batch_is_audited_per_record(root: Caller, alice: Caller, posts: Any) -> None:
    made = alice.post(URL, {"records": [{"title": t} for t in "ab"]}).json["created"]
    alice.patch(URL, {"records": [{"id": one["id"], "data": {"n": 1}} for one in made]})
    alice.delete(URL, json={"ids": [one["id"] for one in made]})
    for one in made:
        found = root.get(f"audit-logs?record_id={one['id']}&limit=100").json["items"]
        operations = [entry["operation"] for entry in found if entry["column_name"] == "n"]
        assert operations == ["DELETE", "UPDATE", "CREATE"]


def test_audit_chain_of_large_batch_is_valid(root: Caller, alice: Caller, posts: Any) -> None:
    odd = "a\tb\\N\nc\r\\ 'q' %s é"
    bodies = [{"title": odd, "code": str(i), "data": {"x": odd}} for i in range(40)]
    made = alice.post(URL, {"records": bodies}).json["created"]
    make_record(alice, title="and one more")
    assert root.get("audit-logs/verify").json["valid"] is True
    found = root.get(f"audit-logs?record_id={made[7]['id']}&limit=100").json["items"]
    assert {one["new_value"] for one in found if one["column_name"] == "title"} == {odd}


def test_batch_keeps_json_that_it_does_not_change(root: Caller, alice: Caller) -> None:
    tags = {"name": "tags", "type": "multi_select", "options": {"choices": ["a", "b"]}}
    fields = [{"name": "title", "type": "text"}, {"name": "meta", "type": "json"}, tags]
    make_collection(root, "things", fields)
    kept = {"meta": {"n": 1}, "tags": ["b"]}
    one, other = (make_record(alice, "things", **kept)["id"] for _ in range(2))
    changes = [{"meta": {"n": 2}, "tags": []}, {"title": "x"}]
    items = [{"id": id, "data": data} for id, data in zip((one, other), changes, strict=True)]
    assert alice.patch("records/things/batch", {"records": items}).status_code == 200
    for id, expected in ((one, changes[0]), (other, kept)):
        record = alice.get(f"records/things/{id}").json
        assert {name: record[name] for name in kept} == expected
