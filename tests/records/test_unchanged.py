"""An update that changes nothing changes nothing, through every door; computed values pass back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.audit import sealing
from app.context import tenancy
from app.extend import Caller as ExtensionCaller
from app.extend import after_update, before_create
from app.extensions.loading import loaded
from tests.builders import Caller, Cast, make_collection, make_record
from tests.console.browser import Browser
from tests.console.test_schemas import inputs
from tests.extensions.running import jobs_of
from tests.records.test_transfer import send
from tests.workflows.running import action, make_workflow, start, work

FIELDS: list[dict[str, Any]] = [
    {"name": "code", "type": "text", "unique": True},
    {"name": "title", "type": "text"},
    {"name": "views", "type": "number"},
    {"name": "live", "type": "boolean"},
    {"name": "at", "type": "datetime"},
    {"name": "day", "type": "date"},
    {"name": "mail", "type": "email"},
    {"name": "site", "type": "url"},
    {"name": "data", "type": "json"},
    {"name": "state", "type": "select", "options": {"choices": ["a", "b"]}},
    {"name": "tags", "type": "multi_select", "options": {"choices": ["a", "b"]}},
    {"name": "owner", "type": "user"},
    {"name": "readers", "type": "user", "multiple": True},
    {"name": "parent", "type": "reference", "collection": "things"},
    {"name": "number", "type": "sequence"},
    {"name": "loud", "type": "computed", "return_type": "text", "expression": "upper(title)"},
]
SET = {"title": "é", "views": 1.0, "live": False, "at": "2026-11-20T12:00:00+01:00"}
SET |= {"day": "2026-02-28", "mail": "a@example.com", "site": "https://example.com"}
SET |= {"data": {"b": [1, None], "a": 2}, "state": "a", "tags": ["b", "a"]}
Door = Callable[[Flask, Cast, str, dict[str, Any]], Any]


def watched(app: Flask, cast: Cast, id: str, since: str) -> Any:
    """What a change would leave behind."""
    answer = cast.alice.get(f"records/things/{id}")
    with app.app_context(), tenancy.across_accounts():
        sealing.settle(None)
        table = db.Base.metadata.tables["webhook_deliveries"]
        deliveries = db.connection().scalar(sa.select(sa.func.count()).select_from(table))
    history = cast.alice.get(f"records/things/{id}/history").json["total"]
    flows = cast.alice.get("workflow-instances?limit=1").json
    query = {"since": since, "collections": "things"}
    changes = cast.alice.get("changes", query_string=query).json["items"]
    handled = len(jobs_of(app))
    return answer.json, answer.headers["ETag"], deliveries, history, changes, flows, handled


def by_patch(app: Flask, cast: Cast, id: str, body: dict[str, Any]) -> Any:
    return cast.alice.patch(f"records/things/{id}", body)


def by_put(app: Flask, cast: Cast, id: str, body: dict[str, Any]) -> Any:
    record = cast.alice.get(f"records/things/{id}").json
    return cast.alice.put(f"records/things/{id}", {**record, **body})


def by_batch(app: Flask, cast: Cast, id: str, body: dict[str, Any]) -> Any:
    return cast.alice.patch("records/things/batch", {"records": [{"id": id, "data": body}]})


def by_upsert(app: Flask, cast: Cast, id: str, body: dict[str, Any]) -> Any:
    path = "records/things/batch?mode=upsert&on=code"
    return cast.alice.post(path, {"records": [{**body, "code": "one"}]})


def by_import(app: Flask, cast: Cast, id: str, body: dict[str, Any]) -> Any:
    line = orjson.dumps({**body, "code": "one"})
    path, kind = "records/things/import?upsert=code", "application/x-ndjson"
    answer = cast.alice.post(path, data=line, content_type=kind)
    assert answer.json["created"] == 0
    return answer


def by_workflow(app: Flask, cast: Cast, id: str, body: dict[str, Any]) -> Any:
    config = {"collection": "things", "record_id": id, "data": body}
    start(cast.alice, make_workflow(cast.alice, [action("set", "update_record", **config)]))
    work(app)
    return cast.alice.get(f"records/things/{id}")


def by_extension(app: Flask, cast: Cast, id: str, body: dict[str, Any]) -> Any:
    return cast.alice.post("records/commands", {"target": id, "data": body})


def by_console(app: Flask, cast: Cast, id: str, body: dict[str, Any]) -> Any:
    browser = Browser(app, cast.alice)
    path = f"records/{cast.alice.account_id}/things/{id}"
    page = browser.get(path).text
    marked = page.partition("<main")[2].replace('<form method="post"', '<form id="r"', 1)
    typed = {"f_title": body["title"]} if "title" in body else {}
    answer = browser.send(path, **{**inputs(marked, "r"), **typed, "do": "save"})
    assert answer.status_code == 303
    return cast.alice.get(f"records/things/{id}")


DOORS: dict[str, Door] = {
    "patch": by_patch,
    "put": by_put,
    "batch": by_batch,
    "upsert": by_upsert,
    "import": by_import,
    "workflow": by_workflow,
    "extension": by_extension,
    "console": by_console,
}


def shop() -> None:
    @after_update("things")
    def updated(caller: ExtensionCaller, old: Any, record: Any) -> None:
        """It leaves a job."""

    @before_create("commands")
    def change(caller: ExtensionCaller, record: Any) -> None:
        caller.records("things").update(record["target"], record["data"])


COMMANDS = [{"name": "target", "type": "text"}, {"name": "data", "type": "json"}]


@pytest.fixture
def record(app: Flask, cast: Cast) -> dict[str, Any]:
    """A record with a value of every type, whose changes somebody waits for."""
    make_collection(cast.root, "things", FIELDS)
    make_collection(cast.root, "commands", COMMANDS)
    hook = {"url": "https://example.com/hook", "collection": "things", "events": ["update"]}
    assert cast.alice.post("webhooks", hook).status_code == 201
    trigger = {"type": "event", "event": "records.update", "collection": "things"}
    none = action("none", "query_records", collection="things", filter="title = 'x'")
    make_workflow(cast.alice, [none], trigger, name="waits")
    parent = make_record(cast.alice, "things", code="parent")
    people = {"owner": cast.bob.id, "readers": [cast.bob.id, cast.alice.id]}
    return make_record(cast.alice, "things", code="one", parent=parent["id"], **SET, **people)


@pytest.mark.parametrize("door", DOORS)
def test_update_that_changes_nothing_leaves_no_trace(
    app: Flask, cast: Cast, record: dict[str, Any], door: str
) -> None:
    id, names = record["id"], [one["name"] for one in FIELDS]
    own = {n: record[n] for n in names if n not in ("number", "loud")}
    others = {"owner": str(record["owner"]).upper(), "title": "e\u0301", "views": 1}
    since = cast.alice.get("changes").json["next"]
    with loaded(shop):
        before = watched(app, cast, id, since)
        for body in ({}, own, SET, others):
            if door in ("upsert", "import"):
                body = {name: value for name, value in body.items() if name != "code"}
            answer = DOORS[door](app, cast, id, body)
            assert answer.status_code in (200, 201), (body, answer.text)
        after = watched(app, cast, id, since)
        assert (after[:5], after[6]) == (before[:5], before[6])
        if door != "workflow":
            assert after[5] == before[5]
        assert DOORS[door](app, cast, id, {"title": "other"}).status_code in (200, 201)
        changed = watched(app, cast, id, since)
        for place in (0, 1, 2, 3, 4, 6):
            assert changed[place] != after[place], place


COMPUTED = [
    {"name": "title", "type": "text"},
    {"name": "loud", "type": "computed", "return_type": "text", "expression": "upper(title)"},
    {"name": "age", "type": "computed", "return_type": "number"}
    | {"expression": "date_diff(now(), created_at, 'seconds')"},
]


@pytest.mark.parametrize("door", ["patch", "put", "batch", "workflow", "extension"])
def test_computed_value_passes_if_it_is_that_before_the_change(
    app: Flask, cast: Cast, door: str
) -> None:
    make_collection(cast.root, "things", COMPUTED)
    make_collection(cast.root, "commands", COMMANDS)
    id = make_record(cast.alice, "things", title="a")["id"]
    passing = [{"loud": "A"}, {"loud": "A", "age": 7}, {"age": None}, {"title": "b", "loud": "A"}]
    refused = [{"loud": "a"}, {"loud": None}, {"age": "x"}, {"title": "c", "loud": "C"}]
    with loaded(shop):
        for body in passing:
            answer = DOORS[door](app, cast, id, body)
            assert answer.status_code in (200, 201), (body, answer.text)
        assert cast.alice.get(f"records/things/{id}").json["loud"] == "B"
        for body in refused:
            answer = DOORS[door](app, cast, id, body)
            if door == "workflow":
                (instance, *_) = cast.alice.get("workflow-instances?limit=1").json["items"]
                assert instance["status"] == "failed"
            else:
                assert answer.status_code == (500 if door == "extension" else 400), answer.text
                assert door == "extension" or "field_read_only" in answer.text
        assert cast.alice.get(f"records/things/{id}").json["title"] == "b"
    answer = cast.alice.post("records/things", {"title": "x", "loud": "X"})
    assert [one["code"] for one in answer.json["details"]] == ["field_read_only"]


def test_import_ignores_what_the_service_computes(cast: Cast) -> None:
    make_collection(cast.root, "things", COMPUTED)
    assert send(cast.alice, "csv", "title,loud\na,wrong\n").status_code == 200
    (item,) = cast.alice.get("records/things").json["items"]
    assert item["loud"] == "A"


def test_hidden_computed_value_is_not_confirmed(cast: Cast) -> None:
    hidden = [*COMPUTED[:1], {**COMPUTED[1], "readable_if": "@has_role(admin)"}]
    make_collection(cast.root, "things", hidden)
    id = make_record(cast.alice, "things", title="a")["id"]
    for value in ("A", "B"):
        answer = Caller.patch(cast.bob, f"records/things/{id}", {"loud": value})
        assert [one["code"] for one in answer.json["details"]] == ["field_read_only"]


HIDDEN: list[dict[str, Any]] = [
    {"name": "code", "type": "text", "unique": True},
    {"name": "pay", "type": "number", "readable_if": "@has_role(admin)"},
    {"name": "ssn", "type": "text", "pii": True, "mask_type": "ssn"},
    {"name": "mail", "type": "email", "pii": True, "mask_type": "email"},
    {"name": "tags", "type": "text_list", "readable_if": "@has_role(admin)"},
    {"name": "boss", "type": "reference", "collection": "things", "on_delete": "set_null"}
    | {"readable_if": "@has_role(admin)"},
    {"name": "note", "type": "text"},
]


@pytest.mark.both_databases
def test_guess_of_what_is_hidden_or_masked_counts_as_a_change(cast: Cast) -> None:
    make_collection(cast.root, "things", HIDDEN)
    boss, other = (make_record(cast.alice, "things", code=code)["id"] for code in ("x", "y"))
    secret = {"pay": 5000, "ssn": "123-45-6789", "tags": ["a"], "boss": boss}
    right = make_record(cast.alice, "things", code="one", **secret, mail="eve@x.example")
    path = f"records/things/{right['id']}"
    wrong = {"pay": 4000, "ssn": "123-45-0000", "tags": ["b"], "boss": other}

    def imported(caller: Caller, query: str, **body: Any) -> Any:
        line, kind = orjson.dumps({"code": "one", **body}), "application/x-ndjson"
        path = f"records/things/import?upsert=code{query}"
        answer = Caller.post(caller, path, data=line, content_type=kind)
        assert answer.status_code == 200, answer.text
        return [answer.json[name] for name in ("created", "updated", "unchanged")]

    for name in secret:
        for guess in (secret[name], wrong[name]):
            assert imported(cast.bob, "&dry_run=true", **{name: guess}) == [0, 1, 0]
        assert imported(cast.alice, "&dry_run=true", **{name: secret[name]}) == [0, 0, 1]
        before = cast.bob.get(path)
        answer = cast.bob.patch(path, {name: secret[name]})
        assert answer.headers["ETag"] != before.headers["ETag"]
        assert answer.json["updated_at"] > before.json["updated_at"]
    # What the caller sees, masked or not, passes back without a trace.
    seen = cast.bob.get(path).json
    assert imported(cast.bob, "", **{n: seen[n] for n in ("ssn", "mail", "note")}) == [0, 0, 1]
    assert cast.bob.patch(path, {"ssn": seen["ssn"], "note": None}).json == seen
    assert cast.bob.get(path).json == seen
    assert cast.alice.get(path).json["ssn"] == "123-45-6789"


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json"])
def test_masked_export_passes_back_by_upsert(cast: Cast, kind: str) -> None:
    make_collection(cast.root, "things", [one for one in HIDDEN if "readable_if" not in one])
    for code in ("one", "two"):
        make_record(cast.alice, "things", code=code, ssn="123-45-6789", mail="eve@x.example")
    make_record(cast.alice, "things", code="three")
    own = cast.alice.get("records/things?sort=id").json["items"]
    exported = Caller.get(cast.bob, f"records/things/export?format={kind}")
    assert "***-**-6789" in exported.text
    query = {"data": exported.data, "content_type": exported.content_type}
    answer = Caller.post(cast.bob, "records/things/import?upsert=code", **query)
    assert answer.status_code == 200, answer.text
    assert (answer.json["updated"], answer.json["unchanged"]) == (0, 3)
    assert cast.alice.get("records/things?sort=id").json["items"] == own
    # A mask that is not the record's own, or of a new one, would be stored as a value.
    query["data"] = exported.text.replace("***-**-6789", "***-**-1111").encode()
    answer = Caller.post(cast.bob, "records/things/import?upsert=code", **query)
    assert [one["code"] for one in answer.json["details"]] == ["invalid_option"] * 2
    query["data"] = exported.text.replace("two", "new").encode()
    answer = Caller.post(cast.bob, "records/things/import?upsert=code", **query)
    found = [(one["field"], one["code"]) for one in answer.json["details"]]
    assert found == [("ssn", "invalid_option"), ("mail", "invalid_option")]
