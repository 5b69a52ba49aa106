"""Fields of type `sequence`: who gets which number, and that none comes twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from app import clock
from app.auth import principal as principals
from app.records.history import service as history
from app.records.transfer import imports
from tests.builders import OPEN, Caller, Cast, make_collection, make_record
from tests.bundle.accounts import export, import_, run
from tests.workflows.running import action, make_workflow, start, work

NUMBER = {"name": "number", "type": "sequence", "options": {"prefix": "INC-", "digits": 5}}
SCHEMA: list[dict[str, Any]] = [{"name": "title", "type": "text"}, NUMBER]
ROOT = ("--as", "root@system.example")


@pytest.fixture
def tickets(root: Caller) -> str:
    """The id of a collection with numbers."""
    return str(make_collection(root, "tickets", SCHEMA)["id"])


def made(caller: Caller, **fields: Any) -> str:
    number = make_record(caller, "tickets", **fields)["number"]
    assert isinstance(number, str)
    return number


def numbers(caller: Caller, sort: str = "number", **query: Any) -> list[str]:
    query = {"sort": sort, "limit": 100, **query}
    found = caller.get("records/tickets", query_string=query).json["items"]
    return [one["number"] for one in found]


def send(caller: Caller, file: str, query: str = "") -> Any:
    path = f"records/tickets/import{query}"
    return caller.post(path, data=file, content_type="text/csv")


def codes(answer: Any) -> list[tuple[str, str]]:
    return [(one["field"], one["code"]) for one in answer.json["details"]]


@pytest.mark.usefixtures("tickets")
def test_each_account_counts_its_records(app: Flask, cast: Cast) -> None:
    assert [made(cast.alice), made(cast.bob), made(cast.charlie)] == [
        "INC-00001",
        "INC-00002",
        "INC-00001",
    ]
    batch = cast.alice.post("records/tickets/batch", {"records": [{}, {}, {}]})
    assert [one["number"] for one in batch.json["created"]] == [
        "INC-00003",
        "INC-00004",
        "INC-00005",
    ]
    assert send(cast.bob, "title\na\nb\n").status_code == 200
    start(
        cast.alice,
        make_workflow(
            cast.alice,
            [action("make", "create_record", collection="tickets", data={"title": "flow"})],
        ),
    )
    work(app)
    assert numbers(cast.alice, filter="title = 'flow'") == ["INC-00008"]
    across = cast.root.post("records/tickets", {"account_id": cast.charlie.account_id})
    assert across.json["number"] == "INC-00002"
    assert numbers(cast.alice) == [f"INC-0000{n}" for n in range(1, 9)]


@pytest.mark.usefixtures("tickets")
def test_nobody_writes_a_number(cast: Cast) -> None:
    record = make_record(cast.alice, "tickets", title="a")
    path = f"records/tickets/{record['id']}"
    refused = [("number", "field_read_only")]
    for caller in (cast.alice, cast.root.acting_in(cast.alice.slug)):
        assert codes(caller.post("records/tickets", {"number": "INC-00009"})) == refused
        assert codes(caller.patch(path, {"number": "INC-00009"})) == refused
        assert codes(caller.patch(path, {"number": None})) == refused
        assert codes(caller.put(path, {"number": "INC-00001x"})) == refused
    batch = cast.alice.post("records/tickets/batch", {"records": [{}, {"number": "7"}]})
    assert [(one["index"], one["code"]) for one in batch.json["details"]] == [
        (1, "field_read_only")
    ]
    echoed = cast.alice.put(path, {**record, "title": "b"})
    assert (echoed.status_code, echoed.json["number"]) == (200, "INC-00001")
    assert cast.alice.put(path, {"title": "c"}).json["number"] == "INC-00001"
    assert made(cast.alice) == "INC-00002"


def test_hidden_number_is_not_confirmed(cast: Cast) -> None:
    hidden = {**NUMBER, "readable_if": "@has_role(admin)"}
    make_collection(cast.root, "tickets", [SCHEMA[0], hidden])
    record = make_record(cast.bob, "tickets")
    assert "number" not in record
    answer = cast.bob.patch(f"records/tickets/{record['id']}", {"number": "INC-00001"})
    assert codes(answer) == [("number", "field_read_only")]


@pytest.mark.usefixtures("tickets")
def test_import_by_admin_sets_numbers_and_moves_them_on(cast: Cast) -> None:
    assert made(cast.alice) == "INC-00001"
    answer = send(cast.alice, "title,number\na,INC-00040\nb,\nc,7\nd,0041\n")
    assert answer.status_code == 200, answer.json
    query = {"filter": "title != null"}
    assert numbers(cast.alice, "title", **query) == [
        "INC-00040",
        "INC-00042",
        "INC-00007",
        "INC-00041",
    ]
    assert made(cast.alice) == "INC-00043"
    for value in ("TKT-1", "INC-", "x", "-1", "0", "1e3", "9" * 16, "INC-INC-1"):
        answer = send(cast.alice, f"title,number\nx,{value}\n")
        assert codes(answer) == [("number", "invalid_type")], value
    for value in ("INC-00040", "40", "INC-40"):
        answer = send(cast.alice, f"title,number\nx,{value}\n")
        assert (answer.status_code, codes(answer)) == (409, [("number", "not_unique")]), value
    answer = send(cast.alice, "title,number\nx,50\ny,INC-00050\n")
    assert answer.status_code == 409
    assert send(cast.alice, "title,number\nx,60\n", "?dry_run=true").status_code == 200
    assert made(cast.alice) == "INC-00044"
    assert send(cast.bob, "title,number\nof bob,90\n").status_code == 200
    assert numbers(cast.alice, filter="title = 'of bob'") == ["INC-00045"]
    lines = '{"title": "j", "number": 100}\n'
    path = "records/tickets/import"
    assert cast.alice.post(path, data=lines, content_type="application/x-ndjson").status_code == 200
    assert made(cast.alice) == "INC-00101"
    assert made(cast.charlie) == "INC-00001"


@pytest.mark.both_databases
@pytest.mark.usefixtures("tickets")
def test_import_in_batches_draws_numbers_after_those_of_the_file(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "BATCH_SIZE", 3)
    assert made(cast.alice) == "INC-00001"
    lines = [*({"title": str(n)} for n in range(7)), {"title": "last", "number": "INC-5"}]
    data, kind = "\n".join(json.dumps(line) for line in lines), "application/x-ndjson"
    for query in ("?dry_run=true", ""):
        answer = cast.alice.post(f"records/tickets/import{query}", data=data, content_type=kind)
        assert (answer.status_code, answer.json["imported"]) == (200, 8), answer.text
    found = cast.alice.get("records/tickets?sort=number&limit=100").json["items"]
    expected = [("last", "INC-00005"), *((str(n), f"INC-{n + 6:05}") for n in range(7))]
    assert [(one["title"], one["number"]) for one in found[1:]] == expected
    assert made(cast.alice) == "INC-00013"
    taken = cast.alice.post("records/tickets/import", data=data, content_type=kind)
    assert taken.status_code == 409
    assert made(cast.alice) == "INC-00014"


def test_new_options_leave_present_numbers(app: Flask, cast: Cast, tickets: str) -> None:
    assert made(cast.alice) == "INC-00001"
    options = {"prefix": "T", "digits": 2}
    changed = {"schema": [{"name": "number", "options": options}]}
    assert cast.root.patch(f"collections/{tickets}", changed).status_code == 200
    assert made(cast.alice) == "T02"
    assert codes(send(cast.alice, "number\n1\n")) == [("number", "not_unique")]
    assert numbers(cast.alice) == ["INC-00001", "T02"]
    record = cast.alice.get("records/tickets?sort=number").json["items"][0]
    path = f"records/tickets/{record['id']}"
    assert cast.alice.delete(path).status_code == 204
    with app.app_context():
        alice = principals.for_user(cast.alice.account_id, cast.alice.id)
        assert alice is not None
        restored = history.undelete("tickets", record["id"], by=alice)
    assert restored["number"] == "INC-00001"
    assert made(cast.alice) == "T03"


@pytest.mark.usefixtures("tickets")
def test_lists_sort_by_the_number_and_find_by_the_text(cast: Cast) -> None:
    assert send(cast.alice, "number\n99998\n").status_code == 200
    for _ in range(3):
        made(cast.alice)
    ascending = ["INC-99998", "INC-99999", "INC-100000", "INC-100001"]
    assert numbers(cast.bob) == ascending
    assert numbers(cast.bob, "-number") == ascending[::-1]
    for sort, expected in (("number", ascending), ("-number", ascending[::-1])):
        seen, cursor = list[str](), ""
        while True:
            query = {"sort": sort, "limit": 1, "cursor": cursor}
            page = cast.bob.get("records/tickets", query_string=query).json
            seen += [one["number"] for one in page["items"]]
            if not page["has_more"]:
                break
            cursor = page["next_cursor"]
        assert seen == expected
    for text, found in (
        ("number = 'INC-99999'", ["INC-99999"]),
        ("number ~ 'inc-1000%'", ["INC-100000", "INC-100001"]),
        ("number IN ['INC-99998', 'INC-1']", ["INC-99998"]),
        ("number = 'INC-099999'", []),
    ):
        assert numbers(cast.bob, filter=text) == found
    exported = cast.alice.get("records/tickets/export?format=csv&fields=number&sort=number")
    assert [line.rpartition(",")[2] for line in exported.text.split()] == ["number", *ascending]


def test_rules_and_upserts_name_numbers(cast: Cast, tickets: str) -> None:
    rules = {**OPEN, "view_rule": "number = 'INC-00002'", "list_rule": "number != 'INC-00001'"}
    assert cast.root.put(f"collections/{tickets}/rules", rules).status_code == 200
    first, second = make_record(cast.alice, "tickets"), make_record(cast.alice, "tickets")
    assert cast.bob.get(f"records/tickets/{first['id']}").status_code == 404
    assert cast.bob.get(f"records/tickets/{second['id']}").status_code == 200
    assert numbers(cast.bob) == ["INC-00002"]
    path = "records/tickets/batch?mode=upsert&on=number"
    answer = cast.bob.post(path, {"records": [{"number": "INC-00002", "title": "new"}]})
    assert [one["title"] for one in answer.json["updated"]] == ["new"], answer.json
    answer = cast.bob.post(path, {"records": [{"number": "INC-00009", "title": "new"}]})
    assert codes(answer) == [("number", "field_read_only")]


def test_numbers_of_present_records_follow_their_age(cast: Cast) -> None:
    made_ = make_collection(cast.root, "tickets", SCHEMA[:1])
    for title in "abc":
        make_record(cast.alice, "tickets", title=title)
    make_record(cast.charlie, "tickets", title="z")
    before = cast.alice.get("records/tickets?sort=title").json["items"]
    added = {"schema": [NUMBER]}
    answer = cast.root.patch(f"collections/{made_['id']}", added)
    assert answer.status_code == 200, answer.json
    after = cast.alice.get("records/tickets?sort=title").json["items"]
    assert [one["number"] for one in after] == ["INC-00001", "INC-00002", "INC-00003"]
    assert [one["updated_at"] for one in after] == [one["updated_at"] for one in before]
    assert (made(cast.alice), made(cast.charlie)) == ("INC-00004", "INC-00002")


def test_numbers_are_found_by_search(cast: Cast) -> None:
    searched = {"prefix": "INC-", "digits": 5, "search": True}
    cases = make_collection(cast.root, "cases", SCHEMA[:1])
    make_record(cast.alice, "cases", title="old")
    added = {"schema": [{**NUMBER, "options": searched}]}
    answer = cast.root.patch(f"collections/{cases['id']}", added)
    assert answer.status_code == 200, answer.json
    make_record(cast.alice, "cases", title="new")
    assert (
        cast.alice.post(
            "records/cases/import", data="title,number\nset,INC-00077\n", content_type="text/csv"
        ).status_code
        == 200
    )
    for text, title in (("INC-00001", "old"), ("00002", "new"), ("inc 00077", "set")):
        found = cast.alice.get("records/cases", query_string={"search": text}).json["items"]
        assert [one["title"] for one in found] == [title], text


def test_renamed_field_and_collection_count_on(cast: Cast, tickets: str) -> None:
    assert made(cast.alice) == "INC-00001"
    swapped = [
        {"name": "code", "rename_from": "number"},
        {"name": "other", "type": "sequence"},
    ]
    path = f"collections/{tickets}"
    assert cast.root.patch(path, {"schema": swapped, "name": "cases"}).status_code == 200
    record = make_record(cast.alice, "cases")
    assert (record["code"], record["other"]) == ("INC-00002", "2")
    swapped = [{"name": "code", "rename_from": "other"}, {"name": "other", "rename_from": "code"}]
    for former, name in (("code", "a"), ("other", "code"), ("a", "other")):
        schema = [{"name": name, "rename_from": former}]
        assert cast.root.patch(path, {"schema": schema}).status_code == 200
    record = make_record(cast.alice, "cases")
    assert (record["other"], record["code"]) == ("INC-00003", "3")
    assert [one["code"] for one in cast.alice.get("records/cases?sort=-code").json["items"]] == [
        "3",
        "2",
        "1",
    ]
    planned = cast.root.post(f"{path}/plan", {"remove_fields": ["other"]}).json
    body = {"remove_fields": ["other"], "plan_hash": planned["plan_hash"]}
    assert cast.root.patch(path, body).status_code == 200
    assert cast.root.patch(path, {"schema": [{**NUMBER, "name": "other"}]}).status_code == 200
    assert make_record(cast.alice, "cases")["other"] == "INC-00004"  # three records were there
    assert cast.root.delete(path).status_code in (200, 204)
    make_collection(cast.root, "tickets", SCHEMA)
    assert made(cast.alice) == "INC-00001"


INVALID = [
    {"options": {"prefix": "A1"}},
    {"options": {"prefix": "x" * 41}},
    {"options": {"prefix": 3}},
    {"options": {"prefix": "a\nb"}},
    {"options": {"digits": 0}},
    {"options": {"digits": 16}},
    {"options": {"digits": True}},
    {"options": {"max_length": 3}},
    {"required": True},
    {"default": "INC-1"},
    {"default": {"expression": "'INC-1'"}},
    {"writable_if": "@has_role(admin)"},
]


@pytest.mark.parametrize("changed", INVALID, ids=str)
def test_definition_of_a_sequence_is_checked(root: Caller, changed: Any) -> None:
    field = {"name": "number", "type": "sequence", **changed}
    answer = root.post("collections", {"name": "tickets", "schema": [field]})
    assert answer.status_code == 400
    assert {one["field"] for one in answer.json["details"]} == {"number"}


@pytest.mark.usefixtures("tickets")
def test_numbers_never_come_back(app: Flask, cast: Cast, tmp_path: Path) -> None:
    records = [make_record(cast.alice, "tickets", title=str(n)) for n in range(3)]
    moment = clock.iso(clock.now())
    assert made(cast.alice, title="later") == "INC-00004"
    for record in records:
        assert cast.alice.delete(f"records/tickets/{record['id']}").status_code == 204
    restored = run(app, "account", "restore", "acme", "--at", moment, "--yes", *ROOT)
    assert restored.exit_code == 0, restored.output
    assert numbers(cast.alice) == ["INC-00001", "INC-00002", "INC-00003"]
    assert made(cast.alice) == "INC-00005"
    for record in cast.alice.get("records/tickets").json["items"]:
        assert cast.alice.delete(f"records/tickets/{record['id']}").status_code == 204
    file = export(app, tmp_path)  # of an account without any record
    copied = import_(app, file, *ROOT, "--slug", "copy")
    assert copied.exit_code == 0, copied.output
    inside = cast.root.acting_in("copy")
    assert make_record(inside, "tickets")["number"] == "INC-00006"
    assert made(cast.alice) == "INC-00006"


def test_described_records_have_their_number(cast: Cast, tickets: str) -> None:
    schemas = cast.bob.get("/openapi.json?collections=1").json["components"]["schemas"]
    assert schemas["tickets_record"]["properties"]["number"]["type"] == "string"
    assert "number" not in schemas["tickets_create"]["properties"]
    assert tickets
