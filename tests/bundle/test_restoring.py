"""`bin/atrium account restore --at`: records become what they were, as audited changes."""

from __future__ import annotations

from flask import Flask

from app import clock
from app.accounts.models import SYSTEM_ACCOUNT_ID
from tests import sql
from tests.builders import Cast, make_collection, make_record
from tests.bundle.accounts import furnish, hashes, run

ROOT = ("--as", "root@system.example")
LISTS = ("records/posts?sort=title", "records/authors?sort=name")
EDITS = ("updated_at", "updated_by", "created_at", "created_by")


def values(cast: Cast) -> list[object]:
    """The records of acme without who changed them when."""
    lists = [cast.alice.get(path).json["items"] for path in LISTS]
    return [[{k: v for k, v in one.items() if k not in EDITS} for one in items] for items in lists]


def test_account_restore_returns_records_to_the_moment(cast: Cast, app: Flask) -> None:
    furnish(cast)
    before, moment = values(cast), clock.iso(clock.now())
    first, second = cast.alice.get("records/posts?sort=title").json["items"]
    author = cast.alice.get("records/authors").json["items"][0]
    cast.alice.patch(f"records/posts/{first['id']}", {"title": "changed", "meta": {"c": 1}})
    cast.alice.patch(f"records/authors/{author['id']}", {"best": None, "name": "Other"})
    assert cast.alice.delete(f"records/posts/{second['id']}").status_code == 204
    make_record(cast.alice, title="later", parent=first["id"])
    after = values(cast)
    others = hashes(app, cast.charlie.account_id, SYSTEM_ACCOUNT_ID)
    planned = run(app, "account", "restore", "acme", "--at", moment, *ROOT)
    assert planned.exit_code == 0, planned.output
    lines = ("authors: change 1", "posts: change 1", "posts: create 1", "posts: delete 1")
    assert planned.output.splitlines()[:-1] == list(lines)
    assert values(cast) == after
    restored = run(app, "account", "restore", "acme", "--at", moment, "--yes", *ROOT)
    assert restored.exit_code == 0, restored.output
    assert values(cast) == before
    assert hashes(app, cast.charlie.account_id, SYSTEM_ACCOUNT_ID) == others
    assert run(app, "audit", "verify").exit_code == 0
    again = run(app, "account", "restore", "acme", "--at", moment, "--yes", *ROOT)
    assert "All records are what they were" in again.output
    history = cast.alice.get(f"records/posts/{first['id']}/history").json["items"]
    assert history[0]["user_email"] == "root@system.example"


def test_account_restore_with_invalid_moment_is_refused(cast: Cast, app: Flask) -> None:
    refused = run(app, "account", "restore", "acme", "--at", "yesterday", *ROOT)
    assert (refused.exit_code, "is no time" in refused.output) == (1, True)


NODES = [
    {"name": "name", "type": "text", "required": True, "unique": True},
    {"name": "kind", "type": "text", "default": "leaf"},
    {"name": "parent", "type": "reference", "collection": "nodes"},
]
NODE_FIELDS = ("id", "name", "kind", "parent")


def nodes(cast: Cast) -> list[object]:
    """The nodes of acme by id, as far as a restoration brings them back."""
    items = cast.alice.get("records/nodes?sort=id&limit=100").json["items"]
    return [{name: one[name] for name in NODE_FIELDS} for one in items]


def restored(app: Flask, moment: str) -> str:
    """Restore acme; returns what the command says."""
    result = run(app, "account", "restore", "acme", "--at", moment, "--yes", *ROOT)
    assert result.exit_code == 0, result.output
    return result.output


def test_account_restore_includes_records_that_refer_to_each_other(cast: Cast, app: Flask) -> None:
    make_collection(cast.root, "nodes", NODES)
    first = make_record(cast.alice, "nodes", name="first", kind=None)
    chain = [first["id"]]
    for n in range(8):
        chain.append(make_record(cast.alice, "nodes", name=str(n), parent=chain[-1])["id"])
    # The first refers to the last: a circle, against the order of ids.
    cast.alice.patch(f"records/nodes/{first['id']}", {"parent": chain[-1]})
    swapped = make_record(cast.alice, "nodes", name="swapped")
    before, moment = nodes(cast), clock.iso(clock.now())
    for id in chain:
        cast.alice.patch(f"records/nodes/{id}", {"parent": None})
    for id in reversed(chain):
        assert cast.alice.delete(f"records/nodes/{id}").status_code == 204
    # Its name is taken by a record that is to go.
    cast.alice.patch(f"records/nodes/{swapped['id']}", {"name": "other"})
    make_record(cast.alice, "nodes", name="swapped", parent=swapped["id"])
    output = restored(app, moment)
    assert output.splitlines() == ["nodes: change 1", "nodes: create 9", "nodes: delete 1"]
    assert nodes(cast) == before
    assert "All records are what they were" in restored(app, moment)
    assert run(app, "audit", "verify").exit_code == 0


def test_account_restore_returns_lists_of_references(cast: Cast, app: Flask) -> None:
    tags = {
        "name": "tags",
        "type": "reference",
        "collection": "nodes",
        "multiple": True,
        "on_delete": "set_null",
    }
    make_collection(cast.root, "nodes", [NODES[0], tags])
    first, second = (make_record(cast.alice, "nodes", name=one)["id"] for one in ("1", "2"))
    third = make_record(cast.alice, "nodes", name="3", tags=[second, first])["id"]
    cast.alice.patch(f"records/nodes/{first}", {"tags": [third, second]})  # a circle
    items = "records/nodes?sort=id&fields=id,name,tags"
    before, moment = cast.alice.get(items).json["items"], clock.iso(clock.now())
    for id in (first, third, second):
        assert cast.alice.delete(f"records/nodes/{id}").status_code == 204
    assert restored(app, moment).splitlines() == ["nodes: create 3"]
    assert cast.alice.get(items).json["items"] == before
    assert "All records are what they were" in restored(app, moment)


def test_account_restore_is_all_or_nothing(cast: Cast, app: Flask) -> None:
    make_collection(cast.root, "nodes", NODES)
    lost = make_record(cast.alice, "nodes", name="lost")
    child = make_record(cast.alice, "nodes", name="child", parent=lost["id"])
    moment = clock.iso(clock.now())
    cast.alice.patch(f"records/nodes/{child['id']}", {"parent": None})
    make_record(cast.alice, "nodes", name="later")
    cast.alice.delete(f"records/nodes/{lost['id']}")
    path = f"records/nodes/{lost['id']}/erase"
    erased = cast.root.post(path, {}, headers={"X-Account-ID": "acme"})
    assert erased.status_code == 200, erased.json
    before = nodes(cast)
    refused = run(app, "account", "restore", "acme", "--at", moment, "--yes", *ROOT)
    assert (refused.exit_code, "no such record" in refused.output) == (1, True), refused.output
    assert nodes(cast) == before
    assert run(app, "audit", "verify").exit_code == 0


def test_account_restore_statements_do_not_grow_with_records(cast: Cast, app: Flask) -> None:
    make_collection(cast.root, "nodes", NODES)
    counted = []
    url = "records/nodes/batch"
    for n in (30, 90):
        bodies = [{"name": f"{n}-{i}"} for i in range(n)]
        ids = [one["id"] for one in cast.alice.post(url, {"records": bodies}).json["created"]]
        children = [{"name": f"{n}-of-{i}", "parent": id} for i, id in enumerate(ids[n // 3 :])]
        made = cast.alice.post(url, {"records": children}).json["created"]
        before, moment = cast.alice.get("records/nodes").json["total"], clock.iso(clock.now())
        changed = [{"id": id, "data": {"name": f"changed {id}"}} for id in ids[: n // 3]]
        gone = [*(one["id"] for one in made), *ids[n // 3 :]]
        new = [{"name": f"new {n}-{i}"} for i in range(n)]
        answers = (
            cast.alice.patch(url, {"records": changed}),
            cast.alice.delete(url, json={"ids": gone}),
            cast.alice.post(url, {"records": new}),
        )
        assert [one.status_code for one in answers] == [200, 200, 201]
        assert cast.alice.get("changes").status_code == 200  # seals the changes
        with sql.statements(app) as statements:
            restored(app, moment)
        counted.append(len(statements))
        assert cast.alice.get("records/nodes").json["total"] == before
    assert counted[1] <= counted[0] + 6, counted
    assert counted[1] < 150, counted
