"""Records through the API: created, read, listed, changed, deleted."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import Caller, make_collection, make_record
from tests.records.strategies import RECORD, SCHEMA

TYPES = [
    {"name": "title", "type": "text", "required": True},
    {"name": "views", "type": "number", "default": 0},
    {"name": "live", "type": "boolean"},
    {"name": "at", "type": "datetime"},
    {"name": "day", "type": "date"},
    {"name": "mail", "type": "email"},
    {"name": "site", "type": "url"},
    {"name": "data", "type": "json"},
]


def test_record_values_round_trip(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=TYPES)
    sent = {
        "title": "Grüße 🎈",
        "views": 12,
        "live": True,
        "at": "2026-11-20T12:00:00.123456Z",
        "day": "2026-02-28",
        "mail": "Ann@example.com",
        "site": "https://example.com/a?b=c",
        "data": {"z": [1, 2.5, None], "a": {"": "é"}},
    }
    made = make_record(alice, **sent)
    got = alice.get(f"records/posts/{made['id']}").json
    assert got == made
    assert {name: got[name] for name in sent} == sent
    assert list(got)[:6] == [
        "id",
        "account_id",
        "created_at",
        "updated_at",
        "created_by",
        "updated_by",
    ]
    assert (got["account_id"], got["created_by"]) == (alice.account_id, alice.id)
    assert list(got["data"]) == ["z", "a"]


PLAIN = [field for field in SCHEMA if field["type"] not in ("reference", "computed")]


@pytest.fixture
def plain(root: Caller) -> None:
    make_collection(root, schema=PLAIN)


@given(
    sent=RECORD,
    changes=st.lists(RECORD, max_size=3),
    names=st.lists(st.sampled_from([field["name"] for field in PLAIN]), unique=True),
)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_record_write_response_equals_later_read(
    plain: None, alice: Caller, sent: Any, changes: list[Any], names: list[str]
) -> None:
    answer = alice.post("records/posts", sent)
    made = answer.json
    path = f"records/posts/{made['id']}"
    for changed in [None, *changes]:
        if changed is not None:
            answer = alice.patch(path, {name: changed[name] for name in names})
        read = alice.get(path)
        assert answer.data == read.data
        assert answer.headers["ETag"] == read.headers["ETag"]
    for one in alice.post("records/posts/batch", {"records": [sent, *changes]}).json["created"]:
        assert alice.get(f"records/posts/{one['id']}").json == one
    past = alice.get(path, query_string={"as_of": made["created_at"]}).json
    assert {name: past[name] for name in names} == {name: made[name] for name in names}


NUMBERS = [
    (1, 1),
    (1.0, 1),
    (-0.0, 0),
    (0.1, 0.1),
    (1e300, 1e300),
    (2**63 - 1, 2**63 - 1),
    (-(2**63), -(2**63)),
    (9007199254740993, 9007199254740993),
    (2**63, 2.0**63),
    (-(2**63) - 1, -(2**63)),
    (-(2**64), -(2.0**64)),
    (10**20, 1e20),
    (10**300, 1e300),
    (1.5e-7, 1.5e-7),
]


def test_number_values_are_exact(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=[{"name": "n", "type": "number"}])
    for sent, stored in NUMBERS:
        made = make_record(alice, n=sent)
        got = alice.get(f"records/posts/{made['id']}").json["n"]
        assert (got, type(got)) == (stored, type(stored))


MOMENTS = [
    ("2026-11-20T12:00:00", "2026-11-20T12:00:00.000000Z"),
    ("2026-11-20T12:00:00+02:00", "2026-11-20T10:00:00.000000Z"),
    ("2026-11-20 12:00", "2026-11-20T12:00:00.000000Z"),
    ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z"),
    ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
]


def test_datetime_values_are_stored_in_utc(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=[{"name": "at", "type": "datetime"}])
    for sent, stored in MOMENTS:
        made = make_record(alice, at=sent)
        assert alice.get(f"records/posts/{made['id']}").json["at"] == stored


BAD_VALUES = [
    ("text", {}, 5, "invalid_type"),
    ("text", {"min_length": 3}, "ab", "too_short"),
    ("text", {"max_length": 3}, "abcd", "too_long"),
    ("text", {"pattern": "^[a-z]+$"}, "A1", "pattern_mismatch"),
    ("text", {"choices": ["a", "b"]}, "c", "invalid_option"),
    ("select", {"choices": ["a", "b"]}, "c", "invalid_option"),
    ("select", {"choices": ["a", "b"]}, ["a"], "invalid_type"),
    ("multi_select", {"choices": ["a", "b"]}, "a", "invalid_type"),
    ("multi_select", {"choices": ["a", "b"]}, ["a", 1], "invalid_type"),
    ("multi_select", {"choices": ["a", "b"]}, ["a", "c"], "invalid_option"),
    ("multi_select", {"choices": ["a", "b"]}, ["a", "a"], "invalid_option"),
    ("multi_select", {"choices": ["a", "b"]}, ["a", "b"] * 1000, "invalid_option"),
    ("number", {}, True, "invalid_type"),
    ("number", {}, "1", "invalid_type"),
    ("number", {}, 10**400, "number_out_of_range"),
    ("number", {"min": 1}, 0, "number_out_of_range"),
    ("number", {"integer": True}, 1.5, "not_integer"),
    ("decimal", {}, 1.5, "invalid_type"),
    ("decimal", {}, True, "invalid_type"),
    ("decimal", {}, 10**20, "invalid_type"),
    ("decimal", {}, "1e3", "invalid_type"),
    ("decimal", {}, "1,5", "invalid_type"),
    ("decimal", {}, " 1", "invalid_type"),
    ("decimal", {}, "\u0661", "invalid_type"),
    ("decimal", {}, "NaN", "invalid_type"),
    ("decimal", {}, "", "invalid_type"),
    ("decimal", {}, "1" * 101, "invalid_type"),
    ("decimal", {}, "0.001", "too_many_digits"),
    ("decimal", {}, 10**16, "number_out_of_range"),
    ("decimal", {"precision": 3, "scale": 3}, "1", "number_out_of_range"),
    ("decimal", {"min": "0.01"}, "0.00", "number_out_of_range"),
    ("decimal", {"max": 5}, "5.01", "number_out_of_range"),
    ("boolean", {}, 1, "invalid_type"),
    ("datetime", {}, "yesterday", "invalid_datetime"),
    ("datetime", {}, "2026-02-30T00:00:00Z", "invalid_datetime"),
    ("datetime", {}, "0001-01-01T00:00:00+10:00", "invalid_datetime"),
    ("datetime", {}, 5, "invalid_datetime"),
    ("date", {}, "2026-2-3", "invalid_date"),
    ("email", {}, "nobody", "invalid_email"),
    ("email", {}, "a@b\r\nBcc: c@d.example", "invalid_email"),
    ("url", {}, "javascript:alert(1)", "invalid_url"),
    ("url", {}, "http://", "invalid_url"),
    ("url", {}, "ftp://example.com", "invalid_url"),
    ("json", {}, "text", "invalid_json"),
    ("json", {}, {"n": [10**400]}, "number_out_of_range"),
    ("text", {}, 10**400, "number_out_of_range"),
]


def test_record_with_bad_value_is_400_with_its_code(root: Caller, alice: Caller) -> None:
    schema = [
        {"name": f"f{n}", "type": type, "options": options}
        for n, (type, options, _, _) in enumerate(BAD_VALUES)
    ]
    make_collection(root, schema=schema)
    for n, (_, _, value, code) in enumerate(BAD_VALUES):
        answer = alice.post("records/posts", {f"f{n}": value})
        assert answer.status_code == 400
        assert [(d["field"], d["code"]) for d in answer.json["details"]] == [(f"f{n}", code)]
    assert alice.get("records/posts").json["total"] == 0


def test_record_problems_are_reported_at_once(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=TYPES)
    body = {"views": "x", "live": None, "mail": "-", "nope": 1, "id": "x", "created_by": alice.id}
    details = alice.post("records/posts", body).json["details"]
    assert {(d["field"], d["code"]) for d in details} == {
        ("title", "required_missing"),
        ("views", "invalid_type"),
        ("mail", "invalid_email"),
        ("nope", "unknown_field"),
        ("id", "field_read_only"),
        ("created_by", "field_read_only"),
    }


def test_record_required_text_may_not_be_empty(root: Caller, alice: Caller, bob: Caller) -> None:
    text_types = [
        {"name": "t", "type": "text", "required": True},
        {"name": "c", "type": "text", "required": True, "options": {"choices": ["", "a"]}},
        {"name": "o", "type": "text"},
    ]
    make_collection(root, schema=text_types)
    refused = alice.post("records/posts", {"t": "", "c": "", "o": ""})
    assert [(d["field"], d["code"]) for d in refused.json["details"]] == [
        ("t", "required"),
        ("c", "required"),
    ]
    made = make_record(alice, t=" ", c="a", o="")
    path = f"records/posts/{made['id']}"
    for answer in (
        alice.patch(path, {"t": ""}),
        alice.put(path, {"t": "", "c": "a"}),
        alice.post("records/posts/batch", {"records": [{"t": "", "c": "a"}]}),
        alice.patch("records/posts/batch", {"records": [{"id": made["id"], "data": {"t": ""}}]}),
        alice.post("records/posts/import", [{"t": "", "c": "a"}]),
        bob.patch(path, {"t": ""}),
    ):
        assert answer.status_code == 400, answer.json
        assert [d["code"] for d in answer.json["details"]] == ["required"]


def test_record_empty_text_from_before_may_be_sent_back(root: Caller, alice: Caller) -> None:
    schema = [{"name": "t", "type": "text"}, {"name": "n", "type": "number"}]
    collection = make_collection(root, schema=schema)
    made = make_record(alice, t="", n=1)
    required = {"schema": [{"name": "t", "required": True}]}
    root.patch(f"collections/{collection['id']}", required)
    path = f"records/posts/{made['id']}"
    assert alice.patch(path, {"n": 2}).json["t"] == ""
    assert alice.put(path, {"t": "", "n": 3}).json["n"] == 3
    assert alice.patch(path, {"t": "", "n": 4}).json["n"] == 4
    assert alice.patch(path, {"t": "x"}).json["t"] == "x"
    back = alice.patch(path, {"t": ""})
    assert [d["code"] for d in back.json["details"]] == ["required"]


def test_record_hidden_empty_text_is_not_confirmed(root: Caller, alice: Caller) -> None:
    schema = [{"name": "t", "type": "text"}, {"name": "n", "type": "number"}]
    collection = make_collection(root, schema=schema)
    made = make_record(alice, t="", n=1)
    hidden = {"schema": [{"name": "t", "required": True, "readable_if": "@is_superadmin()"}]}
    root.patch(f"collections/{collection['id']}", hidden)
    answer = alice.patch(f"records/posts/{made['id']}", {"t": ""})
    assert [d["code"] for d in answer.json["details"]] == ["required"]


def test_record_put_replaces_and_patch_keeps_values(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=TYPES)
    made = make_record(alice, title="a", views=7, live=True)
    patched = alice.patch(f"records/posts/{made['id']}", {"live": False}).json
    assert (patched["title"], patched["views"], patched["live"]) == ("a", 7, False)
    replaced = alice.put(f"records/posts/{made['id']}", {"title": "b"}).json
    assert (replaced["title"], replaced["views"], replaced["live"]) == ("b", 0, None)
    assert replaced["created_at"] == made["created_at"] < replaced["updated_at"]
    missing = alice.put(f"records/posts/{made['id']}", {"views": 1})
    assert [d["code"] for d in missing.json["details"]] == ["required_missing"]
    null = alice.patch(f"records/posts/{made['id']}", {"title": None})
    assert [d["code"] for d in null.json["details"]] == ["required_null"]


def test_record_put_accepts_unchanged_system_fields(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=TYPES)
    made = make_record(alice, title="a")
    assert alice.put(f"records/posts/{made['id']}", made).status_code == 200


def test_record_delete_is_204_then_404(root: Caller, alice: Caller) -> None:
    make_collection(root)
    made = make_record(alice, title="a")
    assert alice.delete(f"records/posts/{made['id']}").status_code == 204
    assert alice.get(f"records/posts/{made['id']}").status_code == 404
    assert alice.delete(f"records/posts/{made['id']}").status_code == 404


def test_record_with_unknown_id_is_404(root: Caller, alice: Caller) -> None:
    make_collection(root)
    for id in ("nope", "a%00b", "%27%20or%201=1", "x" * 500):
        for method in ("GET", "PATCH", "PUT", "DELETE"):
            body = {} if method in ("PATCH", "PUT") else None
            answer = alice(method, f"records/posts/{id}", body)
            assert (answer.status_code, answer.json["error"]) == (404, "not_found")


def test_unique_value_is_unique_per_account(root: Caller, alice: Caller, charlie: Caller) -> None:
    make_collection(
        root,
        schema=[
            {"name": "a", "type": "text", "unique": True},
            {"name": "b", "type": "number", "unique": True},
        ],
    )
    first = make_record(alice, a="x", b=1)
    answer = alice.post("records/posts", {"a": "x", "b": 1.0})
    assert (answer.status_code, answer.json["field"]) == (409, "a")
    assert [(d["field"], d["code"]) for d in answer.json["details"]] == [
        ("a", "not_unique"),
        ("b", "not_unique"),
    ]
    second = make_record(alice, a="y")
    make_record(alice, a=None)
    make_record(charlie, a="x", b=1)
    assert alice.patch(f"records/posts/{second['id']}", {"a": "x"}).status_code == 409
    assert alice.patch(f"records/posts/{first['id']}", {"a": "x"}).status_code == 200


def test_reference_to_record_of_other_account_is_invalid_reference(
    root: Caller, alice: Caller, charlie: Caller
) -> None:
    make_collection(root, "authors")
    reference = {"name": "author", "type": "reference", "collection": "authors"}
    make_collection(root, schema=[reference])
    mine, theirs = make_record(alice, "authors"), make_record(charlie, "authors")
    made = make_record(alice, author=mine["id"])
    assert made["author"] == mine["id"]
    refused = [alice.post("records/posts", {"author": id}) for id in (theirs["id"], "nowhere")]
    assert [answer.status_code for answer in refused] == [400, 400]
    assert refused[0].json == refused[1].json
    assert refused[0].json["details"][0]["code"] == "invalid_reference"
    assert alice.delete(f"records/authors/{mine['id']}").status_code == 409
    assert alice.delete(f"records/posts/{made['id']}").status_code == 204
    assert alice.delete(f"records/authors/{mine['id']}").status_code == 204


def test_reference_to_record_without_view_right_is_invalid_reference(
    root: Caller, alice: Caller
) -> None:
    make_collection(root, "authors", view_rule=None)
    reference = {"name": "author", "type": "reference", "collection": "authors"}
    make_collection(root, schema=[reference])
    hidden = make_record(alice, "authors")
    answer = alice.post("records/posts", {"author": hidden["id"]})
    assert answer.json["details"][0]["code"] == "invalid_reference"


def test_reference_to_invisible_record_may_be_sent_back_unchanged(
    root: Caller, alice: Caller
) -> None:
    make_collection(root, "authors", view_rule=None)
    reference = {"name": "author", "type": "reference", "collection": "authors"}
    make_collection(root, schema=[TYPES[0], reference])
    one, other = (make_record(alice, "authors")["id"] for _ in range(2))
    made = make_record(root.acting_in("acme"), title="old", author=one)
    path = f"records/posts/{made['id']}"
    seen = alice.get(path).json
    assert seen["author"] == one
    assert alice.put(path, {**seen, "title": "new"}).json["title"] == "new"
    many = {"records": [{"id": made["id"], "data": {"author": one, "title": "newer"}}]}
    assert alice.patch("records/posts/batch", many).json["updated"][0]["title"] == "newer"
    refused = alice.patch(path, {"author": other})
    assert [d["code"] for d in refused.json["details"]] == ["invalid_reference"]


@pytest.mark.parametrize("hidden", ["masked", "left out"])
def test_reference_write_does_not_reveal_hidden_current_value(
    root: Caller, alice: Caller, bob: Caller, hidden: str
) -> None:
    make_collection(root, "authors", view_rule=None)
    reference = {"name": "author", "type": "reference", "collection": "authors"}
    seen = ["title"] if hidden == "left out" else "*"
    make_collection(
        root,
        schema=[TYPES[0], {**reference, "pii": hidden == "masked"}],
        view_fields=seen,
        list_fields=seen,
    )
    one, other = (make_record(alice, "authors")["id"] for _ in range(2))
    made = make_record(root.acting_in("acme"), title="t", author=one)
    told = [bob.patch(f"records/posts/{made['id']}", {"author": id}) for id in (one, other)]
    assert [answer.status_code for answer in told] == [400, 400]
    assert told[0].json == told[1].json


@pytest.mark.parametrize(
    "expression", ["n < 9.5", "9.5 > n", "!(n >= 9.5)", "n = 0.3", "n IN [0.3]"]
)
def test_number_comparison_is_equal_in_writes_and_reads(
    root: Caller, alice: Caller, expression: str
) -> None:
    computed = {"type": "computed", "expression": expression, "return_type": "boolean"}
    make_collection(root, schema=[{"name": "n", "type": "number"}, {"name": "small", **computed}])
    made = make_record(alice, n=10)
    path = f"records/posts/{made['id']}"
    assert made["small"] is alice.get(path).json["small"] is False
    for n in (100.5, 9, 0.1 + 0.2, -1, 10):
        told = alice.patch(path, {"n": n}).json["small"]
        small = n < 9.5 and "9.5" in expression
        assert told is alice.get(path).json["small"] is small, n


@pytest.mark.parametrize(
    "expression",
    ["n IS NULL", "!(n IS NOT NULL)", "n IS NULL && true", "if(n IS NULL, true, false)"],
)
def test_computed_value_of_missing_value_is_equal_in_writes_and_reads(
    root: Caller, alice: Caller, expression: str
) -> None:
    computed = {"type": "computed", "expression": expression, "return_type": "boolean"}
    make_collection(root, schema=[{"name": "n", "type": "number"}, {"name": "lacks", **computed}])
    made = make_record(alice)
    path = f"records/posts/{made['id']}"
    assert made["lacks"] is alice.get(path).json["lacks"] is True
    for n in (1, None, 2):
        assert alice.patch(path, {"n": n}).json["lacks"] is alice.get(path).json["lacks"]
        assert alice.get(path).json["lacks"] is (n is None)


@pytest.mark.parametrize("n", [10.5, 1e19, -10.5, 7])
def test_computed_value_of_fraction_is_equal_in_writes_and_reads(
    root: Caller, alice: Caller, n: float
) -> None:
    many = {"name": "many", "type": "computed", "expression": "n > 5", "return_type": "boolean"}
    key = {"name": "key", "type": "text", "unique": True}
    make_collection(root, schema=[{"name": "n", "type": "number"}, many, key])
    told = [alice.post("records/posts", {"n": n}).json]
    told.append(alice.patch(f"records/posts/{make_record(alice)['id']}", {"n": n}).json)
    batch = "records/posts/batch"
    told += alice.post(batch, {"records": [{"n": n, "key": "a"}, {"n": n}]}).json["created"]
    told += alice.post(f"{batch}?mode=upsert&on=key", {"records": [{"n": n, "key": "a"}]}).json[
        "updated"
    ]
    changes = [{"id": make_record(alice)["id"], "data": {"n": n}} for _ in range(2)]
    told += alice.patch(batch, {"records": changes}).json["updated"]
    assert [one["many"] for one in told] == [n > 5] * 7
    for one in told[:2] + told[3:]:
        assert alice.get(f"records/posts/{one['id']}").json == one


def problems(answer: Any) -> list[tuple[str, str]]:
    """The (field, code) pairs of a 400."""
    assert answer.status_code == 400, answer.json
    return [(one["field"], one["code"]) for one in answer.json["details"]]


COMPUTED = [
    {"name": "price", "type": "number"},
    {"name": "taken", "type": "boolean"},
    {"name": "at", "type": "datetime"},
    {"name": "data", "type": "json"},
    {"name": "tags", "type": "multi_select", "options": {"choices": ["a", "b"]}},
    {"name": "code", "type": "text", "unique": True},
    {"name": "twice", "type": "computed", "expression": "price * 2", "return_type": "number"},
    {"name": "day_later", "type": "computed", "expression": "date_add(at, 1, 'days')"}
    | {"return_type": "datetime"},
    {"name": "age", "type": "computed", "expression": "date_diff(now(), at, 'seconds')"}
    | {"return_type": "number"},
    {"name": "mail", "type": "email", "pii": True, "mask_type": "email"},
    {"name": "to", "type": "computed", "expression": "concat(mail, '!')", "return_type": "text"},
]
VALUES = {"price": 2.5, "taken": True, "at": "2026-01-01T00:00:00Z", "data": {"b": [1.5, None]}}
VALUES |= {"tags": ["b", "a"], "code": "x", "mail": "ann@x.example"}


def test_computed_field_write_is_refused_unless_unchanged(
    root: Caller, alice: Caller, bob: Caller
) -> None:
    make_collection(root, schema=COMPUTED)
    made = make_record(alice, **VALUES)
    path = f"records/posts/{made['id']}"
    for name, value in [("twice", 4), ("twice", "5"), ("twice", None), ("day_later", "2026-01-01")]:
        for method in ("PUT", "PATCH"):
            assert problems(alice(method, path, {name: value})) == [(name, "field_read_only")]
        batch = {"records": [{"id": made["id"], "data": {name: value}}]}
        assert problems(alice.patch("records/posts/batch", batch)) == [(name, "field_read_only")]
    for name, value in [("age", "old"), ("age", True), ("twice", [5])]:
        assert problems(alice.patch(path, {name: value})) == [(name, "field_read_only")]
    for name, value in [("twice", 5), ("age", 1), ("day_later", None)]:
        refused = alice.post("records/posts", {"price": 2.5, name: value})
        assert problems(refused) == [(name, "field_read_only")]
    # What was read may come back: a whole record, in another form, of any moment, masked.
    assert (
        alice.patch(path, {"age": 1, "twice": 5.0, "day_later": "2026-01-02T00:00:00Z"}).status_code
        == 200
    )
    for caller in (alice, bob):
        seen = caller.get(path).json
        assert caller.put(path, seen).status_code == 200, caller.get(path).json
    assert alice.get(path).json["mail"] == "ann@x.example"
    changed = alice.patch(path, {"price": 3, "twice": 5})
    assert (changed.status_code, changed.json["twice"]) == (200, 6)


def test_computed_field_that_is_hidden_is_field_read_only(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=COMPUTED)
    path = f"records/posts/{make_record(alice, **VALUES)['id']}"
    fields = ["price", "taken"]
    root.put("collections/posts/rules", {"list_fields": fields, "view_fields": fields})
    for value in (5, 6, None):
        assert problems(alice.patch(path, {"twice": value})) == [("twice", "field_read_only")]


def test_record_update_without_change_makes_no_version(
    root: Caller, alice: Caller, bob: Caller
) -> None:
    make_collection(root, schema=COMPUTED)
    made = make_record(alice, **VALUES)
    path, other = f"records/posts/{made['id']}", make_record(alice, price=1, code="y")
    start = alice.get("changes").json["next"]
    before = alice.get(path)
    same = {name: before.json[name] for name in VALUES}
    audit_id = alice.get(f"{path}/history").json["items"][0]["audit_id"]
    batch = "records/posts/batch"
    answers = [
        root.acting_in("acme").patch(path, {}),
        bob.patch(path, {"price": 2.50, "taken": True, "at": "2026-01-01T01:00:00+01:00"}),
        alice.put(path, same),
        alice.patch(batch, {"records": [{"id": made["id"], "data": same}]}),
        alice.post(f"{batch}?mode=upsert&on=code", {"records": [same]}),
        alice.post(f"{path}/restore", {"audit_id": audit_id}),
    ]
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    now = alice.get(path)
    assert now.headers["ETag"] == before.headers["ETag"]
    assert now.json | {"age": 0} == before.json | {"age": 0}
    assert alice.get(f"changes?since={start}").json["items"] == []
    # In a batch, only what changes is changed.
    items = [{"id": made["id"], "data": {"price": 2.5}}, {"id": other["id"], "data": {"price": 7}}]
    changed = alice.patch(batch, {"records": items}).json["updated"]
    assert changed[0] | {"age": 0} == before.json | {"age": 0}
    assert (changed[1]["price"], changed[1]["updated_at"] > other["updated_at"]) == (7, True)
    (change,) = alice.get(f"changes?since={start}").json["items"]
    assert change["record"]["id"] == other["id"]


def test_record_id_is_case_insensitive(root: Caller, alice: Caller) -> None:
    parent = {"name": "parent", "type": "reference", "collection": "posts"}
    make_collection(root, schema=[{"name": "title", "type": "text"}, parent])
    first = make_record(alice, title="a")["id"]
    upper = first.upper()
    made = alice.post("records/posts", {"title": "b", "parent": upper})
    assert (made.status_code, made.json["parent"]) == (201, first)
    path = f"records/posts/{upper}"
    assert alice.get(path).json["id"] == first
    for caller, method, where, body in [
        (alice, "PATCH", path, {"title": "c", "id": upper, "created_by": alice.id.upper()}),
        (alice, "PUT", path, {"title": "d"}),
        (alice, "PATCH", "records/posts/batch", {"records": [{"id": upper, "data": {}}]}),
        (alice, "GET", f"{path}/history", None),
        (alice, "GET", f"records/posts/{made.json['id'].upper()}?expand=parent", None),
        (alice, "PATCH", f"records/posts/{made.json['id']}", {"parent": upper}),
    ]:
        answer = caller(method, where, body)
        assert answer.status_code == 200, (method, where, answer.json)
    totals = {
        f"?id={upper}": 1,
        f"?parent={upper}": 1,
        f"?id={upper}&id={first}": 1,
        f'?filter=id = "{upper}"': 1,
        f'?filter="{upper}" = parent': 1,
        f'?filter=parent IN ["{upper}", "x"]': 1,
        f'?filter=parent.id = "{upper}"': 1,
        f'?filter=id != "{upper}"': 1,
        f'?filter=created_by = "{alice.id.upper()}"': 2,
        f'?filter=@request.auth.id = "{alice.id.upper()}"': 2,
        f'?filter=title = "{upper}"': 0,
    }
    for query, total in totals.items():
        assert alice.get(f"records/posts{query}").json["total"] == total, query
    root.put("collections/posts/rules", {"create_rule": f'@request.data.parent = "{upper}"'})
    assert alice.post("records/posts", {"parent": upper}).status_code == 201
    chosen = {"ids": [made.json["id"].upper()]}
    deleted = alice("DELETE", "records/posts/batch", chosen)
    assert (deleted.status_code, deleted.json["deleted"]) == (200, [made.json["id"]])
    root.put("collections/posts/rules", {"create_rule": "true"})
    rows = "".join(f'{{"id": "{n * 8}-0000-7000-8000-00000000000A"}}\n' for n in "ab")
    rows += f'{{"parent": "{"A" * 8}-0000-7000-8000-00000000000a"}}\n'
    imported = root.acting_in("acme").post(
        "records/posts/import?keep_ids=true", data=rows, content_type="application/x-ndjson"
    )
    assert imported.status_code == 200, imported.json
    assert alice.delete(path).status_code == 409  # found, but referred to


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("9223372036854775807", None),
        ("-9223372036854775808", None),
        ("9223372036854775808", "not_integer"),
        ("-9223372036854775809", "not_integer"),
        ("-9223372036854776000", "not_integer"),
        ("1e-324", "not_integer"),
        ("-1e-400", "not_integer"),
        ("0.0", None),
        ("0e5", None),
        ("1e3", None),
        ("9007199254740993", None),
        ("9007199254740993.0", "not_integer"),
        ("9007199254740992.5", "not_integer"),
        ("1.0000000000000000001", "not_integer"),
        ("9223372036854775807.0", "not_integer"),
        ("1e400", "number_out_of_range"),
    ],
)
def test_integer_value_is_exact_or_refused(
    root: Caller, alice: Caller, sent: str, code: str | None
) -> None:
    whole = {"name": "i", "type": "number", "options": {"integer": True}}
    make_collection(root, schema=[whole])
    answers = [
        alice.post("records/posts", data=f'{{"i": {sent}}}', content_type="application/json"),
        alice.post("records/posts", data={"i": sent}, content_type="multipart/form-data"),
        alice.post("records/posts/import", data=f"i\n{sent}\n", content_type="text/csv"),
    ]
    for answer in answers:
        if code is None:
            assert answer.status_code in (200, 201), answer.json
        else:
            assert problems(answer)[0][1] in (code, "invalid_type"), answer.json
    if code is None:
        items = alice.get("records/posts").json["items"]
        assert [Decimal(item["i"]) for item in items] == [Decimal(sent)] * 3
