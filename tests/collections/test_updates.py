"""Collections changed: properties, the database's constraints, and the plan that tells of them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from flask import Flask
from werkzeug.test import TestResponse

from app import db
from app.collections import definitions
from app.collections.models import Revision
from tests.builders import Caller, make_collection, make_record
from tests.collections.tables import agrees, inspected

NOWHERE = "019a9f00-0000-7000-8000-000000000001"
AWKWARD = """it's "so" 100% %s %(x)s :y \\ \\n {z} -- /* é 🎈 \n\t ; DROP"""


def field(name: str = "f", type: str = "text", **properties: Any) -> dict[str, Any]:
    return {"name": name, "type": type, **properties}


def update(root: Caller, made: dict[str, Any], *fields: dict[str, Any]) -> TestResponse:
    return root.put(f"collections/{made['id']}", {"schema": list(fields)})


def plan(root: Caller, made: dict[str, Any], *fields: dict[str, Any]) -> TestResponse:
    return root.post(f"collections/{made['id']}/plan", {"schema": list(fields)})


def problems(answer: TestResponse, status: int = 400) -> list[tuple[Any, ...]]:
    assert answer.status_code == status, answer.json
    return [(one["field"], one["code"], one.get("count")) for one in answer.json["details"]]


def revisions(app: Flask) -> list[list[str]]:
    with app.app_context():
        rows = db.db.session.scalars(sa.select(Revision).order_by(Revision.number))
        return [row.statements for row in rows]


def assert_agreement(app: Flask) -> None:
    """Every table is what its definition says."""
    with app.app_context():
        for one in definitions.get_all():
            assert agrees(one.table) == []
        db.db.session.remove()


# Each: the field before, what it becomes, whether the table changes.
CHANGES = [
    (field(), field(required=True), True),
    (field(required=True), field(), True),
    (field(), field(unique=True), True),
    (field(unique=True), field(), True),
    (field(unique=True), field(options={"index": True}), True),
    (field(options={"index": True}), field(unique=True), True),
    (field(), field(options={"index": True}), True),
    (field(options={"index": True}), field(options={}), True),
    (field(), field(options={"max_length": 3, "pattern": "^[a-z]+$"}), False),
    (field(options={"choices": ["a", "b"]}), field(options={"choices": ["b", "c"]}), False),
    (field(type="number"), field(type="number", options={"min": 5, "index": True}), True),
    (field(type="number"), field(type="number", unique=True, required=True), True),
    (field(), field(required=True, default=AWKWARD), True),
    (field(type="json"), field(type="json", required=True, default={"a": [AWKWARD]}), True),
    (field(type="boolean"), field(type="boolean", required=True, default=False), True),
    (
        field(type="datetime", required=True, default="2026-11-20T12:00:00+02:00"),
        field(type="datetime", unique=True, default="2026-11-21"[:10] + "T00:00:00Z"),
        True,
    ),
    (field(type="date"), field(type="date", required=True, default="2026-02-28"), True),
    (
        field(type="select", options={"choices": ["a", "b"]}),
        field(type="select", options={"choices": ["b", "c"], "index": True}),
        True,
    ),
    (
        field(type="multi_select", options={"choices": [AWKWARD]}),
        field(
            type="multi_select", options={"choices": [AWKWARD]}, required=True, default=[AWKWARD]
        ),
        True,
    ),
]


@pytest.mark.parametrize(("before", "after", "alters"), CHANGES)
def test_field_property_change_alters_constraint_as_planned(
    app: Flask, root: Caller, before: dict[str, Any], after: dict[str, Any], alters: bool
) -> None:
    made = make_collection(root, schema=[before, field("other")])
    assert_agreement(app)
    planned = plan(root, made, after, field("other"))
    assert planned.status_code == 200, planned.json
    assert root.get("collections/posts").json == made
    assert len(revisions(app)) == 1
    answer = update(root, made, after, field("other"))
    assert answer.status_code == 200, answer.json
    changed = answer.json["schema"][0]
    assert {key: changed[key] for key in after} == after
    assert answer.json["updated_at"] > made["updated_at"]
    assert_agreement(app)
    assert planned.json["problems"] == []
    found = {
        (one["property"], str(one["before"]), str(one["after"]))
        for one in planned.json["operations"]
    }
    old = made["schema"][0]
    assert found == {
        (key, str(old[key]), str(changed[key])) for key in old if old[key] != changed[key]
    }
    assert revisions(app)[1:] == ([planned.json["sql"]] if alters else [])
    again = update(root, made, after, field("other"))
    assert again.json == answer.json
    nothing = plan(root, made, after, field("other")).json
    assert [nothing[key] for key in ("operations", "sql", "problems", "data_lost")] == [[]] * 4


def test_field_default_change_does_not_rebuild_table(
    app: Flask, root: Caller, alice: Caller
) -> None:
    made = make_collection(root)
    old = make_record(alice)
    for default in ("x", AWKWARD, None):
        planned = plan(root, made, field("title", default=default)).json["sql"]
        assert not any("_rebuilt" in statement for statement in planned)
        assert update(root, made, field("title", default=default)).status_code == 200
        assert make_record(alice)["title"] == default
        assert_agreement(app)
    assert alice.get(f"records/posts/{old['id']}").json == old


def test_json_default_true_and_one_are_distinct(app: Flask, root: Caller, alice: Caller) -> None:
    made = make_collection(root, schema=[field("meta", "json", default={"on": 1})])
    for default in ('{"on":true}', '{"on":1}', '{"on":1.0}'):
        changed = field("meta", "json", default=orjson.loads(default))
        planned = plan(root, made, changed).json["operations"]
        assert [one["property"] for one in planned] == ["default"]
        assert update(root, made, changed).status_code == 200
        kept = root.get("collections/posts").json["schema"][0]["default"]
        written = make_record(alice)["meta"]
        assert [orjson.dumps(one).decode() for one in (kept, written)] == [default] * 2
        query = {"record_id": made["id"], "operation": "UPDATE"}
        entries = root.get("audit-logs", query_string=query).json["items"]
        latest = next(one for one in entries if one["column_name"] == "schema")
        assert f'"default":{default}' in latest["new_value"]
        assert_agreement(app)


# --- Rows that break a change ---------------------------------------------------------------------


def test_field_required_change_needs_values_in_every_record(
    app: Flask, root: Caller, alice: Caller, charlie: Caller
) -> None:
    made = make_collection(root, schema=[field(), field("g", "number")])
    kept = [make_record(alice, g=1), make_record(charlie, g=2), make_record(alice, f="x", g=3)]
    wanted = [field(required=True), field("g", "number", required=True)]
    assert plan(root, made, *wanted).json["problems"] == [
        {
            "field": "f",
            "code": "required",
            "count": 2,
            "message": "2 records have no value. Set a default to fill them.",
        }
    ]
    assert problems(update(root, made, *wanted)) == [("f", "required", 2)]
    assert root.get("collections/posts").json["schema"] == made["schema"]
    assert len(revisions(app)) == 1
    filled = update(root, made, field(required=True, default=AWKWARD), wanted[1])
    assert filled.status_code == 200
    for caller, record in zip((alice, charlie, alice), kept, strict=True):
        now = caller.get(f"records/posts/{record['id']}").json
        assert now == record | {"f": record["f"] or AWKWARD}
    null = alice.patch(f"records/posts/{kept[0]['id']}", {"f": None})
    assert [one["code"] for one in null.json["details"]] == ["required_null"]
    assert_agreement(app)


def test_field_unique_change_needs_unique_values(
    app: Flask, root: Caller, alice: Caller, charlie: Caller
) -> None:
    made = make_collection(root, schema=[field(), field("n", "number")])
    for caller in (alice, charlie):
        for value in ("a", "b", None, None):
            make_record(caller, f=value, n=1)
    make_record(alice, f="a", n=1.0)
    make_record(alice, f="a")
    spoiler = make_record(alice, f="b")
    wanted = [field(unique=True), field("n", "number")]
    assert problems(update(root, made, *wanted), 409) == [("f", "not_unique", 2)]
    refused = update(root, made, field(), field("n", "number", unique=True))
    assert (refused.json["error"], refused.json["field"]) == ("conflict", "n")
    assert problems(refused, 409) == [("n", "not_unique", 2)]
    assert [p["count"] for p in plan(root, made, *wanted).json["problems"]] == [2]
    assert len(revisions(app)) == 1
    for record in alice.get("records/posts?f=a").json["items"][1:]:
        alice.delete(f"records/posts/{record['id']}")
    alice.delete(f"records/posts/{spoiler['id']}")
    assert update(root, made, *wanted).status_code == 200
    assert alice.post("records/posts", {"f": "b"}).status_code == 409
    assert update(root, made, field(), field("n", "number")).status_code == 200
    assert alice.post("records/posts", {"f": "b"}).status_code == 201


def test_field_unique_change_with_default_for_many_records_is_409(
    root: Caller, alice: Caller
) -> None:
    made = make_collection(root, schema=[field()])
    for _ in range(3):
        make_record(alice)
    filled = field(required=True, unique=True, default="x")
    assert problems(update(root, made, filled), 409) == [("f", "not_unique", 1)]
    added = field("g", unique=True, default="x")
    assert problems(update(root, made, field(), added), 409) == [("g", "not_unique", 1)]
    assert update(root, made, field(), field("g", unique=True)).status_code == 200


@pytest.mark.parametrize("held", [(None, None), (None, "x")])
def test_schema_plan_counts_default_conflicts_of_unique_field(
    root: Caller, alice: Caller, held: tuple[str | None, ...]
) -> None:
    optional = field(unique=True, default="x")
    made = make_collection(root, schema=[optional])
    for value in held:
        make_record(alice, f=value)
    filled = optional | {"required": True}
    expected = [("f", "not_unique", 1)]
    planned = plan(root, made, filled).json["problems"]
    assert [(p["field"], p["code"], p["count"]) for p in planned] == expected
    assert problems(update(root, made, filled), 409) == expected


def test_record_problems_of_schema_change_are_reported_at_once(root: Caller, alice: Caller) -> None:
    made = make_collection(root, schema=[field("a"), field("b"), field("c"), field("d")])
    for _ in range(2):
        make_record(alice, b="x", c="é" * 1500, d="d")
    wanted = [
        field("a", required=True),
        field("b", unique=True),
        field("c", options={"index": True}),
        field("d", required=True, options={"max_length": 5}),
        field("e", required=True),
        field("g", "number", required=True, default=1),
    ]
    expected = [
        ("a", "required", 2),
        ("b", "not_unique", 1),
        ("c", "too_long", 2),
        ("e", "required", 2),
    ]
    assert problems(update(root, made, *wanted)) == expected
    planned = plan(root, made, *wanted).json["problems"]
    assert [(p["field"], p["code"], p["count"]) for p in planned] == expected


def test_narrower_field_options_apply_to_later_writes_only(root: Caller, alice: Caller) -> None:
    made = make_collection(root, schema=[field(), field("n", "number"), field("o")])
    old = make_record(alice, f="long text", n=50)
    narrow = [
        field(options={"max_length": 3, "choices": ["a", "b"]}),
        field("n", "number", options={"max": 9, "integer": True}),
        field("o"),
    ]
    assert update(root, made, *narrow).status_code == 200
    url = f"records/posts/{old['id']}"
    assert alice.get(url).json == old
    assert alice.patch(url, {"o": "x"}).json["f"] == "long text"
    refused = alice.patch(url, {"f": "long text", "n": 50}).json["details"]
    assert {one["code"] for one in refused} == {"too_long", "number_out_of_range"}
    assert alice.patch(url, {"f": "a", "n": 9}).status_code == 200


def test_choice_removal_while_records_use_it_is_409(
    root: Caller, alice: Caller, charlie: Caller
) -> None:
    def schema(*choices: str) -> list[dict[str, Any]]:
        options = {"choices": list(choices)}
        types = {"one": "select", "many": "multi_select"}
        return [field(name, type, options=options) for name, type in types.items()]

    made = make_collection(root, schema=schema("a", 'b"c', "d", "e"))
    make_record(alice, one="a", many=["d", 'b"c'])
    make_record(charlie, one="a", many=["d"])
    make_record(alice)
    for choices, expected in [
        (("d", 'b"c', "e"), [("one", "in_use", 2)]),
        (("a", "d"), [("many", "in_use", 1)]),
        (("e", "f"), [("one", "in_use", 2), ("many", "in_use", 2)]),
    ]:
        assert problems(update(root, made, *schema(*choices)), 409) == expected
        planned = plan(root, made, *schema(*choices)).json["problems"]
        assert [(p["field"], p["code"], p["count"]) for p in planned] == expected
    assert root.get("collections/posts").json["schema"] == made["schema"]
    assert update(root, made, *schema("f", "d", 'b"c', "a")).status_code == 200
    refused = alice.post("records/posts", {"one": "e", "many": ["f", "e"]}).json["details"]
    assert [(p["field"], p["code"]) for p in refused] == [
        ("one", "invalid_option"),
        ("many", "invalid_option"),
    ]


# --- What is refused, whatever the records --------------------------------------------------------


def test_reference_field_target_cannot_change(root: Caller) -> None:
    make_collection(root, "authors")
    make_collection(root, "others")
    made = make_collection(root, "posts", [field("a", "reference", collection="Authors")])
    for body, code in [
        ({"collection": "others"}, "type_change_not_allowed"),
        ({"collection": "nowhere"}, "reference_collection_required"),
        ({"on_delete": "sometimes"}, "on_delete_invalid"),
        ({"on_delete": "set_null", "required": True}, "on_delete_invalid"),
        ({"required": True, "default": NOWHERE}, "invalid_reference"),
    ]:
        sent = field("a", "reference", collection="authors") | body
        assert code in [one[1] for one in problems(update(root, made, sent))]
        assert plan(root, made, sent).status_code == 400
    assert root.get("collections/posts").json == made


def test_on_delete_change_does_not_alter_table(app: Flask, root: Caller, alice: Caller) -> None:
    make_collection(root, "authors")
    made = make_collection(root, "posts", [field("a", "reference", collection="authors")])
    author = make_record(alice, "authors")["id"]
    post = make_record(alice, a=author)["id"]
    assert alice.delete(f"records/authors/{author}").status_code == 409
    cascading = field("a", "reference", collection="authors", on_delete="cascade")
    assert update(root, made, cascading).status_code == 200
    assert len(revisions(app)) == 2
    assert alice.delete(f"records/authors/{author}").status_code == 204
    assert alice.get(f"records/posts/{post}").status_code == 404


def test_json_field_unique_change_is_invalid_option(root: Caller) -> None:
    made = make_collection(root, schema=[field(type="json")])
    assert problems(update(root, made, field(type="json", unique=True))) == [
        ("f", "invalid_option", None)
    ]


def test_collection_rename_in_case_only_changes_nothing(root: Caller) -> None:
    made = make_collection(root, "Posts")
    for method in ("PUT", "PATCH"):
        body = {"schema": made["schema"], "name": "posts"}
        same = root(method, f"collections/{made['id']}", body)
        assert (same.status_code, same.json) == (200, made)
    other = root.put("collections/posts/rules", {"collection": "other", "list_rule": ""})
    assert problems(other) == [("collection", "name_invalid", None)]


# --- PATCH, and rules along the way ---------------------------------------------------------------


def test_collection_patch_changes_only_sent_fields(app: Flask, root: Caller, alice: Caller) -> None:
    schema = [field("a", required=True, options={"max_length": 9}), field("b", "number", default=3)]
    made = make_collection(root, schema=schema)
    url = f"collections/{made['id']}"
    changed = root.patch(url, {"schema": [{"name": "b", "required": True}, field("c", "date")]})
    assert changed.status_code == 200, changed.json
    b = made["schema"][1] | {"required": True}
    assert changed.json["schema"][:2] == [made["schema"][0], b]
    assert changed.json["schema"][2]["type"] == "date"
    assert root.patch(url, {}).json == changed.json
    assert root.patch(url, {"fields": []}).json == changed.json
    for part, code in [
        ({"name": "a", "type": "number", "options": {}}, "type_change_not_allowed"),
        ({"name": "z"}, "type_invalid"),
        ({"name": "A", "type": "text"}, "name_duplicate"),
        ({"name": "a", "options": {"min": 1}}, "invalid_option"),
    ]:
        assert [p[1] for p in problems(root.patch(url, {"schema": [part]}))] == [code]
    twice = {"schema": [{"name": "a", "required": False}, {"name": "a", "unique": True}]}
    assert "name_duplicate" in [p[1] for p in problems(root.patch(url, twice))]
    assert root.get("collections/posts").json == changed.json
    assert_agreement(app)


def test_collection_update_with_rules(root: Caller, alice: Caller) -> None:
    made = make_collection(root, schema=[field("a")])
    url = f"collections/{made['id']}"
    body = {"schema": [field("a"), field("b")], "list_rule": None, "view_fields": ["b"]}
    assert root.put(url, body).status_code == 200
    assert alice.get("records/posts").status_code == 403
    assert "a" not in make_record(alice, a="x", b="y")
    assert root.patch(url, {"list_rule": "true"}).status_code == 200
    assert alice.get("records/posts").status_code == 200
    assert problems(root.patch(url, {"view_fields": ["nope"]})) == [
        ("view_fields", "unknown_field", None)
    ]
    kept = root.get("collections/posts/rules").json
    assert (kept["list_rule"], kept["view_fields"]) == ("true", ["b"])


def test_schema_plan_reports_rules_that_update_would_break(root: Caller) -> None:
    computed = field("c", "computed", expression="n", return_type="number")
    own = {"list_rule": " || ".join(["c = 1"] * 12)}
    made = make_collection(root, schema=[field("n", "number"), computed], **own)
    longer = [field("n", "number"), computed | {"expression": " + ".join(["n"] * 99)}]
    for place in ("list_rule", "others.list_rule"):
        planned, updated = plan(root, made, *longer), update(root, made, *longer)
        assert problems(updated) == [(place, "rule_invalid", None)]
        assert (planned.status_code, planned.json) == (400, updated.json)
        root.put("collections/posts/rules", {"list_rule": None})
        refers = field("r", "reference", collection="posts")
        led = {"list_rule": own["list_rule"].replace("c", "r.c")}
        if place == "list_rule":
            make_collection(root, "others", [refers], **led)
    root.put("collections/others/rules", {"list_rule": None})
    assert plan(root, made, *longer).status_code == update(root, made, *longer).status_code == 200


def test_field_order_changes_by_plan(app: Flask, root: Caller, alice: Caller) -> None:
    made = make_collection(root, schema=[field("a"), field("b"), field("c")])
    record = make_record(alice, a="1", b="2", c="3")["id"]
    url = f"collections/{made['id']}"

    def names() -> list[str]:
        return [one["name"] for one in root.get(url).json["schema"]]

    planned = root.post(f"{url}/plan", {"field_order": ["c", "a"]}).json
    (operation,) = planned["operations"]
    assert (operation["before"], operation["after"]) == (["a", "b", "c"], ["c", "a", "b"])
    assert (planned["sql"], planned["data_lost"]) == ([], [])
    assert names() == ["a", "b", "c"]
    body = {"field_order": ["c", "a"], "plan_hash": planned["plan_hash"]}
    assert root.patch(url, body).status_code == 200
    assert names() == ["c", "a", "b"]
    shown = alice.get(f"records/posts/{record}").json
    assert (shown["a"], shown["b"], shown["c"]) == ("1", "2", "3")
    assert [name for name in shown if len(name) == 1] == ["c", "a", "b"]
    assert root.patch(url, planned["reverse"]).status_code == 200
    assert names() == ["a", "b", "c"]
    # Together with new, renamed and removed fields.
    specs = [field("new"), {**field("last"), "rename_from": "a"}, field("c")]
    whole = {"schema": specs, "remove_fields": ["b"], "field_order": ["c", "new"]}
    whole["plan_hash"] = root.post(f"{url}/plan", whole).json["plan_hash"]
    assert root.put(url, whole).status_code == 200
    assert names() == ["c", "new", "last"]
    assert_agreement(app)
    refused = root.patch(url, {"field_order": ["c", "b", "c", "nope", "nope"]})
    assert problems(refused) == [
        ("field_order", "unknown_field", None),
        ("field_order", "unknown_field", None),
    ]
    assert names() == ["c", "new", "last"]


def test_schema_plan_of_unknown_collection_is_404(root: Caller) -> None:
    assert root.post(f"collections/{NOWHERE}/plan", {"schema": [field()]}).status_code == 404
    assert root.patch(f"collections/{NOWHERE}", {}).status_code == 404
    made = make_collection(root)
    for body in ({}, {"schema": []}, {"schema": [field()], "partial": True}):
        assert root.post(f"collections/{made['id']}/plan", body).status_code == 422


def test_constraint_names_of_longest_field_names_are_distinct(app: Flask, root: Caller) -> None:
    name, long = "c" * 56, "f" * 62
    schema = [field(f"{long}a", unique=True), field(f"{long}b", unique=True)]
    made = make_collection(root, name, schema)
    swapped = [field(f"{long}a", options={"index": True}), field(f"{long}b", required=True)]
    assert update(root, made, *swapped).status_code == 200
    assert_agreement(app)
    with app.app_context():
        names = [i["name"] for i in inspected(f"col_{name}").get_indexes(f"col_{name}")]
    assert max(len(one) for one in names) <= 63
