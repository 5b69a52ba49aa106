"""Whatever the limits allow works at every public door, however deep: 32 levels, 200 parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from app.rules.parser import DEEPEST
from tests.builders import OPEN, Cast, make_collection, make_record
from tests.conftest import WHOLE

KINDS = {
    "t": "text",
    "n": "number",
    "z": "number",
    "b": "boolean",
    "c": "boolean",
    "at": "datetime",
}
RECORD = {"t": "a", "n": 1, "b": True, "c": False, "at": "2026-01-31T10:11:12.5Z"}
INSIDE = DEEPEST - 1  # the whole is the first level


def nested(make: Callable[[str], str], text: str, times: int = INSIDE) -> str:
    """A text around itself, so many times."""
    for _ in range(times):
        text = make(text)
    return text


def dense(inner: str) -> str:
    """As many levels of a tree as two of the text can have."""
    return f"length(concat(c || b && n = n + n * {inner}))"


# Each makes an expression around another one, which it is given first, with the value for RECORD.
NESTED: dict[str, tuple[Callable[[str], str], str, Any]] = {
    "parentheses": (lambda text: f"({text})", "b", True),
    "any": (lambda text: f"(c || {text})", "b", True),
    "all_or_any": (lambda text: f"(c || b && {text})", "b", True),
    "negation": (lambda text: f"!{text}", "b", False),
    "comparison": (lambda text: f"({text}) = b", "b", True),
    "order": (lambda text: f"concat({text} < 'b')", "t", "false"),
    "match": (lambda text: f"concat({text} ~ '%U%')", "'u'", "true"),
    "pattern": (lambda text: f"concat(t !~ {text})", "t", "true"),
    "member": (lambda text: f"({text}) IN [b]", "b", True),
    "items": (lambda text: f"b IN [c, {text}]", "b", True),
    "no_item": (lambda text: f"b NOT IN [c, {text}]", "b", False),
    "presence": (lambda text: f"({text}) IS NOT NULL", "c", True),
    "addition": (lambda text: f"(n + {text})", "n", 32),
    "sign": (lambda text: f"-{text}", "n", -1),
    "products": (lambda text: f"(n * 2 - {text})", "n", 1),
    "call": (lambda text: f"upper({text})", "t", "A"),
    "text": (lambda text: f"concat('a', {text})", "'a'", "a" * 32),
    "choice": (lambda text: f"if(c, 2, {text})", "n", 1),
    "asked": (lambda text: f"if({text}, b, c)", "b", True),
    "first": (lambda text: f"coalesce(z, {text})", "n + 4", 5),
    "moment": (lambda text: f"date_add({text}, 1, 'days')", "at", "2026-03-03T10:11:12.500000Z"),
    "rounding": (lambda text: f"round({text}, 1)", "n / 3", 0.3),
}
FLAT: dict[str, tuple[str, Any]] = {
    "levels": (nested(dense, "n", 15), 5),
    "sum": ("+".join(["n"] * 99), 99),
    "product": ("n" + " * n" * 98, 1),
    "conditions": ("||".join(["c"] * 198 + ["b"]), True),
    "alternatives": ("coalesce(" + "null, " * 196 + "t)", "a"),
}
# What computed fields may not name; `parent` is the record itself.
ELSEWHERE: dict[str, tuple[str, Any]] = {
    "references": (nested(lambda text: f"lower({text})", "parent.parent.parent.t"), "a"),
    "caller": (nested(lambda text: f"if({text} != 'admin', 'x', t)", "@request.auth.role"), "x"),
    "present": (nested(lambda text: f"nullif({text}, at)", "@now") + " > at", True),
}
VALUES = {name: (nested(make, text), value) for name, (make, text, value) in NESTED.items()} | FLAT
TYPES = {bool: "boolean", str: "text", int: "number", float: "number"}


def taken(values: dict[str, Any], database: str, whole: bool) -> dict[str, Any]:
    """All of them, or the half that is for the database."""
    start = database == "postgresql"
    return values if whole else dict([*values.items()][start::2])


def literal(value: Any) -> str:
    """A value as an expression writes it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def computed(name: str, text: str, value: Any) -> dict[str, Any]:
    """A computed field."""
    kind = "datetime" if name == "moment" else TYPES[type(value)]
    return {"name": f"{name}_", "type": "computed", "expression": text, "return_type": kind}


def condition(text: str, value: Any) -> str:
    """What holds for a record if the expression has this value; no deeper than that."""
    if isinstance(value, bool):
        return text if value else f"{text} || b"
    return f"{text} = {literal(value)}"


def make_posts(cast: Cast, fields: Sequence[dict[str, Any]] = ()) -> Sequence[dict[str, Any]]:
    """RECORD, which refers to itself, and another one."""
    schema = [{"name": name, "type": kind} for name, kind in KINDS.items()]
    schema.append({"name": "parent", "type": "reference", "collection": "posts"})
    make_collection(cast.root, schema=[*schema, *fields])
    record = make_record(cast.alice, **RECORD)
    other = make_record(cast.alice, t="other")
    changed = cast.alice.patch(f"records/posts/{record['id']}", {"parent": record["id"]})
    assert changed.status_code == 200
    return record, other


@pytest.mark.long
@WHOLE
def test_rules_and_filters_at_maximum_depth_work(cast: Cast, database: str, whole: bool) -> None:
    record, _ = make_posts(cast)
    for name, (text, value) in taken(VALUES | ELSEWHERE, database, whole).items():
        rule = condition(text, value)
        changed = dict.fromkeys(("list_rule", "view_rule")[: 2 if name in ELSEWHERE else 1], rule)
        saved = cast.root.put("collections/posts/rules", changed)
        assert saved.status_code == 200, (name, saved.json)
        found = cast.bob.get("records/posts", query_string={"filter": rule})
        assert found.status_code == 200, (name, found.json)
        assert record["id"] in [one["id"] for one in found.json["items"]], name


def test_rules_diff_at_maximum_depth_works(cast: Cast) -> None:
    record, _ = make_posts(cast)
    group = cast.alice.post("groups", {"name": "staff"}).json["id"]
    cast.alice.post(f"groups/{group}/users", {"user_id": cast.bob.id})
    staff, around = "@has_group('staff')", INSIDE - 1  # as it has brackets of its own
    rules = {
        "list_rule": nested(lambda text: f"(c || b && {text})", staff, around),
        "view_rule": nested(lambda text: f"if({text}, b, c)", staff, around),
        "update_rule": nested(lambda text: f"if({text}, b, c)", f"parent.b = {staff}", around),
        "delete_rule": nested(lambda text: f"upper({text})", "@request.auth.email") + " != t",
    }
    saved = cast.root.put("collections/posts/rules", dict.fromkeys(rules))
    assert saved.status_code == 200
    answer = cast.root.post("collections/posts/rules/diff", {"rules": rules})
    assert answer.status_code == 200, answer.json
    told = {(one["role"], one["operation"]): one["gained"] for one in answer.json["items"]}
    for operation in ("list", "view", "update"):
        assert told["viewer", operation]["sample"] == [record["id"]], operation
        assert told["editor", operation]["count"] == 0, operation
    assert told["viewer", "delete"]["count"] == 2
    for operation in ("view", "update"):
        asked = {"operation": operation, "user_id": cast.bob.id, "record_id": record["id"]}
        cast.root.put("collections/posts/rules", {f"{operation}_rule": rules[f"{operation}_rule"]})
        answer = cast.root.post("collections/posts/rules/explain", asked)
        assert (answer.status_code, answer.json["allowed"]) == (200, True), answer.json


@pytest.mark.long
@WHOLE
def test_computed_fields_at_maximum_depth_are_listed_and_sorted(
    cast: Cast, database: str, whole: bool
) -> None:
    values = taken(VALUES, database, whole)
    record, other = make_posts(cast, [computed(name, *made) for name, made in values.items()])
    for name in values:
        query = {"sort": f"-{name}_", "fields": "id", "limit": 1, "cursor": ""}
        first = cast.bob.get("records/posts", query_string=query)
        assert first.status_code == 200, (name, first.json)
        assert {one["id"] for one in first.json["items"]} < {record["id"], other["id"]}
    page = cast.bob.get("records/posts", query_string=query | {"cursor": first.json["next_cursor"]})
    assert page.status_code == 200
    assert page.json["items"] != first.json["items"]
    page = cast.bob.get("records/posts", query_string={"t": "a"})
    (shown,) = page.json["items"]
    assert {name: shown[f"{name}_"] for name in values} == {k: v for k, (_, v) in values.items()}


@pytest.mark.one_database
def test_rule_over_maximum_depth_is_400_with_position(cast: Cast) -> None:
    make_collection(cast.root, schema=[{"name": n, "type": k} for n, k in KINDS.items()], **OPEN)
    for name, (make, text, value) in NESTED.items():
        deeper = nested(make, text, DEEPEST)
        rule = condition(deeper, value)
        for answer in (
            cast.bob.get("records/posts", query_string={"filter": rule}),
            cast.root.put("collections/posts/rules", {"view_rule": rule}),
        ):
            assert answer.status_code == 400, (name, answer.json)
            (problem,) = answer.json["details"]
            assert problem["message"] == f"An expression is nested at most {DEEPEST} deep."
            assert 0 < problem["position"] <= len(rule)
