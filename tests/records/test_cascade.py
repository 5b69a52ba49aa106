"""What goes with a deleted record: `on_delete`, and that everybody who listens is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask

from app import db, events
from app.jobs import worker
from app.records import purge
from tests.builders import Caller, Cast, make_collection, make_record
from tests.parallel import at_once
from tests.sql import statements


@pytest.fixture
def told() -> Iterator[list[events.RecordChanged]]:
    """The changes of records that are announced meanwhile."""
    heard: list[events.RecordChanged] = []
    listeners = events._subscribers.setdefault(events.RecordChanged, [])
    listeners.append(heard.append)
    yield heard
    listeners.remove(heard.append)


def reference(name: str, to: str, on_delete: str | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "reference", "collection": to, "on_delete": on_delete, **more}


TITLE = {"name": "title", "type": "text"}


def ids(caller: Caller, collection: str) -> set[str]:
    return {one["id"] for one in caller.get(f"records/{collection}?limit=100").json["items"]}


def summary(told: list[events.RecordChanged]) -> list[tuple[str, str]]:
    return [(change.operation, change.definition.name) for change in told]


def test_record_change_event_has_previous_and_new_values(
    root: Caller, alice: Caller, told: list[events.RecordChanged]
) -> None:
    make_collection(root)
    made = make_record(alice, title="a")
    alice.put(f"records/posts/{made['id']}", {"title": "b"})
    alice.patch(f"records/posts/{made['id']}", {"title": "c"})
    alice.delete(f"records/posts/{made['id']}")
    titles = [
        (
            change.operation,
            change.previous and change.previous["title"],
            change.record and change.record["title"],
        )
        for change in told
    ]
    assert titles == [
        ("create", None, "a"),
        ("update", "a", "b"),
        ("update", "b", "c"),
        ("delete", "c", None),
    ]
    for change in told:
        assert (change.account_id, change.by.user_id) == (alice.account_id, alice.id)
        assert ((change.record or change.previous) or {})["id"] == made["id"]


def test_record_change_event_computed_values_equal_those_of_reads(
    root: Caller, alice: Caller, told: list[events.RecordChanged]
) -> None:
    make_collection(root, "authors")
    many = {"name": "many", "type": "computed", "expression": "n > 5", "return_type": "boolean"}
    number = {"name": "n", "type": "number"}
    make_collection(root, "notes", [reference("author", "authors", "set_null"), number, many])
    author = make_record(alice, "authors")["id"]
    for _ in range(2):
        make_record(alice, "notes", author=author, n=10.5)
    alice.delete(f"records/authors/{author}")
    made = [one.record["many"] for one in told if one.definition.name == "notes" and one.record]
    assert made == [True] * 4


def test_record_change_event_is_not_sent_for_refused_write(
    root: Caller, alice: Caller, told: list[events.RecordChanged]
) -> None:
    make_collection(root, schema=[TITLE | {"unique": True}])
    make_record(alice, title="a")
    told.clear()
    assert alice.post("records/posts", {"title": "a"}).status_code == 409
    assert alice.post("records/posts", {"nope": "a"}).status_code == 400
    assert alice.delete("records/posts/none").status_code == 404
    assert told == []


def test_cascade_reaches_every_level_within_account(
    root: Caller, alice: Caller, charlie: Caller, told: list[events.RecordChanged]
) -> None:
    make_collection(root, "authors")
    closed = dict.fromkeys(("view_rule", "delete_rule", "update_rule"))
    make_collection(root, "posts", [reference("author", "Authors", "cascade")], **closed)
    marks = [reference("post", "posts", "cascade"), reference("by", "authors", "set_null"), TITLE]
    make_collection(root, "marks", marks)
    kept: dict[str, set[str]] = {}
    for caller in (alice, charlie):
        ann, ben = (make_record(caller, "authors", title=name)["id"] for name in ("ann", "ben"))
        root_there = root.acting_in(caller.slug)
        anns, bens = (make_record(root_there, author=one)["id"] for one in (ann, ben))
        make_record(caller, "authors")
        gone = make_record(root_there, "marks", post=anns, by=ben)["id"]
        cut = make_record(root_there, "marks", post=bens, by=ann, title="x")
        kept[caller.slug] = {ann, ben, anns, bens, gone, cut["id"]}
        if caller is alice:
            victim, expected, loosened = ann, {ben, bens, cut["id"]}, cut
    told.clear()
    before = loosened
    assert alice.delete(f"records/authors/{victim}").status_code == 204
    there = root.acting_in("acme")
    left = ids(there, "authors") | ids(there, "posts") | ids(there, "marks")
    assert left & kept["acme"] == expected
    after = alice.get(f"records/marks/{before['id']}").json
    assert after["updated_at"] > before["updated_at"]
    assert after == before | {
        "by": None,
        "updated_at": after["updated_at"],
        "updated_by": alice.id,
    }
    globex = root.acting_in("globex")
    seen = ids(globex, "authors") | ids(globex, "posts") | ids(globex, "marks")
    assert kept["globex"] <= seen
    assert sorted(summary(told)) == [
        ("delete", "authors"),
        ("delete", "marks"),
        ("delete", "posts"),
        ("update", "marks"),
    ]
    assert {(c.account_id, c.by.user_id) for c in told} == {(alice.account_id, alice.id)}
    [update] = [c for c in told if c.operation == "update"]
    assert update.previous is not None
    assert update.record is not None
    assert (update.previous["by"], update.record["by"]) == (victim, None)
    assert update.record["title"] == "x"


def test_restrict_reference_deep_in_cascade_is_409(
    root: Caller, alice: Caller, told: list[events.RecordChanged]
) -> None:
    make_collection(root, "authors")
    make_collection(root, "posts", [reference("author", "authors", "cascade")])
    make_collection(root, "marks", [reference("post", "posts")])
    author = make_record(alice, "authors")["id"]
    post = make_record(alice, "posts", author=author)["id"]
    mark = make_record(alice, "marks", post=post)["id"]
    told.clear()
    refused = alice.delete(f"records/authors/{author}")
    assert (refused.status_code, refused.json["error"]) == (409, "conflict")
    assert (ids(alice, "authors"), ids(alice, "posts")) == ({author}, {post})
    assert told == []
    assert alice.delete(f"records/marks/{mark}").status_code == 204
    assert alice.delete(f"records/authors/{author}").status_code == 204
    assert ids(alice, "posts") == set()


def test_restrict_reference_from_record_deleted_too_is_ignored(root: Caller, alice: Caller) -> None:
    make_collection(root, "authors")
    make_collection(root, "posts", [reference("author", "authors", "cascade")])
    both = [reference("author", "authors", "cascade"), reference("post", "posts", "restrict")]
    make_collection(root, "marks", both)
    author = make_record(alice, "authors")["id"]
    post = make_record(alice, "posts", author=author)["id"]
    make_record(alice, "marks", author=author, post=post)
    assert alice.delete(f"records/authors/{author}").status_code == 204
    assert ids(alice, "posts") == ids(alice, "marks") == set()


def test_cascade_through_circular_references_ends(
    root: Caller, alice: Caller, told: list[events.RecordChanged]
) -> None:
    parents = make_collection(root, "nodes", [reference("parent", "nodes", "cascade")])
    first = make_record(alice, "nodes")["id"]
    chain = [first]
    for _ in range(3):
        chain.append(make_record(alice, "nodes", parent=chain[-1])["id"])
    alice.patch(f"records/nodes/{first}", {"parent": chain[-1]})
    other = make_record(alice, "nodes")["id"]
    alice.patch(f"records/nodes/{other}", {"parent": other})
    told.clear()
    assert alice.delete(f"records/nodes/{chain[2]}").status_code == 204
    assert (ids(alice, "nodes"), len(told)) == ({other}, 4)
    assert alice.delete(f"records/nodes/{other}").status_code == 204
    assert root.delete(f"collections/{parents['id']}").status_code == 200


def make_ring(root: Caller) -> None:
    """Two collections whose records need each other."""
    men = make_collection(root, "men")
    make_collection(root, "women", [reference("man", "men", "cascade")])
    woman = reference("woman", "women", "cascade")
    answer = root.put(f"collections/{men['id']}", {"schema": [*men["schema"], woman]})
    assert answer.status_code == 200, answer.json


def test_cascade_through_two_collections_that_refer_to_each_other(
    root: Caller, alice: Caller
) -> None:
    make_ring(root)
    man = make_record(alice, "men")["id"]
    woman = make_record(alice, "women", man=man)["id"]
    alice.patch(f"records/men/{man}", {"woman": woman})
    assert alice.delete(f"records/women/{woman}").status_code == 204
    assert ids(alice, "men") == ids(alice, "women") == set()


def test_set_null_clears_both_references_of_a_record(root: Caller, alice: Caller) -> None:
    twice = [reference("a", "nodes", "set_null"), reference("b", "nodes", "set_null")]
    make_collection(root, "nodes", [TITLE])
    make_collection(root, "pairs", twice)
    one, two = (make_record(alice, "nodes")["id"] for _ in range(2))
    pair = make_record(alice, "pairs", a=one, b=one)["id"]
    half = make_record(alice, "pairs", a=one, b=two)["id"]
    assert alice.delete(f"records/nodes/{one}").status_code == 204
    assert [alice.get(f"records/pairs/{pair}").json[n] for n in "ab"] == [None, None]
    assert [alice.get(f"records/pairs/{half}").json[n] for n in "ab"] == [None, two]


def test_cascade_statements_do_not_grow_with_records(
    app: Flask, root: Caller, alice: Caller
) -> None:
    make_collection(root, "authors")
    make_collection(root, "posts", [reference("author", "authors", "cascade")])
    make_collection(root, "notes", [reference("author", "authors", "set_null")])
    counts = []
    for size in (1, 12):
        author = make_record(alice, "authors")["id"]
        for _ in range(size):
            make_record(alice, "posts", author=author)
            make_record(alice, "notes", author=author)
        with statements(app) as sent:
            assert alice.delete(f"records/authors/{author}").status_code == 204
        counts.append(len(sent))
    assert counts[0] == counts[1]
    assert ids(alice, "posts") == set()
    assert len(ids(alice, "notes")) == 13


def test_cascade_concurrent_with_new_references_leaves_none_dangling(
    root: Caller, alice: Caller
) -> None:
    make_collection(root, "authors")
    make_collection(root, "posts", [reference("author", "authors", "cascade")])
    make_collection(root, "notes", [reference("author", "authors", "set_null")])
    authors = [make_record(alice, "authors")["id"] for _ in range(4)]

    def act(number: int) -> int:
        author = authors[number % 4]
        if number < 4:
            return alice.delete(f"records/authors/{author}").status_code
        kind = "posts" if number % 8 < 4 else "notes"
        return alice.post(f"records/{kind}", {"author": author}).status_code

    answers = at_once(20, act)
    assert answers[:4] == [204] * 4
    assert set(answers[4:]) <= {201, 400}
    assert ids(alice, "authors") == ids(alice, "posts") == set()
    notes = alice.get("records/notes?limit=100").json["items"]
    assert {note["author"] for note in notes} <= {None}


def test_account_deletion_removes_records_with_circular_references(app: Flask, cast: Cast) -> None:
    make_ring(cast.root)
    for caller in (cast.alice, cast.charlie):
        man = make_record(caller, "men")["id"]
        woman = make_record(caller, "women", man=man)["id"]
        caller.patch(f"records/men/{man}", {"woman": woman})
    men, women = (cast.root.get(f"collections/{name}").json for name in ("men", "women"))
    for made, name in ((men, "woman"), (women, "man")):
        schema = [one | {"required": one["name"] == name} for one in made["schema"]]
        answer = cast.root.put(f"collections/{made['id']}", {"schema": schema})
        assert answer.status_code == 200, answer.json
    with app.app_context():
        purge.remove_account({"account_id": cast.alice.account_id})
        worker.run_due()
        db.db.session.remove()
    assert ids(cast.root.acting_in("acme"), "men") == set()
    assert len(ids(cast.charlie, "women")) == 1
