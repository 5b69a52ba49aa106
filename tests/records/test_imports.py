"""Imports: who made records when, which are there already, and how a file is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.clock import iso, now
from app.records.transfer import imports
from tests.builders import Caller, Cast, changes_of_records, make_collection, make_record

CODED = [
    {"name": "code", "type": "text", "unique": True},
    {"name": "title", "type": "text"},
    {"name": "n", "type": "number"},
    {"name": "key", "type": "number", "unique": True},
    {"name": "twice", "type": "computed", "expression": "n * 2", "return_type": "number"},
]
LONG_AGO = "2019-05-06T07:08:09.123456Z"


@pytest.fixture
def items(root: Caller) -> None:
    make_collection(root, "items", CODED)


def send(caller: Caller, file: Any, query: str = "", kind: str = "text/csv") -> Any:
    if not isinstance(file, str | bytes):
        file, kind = json.dumps(file), "application/json"
    return caller.post(f"records/items/import{query}", data=file, content_type=kind)


def stored(caller: Caller, *names: str) -> list[tuple[Any, ...]]:
    found = caller.get("records/items?sort=code,title&limit=100").json["items"]
    return [tuple(one[name] for name in names) for one in found]


def faults(answer: Any) -> list[tuple[Any, ...]]:
    return [(one["line"], one["field"], one["code"]) for one in answer.json["details"]]


def test_import_of_admin_takes_time_and_person_of_creation(cast: Cast, items: None) -> None:
    alice, bob = cast.alice, cast.bob
    rows = [
        {"code": "a", "created_at": LONG_AGO, "created_by": bob.id},
        {"code": "b", "created_at": "2019-05-06T09:08:09.123456+02:00", "created_by": bob.email},
        {"code": "c", "created_by": "BOB@acme.example"},
        {"code": "d", "created_at": None, "created_by": None},
    ]
    answer = send(alice, rows)
    assert (answer.status_code, "ignored" in answer.json) == (200, False)
    made = alice.get("records/items?sort=code").json["items"]
    assert [one["created_by"] for one in made] == [bob.id, bob.id, bob.id, alice.id]
    assert [one["created_at"] for one in made[:2]] == [LONG_AGO, LONG_AGO]
    assert made[2]["created_at"] == made[2]["updated_at"]
    assert {one["updated_by"] for one in made} == {alice.id}
    told = [one for one in alice.get("changes").json["items"] if one["event"] == "records.create"]
    assert [one["record"] for one in told] == made
    assert {one["user_id"] for one in told} == {alice.id}
    assert {one["actor"]["kind"] for one in told} == {"import"}
    csv = send(alice, f"code,created_at,created_by\ne,{LONG_AGO},{bob.email}\nf,,\n")
    assert csv.status_code == 200, csv.json
    found = stored(alice, "created_at", "created_by")
    assert (found[4], found[5][1]) == ((LONG_AGO, bob.id), alice.id)
    assert cast.root.acting_in(alice.slug).get("audit-logs/verify").json["valid"]


def test_import_with_wrong_time_or_person_of_creation_is_refused(cast: Cast, items: None) -> None:
    rows = [
        {"created_at": "soon"},
        {"created_at": "2999-01-01T00:00:00Z"},
        {"created_at": 7},
        {"created_by": "nobody@acme.example"},
        {"created_by": cast.charlie.email},
        {"created_by": 7},
        {"created_by": ["x"]},
    ]
    answer = send(cast.alice, rows)
    assert faults(answer) == [
        (1, "created_at", "invalid_datetime"),
        (1, "created_at", "invalid_option"),
        (1, "created_at", "invalid_datetime"),
        *[(1, "created_by", "invalid_reference")] * 4,
    ]
    assert stored(cast.alice, "id") == []


def test_import_of_others_ignores_time_and_person_of_creation(cast: Cast, items: None) -> None:
    answer = send(cast.bob, [{"code": "a", "created_at": LONG_AGO, "created_by": cast.alice.id}])
    assert (answer.status_code, answer.json["ignored"]) == (200, ["created_at", "created_by"])
    (made,) = cast.alice.get("records/items").json["items"]
    assert made["created_by"] == cast.bob.id
    assert made["created_at"] == made["updated_at"] > LONG_AGO
    foreign = send(cast.alice, [{"code": "b", "created_by": cast.charlie.id}])
    assert (foreign.status_code, foreign.json["ignored"]) == (200, ["created_by"])
    assert stored(cast.alice, "created_by") == [(cast.bob.id,), (cast.alice.id,)]


def test_single_writes_take_no_time_of_creation(alice: Caller, items: None) -> None:
    answer = alice.post("records/items", {"code": "a", "created_at": iso(now())})
    assert [one["code"] for one in answer.json["details"]] == ["field_read_only"]


def test_import_with_upsert_creates_updates_and_leaves(alice: Caller, items: None) -> None:
    same = make_record(alice, "items", code="same", title="t", n=1)
    changed = make_record(alice, "items", code="changed", title="t", n=1)
    file = "n,code,twice\n1,same,9\n2,changed,9\n3,new,9\n"
    tried = send(alice, file, "?upsert=code&dry_run=true")
    answer = send(alice, file, "?upsert=code")
    for one, dry_run in ((tried, True), (answer, False)):
        assert one.status_code == 200, one.json
        counts = {"created": 1, "updated": 1, "unchanged": 1}
        assert one.json.items() >= {"imported": 3, "dry_run": dry_run, **counts}.items()
    rows = [("changed", "t", 2, 4), ("new", None, 3, 6), ("same", "t", 1, 2)]
    assert stored(alice, "code", "title", "n", "twice") == rows
    assert alice.get(f"records/items/{same['id']}").json == same
    assert alice.get(f"records/items/{changed['id']}").json["created_at"] == changed["created_at"]
    again = send(alice, file, "?upsert=code")
    assert again.json["unchanged"] == 3
    nulls = send(alice, "code,title\nchanged,\n", "?upsert=code")
    assert (nulls.json["updated"], stored(alice, "title", "n")[0]) == (1, (None, 2))
    numbers = send(alice, [{"key": 1, "code": "k"}, {"key": 2.5}], "?upsert=key")
    assert numbers.json["created"] == 2
    assert send(alice, [{"key": 1.0, "title": "k"}], "?upsert=key").json["updated"] == 1


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("upsert=title", "upsert"),
        ("upsert=none", "upsert"),
        ("upsert=", "upsert"),
        ("upsert=code,key", "upsert"),
        ("upsert=id", "upsert"),
        ("upsert=code&keep_ids=true", "upsert"),
    ],
)
def test_import_with_wrong_upsert_is_refused(
    root: Caller, items: None, query: str, field: str
) -> None:
    answer = send(root, "code,title\na,b\n", f"?{query}")
    assert answer.status_code == 400, answer.json
    assert [(one["field"], one["code"]) for one in answer.json["details"]] == [
        (field, "invalid_option")
    ]


def test_import_with_upsert_refuses_repeated_and_missing_keys(alice: Caller, items: None) -> None:
    make_record(alice, "items", code="there", key=1)
    file = "code,key,n\nthere,1,1\nnew,1,1\nthere,,2\n,,3\nx,,y\nnew,,4\n"
    answer = send(alice, file, "?upsert=code")
    assert (answer.status_code, faults(answer)) == (
        400,
        [
            (3, "key", "not_unique"),
            (4, "code", "not_unique"),
            (5, "code", "required_missing"),
            (6, "n", "invalid_type"),
            (7, "code", "not_unique"),
        ],
    )
    assert stored(alice, "code", "n") == [("there", None)]


def test_import_with_upsert_keeps_rules_of_create_and_update(cast: Cast) -> None:
    rules = {"update_rule": "@owns_record()", "create_rule": "n < 10", "view_rule": 'title != "x"'}
    make_collection(cast.root, "items", CODED, update_fields=["n"], **rules)
    make_record(cast.alice, "items", code="hers", title="t", n=1)
    make_record(cast.alice, "items", code="hidden", title="x", n=1)
    make_record(cast.bob, "items", code="own", title="t", n=1)
    for row, status, error in (
        ({"code": "own", "n": 2}, 200, None),
        ({"code": "own", "title": "u"}, 403, "field_denied"),
        ({"code": "hers", "n": 2}, 403, "rule_denied"),
        ({"code": "hidden", "n": 2}, 409, "conflict"),
        ({"code": "new", "n": 2, "title": "t"}, 200, None),
        ({"code": "other", "n": 10}, 403, "rule_denied"),
    ):
        answer = send(cast.bob, [row], "?upsert=code")
        assert (answer.status_code, answer.json.get("error")) == (status, error), answer.json
    theirs = send(cast.charlie, [{"code": "own", "n": 3}], "?upsert=code")
    assert theirs.json["created"] == 1
    found = stored(cast.alice, "code", "n")
    assert found == [("hers", 1), ("hidden", 1), ("new", 2), ("own", 2)]


def test_import_with_upsert_in_pieces(
    app: Flask, alice: Caller, items: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite, where pieces are checked apart and stored one after the other."""
    monkeypatch.setattr(imports, "MAX_VALUES", 30)
    for number in range(0, 20, 2):
        make_record(alice, "items", code=f"c{number:02}", n=number)
    rows = [{"code": f"c{number:02}", "n": number % 16} for number in range(20)]
    answer = send(alice, [*rows, rows[3]], "?upsert=code")
    assert faults(answer) == [(1, "code", "not_unique")]
    for dry_run in ("true", "false"):
        answer = send(alice, rows, f"?upsert=code&dry_run={dry_run}")
        counts = {"imported": 20, "created": 10, "updated": 2, "unchanged": 8}
        assert answer.json.items() >= counts.items(), answer.json
    assert stored(alice, "code", "n") == [(one["code"], one["n"]) for one in rows]
    assert send(alice, rows, "?upsert=code").json["unchanged"] == 20


@pytest.mark.parametrize("database", ["sqlite"])
def test_same_file_finishes_an_import_that_ended_in_between(
    alice: Caller, items: None, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    monkeypatch.setattr(imports, "MAX_VALUES", 30)
    rows = [{"code": f"c{number:02}", "n": number} for number in range(20)]
    store, stored_pieces = imports.Import._store, list[int]()

    def ending(self: imports.Import, placed: Any) -> None:
        if len(stored_pieces) == 3:
            raise SystemExit
        store(self, placed)
        stored_pieces.append(len(placed))

    with monkeypatch.context() as patched:
        patched.setattr(imports.Import, "_store", ending)
        with pytest.raises(SystemExit):
            send(alice, rows, "?upsert=code")
    assert len(stored(alice, "code")) == sum(stored_pieces) > 0
    again = send(alice, rows, "?upsert=code").json
    assert again["unchanged"] == sum(stored_pieces)
    assert stored(alice, "code", "n") == [(one["code"], one["n"]) for one in rows]
    told = [one["record"]["code"] for one in changes_of_records(alice)]
    assert sorted(told) == [one["code"] for one in rows]


TEXT = "code,title\na,Müller… 5 €\n\nb,»x«\n,\n"
GERMAN = [("a", "Müller… 5 €"), ("b", "»x«")]


@pytest.mark.parametrize(
    ("raw", "query", "kind", "encoding", "separator"),
    [
        (TEXT.encode(), "", "", "UTF-8", ","),
        (TEXT.encode("utf-8-sig"), "", "", "UTF-8", ","),
        (TEXT.encode("cp1252"), "", "", "windows-1252", ","),
        (TEXT.encode("utf-16"), "", "", "UTF-16LE", ","),
        (TEXT.encode("utf-16-le"), "", "", "UTF-16LE", ","),
        (TEXT.encode("utf-16-be"), "", "", "UTF-16BE", ","),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "", "", "UTF-16BE", ","),
        (TEXT.encode("cp1252"), "", "; charset=windows-1252", "windows-1252", ","),
        (TEXT.encode("cp1252"), "?encoding=windows-1252", "", "windows-1252", ","),
        (TEXT.encode("cp1252"), "?encoding=cp1252", "; charset=utf-8", None, None),
        (TEXT.replace(",", ";").replace("\n", "\r\n").encode("cp1252"), "", "", None, ";"),
        (TEXT.replace(",", "\t").replace("\n", "\r").encode("utf-16"), "", "", None, "\t"),
        (b"sep=|\r\n" + TEXT.replace(",", "|").encode(), "", "", "UTF-8", "|"),
        (("\r\n;;\r\n" + TEXT.replace(",", ";")).encode(), "", "", "UTF-8", ";"),
        (TEXT.replace(",", "|").encode(), "?separator=pipe", "", "UTF-8", "|"),
    ],
)
def test_csv_is_read_as_it_is_written(
    alice: Caller,
    items: None,
    raw: bytes,
    query: str,
    kind: str,
    encoding: str | None,
    separator: str | None,
) -> None:
    answer = send(alice, raw, query, f"text/csv{kind}")
    if separator is None:
        assert answer.status_code == 415, answer.json
        return
    assert answer.status_code == 200, answer.json
    assert answer.json["separator"] == separator
    assert encoding in (None, answer.json["encoding"])
    assert stored(alice, "code", "title") == GERMAN


@pytest.mark.parametrize(
    ("raw", "query", "line", "named"),
    [
        (b"code\nM\xc3\xbcller\nx\xff\xc3\xbc\n", "", 3, "UTF-8"),
        (b"code\nx\x01\xff\n", "", 2, "UTF-8"),
        (b"code\nx\ny\x81\n", "", 3, "windows-1252"),
        ("code\nMüller\n".encode("cp1252"), "?encoding=utf-8", 2, "utf-8"),
        (b"\xff\xfec\0o\0d\0e\0\n\0\0\xd8x\0\n\0", "", 2, "UTF-16LE"),
        (b"\xff\xfec\0o\0d\0e\0\n\0x", "", 2, "UTF-16LE"),
    ],
)
def test_csv_in_no_encoding_is_refused_with_line_and_encoding(
    alice: Caller, items: None, raw: bytes, query: str, line: int, named: str
) -> None:
    answer = send(alice, raw, query)
    assert answer.status_code == 422, answer.json
    (detail,) = answer.json["detail"]
    assert detail["loc"] == ["body", line]
    assert named in detail["msg"]
    assert stored(alice, "code") == []


def test_dialect_belongs_to_csv(alice: Caller, items: None) -> None:
    answer = send(alice, [{"code": "a"}], "?encoding=utf-8&separator=tab")
    assert [one["field"] for one in answer.json["details"]] == ["encoding", "separator"]
    assert send(alice, "code\n", "?separator=x").status_code == 422
    assert send(alice, "code\n", "?encoding=utf-7").status_code == 415


def test_csv_skips_blank_lines_and_keeps_line_breaks_in_quotes(alice: Caller, items: None) -> None:
    file = '\n,,\ncode,title\r\na,"x\r\n\ny"\r\n\r\n  \r\n,,,,\r\n"",""\r\nb,""""\r\nc\r\n'
    answer = send(alice, file)
    assert answer.json["detail"][0]["loc"] == ["body", 12]
    assert send(alice, file.removesuffix("c\r\n")).status_code == 200
    assert stored(alice, "code", "title") == [("a", "x\r\n\ny"), ("b", '"')]


@pytest.mark.long
@given(raw=st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode("utf-16")))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_file_is_an_error_of_the_service(alice: Caller, items: None, raw: bytes) -> None:
    for kind in ("text/csv", "application/json", "application/x-ndjson", "application/zip"):
        for head in (b"", b"code,title\n"):
            answer = send(alice, head + raw, "?upsert=code&dry_run=true", kind)
            assert answer.status_code in (200, 400, 409, 422), answer.json
