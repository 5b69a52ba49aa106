"""Records as files: what is exported, what an import takes, and that one undoes the other."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from app import db
from app.audit import sealing
from app.audit.models import AuditChange
from app.collections import definitions
from app.records.transfer import exports, formats
from tests.builders import OPEN, Caller, Cast, make_collection, make_record
from tests.records.strategies import DISARMED, RECORD, SCHEMA

TYPES = ("csv", "json", "jsonl")
# What the database is asked does not depend on the format.
FORMATS = ["csv", *(pytest.param(one, marks=pytest.mark.one_database) for one in TYPES[1:])]
DECLARED = [field["name"] for field in SCHEMA if field["type"] != "computed"]


@pytest.fixture
def things(root: Caller) -> dict[str, Any]:
    return make_collection(root, "things", SCHEMA)


def export(caller: Caller, format: str, name: str = "things", **query: str) -> TestResponse:
    answer = caller.get(f"records/{name}/export", query_string={"format": format, **query})
    assert answer.status_code == 200, answer.text
    return answer


def send(
    caller: Caller, format: str, file: str | bytes, query: str = "", name: str = "things"
) -> Any:
    path = f"records/{name}/import{query}"
    return caller.post(path, data=file, content_type=formats.FORMATS[format])


def records(caller: Caller, name: str = "things", sort: str = "id") -> list[dict[str, Any]]:
    found = caller.get(f"records/{name}?limit=100&sort={sort}").json["items"]
    assert isinstance(found, list)
    return found


def faults(answer: TestResponse) -> list[tuple[Any, ...]]:
    return [(one["line"], one["field"], one["code"]) for one in answer.json["details"]]


@pytest.mark.parametrize("format", FORMATS)
def test_record_export_equals_whole_list(
    format: str, alice: Caller, things: dict[str, Any]
) -> None:
    for i in range(3):
        make_record(alice, "things", title=f"t{i}", views=i, note="=x", extra={"a": [1]})
    answer = export(alice, format, sort="-views", fields="title,views,note,extra", views="2")
    assert answer.headers["Content-Disposition"] == f"attachment; filename=things.{format}"
    assert answer.mimetype == formats.FORMATS[format]
    (kept,) = alice.get("records/things?views=2&fields=title,views,note,extra").json["items"]
    if format == "csv":
        header, row = csv.reader(io.StringIO(answer.text, newline=""))
        assert header == ["id", "title", "note", "views", "extra"]
        assert row == [kept["id"], "t2", "'=x", "2", '{"a":[1]}']
    else:
        lines = answer.json if format == "json" else [answer.text]
        assert len(lines) == 1
        found = lines[0] if format == "json" else json.loads(lines[0])
        assert found == kept
    whole = export(alice, format, sort="-views")
    assert [m[1] for m in re.finditer(r"\bt(\d)\b", whole.text)] == ["2", "1", "0"]


@pytest.mark.parametrize("format", FORMATS)
def test_record_export_without_records_can_be_imported(
    format: str, alice: Caller, things: dict[str, Any]
) -> None:
    file = export(alice, format).data
    answer = send(alice, format, file)
    assert (answer.status_code, answer.json["imported"]) == (200, 0)


def test_record_export_applies_rules_fields_masks_and_account(cast: Cast) -> None:
    schema = [
        {"name": "title", "type": "text"},
        {"name": "secret", "type": "text"},
        {"name": "mail", "type": "email", "pii": True, "mask_type": "email"},
    ]
    rules = {"list_rule": 'title != "hidden"', "list_fields": ["title", "mail"]}
    make_collection(cast.root, "things", schema, **rules)
    for caller in (cast.alice, cast.charlie):
        for title in ("seen", "hidden"):
            mail = f"{title}@{caller.slug}.example"
            make_record(caller, "things", title=title, secret="s3", mail=mail)
    text = export(cast.bob, "csv").text
    assert "s***@acme.example" in text
    assert not re.search("hidden|s3|seen@|globex", text)
    assert "seen@acme.example" in export(cast.alice, "jsonl").text
    every = export(cast.root.acting_in("*"), "jsonl").text
    assert len(every.splitlines()) == 4
    for query in ("secret=s3", "fields=secret", "mail=x", "skip=1", "limit=1", "cursor=", "nope=1"):
        refused = cast.bob.get(f"records/things/export?{query}")
        assert refused.status_code == 400, query
    assert cast.bob.get("records/things/export?format=xml").status_code == 422
    cast.root.put("collections/things/rules", {"list_rule": None})
    assert cast.bob.get("records/things/export").json["error"] == "rule_denied"
    assert Caller(cast.bob.app).acting_in("acme").get("records/things/export").status_code == 401
    assert cast.bob.get("records/nothing/export").status_code == 404


def test_csv_cells_escape_spreadsheet_formulas() -> None:
    assert {text: formats.CELLS.escape(text) for text in DISARMED} == DISARMED
    assert {formats.CELLS.unescape(cell): cell for cell in DISARMED.values()} == DISARMED
    assert formats.CELLS.unescape("") is None


def test_record_export_is_a_snapshot(app: Flask, alice: Caller, things: dict[str, Any]) -> None:
    titled = [{"title": f"t{i}"} for i in range(2 * exports.BATCH_SIZE + 5)]
    assert alice.post("records/things/batch", {"records": titled}).status_code == 201
    with app.test_client(use_cookies=False) as client:
        answer = client.get(
            "/api/v1/records/things/export?sort=title", headers=alice.headers, buffered=False
        )
        pieces = iter(answer.response)
        first = next(pieces)
        late = make_record(alice, "things", title="zzz")
        gone = records(alice, sort="-title")[1]
        assert alice.delete(f"records/things/{gone['id']}").status_code == 204
        text = first + b"".join(pieces)
        answer.close()
    assert late["id"].encode() not in text
    assert gone["id"].encode() in text
    assert len(text.splitlines()) == 2 * exports.BATCH_SIZE + 5


def test_record_export_not_read_releases_its_connection(
    app: Flask, alice: Caller, things: dict[str, Any]
) -> None:
    make_record(alice, "things", title="a")
    counts = set()
    for _ in range(5):
        answer = alice("HEAD", "records/things/export")
        assert answer.status_code == 200
        answer.close()
        with app.app_context():
            counts.add(db.db.engine.pool.checkedout())  # type: ignore[attr-defined]
    assert len(counts) == 1


# --- import ---


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("format", "file"),
    [
        ("csv", "title,views,done,note\r\na,1,TRUE,\r\n\r\nb,2.5,false,'\r\n"),
        ("csv", '"title";views;done;note\r\n"a";1;true;\r\nb;2.5;false;\'\r\n'),
        ("csv", "title\tviews\tdone\tnote\na\t1\ttrue\t\nb\t2.5\tfalse\t'\n"),
        ("csv", b"\xef\xbb\xbf" + b'"title",views,done,note\na,1,true,\nb,2.5,false,\'\n'),
        (
            "json",
            (
                '[{"title": "a", "views": 1, "done": true, "note": null},\n'
                ' {"title": "b", "views": 2.5, "done": false, "note": ""}]'
            ),
        ),
        (
            "json",
            (
                '{"records": [{"title": "a", "views": 1, "note": null},'
                ' {"title": "b", "views": 2.5, "done": false, "note": ""}]}'
            ),
        ),
        (
            "jsonl",
            (
                '{"title": "a", "views": 1, "note": null}\r\n\n'
                '{"title": "b", "views": 2.5, "done": false, "note": ""}'
            ),
        ),
    ],
)
def test_record_import_creates_records(
    app: Flask, alice: Caller, things: dict[str, Any], format: str, file: str | bytes
) -> None:
    tried = send(alice, format, file, "?dry_run=true")
    separator = next((one for one in ";\t" if one in str(file)), ",")
    dialect = {"encoding": "UTF-8", "separator": separator} if format == "csv" else {}
    assert tried.json == {"imported": 2, "count": 2, "dry_run": True, **dialect}
    assert records(alice) == []
    answer = send(alice, format, file)
    assert answer.json == {"imported": 2, "count": 2, "dry_run": False, **dialect}
    made = records(alice)
    picked = [[one[n] for n in ("title", "views", "done", "note", "loud")] for one in made]
    assert picked == [["a", 1, True, None, "A"], ["b", 2.5, False, "", "B"]]
    assert {one["created_by"] for one in made} == {alice.id}
    with app.app_context():
        sealing.settle(alice.account_id)
        told = sa.select(AuditChange.record_id).where(AuditChange.table_name == "col_things")
        assert sorted(db.db.session.scalars(told)) == [one["id"] for one in made]


@pytest.mark.one_database
def test_record_import_of_multipart_file(alice: Caller, things: dict[str, Any]) -> None:
    def part(name: str, text: bytes, field: str = "file", kind: str = "") -> TestResponse:
        data = {field: (io.BytesIO(text), name, kind)}
        return alice.post("records/things/import", data=data, content_type="multipart/form-data")

    assert part("some.CSV", b"title\na\n").json["imported"] == 1
    assert part("some.ndjson", b'{"title": "b"}').json["imported"] == 1
    assert part("some", b'[{"title": "c"}]', kind="application/json").json["imported"] == 1
    assert part("some.exe", b"title\na\n").status_code == 415
    assert part("some.csv", b"title\na\n", field="other").status_code == 422
    broken = alice.post(
        "records/things/import", data=b"x", content_type="multipart/form-data; boundary=y"
    )
    assert broken.status_code == 422


@pytest.mark.parametrize("format", FORMATS)
def test_record_import_reports_all_problems_and_stores_nothing(
    format: str, alice: Caller, root: Caller
) -> None:
    schema = [
        {"name": "title", "type": "text", "required": True},
        {"name": "views", "type": "number", "options": {"max": 9}},
        {"name": "code", "type": "text", "unique": True},
        {"name": "parent", "type": "reference", "collection": "things"},
    ]
    make_collection(root, "things", schema, create_rule='title != "no"')
    make_record(alice, "things", title="there", code="taken")
    rows: list[dict[str, Any]] = [
        {"title": "fine", "views": 1, "code": "a", "parent": None},
        {"title": None, "views": 10, "code": "b", "parent": None},
        {"title": "again", "views": 1, "code": "a", "parent": None},
        {"title": "stored", "views": 1, "code": "taken", "parent": None},
        {"title": "lost", "views": 1, "code": "c", "parent": "nobody"},
        {"title": "no", "views": 1, "code": "d", "parent": None},
        {"title": "no", "views": 1, "code": "taken", "parent": None},
    ]
    file = b"".join(formats.write(format, list(rows[0]), rows))
    answer = send(alice, format, file)
    assert (answer.status_code, answer.json["error"]) == (400, "validation_error")
    start = 1 if format == "jsonl" else 2
    assert faults(answer) == [
        (start + 1, "title", "required_null"),
        (start + 1, "views", "number_out_of_range"),
        (start + 2, "code", "not_unique"),
        (start + 3, "code", "not_unique"),
        (start + 4, "parent", "invalid_reference"),
        (start + 5, None, "rule_denied"),
        (start + 6, None, "rule_denied"),
    ]
    assert answer.json["count"] == 7
    for some, status, error in (
        (rows[2:4], 409, "conflict"),
        (rows[5:6], 403, "rule_denied"),
    ):
        file = b"".join(formats.write(format, list(rows[0]), [rows[0], *some]))
        refused = send(alice, format, file, "?dry_run=true")
        assert (refused.status_code, refused.json["error"]) == (status, error)
    assert [one["title"] for one in records(alice)] == ["there"]


@pytest.mark.one_database
def test_record_import_reports_first_hundred_problems_and_count(
    alice: Caller, things: dict[str, Any]
) -> None:
    answer = send(alice, "csv", "views\n" + "x\n" * 1234)
    assert (answer.status_code, answer.json["count"]) == (400, 1234)
    assert faults(answer) == [(line, "views", "invalid_type") for line in range(2, 102)]


@pytest.mark.one_database
def test_record_import_reports_problems_of_later_batches(alice: Caller, root: Caller) -> None:
    make_collection(root, "things", [{"name": "code", "type": "text", "unique": True}])
    file = "code\n" + "".join(f"c{i}\n" for i in range(1100)) + "c3\n"
    assert faults(send(alice, "csv", file)) == [(1102, "code", "not_unique")]
    assert records(alice) == []


NO_FILES: list[tuple[str, str | bytes, list[Any]]] = [
    ("csv", "", ["body"]),
    ("csv", "title,title\na,b", ["body", 1]),
    ("csv", "title,views\na\n", ["body", 2]),
    ("csv", "title;views\na,1\n", ["body", 2]),
    ("csv", '"title,views,done";note\na,b\n', ["body", 2]),
    ("csv", 'title\n"a\n\nb"\nc,d\n', ["body", 5]),
    ("csv", 'title\n"a"b\n', ["body", 2]),
    ("csv", b"title\n\x81\n", ["body", 2]),
    ("csv", "title\na\0b\n", ["body"]),
    ("json", "", ["body"]),
    ("json", "{}", ["body"]),
    ("json", "[1]", ["body", 1]),
    ("json", '[{"title": "a"}\n,\n[]]', ["body", 3]),
    ("json", '[{"title": "a"},]', ["body"]),
    ("json", '[{"title": "a"}', ["body"]),
    ("json", '[{"title": NaN}]', ["body"]),
    ("json", '[{"title": "\\u0000"}]', ["body"]),
    ("jsonl", '{"title": "a"}\n{"title"\n', ["body"]),
    ("jsonl", '{"title": "a"}\n[]\n', ["body", 2]),
]


@pytest.mark.one_database
def test_record_import_of_malformed_file_is_422(alice: Caller, things: dict[str, Any]) -> None:
    for format, file, loc in NO_FILES:
        answer = send(alice, format, file)
        assert (answer.status_code, answer.json["error"]) == (422, "validation_error"), file
        assert answer.json["detail"][0]["loc"] == loc, file
    assert records(alice) == []


def test_record_import_access_per_caller(cast: Cast) -> None:
    make_collection(cast.root, "things", SCHEMA, create_fields=["title"])
    anyone = Caller(cast.bob.app).acting_in("acme")
    assert send(anyone, "csv", "title\na\n").status_code == 401
    denied = send(cast.bob, "csv", "title,views\na,1\nb,2\n")
    assert (denied.status_code, denied.json["error"]) == (403, "field_denied")
    assert faults(denied) == [(2, "views", "field_denied"), (3, "views", "field_denied")]
    kept = send(cast.bob, "csv", "id,title\nx,a\n", "?keep_ids=true")
    assert (kept.status_code, kept.json["error"]) == (403, "superadmin_required")
    assert send(cast.root.acting_in("*"), "csv", "title\na\n").status_code == 400
    unknown = {"data": "x", "content_type": "text/plain"}
    assert cast.bob.post("records/things/import", **unknown).status_code == 415
    assert send(cast.bob, "csv", "title\n", "?nope=1").status_code == 422
    assert send(cast.bob, "csv", "title\n", name="nothing").status_code == 404
    big = b"title\n" + b"a" * (10 * 2**20)
    too_large = send(cast.bob, "csv", big)
    assert (too_large.status_code, too_large.json["error"]) == (413, "payload_too_large")
    # Whoever may not create records is told so whatever the body is: nobody reads it.
    cast.root.put("collections/things/rules", {"create_rule": None})
    assert send(cast.bob, "csv", "not, even,csv").json["error"] == "rule_denied"
    assert send(cast.bob, "csv", big).json["error"] == "rule_denied"
    assert cast.bob.post("records/things/import", **unknown).json["error"] == "rule_denied"


MASKED = {
    "email": ("mail@x.example", "m***@x.example"),
    "ssn": ("123-45-6789", "***-**-6789"),
    "phone": ("555 123 4567", "***-***-4567"),
    "name": ("Ann de Ruyter", "A*** d*** R***"),
    "full": ("secret", "********"),
    "custom": ("DE89 3704\n4405", "DE(*)4405"),
}


@pytest.mark.one_database
def test_record_import_refuses_masked_values(cast: Cast) -> None:
    options = {"custom": {"mask": "{first:2}(*){last:4}"}}
    schema = [
        {"name": f"a_{kind}", "type": "text", "pii": True, "mask_type": kind}
        | {"options": options.get(kind, {})}
        for kind in MASKED
    ]
    make_collection(cast.root, "things", schema)
    values = {f"a_{kind}": value for kind, (value, _) in MASKED.items()}
    make_record(cast.bob, "things", **values)
    file = export(cast.bob, "csv")
    assert file.headers["X-Service-Masked-Fields"] == ", ".join(values)
    cells = list(csv.reader(io.StringIO(file.text, newline="")))
    assert cells[1][-6:] == [mask for _, mask in MASKED.values()]
    refused = send(cast.bob, "csv", file.data)
    assert faults(refused) == [(2, name, "invalid_option") for name in values]
    assert send(cast.bob, "jsonl", json.dumps(values)).json["imported"] == 1
    whole = export(cast.alice, "csv")
    assert "X-Service-Masked-Fields" not in whole.headers
    assert send(cast.alice, "csv", whole.data).json["imported"] == 2
    assert send(cast.alice, "csv", file.data).json["imported"] == 1


def test_record_import_with_keep_ids_restores_tree(cast: Cast, things: dict[str, Any]) -> None:
    root = cast.root.acting_in("acme")
    top = make_record(root, "things", title="top")
    low = make_record(root, "things", title="low", parent=top["id"])
    root.patch(f"records/things/{top['id']}", {"parent": low["id"]})
    file = export(root, "csv", sort="-created_at").data
    before = [{n: one[n] for n in ("id", *DECLARED)} for one in records(root)]
    again = send(root, "csv", file, "?keep_ids=true")
    assert faults(again) == [(2, "id", "not_unique"), (3, "id", "not_unique")]
    assert again.status_code == 409
    cast.root.put("collections/things/rules", OPEN)
    for id in (top["id"], low["id"]):
        root.patch(f"records/things/{id}", {"parent": None})
    for id in (top["id"], low["id"]):
        assert root.delete(f"records/things/{id}").status_code == 204
    assert send(root, "csv", file, "?keep_ids=true").status_code == 200
    assert [{n: one[n] for n in ("id", *DECLARED)} for one in records(root)] == before
    bad = send(root, "jsonl", '{"title": "a", "id": "x"}', "?keep_ids=true")
    assert faults(bad) == [(1, "id", "invalid_type")]


# --- identity ---


@pytest.mark.long
@given(rows=st.lists(RECORD, min_size=1, max_size=6), format=st.sampled_from(TYPES))
@settings(
    max_examples=int(os.environ.get("TRANSFER_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_record_export_and_import_round_trip(
    app: Flask, alice: Caller, things: dict[str, Any], rows: list[dict[str, Any]], format: str
) -> None:
    empty(app)
    made = alice.post("records/things/batch", {"records": rows}).json["created"]
    file = export(alice, format, sort="id").data
    empty(app)
    answer = send(alice, format, file)
    dialect = {"encoding": "UTF-8", "separator": ","} if format == "csv" else {}
    assert answer.json == {"imported": len(rows), "count": len(rows), "dry_run": False, **dialect}
    back = records(alice)
    assert [[one[n] for n in DECLARED] for one in back] == [
        [one[n] for n in DECLARED] for one in made
    ]
    again = export(alice, format, sort="id", fields=",".join(DECLARED))
    empty(app)
    assert send(alice, format, again.data).status_code == 200
    types = [[type(one[n]) for n in DECLARED] for one in records(alice)]
    assert types == [[type(one[n]) for n in DECLARED] for one in made]


def empty(app: Flask) -> None:
    with app.app_context(), db.transaction() as session:
        session.execute(sa.text("DELETE FROM col_things"))


# --- size ---


def fill(app: Flask, alice: Caller, count: int, first: int = 0) -> None:
    """Put many records into the table at once, up to that number."""
    with app.app_context(), db.transaction():
        table = definitions.get("things").table
        now = datetime.now(UTC)
        same = {"account_id": alice.account_id, "created_at": now, "updated_at": now}
        for start in range(first, count, 5000):
            numbers = range(start, min(count, start + 5000))
            rows = [
                {**same, "id": f"{i:012}", "title": f"t{i}", "note": "x" * 200} for i in numbers
            ]
            db.connection().execute(sa.insert(table), rows)


def lines_of(app: Flask, alice: Caller, format: str) -> Iterator[bytes]:
    """The pieces of an export, none of them kept."""
    url = f"/api/v1/records/things/export?format={format}&sort=id"
    client = app.test_client(use_cookies=False)
    answer = client.get(url, headers=alice.headers, buffered=False)
    yield from answer.response
    answer.close()


@pytest.mark.parametrize("format", FORMATS[:2])
def test_record_export_memory_does_not_grow_with_records(
    app: Flask, alice: Caller, things: dict[str, Any], format: str
) -> None:
    def peak() -> int:
        tracemalloc.start()
        try:
            sizes.append(sum(map(len, lines_of(app, alice, format))))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    sizes: list[int] = []
    fill(app, alice, 800)
    for _ in lines_of(app, alice, format):
        pass
    few = peak()
    fill(app, alice, 2400, 800)
    assert peak() < 1.5 * few
    assert sizes[1] > 2.9 * sizes[0]


CSV_FIELDS = [{"name": "name", "type": "text"}, {"name": "num", "type": "number"}]
MUELLER = [("Müller", 1)]


@pytest.mark.parametrize(
    ("raw", "charset", "expected"),
    [
        (b"name;num\r\nx;1\r\n;\r\n;\r\n;\r\n", None, [("x", 1)]),
        (b"name,num\n,\n\nx,1\n,,,,\n", None, [("x", 1)]),
        (b'name\n\nx\n""\n', None, [("x", None), (None, None)]),
        (b"name;num\n ;\n;2\n", None, [(" ", None), (None, 2)]),
        (b"sep=;\r\nname;num\r\nx,y;1\r\n", None, [("x,y", 1)]),
        (b"\xef\xbb\xbfSEP=,\nname,num\nx;y,1\n", None, [("x;y", 1)]),
        (b'"sep=|"\nname|num\nx|1\n', None, [("x", 1)]),
        ("name,num\nMüller,1\n".encode("cp1252"), "windows-1252", MUELLER),
        ("name,num\nMüller,1\n".encode("latin-1"), "ISO-8859-1", MUELLER),
        ("name,num\nMüller,1\n".encode("utf-16"), None, MUELLER),
        ("name,num\nMüller,1\n".encode("utf-16"), "utf-16", MUELLER),
        ("name,num\nMüller,1\n".encode("utf-16-le"), "utf-16le", MUELLER),
        ("name,num\nMüller,1\n".encode("utf-8-sig"), "UTF-8", MUELLER),
        ("name,num\nMüller,1\n".encode("cp1252"), None, MUELLER),
        (b"name,num\nM\x81ller,1\n", "windows-1252", 422),
        (b"name,num\nx,1\n", "utf-7", 415),
        (b"name,num\nx,1\n", "idna", 415),
        (b"name,num\nx,1\n", "iso-8859-99", 422),
        (b"name;num\nx;1\ny\n", None, 422),
    ],
)
def test_csv_import_accepts_spreadsheet_dialects(
    root: Caller, alice: Caller, raw: bytes, charset: str | None, expected: Any
) -> None:
    make_collection(root, "rows", CSV_FIELDS)
    type_ = f"text/csv; charset={charset}" if charset else "text/csv"
    answer = alice.post("records/rows/import", data=raw, content_type=type_)
    rows = alice.get("records/rows?sort=num").json["items"]
    if isinstance(expected, int):
        assert (answer.status_code, rows) == (expected, []), answer.json
    else:
        assert answer.status_code == 200, answer.json
        found = {(row["name"], row["num"]) for row in rows}
        assert (answer.json["imported"], found) == (len(expected), set(expected))


def test_csv_export_has_byte_order_mark_on_request(root: Caller, alice: Caller) -> None:
    make_collection(root, "rows", CSV_FIELDS)
    make_record(alice, "rows", name="Müller")
    plain = alice.get("records/rows/export?format=csv").data
    marked = alice.get("records/rows/export?format=csv&bom=true").data
    assert marked == b"\xef\xbb\xbf" + plain
    assert alice.get("records/rows/export?format=jsonl&bom=true").data[:1] == b"{"
    again = alice.post("records/rows/import", data=marked, content_type="text/csv")
    assert again.json["imported"] == 1
