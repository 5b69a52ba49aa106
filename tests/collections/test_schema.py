"""What a collection's schema may be, and that everything wrong with it is told at once."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from app.collections import schema
from app.collections.fields import TYPES
from tests.builders import Caller, make_collection, make_record
from tests.collections.tables import inspected


def words(text: str) -> list[str]:
    return text.split()


SYSTEM_NAMES = ("id", "account_id", "created_at", "updated_at", "created_by", "updated_by")
DATABASE_NAMES = ("xmin", "xmax", "cmin", "cmax", "ctid", "tableoid", "CTID")
KEYWORDS = words(
    """
    select from where order group by limit offset table column index primary key unique
    references check default like between case when then else end
    distinct union all values insert update delete set into returning nothing join left
    right natural using on as cast create drop alter add constraint foreign collate begin
    commit rollback transaction user current_user session_user analyse analyze array do
    to with window over filter sort skip page total fields count having isnull notnull
    autoincrement exists escape deferrable lateral only grant fetch unknown
    """
)
RULE_WORDS = words("null NULL Null true True false AND and OR or IN in IS is NOT not")
# Names that mean something to Python, to the SQL toolkit, or to our own statements.
TRICKY = words(
    """
    self cls fn args kwargs values_1 keys items c key name_1 id_1 account_id_1 param_1 total
    version0 version rowid oid col_posts a a_1 a_1_1
    """
)


def field(name: str = "f", type: str = "text", **properties: Any) -> dict[str, Any]:
    return {"name": name, "type": type, **properties}


def problems(answer: Any) -> list[tuple[str, str]]:
    """The (field, code) pairs of a 400."""
    assert answer.status_code == 400, answer.json
    assert answer.json["error"] == "validation_error"
    assert all(set(one) == {"field", "message", "code"} for one in answer.json["details"])
    return [(one["field"], one["code"]) for one in answer.json["details"]]


def create(root: Caller, *schema: dict[str, Any], name: str = "posts") -> Any:
    return root.post("collections", {"name": name, "schema": list(schema)})


def test_schema_problems_are_reported_at_once(root: Caller) -> None:
    answer = create(
        root,
        field("1st"),
        field("created_at"),
        field("Twice"),
        field("twice"),
        field("kind", "wibble"),
        field("masked", mask_type="email"),
        field("hidden", pii=True, mask_type="wobble"),
        field("made", expression="1", return_type="number"),
        field("blob", "json", unique=True),
        field("parent", "reference", on_delete="sideways"),
        field("size", options={"min_length": -1, "max_length": "x", "pattern": "(", "nope": 1}),
        field("count", "number", default="many", options={"max": 3}),
        field("sum", "computed", required=True, return_type="json"),
        name="no",
    )
    assert sorted(problems(answer)) == sorted(
        [
            ("name", "name_invalid"),
            ("1st", "name_invalid"),
            ("created_at", "name_reserved"),
            ("twice", "name_duplicate"),
            ("kind", "type_invalid"),
            ("masked", "mask_type_requires_pii"),
            ("hidden", "mask_type_invalid"),
            ("made", "expression_invalid"),
            ("made", "return_type_invalid"),
            ("blob", "invalid_option"),
            ("parent", "reference_collection_required"),
            ("parent", "on_delete_invalid"),
            ("size", "invalid_option"),
            ("size", "invalid_option"),
            ("size", "invalid_option"),
            ("size", "invalid_option"),
            ("count", "invalid_type"),
            ("sum", "expression_invalid"),
            ("sum", "invalid_option"),
            ("sum", "return_type_invalid"),
        ]
    )
    assert root.get("collections/names").json == {"names": [], "total": 0}


def test_collection_name_with_invalid_characters_is_name_invalid(root: Caller) -> None:
    for name in [
        "ab",
        "1posts",
        "_posts",
        "po sts",
        "posts-2",
        "pösts",
        "a" * 57,
        'x"; DROP TABLE users',
        "",
    ]:
        assert problems(create(root, field(), name=name)) == [("name", "name_invalid")]


def test_collection_name_of_a_route_is_name_reserved(root: Caller) -> None:
    for name in ["names", "Export", "import", "BATCH", "aggregate", "rules"]:
        assert problems(create(root, field(), name=name)) == [("name", "name_reserved")]


def test_collection_name_that_is_valid_is_kept_as_sent(root: Caller, alice: Caller) -> None:
    longest = field("f" * 63, unique=True)
    for name in ("abc", "A" * 56, "select", "Users", "col_posts", "Table_1"):
        made = make_collection(root, name, [longest, field("o" * 63, options={"index": True})])
        assert (made["name"], made["table_name"]) == (name, f"col_{name.lower()}")
        record = make_record(alice, name.swapcase(), **{"f" * 63: "x"})
        assert alice.get(f"records/{name}/{record['id']}").json == record


def test_collection_name_is_unique_in_any_case(root: Caller) -> None:
    make_collection(root, "posts")
    answer = create(root, field(), name="POSTS")
    assert (answer.status_code, answer.json["error"], answer.json["field"]) == (
        409,
        "conflict",
        "name",
    )
    assert [(d["field"], d["code"]) for d in answer.json["details"]] == [("name", "not_unique")]


def test_field_name_that_is_reserved_or_invalid_is_400(root: Caller) -> None:
    for name, code in [
        *((name, "name_reserved") for name in (*SYSTEM_NAMES, "Id", "CREATED_AT")),
        *((name, "name_reserved") for name in DATABASE_NAMES),
        *((name, "name_invalid") for name in ("", "1a", "_a", "a b", "a-b", "é", "a" * 64)),
        *((name, "name_invalid") for name in ('a"b', "a'b", "a;b", "a.b", "a%sb", "a\\", "a\n")),
    ]:
        assert problems(create(root, field(name))) == [(name, code)]


def test_rule_language_words_as_names_are_name_reserved(root: Caller) -> None:
    made = make_collection(root, "posts", [field("title")])
    for word in RULE_WORDS:
        assert problems(create(root, field(word), name="other")) == [(word, "name_reserved")]
        computed = field(word, "computed", expression="1", return_type="number")
        assert problems(create(root, computed, name="other")) == [(word, "name_reserved")]
        for change in (field(word), field(word, rename_from="title")):
            answer = root.patch(f"collections/{made['id']}", {"schema": [change]})
            assert problems(answer) == [(word, "name_reserved")]
        if len(word) > 2:
            assert problems(create(root, field(), name=word)) == [("name", "name_reserved")]
            renamed = root.patch(f"collections/{made['id']}", {"name": word})
            assert problems(renamed) == [("name", "name_reserved")]


def test_field_named_like_rule_word_by_older_release_is_closed(
    root: Caller, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older_release:
        older_release.setattr(schema, "RULE_WORDS", set())
        made = make_collection(root, "posts", [field("null"), field("true"), field("Null_1")])
    make_record(alice, null="secret")
    path = f"collections/{made['id']}"
    for rule in ('null != "secret"', 'null = "secret"', "NULL = Null_1", "true", '"x" != true'):
        sent = {"rule": rule, "collection": "posts"}
        valid = root.post("rules/validate", sent).json["valid"]
        assert valid is (rule == "true")
        if rule != "true":
            changed = root.patch(path, {"list_rule": rule})
            found = alice.get("records/posts", query_string={"filter": rule})
            for answer, code in ((changed, "rule_invalid"), (found, "filter_invalid")):
                assert (answer.status_code, answer.json["details"][0]["code"]) == (400, code)
    # What does not touch the name works, and so does another name.
    assert root.patch(path, {"schema": [field("more")]}).status_code == 200
    renamed = root.patch(path, {"schema": [{"name": "nothing", "rename_from": "null"}]})
    assert renamed.status_code == 200, renamed.json
    (found,) = alice.get('records/posts?filter=nothing = "secret" %26%26 null = null').json["items"]
    assert found["nothing"] == "secret"


@pytest.mark.parametrize("names", [KEYWORDS, TRICKY], ids=["keywords", "tricky"])
def test_field_names_may_be_sql_keywords(root: Caller, alice: Caller, names: list[str]) -> None:
    unique = {name: name in ("order", "a_1", "self") for name in names}
    schema = [field(name, unique=unique[name], options={"index": True}) for name in names]
    made = make_collection(root, "posts", schema[:-1])
    extended = root.put(f"collections/{made['id']}", {"schema": schema})
    assert extended.status_code == 200, extended.json
    values = {name: f"{name}!" for name in names}
    record = make_record(alice, **values)
    changed = alice.patch(f"records/posts/{record['id']}", {n: f"{n}?" for n in names})
    assert changed.status_code == 200, changed.json
    assert {name: changed.json[name] for name in names} == {n: f"{n}?" for n in names}
    for some in (names[i : i + 8] for i in range(0, len(names), 8)):  # as many as a sort takes
        sort = {"sort": ",".join(f"-{name}" for name in some), "fields": ",".join(some)}
        (found,) = alice.get("records/posts", query_string=sort).json["items"]
        assert found | {name: f"{name}?" for name in some} == found


def test_index_names_of_collections_are_distinct(root: Caller) -> None:
    make_collection(
        root,
        "abc",
        [field("x_y", unique=True), field("x_z", options={"index": True}), field("x_created_at")],
    )
    make_collection(root, "abc_x", [field("y", unique=True), field("z", options={"index": True})])
    indexed = [field("y_created_at", options={"index": True})]
    make_collection(root, "abc_z", indexed)
    make_collection(root, "abc_z_y", indexed)


def test_filters_on_fields_named_like_sql_parameters_stay_apart(
    root: Caller, alice: Caller
) -> None:
    make_collection(root, "posts", [field("a"), field("a_1"), field("a_1_1")])
    wanted = make_record(alice, a="x", a_1="z", a_1_1="w")
    make_record(alice, a="z", a_1="z", a_1_1="w")
    make_record(alice, a="w", a_1="z", a_1_1="w")
    query = "a=x&a=y&a_1=z&a_1=q&a_1_1=w"
    assert [r["id"] for r in alice.get(f"records/posts?{query}").json["items"]] == [wanted["id"]]


BAD_OPTIONS = [
    ("text", {"min_length": -1}),
    ("text", {"min_length": True}),
    ("text", {"min_length": "1"}),
    ("text", {"max_length": 1.5}),
    ("text", {"max_length": 2**31}),
    ("text", {"max_length": None}),
    ("text", {"min_length": 3, "max_length": 2}),
    ("text", {"pattern": "("}),
    ("text", {"pattern": "(?=x)"}),
    ("text", {"pattern": "(a)\\1"}),
    ("text", {"pattern": 5}),
    ("text", {"pattern": None}),
    ("text", {"pattern": ["a"]}),
    ("text", {"pattern": "((a{1000}){1000}){1000}"}),
    ("text", {"choices": []}),
    ("text", {"choices": "ab"}),
    ("text", {"choices": ["a", 1]}),
    ("text", {"min": 1}),
    ("text", {"index": 1}),
    ("text", {"index": "true"}),
    ("number", {"min": "1"}),
    ("number", {"min": True}),
    ("number", {"max": None}),
    ("number", {"min": 2, "max": 1}),
    ("number", {"integer": 1}),
    ("number", {"pattern": "a"}),
    ("decimal", {"precision": 0}),
    ("decimal", {"precision": 39}),
    ("decimal", {"precision": "9"}),
    ("decimal", {"precision": 2, "scale": 3}),
    ("decimal", {"scale": -1}),
    ("decimal", {"min": 0.5}),
    ("decimal", {"max": "1.234"}),
    ("decimal", {"min": "2", "max": "1.99"}),
    ("decimal", {"integer": True}),
    ("boolean", {"choices": ["a"]}),
    ("datetime", {"min": "2026-01-01"}),
    ("date", {"max_length": 1}),
    ("email", {"pattern": "a"}),
    ("url", {"max_length": 1}),
    ("json", {"index": True}),
    ("reference", {"min": 1}),
]


def test_field_option_that_is_invalid_is_invalid_option(root: Caller) -> None:
    for type, options in BAD_OPTIONS:
        target = {"collection": "posts"} if type == "reference" else {}
        answer = create(root, field("f", type, options=options, **target))
        assert problems(answer) == [("f", "invalid_option")]


BAD_DEFAULTS = [
    ("text", 5, {}, "invalid_type"),
    ("text", "ab", {"min_length": 3}, "too_short"),
    ("text", "abcd", {"max_length": 3}, "too_long"),
    ("text", "A", {"pattern": "^[a-z]$"}, "pattern_mismatch"),
    ("text", "c", {"choices": ["a", "b"]}, "invalid_option"),
    ("number", True, {}, "invalid_type"),
    ("number", 5, {"max": 4}, "number_out_of_range"),
    ("number", 1.5, {"integer": True}, "not_integer"),
    ("decimal", 1.5, {}, "invalid_type"),
    ("decimal", "1.555", {}, "too_many_digits"),
    ("boolean", 0, {}, "invalid_type"),
    ("datetime", "now", {}, "invalid_datetime"),
    ("date", "2026-02-30", {}, "invalid_date"),
    ("email", "nobody", {}, "invalid_email"),
    ("url", "ftp://example.com", {}, "invalid_url"),
    ("json", "{}", {}, "invalid_json"),
    ("reference", "019a9f00-0000-7000-8000-000000000001", {}, "invalid_reference"),
]


def test_field_default_must_be_valid_for_its_type(root: Caller) -> None:
    for type, default, options, code in BAD_DEFAULTS:
        target = {"collection": "posts"} if type == "reference" else {}
        answer = create(root, field("f", type, default=default, options=options, **target))
        assert problems(answer) == [("f", code)]


AWKWARD = """it's "so" 100% %s %(x)s :y \\ \\n {z} -- /* é 🎈 \n\t ; DROP"""
DEFAULTS = {
    "text": (AWKWARD, AWKWARD),
    "number": (1.5, 1.5),
    "decimal": ("-12.5", "-12.50"),
    "boolean": (False, False),
    "datetime": ("2026-11-20T12:00:00+02:00", "2026-11-20T10:00:00.000000Z"),
    "date": ("2026-02-28", "2026-02-28"),
    "email": ("o'neil@example.com", "o'neil@example.com"),
    "url": ("https://example.com/a%20b?c='d'", "https://example.com/a%20b?c='d'"),
    "json": ({"b": AWKWARD, "a": [1, None]}, {"b": AWKWARD, "a": [1, None]}),
    "select": (AWKWARD, AWKWARD),
    "multi_select": (["b", AWKWARD], ["b", AWKWARD]),
}
OPTIONS = {type: {"choices": [AWKWARD, "b"]} for type in ("select", "multi_select")}


def test_field_types_with_default_exclude_reference_file_and_computed() -> None:
    others = {"reference", "user", "file", "computed", "sequence", "text_list"}
    assert set(DEFAULTS) | others == set(TYPES)


def test_field_default_applies_to_absent_value(root: Caller, alice: Caller) -> None:
    schema = [
        field(f"f_{t}", t, default=sent, options=OPTIONS.get(t, {}))
        for t, (sent, _) in DEFAULTS.items()
    ]
    made = make_collection(root, schema=schema)
    assert {one["name"]: one["default"] for one in made["schema"]} == {
        f"f_{t}": sent for t, (sent, _) in DEFAULTS.items()
    }
    record = make_record(alice)
    assert {n: record[n] for n in record if n.startswith("f_")} == {
        f"f_{t}": stored for t, (_, stored) in DEFAULTS.items()
    }
    assert make_record(alice, f_text=None, f_number=2)["f_text"] is None
    replaced = alice.put(f"records/posts/{record['id']}", {"f_number": 2}).json
    assert (replaced["f_number"], replaced["f_text"]) == (2, AWKWARD)


def test_field_default_satisfies_required(root: Caller, alice: Caller) -> None:
    make_collection(root, schema=[field(required=True, default="x")])
    assert make_record(alice)["f"] == "x"
    null = alice.post("records/posts", {"f": None})
    assert problems(null) == [("f", "required_null")]


def test_required_field_takes_no_empty_default(root: Caller, alice: Caller) -> None:
    answer = create(root, field(required=True, default=""))
    assert problems(answer) == [("f", "invalid_option")]
    made = make_collection(root, schema=[field(default="")])
    changed = root.patch(f"collections/{made['id']}", {"schema": [{"name": "f", "required": True}]})
    assert problems(changed) == [("f", "invalid_option")]
    assert make_record(alice)["f"] == ""


REFUSED = [
    ("text", {"mask_type": "full"}, "mask_type_requires_pii"),
    ("text", {"mask_type": "", "pii": True}, "mask_type_invalid"),
    ("text", {"mask_type": "Full", "pii": True}, "mask_type_invalid"),
    ("text", {"mask_type": "custom", "pii": True}, "invalid_option"),
    ("text", {"pii": True, "mask_type": "custom", "options": {"mask": "none"}}, "invalid_option"),
    ("text", {"pii": True, "mask_type": "custom", "options": {"mask": 5}}, "invalid_option"),
    (
        "text",
        {"pii": True, "mask_type": "custom", "options": {"mask": "*" * 201}},
        "invalid_option",
    ),
    ("text", {"pii": True, "mask_type": "name", "options": {"mask": "*"}}, "invalid_option"),
    ("text", {"expression": "a || b"}, "expression_invalid"),
    ("text", {"expression": ""}, "expression_invalid"),
    ("text", {"return_type": "text"}, "return_type_invalid"),
    ("text", {"return_type": ""}, "return_type_invalid"),
    ("text", {"collection": "posts"}, "invalid_option"),
    ("text", {"collection": ""}, "invalid_option"),
    ("text", {"on_delete": "restrict"}, "invalid_option"),
    ("text", {"on_delete": ""}, "invalid_option"),
    ("json", {"unique": True}, "invalid_option"),
    ("reference", {}, "reference_collection_required"),
    ("reference", {"collection": None}, "reference_collection_required"),
    ("reference", {"collection": "nowhere"}, "reference_collection_required"),
    ("reference", {"collection": "posts", "on_delete": "delete"}, "on_delete_invalid"),
    (
        "reference",
        {"collection": "posts", "on_delete": "set_null", "required": True},
        "on_delete_invalid",
    ),
    ("reference", {"collection": "posts", "on_delete": ""}, "on_delete_invalid"),
    *((t, {}, "type_invalid") for t in ("phone",)),
    *(
        (type, {"options": options}, "invalid_option")
        for type in ("select", "multi_select")
        for options in (
            {},
            {"choices": []},
            {"choices": "ab"},
            {"choices": ["a", " "]},
            {"choices": ["a", 1]},
            {"choices": ["a", "b", "a"]},
            {"choices": ["a" * 201]},
            {"choices": [str(n) for n in range(501)]},
        )
    ),
    ("select", {"options": {"choices": ["a"]}, "default": "b"}, "invalid_option"),
    ("multi_select", {"options": {"choices": ["a"]}, "default": "a"}, "invalid_type"),
    ("multi_select", {"options": {"choices": ["a"]}, "unique": True}, "invalid_option"),
    ("multi_select", {"options": {"choices": ["a"], "index": True}}, "invalid_option"),
    *((t, {}, "type_invalid") for t in ("", "Text", "string", "int")),
]


def test_field_properties_not_allowed_for_type_are_400(root: Caller) -> None:
    for type, properties, code in REFUSED:
        assert problems(create(root, field("f", type, **properties))) == [("f", code)]


def test_field_properties_with_empty_values_are_accepted(root: Caller) -> None:
    nothing = {"pii": False, "mask_type": None, "expression": None, "return_type": None}
    made = make_collection(root, schema=[field(collection=None, on_delete=None, **nothing)])
    assert made["schema"] == [
        {
            "name": "f",
            "type": "text",
            "required": False,
            "default": None,
            "unique": False,
            "options": {},
            "collection": None,
            "on_delete": None,
            "pii": False,
            "mask_type": None,
            "readable_if": None,
            "writable_if": None,
            "expression": None,
            "return_type": None,
        }
    ]


def test_reference_field_keeps_target_name_and_defaults_to_restrict(root: Caller) -> None:
    make_collection(root, "Authors")
    schema = [field("a", "reference", collection="aUTHORS"), field("b", "reference")]
    schema[1] |= {"collection": "posts", "on_delete": "restrict"}
    made = make_collection(root, "posts", schema)
    assert [(f["collection"], f["on_delete"]) for f in made["schema"]] == [
        ("Authors", "restrict"),
        ("posts", "restrict"),
    ]


def test_schema_key_fields_is_an_alias(root: Caller) -> None:
    schema = [field("a"), field("b", "number")]
    made = root.post("collections", {"name": "posts", "fields": schema})
    assert made.status_code == 201
    assert made.json["fields"] == made.json["schema"]
    assert [one["name"] for one in made.json["schema"]] == ["a", "b"]
    extended = root.put(f"collections/{made.json['id']}", {"fields": [*schema, field("c")]})
    assert [one["name"] for one in extended.json["fields"]] == ["a", "b", "c"]


def test_schema_and_fields_that_differ_are_422(root: Caller) -> None:
    both = {"name": "posts", "schema": [field("a")], "fields": [field("b")]}
    assert root.post("collections", both).status_code == 422
    made = root.post("collections", both | {"fields": both["schema"]})
    assert made.status_code == 201


def test_collection_body_with_wrong_shape_is_422(root: Caller) -> None:
    for body, loc in [
        ({}, ["body", "name"]),
        ({"name": "posts"}, ["body", "schema"]),
        ({"name": 5, "schema": []}, ["body", "name"]),
        ({"name": None, "schema": []}, ["body", "name"]),
        ({"name": "posts", "schema": None}, ["body", "schema"]),
        ({"name": "posts", "schema": {}}, ["body", "schema"]),
        ({"name": "posts", "schema": ["a"]}, ["body", "schema", 0]),
        ({"name": "posts", "schema": [], "more": 1}, ["body", "more"]),
        ({"name": "posts", "schema": [], "list_rule": True}, ["body", "list_rule"]),
        ({"name": "posts", "schema": [], "list_rule": 0}, ["body", "list_rule"]),
        ({"name": "posts", "schema": [{"type": "text"}]}, ["body", "schema", 0, "name"]),
        ({"name": "posts", "schema": [{"name": "f"}]}, ["body", "schema", 0, "type"]),
        ({"name": "posts", "schema": [field(name=1)]}, ["body", "schema", 0, "name"]),
        ({"name": "posts", "schema": [field(type=[])]}, ["body", "schema", 0, "type"]),
        ({"name": "posts", "schema": [field(required="yes")]}, ["body", "schema", 0, "required"]),
        ({"name": "posts", "schema": [field(required=1)]}, ["body", "schema", 0, "required"]),
        ({"name": "posts", "schema": [field(required=None)]}, ["body", "schema", 0, "required"]),
        ({"name": "posts", "schema": [field(unique=0)]}, ["body", "schema", 0, "unique"]),
        ({"name": "posts", "schema": [field(pii=1)]}, ["body", "schema", 0, "pii"]),
        ({"name": "posts", "schema": [field(options=[])]}, ["body", "schema", 0, "options"]),
        ({"name": "posts", "schema": [field(options=7)]}, ["body", "schema", 0, "options"]),
        ({"name": "posts", "schema": [field(collection=7)]}, ["body", "schema", 0, "collection"]),
        ({"name": "posts", "schema": [field(on_delete=7)]}, ["body", "schema", 0, "on_delete"]),
        ({"name": "posts", "schema": [field(), field(wat=7)]}, ["body", "schema", 1, "wat"]),
    ]:
        answer = root.post("collections", body)
        assert answer.status_code == 422, answer.json
        assert [one["loc"] for one in answer.json["detail"]] == [loc]


def test_schema_with_over_200_fields_is_422(root: Caller) -> None:
    fields = [field(f"f{i}") for i in range(201)]
    assert root.post("collections", {"name": "posts", "schema": fields}).status_code == 422
    assert make_collection(root, schema=fields[:200])["field_count"] == 200


@pytest.mark.parametrize("properties", [{"unique": True}, {"options": {"index": True}}])
@pytest.mark.parametrize(("type", "start"), [("text", ""), ("url", "https://example.com/")])
def test_indexed_text_over_length_limit_is_too_long(
    root: Caller, alice: Caller, type: str, start: str, properties: dict[str, Any]
) -> None:
    make_collection(root, schema=[field("f", type, **properties)])
    many = "".join(chr(0x4E00 + (i * 7919) % 20000) for i in range(2000))
    answer = alice.post("records/posts", {"f": start + many})
    assert problems(answer) == [("f", "too_long")]
    longest = start + many[: (2000 - len(start)) // 3]
    assert make_record(alice, f=longest)["f"] == longest


def test_table_has_constraints_of_its_schema(app: Flask, root: Caller) -> None:
    make_collection(root, "authors")
    schema = [field("a", required=True, unique=True), field("b", options={"index": True})]
    schema.append(field("c", "reference", collection="authors"))
    make_collection(root, "posts", schema)
    with app.app_context():
        inspector = inspected("col_posts")
        columns = {c["name"]: c["nullable"] for c in inspector.get_columns("col_posts")}
        indexes = {
            tuple(i["column_names"]): bool(i["unique"]) for i in inspector.get_indexes("col_posts")
        }
        [reference] = inspector.get_foreign_keys("col_posts")
        key = inspector.get_pk_constraint("col_posts")["constrained_columns"]
    assert (columns["a"], columns["b"], columns["c"]) == (False, True, True)
    assert indexes[("account_id", "a")] is True
    # The id, by which ties of a sort are broken, ends the index of a field.
    assert indexes[("account_id", "b", "id")] is indexes[("account_id", "c", "id")] is False
    assert key == ["account_id", "id"]
    assert reference["constrained_columns"] == ["account_id", "c"]
    assert reference["referred_columns"] == ["account_id", "id"]


def test_field_pattern_that_is_invalid_is_400_without_stray_log_lines(
    root: Caller, capfd: pytest.CaptureFixture[str]
) -> None:
    for pattern in (r"(a)\1", "(", "a{1001}", "(?<=x)"):
        refused = create(root, field("f", options={"pattern": pattern}))
        assert problems(refused) == [("f", "invalid_option")]
    lines = "".join(capfd.readouterr()).splitlines()
    assert [line for line in lines if not line.startswith("{")] == []


def test_field_default_that_looks_like_expression_is_invalid_option(root: Caller) -> None:
    for default in ("@request.auth.id", " @now", "now()", "@has_role(admin)", "@request.data.a"):
        answer = create(root, field("f", default=default))
        assert problems(answer) == [("f", "invalid_option")], default
        assert "looks like an expression" in answer.json["details"][0]["message"]
    for default in ("@ann", "me@request.example", "now", "@", "know()"):
        assert (
            create(root, field("f", default=default), name=f"c{len(default)}x").status_code == 201
        )


def test_expression_error_names_computed_field_or_text(root: Caller) -> None:
    total = field("total", "computed", expression="n * 2", return_type="number")
    words = {
        "total + 1": "total is computed: computed fields cannot use it.",
        "a + n": "Expected a number, found a text. Use concat(a, b) to join texts.",
        "a - n": "Expected a number, found a text.",
    }
    for expression, message in words.items():
        other = field("other", "computed", expression=expression, return_type="number")
        answer = create(root, field("a"), field("n", "number"), total, other)
        assert [one["message"] for one in answer.json["details"]] == [message]
    make_collection(root, "posts", [field("n", "number"), total])
    sent = {"rule": "@request.data.total = 1", "collection": "posts"}
    error = root.post("rules/validate", sent).json["error"]
    assert error == "total is computed, and nobody sends it."


def test_collection_name_empty_after_rename_is_name_invalid(root: Caller) -> None:
    made = make_collection(root, "posts", [field("a"), field("b")])
    path = f"collections/{made['id']}"
    for name in ("papers", "posts"):
        assert root.patch(path, {"name": name}).status_code == 200
        assert problems(root.patch(path, {"name": ""})) == [("name", "name_invalid")]
        assert problems(root.post(f"{path}/plan", {"name": ""})) == [("name", "name_invalid")]
    twice = {"remove_fields": ["a", "a"], "schema": [field("b")]}
    assert problems(root.post(f"{path}/plan", twice)) == [("remove_fields", "name_duplicate")]


@pytest.mark.parametrize(
    "computed",
    [
        {"expression": "upper(title)"},
        {},
        {"expression": "upper(", "return_type": "text"},
        {"expression": "upper(title)", "return_type": "number"},
    ],
)
def test_rule_by_invalid_computed_field_is_400(root: Caller, computed: dict[str, str]) -> None:
    loud = {"name": "loud", "type": "computed", **computed}
    body = {"name": "notes", "schema": [{"name": "title", "type": "text"}, loud]}
    answer = root.post("collections", {**body, "list_rule": "loud = 'A'"})
    assert answer.status_code == 400, answer.json
    assert "loud" in {one["field"] for one in answer.json["details"]}
