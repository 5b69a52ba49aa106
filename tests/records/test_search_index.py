"""Whatever door writes or removes records, the index has their words, and no others."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from sqlalchemy.dialects.postgresql import TSQUERY

from app import clock
from app.collections import definitions, search_index, search_words
from app.context import tenancy
from app.db import db, transaction, words
from app.extend import Caller as ExtensionCaller
from app.extend import before_create
from app.extensions.loading import loaded
from app.records.read import search
from tests.builders import Caller, Cast, make_collection, make_record, make_user
from tests.bundle.accounts import export, import_, run
from tests.console.browser import Browser
from tests.console.test_schemas import inputs
from tests.mailbox import run_jobs
from tests.records.test_operations import on, post, ref
from tests.records.test_operations import send as operate
from tests.records.test_search import pages_of_index, path_of
from tests.records.test_transfer import send
from tests.retention.test_retention import age, apply, rule, save
from tests.workflows.running import action, make_workflow, ran

ROOT = ("--as", "root@system.example")
SEARCHED = {"search": True}
CHOICES = {**SEARCHED, "choices": ["red hot", "cold"]}
FIELDS: list[dict[str, Any]] = [
    {"name": "title", "type": "text", "options": SEARCHED},
    {"name": "body", "type": "text", "options": SEARCHED},
    {"name": "kind", "type": "text", "options": SEARCHED, "default": "plain kind"},
    {"name": "labels", "type": "text_list", "options": SEARCHED},
    {"name": "tags", "type": "multi_select", "options": CHOICES},
    {"name": "code", "type": "text", "unique": True},
    {"name": "parent", "type": "reference", "collection": "notes", "on_delete": "cascade"},
    {"name": "owner", "type": "user", "on_delete": "cascade"},
]
COMMANDS = [{"name": "target", "type": "text"}, {"name": "data", "type": "json"}]
Index = dict[tuple[str, str], set[str]]
"""The records that have each word behind the key of their account, by field."""


def expected(app: Flask, name: str) -> Index:
    """The index of the words that the records of a collection have."""
    found: Index = defaultdict(set)
    with app.app_context(), tenancy.as_owner():
        definition = definitions.get(name)
        for row in db.session.connection().execute(sa.select(definition.table)).mappings():
            for field in definition.searched:
                texts = definition.fields[field].texts(row[field])
                between = [""] if len(texts) > 1 else []
                for word in [*between, *(word for text in texts for word in words.split(text))]:
                    keyed = search_index.key_of(row["account_id"]) + word
                    found[field, keyed].add(row["id"])
    return dict(found)


def stored(app: Flask, name: str) -> Index:
    """What the index has itself."""
    found: Index = defaultdict(set)
    with app.app_context(), tenancy.as_owner():
        definition, connection = definitions.get(name), db.session.connection()
        table, fields = definition.table, {c: f for f, c in definition.searched.items()}
        if connection.dialect.name == "sqlite":
            index = f"'fts_{table.name}$'"
            connection.exec_driver_sql(
                f"CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab('main', {index}, 'instance')"
            )
            ids = {
                row[0]: row[1] for row in connection.execute(sa.select(table.c._row, table.c.id))
            }
            query = "SELECT DISTINCT term, doc, col FROM temp.vocabulary"
            for word, number, column in connection.exec_driver_sql(query).all():
                found[fields[column], word].add(ids.get(number, f"row {number}"))
            connection.exec_driver_sql("DROP TABLE temp.vocabulary")
        else:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
            for field, word in expected(app, name):
                terms = search_index.terms(table.c[definition.searched[field]])
                query = sa.cast(sa.literal(f"'{word}'"), TSQUERY)
                has = sa.select(table.c.id).where(terms.bool_op("@@")(query))
                found[field, word] |= set(connection.scalars(has))
            for row in connection.execute(sa.select(table)).mappings():
                for field, column in definition.searched.items():
                    marked = search_words.marked(definition.fields[field], row[field])
                    assert row[column] == marked, row["id"]
        db.session.rollback()
    return dict(found)


def check_index(app: Flask, name: str = "notes") -> Index:
    wanted = expected(app, name)
    assert stored(app, name) == wanted
    return wanted


def by_requests(app: Flask, cast: Cast, id: str, folder: Path) -> None:
    path = f"records/notes/{id}"
    assert cast.alice.patch(path, {"title": "patched one"}).status_code == 200
    assert cast.alice.put(path, {"body": "put body", "kind": None}).status_code == 200
    assert cast.alice.patch(path, {"body": None}).status_code == 200


def by_batch(app: Flask, cast: Cast, id: str, folder: Path) -> None:
    rows = [{"title": "one batch"}, {"body": "two batch"}, {"title": "three", "code": "c"}]
    made = cast.alice.post("records/notes/batch", {"records": rows}).json["created"]
    changes = [{"id": made[0]["id"], "data": {"title": "changed"}}]
    changes.append({"id": id, "data": {"body": "other"}})
    assert cast.alice.patch("records/notes/batch", {"records": changes}).status_code == 200
    rows = [{"code": "c", "title": "upserted"}, {"code": "d", "title": "inserted"}]
    answer = cast.alice.post("records/notes/batch?mode=upsert&on=code", {"records": rows})
    assert answer.status_code in (200, 201), answer.json
    gone = {"ids": [made[1]["id"]]}
    assert cast.alice.delete("records/notes/batch", json=gone).status_code in (200, 204)


def by_import(app: Flask, cast: Cast, id: str, folder: Path) -> None:
    cast.alice.patch(f"records/notes/{id}", {"code": "one"})
    lines = [{"code": "one", "title": "imported over"}, {"code": "x", "body": "imported"}]
    text = "\n".join(json.dumps(one) for one in lines)
    answer = send(cast.alice, "jsonl", text, "?upsert=code", "notes")
    assert answer.status_code == 200, answer.json


def by_operations(app: Flask, cast: Cast, id: str, folder: Path) -> None:
    made = post("notes", "n", title="operated", body="twice")
    answer = operate(
        cast.alice,
        made,
        on("PATCH", "notes", ref("n.id"), body="thrice"),
        on("DELETE", "notes", id),
    )
    assert answer.status_code == 200, answer.json


def by_workflow(app: Flask, cast: Cast, id: str, folder: Path) -> None:
    steps = [
        action("make", "create_record", collection="notes", data={"title": "flow made"}),
        action("set", "update_record", collection="notes", record_id=id, data={"title": "flowed"}),
    ]
    assert ran(app, cast.alice, make_workflow(cast.alice, steps))["status"] == "completed"


def by_extension(app: Flask, cast: Cast, id: str, folder: Path) -> None:
    def shop() -> None:
        @before_create("commands")
        def change(caller: ExtensionCaller, record: Any) -> None:
            caller.records("notes").update(record["target"], record["data"])

    make_collection(cast.root, "commands", COMMANDS)
    with loaded(shop):
        body = {"target": id, "data": {"title": "extended"}}
        assert cast.alice.post("records/commands", body).status_code == 201


def by_console(app: Flask, cast: Cast, id: str, folder: Path) -> None:
    browser, path = Browser(app, cast.alice), f"records/{cast.alice.account_id}/notes/{id}"
    page = browser.get(path).text.partition("<main")[2]
    form = inputs(page.replace('<form method="post"', '<form id="r"', 1), "r")
    sent = {**form, "f_title": "typed", "do": "save"}
    assert browser.send(path, **sent).status_code == 303


def by_trash(app: Flask, cast: Cast, id: str, folder: Path) -> None:
    path = f"records/notes/{id}"
    other = make_record(cast.alice, "notes", title="purged words")["id"]
    for one in (id, other):
        assert cast.alice.delete(f"records/notes/{one}").status_code == 204
    assert not {word for _, word in check_index(app) if word.endswith("first")}
    assert cast.alice.post(f"{path}/restore", {}).status_code == 200
    assert cast.alice.delete(f"records/notes/{other}?permanently=true").status_code == 204


def by_version(app: Flask, cast: Cast, id: str, folder: Path) -> None:
    path = f"records/notes/{id}"
    cast.alice.patch(path, {"title": "second", "body": "later"})
    (*_, first) = cast.alice.get(f"{path}/history").json["items"]
    answer = cast.alice.post(f"{path}/restore", {"audit_id": first["audit_id"]})
    assert (answer.status_code, answer.json["title"]) == (200, "the first")


def by_account_restore(app: Flask, cast: Cast, id: str, folder: Path) -> None:
    gone = make_record(cast.alice, "notes", title="goes and comes", parent=id)["id"]
    moment = clock.iso(clock.now())
    cast.alice.patch(f"records/notes/{id}", {"title": "wrong"})
    make_record(cast.alice, "notes", title="too late")
    assert cast.alice.delete(f"records/notes/{gone}").status_code == 204
    result = run(app, "account", "restore", "acme", "--at", moment, "--yes", *ROOT)
    assert result.exit_code == 0, result.output


def by_bundle(app: Flask, cast: Cast, id: str, folder: Path) -> None:
    before = len(expected(app, "notes"))
    copied = import_(app, export(app, folder), *ROOT, "--slug", "copy")
    assert copied.exit_code == 0, copied.output
    assert len(expected(app, "notes")) > before


def by_cascade(app: Flask, cast: Cast, id: str, folder: Path) -> None:
    child = make_record(cast.alice, "notes", title="child", parent=id)["id"]
    make_record(cast.alice, "notes", title="grandchild", parent=child)
    assert cast.alice.delete(f"records/notes/{id}").status_code == 204
    assert not {word for _, word in expected(app, "notes") if word.endswith("child")}


def by_people(app: Flask, cast: Cast, id: str, folder: Path) -> None:
    dora = make_user(app, cast.alice.account_id, "dora@acme.example", "editor")
    make_record(cast.alice, "notes", title="of dora", owner=dora.id)
    path = f"account/users/{dora.id}"
    assert cast.alice.patch(path, {"email": "doris@acme.example"}).status_code == 200
    check_index(app)
    assert cast.alice.delete(path).status_code == 204
    assert not {word for _, word in expected(app, "notes") if word.endswith("dora")}


def by_retention(app: Flask, cast: Cast, id: str, folder: Path) -> None:
    age(app, id, 31, "notes")
    save(cast.alice, rule(30, collection="notes"))
    apply(app)
    assert cast.alice.get(f"records/notes/{id}").status_code == 404


def by_definition(app: Flask, cast: Cast, id: str, folder: Path) -> None:
    cast.alice.patch(f"records/notes/{id}", {"kind": None})
    path = path_of(cast.root, "notes")
    for field in (
        {"name": "kind", "required": True},
        {"name": "place", "type": "text", "options": SEARCHED, "default": "new place"}
        | {"required": True},
    ):
        answer = cast.root.patch(path, {"schema": [field]})
        assert answer.status_code == 200, answer.json
    assert "kind" in {field for field, _ in check_index(app)}


DOORS: dict[str, Callable[[Flask, Cast, str, Path], None]] = {
    name.removeprefix("by_"): door for name, door in list(globals().items()) if name[:3] == "by_"
}


@pytest.mark.parametrize("door", DOORS)
def test_index_equals_records(app: Flask, cast: Cast, tmp_path: Path, door: str) -> None:
    trash = {"trash": {"days": 30}} if door == "trash" else {}
    make_collection(cast.root, "notes", FIELDS, options=trash)
    id = make_record(cast.alice, "notes", title="the first", body="with words")["id"]
    lists = {"labels": ["one two", "three"], "tags": ["cold", "red hot"]}
    assert cast.alice.patch(f"records/notes/{id}", lists).status_code == 200
    make_record(cast.charlie, "notes", title="theirs")
    before = check_index(app)
    DOORS[door](app, cast, id, tmp_path)
    run_jobs(app)
    after = check_index(app)
    assert door in ("trash", "version", "people") or after != before
    theirs = search_index.key_of(cast.charlie.account_id) + "theirs"
    assert len(after["title", theirs]) == 1


@pytest.mark.parametrize("end", ["person", "retention", "account", "cascade"])
def test_what_goes_for_good_leaves_no_word(app: Flask, cast: Cast, end: str) -> None:
    make_collection(cast.root, "notes", FIELDS)
    kept = make_record(cast.charlie, "notes", title="kept1")
    dora = make_user(app, cast.alice.account_id, "dora@acme.example", "editor")
    parent = make_record(cast.alice, "notes", title="quetzal", owner=dora.id)["id"]
    make_record(cast.alice, "notes", title="xylophone", parent=parent)
    assert b"xylophone" in pages_of_index(app)
    if end == "person":
        assert cast.root.post(f"users/{dora.id}/erase").status_code == 200
    elif end == "cascade":
        assert cast.alice.post(f"records/notes/{parent}/erase").status_code == 200
    elif end == "account":
        assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code == 204
    else:
        age(app, parent, 31, "notes")
        save(cast.alice, rule(30, collection="notes"))
        apply(app)
    run_jobs(app)
    run_jobs(app)
    left = pages_of_index(app)
    assert b"kept1" in left
    assert b"xylophone" not in left
    assert b"quetzal" not in left
    assert set().union(*check_index(app).values()) == {kept["id"]}


def test_trash_is_not_searched(cast: Cast) -> None:
    make_collection(cast.root, "notes", FIELDS, options={"trash": {"days": 30}})
    id = make_record(cast.alice, "notes", title="the first")["id"]
    assert cast.alice.delete(f"records/notes/{id}").status_code == 204
    refused = cast.alice.get("records/notes?trash=true&search=first")
    assert refused.status_code == 400, refused.text
    assert (refused.status_code, refused.json["details"][0]["field"]) == (400, "search")
    assert cast.alice.get("records/notes?trash=true&filter=title ~ '%first'").json["total"] == 1


PLAIN: list[dict[str, Any]] = [{"name": "title", "type": "text"}, {"name": "body", "type": "text"}]
SEARCHABLE = [{"name": "title", "options": SEARCHED}]


def add_many(caller: Caller, number: int) -> None:
    rows = [{"title": f"word{place}", "body": "more"} for place in range(number)]
    for start in range(0, number, 100):
        body = {"records": rows[start : start + 100]}
        assert caller.post("records/notes/batch", body).status_code == 201


def collection(root: Caller) -> Any:
    return root.get(path_of(root, "notes")).json


def test_job_stores_the_words_of_many_records(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_words, "AT_ONCE", 10)
    monkeypatch.setattr(search_words, "PIECE", 5)
    monkeypatch.setattr(search_words, "PIECES_BETWEEN_REPORTS", 1)
    make_collection(cast.root, "notes", PLAIN)
    add_many(cast.alice, 40)
    answer = cast.root.patch(path_of(cast.root, "notes"), {"schema": SEARCHABLE}).json
    assert answer["indexing"] == {"fields": ["title"], "done": 10, "total": 40}

    def found(text: str, **query: str) -> Any:
        return cast.alice.get("records/notes", query_string={"search": text, **query})

    def check_refused() -> None:
        for path, more in (("", {}), ("/aggregate", {"functions": "count()"})):
            query = {"search": "word1", **more}
            refused = cast.alice.get(f"records/notes{path}", query_string=query)
            assert refused.status_code == 409, refused.text
            assert refused.json["error"] == "search_indexing"

    check_refused()
    assert found(" ").json["total"] == 40
    shown = Browser(app, cast.root).get(path_of(cast.root, "notes")).text
    assert "10 of 40" in shown
    browser = Browser(app, cast.alice)
    listed = browser.get(f"records/{cast.alice.account_id}/notes?search=word1")
    assert (listed.status_code, search.INDEXING in listed.text) == (409, True)
    item = cast.alice.get("records/notes?filter=title = 'word39'").json["items"][0]
    cast.alice.patch(f"records/notes/{item['id']}", {"title": "changed meanwhile"})
    store, calls = search_words._store_next, count(1)

    def fail_later(*args: Any) -> Any:
        if next(calls) > 3:
            raise RuntimeError("killed")
        return store(*args)

    monkeypatch.setattr(search_words, "_store_next", fail_later)
    payload = {"collection_id": collection(cast.root)["id"]}
    with app.app_context(), pytest.raises(RuntimeError):
        search_words.finish(payload)
    assert collection(cast.root)["indexing"]["done"] == 25
    check_refused()
    monkeypatch.setattr(search_words, "_store_next", store)
    # Names change, and another field becomes searchable, while the words are stored.
    fields = [{"name": "heading", "rename_from": "title"}, {"name": "body", "options": SEARCHED}]
    answer = cast.root.patch(path_of(cast.root, "notes"), {"schema": fields}).json
    assert {*answer["indexing"]["fields"]} == {"heading", "body"}
    run_jobs(app)
    assert "indexing" not in collection(cast.root)
    assert found("word39").json["total"] == 0
    assert found("changed").json["total"] == 1
    assert found("word* more").json["total"] == 39
    check_index(app)


def run_as_owner(app: Flask, *statements: str) -> None:
    with app.app_context(), tenancy.as_owner(), transaction() as session:
        for statement in statements:
            session.connection().exec_driver_sql(statement)


SPOILED = {
    "words": ("UPDATE col_notes SET _words_title = '<wrong>' WHERE title = 'the first'",),
    "lacking": ("UPDATE col_notes SET _words_title = NULL WHERE title = 'the first'",),
    "index": ('DROP INDEX IF EXISTS "ft_col_notes$title"',),
}
SPOILED_ON_SQLITE = {
    **SPOILED,
    "index": (
        'INSERT INTO "fts_col_notes$" ("fts_col_notes$") VALUES (\'delete-all\')',
        'DROP TRIGGER "fts_col_notes$insert"',
    ),
    "table": ('DROP TABLE "fts_col_notes$"',),
}


@pytest.mark.parametrize("spoiled", SPOILED_ON_SQLITE)
def test_rebuild_mends_what_doctor_finds(
    app: Flask, cast: Cast, database: str, spoiled: str
) -> None:
    make_collection(cast.root, "notes", FIELDS)
    make_record(cast.charlie, "notes", title="theirs")
    make_record(cast.alice, "notes", title="the first", body="with words")
    before = check_index(app)
    line = f"{'search':11} "
    assert f"ok    {line}has the words of records" in run(app, "doctor").output
    changes = SPOILED_ON_SQLITE if database == "sqlite" else SPOILED
    run_as_owner(app, *changes.get(spoiled, ()))
    if spoiled in changes:
        assert f"fail  {line}lacks words of records of notes: " in run(app, "doctor").output
    result = run(app, "search", "rebuild", "NOTES")
    number = int(spoiled in ("words", "lacking"))
    assert (result.exit_code, f"notes: {number} records had" in result.stdout) == (0, True)
    assert f"ok    {line}" in run(app, "doctor").output
    make_record(cast.alice, "notes", title="afterwards")
    assert len(check_index(app)) == len(before) + 1
    assert cast.alice.get("records/notes?search=first").json["total"] == 1
    assert run(app, "search", "rebuild").exit_code == 0
    make_collection(cast.root, "plain", PLAIN)
    assert run(app, "search", "rebuild", "plain").exit_code == 1


def test_entries_of_lists_are_searched(cast: Cast) -> None:
    alice = cast.alice
    make_collection(cast.root, "notes", FIELDS)
    id = make_record(alice, "notes", labels=["Große Fähre", "<b>", "hafen"], tags=["red hot"])["id"]
    make_record(alice, "notes", labels=["other"], tags=["cold"])

    def found(text: str) -> list[Any]:
        query = {"search": text, "highlight": "1"}
        return [
            (one["id"], one["_highlights"])
            for one in alice.get("records/notes", query_string=query).json["items"]
        ]

    for text in ("grosse fahre", '"grosse fahre"', '"red hot"', "haf*", "hafen -cold"):
        assert [one for one, _ in found(text)] == [id], text
    assert found('"fahre hafen"') == found("gone") == found("hafen -hot") == []
    marks = {"labels": "Große Fähre, &lt;b&gt;, <mark>hafen</mark>"}
    assert found("hafen") == [(id, marks)]
    path = f"records/notes/{id}"
    alice.patch(path, {"labels": {"$add": ["pier"], "$remove": ["hafen"]}})
    assert (found("hafen"), len(found("pier"))) == ([], 1)
    alice.patch(path, {"labels": None})
    assert found("pier") == []
