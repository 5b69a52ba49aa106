"""Every other door to records, and what it does with a collection that has a trash."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, db
from app.collections.trash import TRASH as ROWS
from app.context import tenancy
from app.extend import before_create
from app.extensions import loading
from app.records import purge
from tests.builders import Caller, Cast, make_collection, make_record
from tests.bundle.accounts import run
from tests.bundle.test_readable import exported, lines
from tests.realtime.clients import Events
from tests.realtime.conftest import serving
from tests.realtime.test_following import changes
from tests.records.test_trash import TRASH, in_trash, put_away, restored
from tests.retention import test_retention as retention
from tests.workflows import running

Way = Callable[[Flask, Caller, str], None]


def stored(app: Flask) -> int:
    """The number of records in the trash of all accounts."""
    with app.app_context(), tenancy.across_accounts():
        return db.connection().scalar(sa.select(sa.func.count()).select_from(ROWS)) or 0


def batch_of_a_collection(app: Flask, caller: Caller, id: str) -> None:
    answer = caller("DELETE", "records/posts/batch", {"ids": [id]})
    assert answer.status_code == 200, answer.json


def batch_over_collections(app: Flask, caller: Caller, id: str) -> None:
    operation = {"method": "DELETE", "collection": "posts", "id": id}
    answer = caller.post("batch", {"operations": [operation]})
    assert answer.status_code == 200, answer.json


def workflow(app: Flask, caller: Caller, id: str) -> None:
    step = running.action("gone", "delete_record", collection="posts", record_id=id)
    found = running.ran(app, caller, running.make_workflow(caller, [step]))
    assert found["status"] == "completed", found["error_message"]


def extension(app: Flask, caller: Caller, id: str) -> None:
    def shop() -> None:
        @before_create("notes")
        def clear(caller: Any, record: dict[str, Any]) -> None:
            caller.records("posts").delete(record["title"])

    with loading.loaded(shop):
        make_record(caller, "notes", title=id)


def account_restore(app: Flask, caller: Caller, id: str) -> None:
    made = caller.get(f"records/posts/{id}").json["created_at"]
    moment = clock.iso(clock.parse(made) - timedelta(microseconds=1))
    done = run(app, "account", "restore", "acme", "--at", moment, "--yes", "--as", ROOT)
    assert done.exit_code == 0, done.output


ROOT = "root@system.example"
WAYS = (batch_of_a_collection, batch_over_collections, workflow, extension, account_restore)


@pytest.mark.parametrize("way", WAYS)
def test_each_deletion_goes_into_the_trash(app: Flask, cast: Cast, way: Way) -> None:
    make_collection(cast.root, "notes")
    make_collection(cast.root, **TRASH)
    record = make_record(cast.alice, title="a")
    way(app, cast.alice, record["id"])
    assert cast.alice.get(f"records/posts/{record['id']}").status_code == 404
    assert [one["id"] for one in in_trash(cast.alice, "posts")] == [record["id"]]
    answer = restored(cast.alice, "posts", record)
    assert (answer.status_code, answer.json["created_at"]) == (200, record["created_at"])


def test_retention_passes_by_the_trash(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, **TRASH)
    old, kept = make_record(cast.alice, title="old"), make_record(cast.alice, title="kept")
    retention.age(app, old["id"], 40, "posts")
    put_away(cast.alice, "posts", kept)
    retention.save(cast.alice, {"collection": "posts", "days": 30})
    retention.apply(app)
    assert [one["title"] for one in in_trash(cast.alice, "posts")] == ["kept"]
    assert cast.alice.get("records/posts").json["total"] == 0
    assert restored(cast.alice, "posts", old).status_code == 404


def test_account_restore_takes_records_out_of_the_trash(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, **TRASH)
    record = make_record(cast.alice, title="a")
    moment = clock.iso(clock.now())
    put_away(cast.alice, "posts", record)
    arguments = ("account", "restore", "acme", "--at", moment, "--yes", "--as", ROOT)
    done = run(app, *arguments)
    assert done.exit_code == 0, done.output
    assert cast.alice.get(f"records/posts/{record['id']}").json["title"] == "a"
    assert in_trash(cast.alice, "posts") == []
    assert stored(app) == 0


def test_streams_tell_of_both_ways_but_not_of_the_end(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, **TRASH)
    record = make_record(cast.alice, title="a")
    with serving(app) as port:
        client = Events(port, "collections=posts", headers=cast.bob.headers)
        put_away(cast.alice, "posts", record)
        restored(cast.alice, "posts", record)
        put_away(cast.alice, "posts", record)
        cast.alice.delete(f"records/posts/{record['id']}?permanently=true")
        make_record(cast.alice, title="last")
        found = changes(client, 4)
    facts = [(one["type"], one.get("restored", False)) for one in found]
    assert facts == [
        *(("posts.delete", False), ("posts.create", True)),
        *(("posts.delete", False), ("posts.create", False)),
    ]
    assert [one["data"].get("title") for one in (found[1], found[3])] == ["a", "last"]


def test_feed_tells_who_reads_it_later_the_same(root: Caller, alice: Caller) -> None:
    make_collection(root, **TRASH)
    record = make_record(alice, title="a")
    put_away(alice, "posts", record)
    restored(alice, "posts", record)
    put_away(alice, "posts", record)
    alice.delete(f"records/posts/{record['id']}?permanently=true")
    items = alice.get("changes?collections=posts&since=0").json["items"]
    assert [(one["event"], one.get("restored", False)) for one in items] == [
        *(("records.create", False), ("records.delete", False)),
        *(("records.create", True), ("records.delete", False)),
    ]


def test_words_find_what_came_back_and_nothing_else(root: Caller, alice: Caller) -> None:
    fields = [{"name": "title", "type": "text", "options": {"search": True}}]
    made = make_collection(root, "notes", fields, **TRASH)

    def hits(text: str) -> list[str]:
        answer = alice.get("records/notes", query_string={"search": text})
        assert answer.status_code == 200, answer.json
        assert answer.json["total"] == len(answer.json["items"])
        return [one["title"] for one in answer.json["items"]]

    record = make_record(alice, "notes", title="Green harbour")
    assert hits("harbour") == ["Green harbour"]
    put_away(alice, "notes", record)
    assert hits("harbour") == hits("green") == []
    restored(alice, "notes", record)
    assert hits("HARBOUR gre") == ["Green harbour"]
    put_away(alice, "notes", record)
    path = f"records/notes/{record['id']}/restore"
    assert alice.post(path, {"values": {"title": "Red tower"}}).status_code == 200
    assert (hits("tower"), hits("harbour")) == (["Red tower"], [])
    put_away(alice, "notes", record)
    body = {"name": "body", "type": "text", "options": {"search": True}}
    assert root.patch(f"collections/{made['id']}", {"schema": [body]}).status_code == 200
    assert hits("tower") == []
    restored(alice, "notes", record)
    assert hits("tower") == ["Red tower"]
    put_away(alice, "notes", record)
    for more in ("", "&highlight=1", "&cursor="):
        refused = alice.get(f"records/notes?trash=true&search=tower{more}")
        details = [(one["field"], one["code"]) for one in refused.json["details"]]
        assert (refused.status_code, details) == (400, [("search", "invalid_option")])
    assert len(in_trash(alice, "notes", filter='title ~ "red%"')) == 1


def test_closed_account_leaves_nothing_in_the_trash(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, **TRASH)
    for caller in (cast.alice, cast.charlie):
        put_away(caller, "posts", make_record(caller, title="a"))
    with app.app_context():
        purge.remove_account({"account_id": cast.charlie.account_id})
    assert stored(app) == 1
    assert len(in_trash(cast.alice, "posts")) == 1


def test_views_have_no_trash(root: Caller, alice: Caller) -> None:
    make_collection(root, **TRASH)
    view = {"name": "titles", "type": "view", "from": "posts", "fields": ["title"]}
    rules = {"list_rule": "true", "view_rule": "true"}
    refused = root.post("collections", {**view, **rules, **TRASH})
    assert refused.status_code in (400, 422), refused.json
    made = root.post("collections", {**view, **rules})
    assert made.status_code == 201, made.json
    assert root.patch(f"collections/{made.json['id']}", TRASH).status_code in (400, 422)
    record = make_record(alice, title="a")
    assert alice.get("records/titles").json["total"] == 1
    put_away(alice, "posts", record)
    assert alice.get("records/titles").json["total"] == 0
    assert alice.get("records/titles?trash=true").status_code == 400
    assert restored(alice, "titles", record).status_code == 422  # it asks for audit_id


def test_readable_archive_has_the_trash(app: Flask, cast: Cast) -> None:
    fields = [
        {"name": "title", "type": "text"},
        {"name": "price", "type": "decimal", "options": {"precision": 20, "scale": 2}},
        {"name": "done", "type": "boolean"},
        {"name": "on", "type": "date"},
        {"name": "words", "type": "text_list"},
    ]
    make_collection(cast.root, "things", fields, **TRASH)
    values = {"price": "12345678901234567.80", "done": True, "on": "2026-02-28", "words": ["b"]}
    made = [make_record(cast.alice, "things", title=title, **values) for title in "ab"]
    put_away(cast.charlie, "things", make_record(cast.charlie, "things", title="theirs"))
    put_away(cast.alice, "things", made[0])
    archive = exported(cast, app)
    live, gone = lines(archive, "records/things"), lines(archive, "trash/things")
    assert [one["title"] for one in live] == ["b"]
    (one,) = gone
    assert (one["title"], one["deleted_by"]) == ("a", cast.alice.id)
    assert one.keys() - live[0].keys() == {"deleted_at", "deleted_by"}
    assert {name: one[name] for name in values} == {name: live[0][name] for name in values}
    assert one["created_at"] == made[0]["created_at"]
    assert "trash/<name>.jsonl" in archive.read("README.txt").decode()
