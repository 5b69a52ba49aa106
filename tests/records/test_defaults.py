"""Defaults that are expressions over the caller, the account and the time."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from tests.accounts.test_roles import make_role
from tests.builders import OPEN, Caller, Cast, make_collection, make_record
from tests.workflows.running import action, make_workflow, start, work

ACCOUNTS = [
    {"name": "currency", "type": "text"},
    {"name": "limit", "type": "number"},
    {"name": "since", "type": "date"},
    {"name": "vip", "type": "boolean"},
]


def default(text: str) -> dict[str, str]:
    return {"expression": text}


def field(name: str, type: str, text: str, **others: Any) -> dict[str, Any]:
    return {"name": name, "type": type, "default": default(text), **others}


ORDERS = [
    {"name": "title", "type": "text"},
    field("opened_at", "datetime", "now()", required=True),
    field("day", "date", "now()"),
    field("due", "date", "date_add(@now, 3, 'days')"),
    field("since", "date", "@account.attributes.since"),
    field("owner", "user", "@request.auth.id"),
    field("mail", "email", "@request.auth.email"),
    field("currency", "text", "coalesce(@account.attributes.currency, 'EUR')"),
    field("limit", "number", "@account.attributes.limit * 2"),
    field("open", "boolean", "@has_role(admin) || @account.attributes.vip"),
    field("site", "url", "'https://example.com'"),
    field("kind", "select", "if(@has_role(admin), 'a', 'b')", options={"choices": ["a", "b"]}),
    {"name": "more", "type": "json", "default": default("now()")},
]


@pytest.fixture
def orders(cast: Cast) -> dict[str, Any]:
    assert cast.root.put("attributes/accounts", {"fields": ACCOUNTS}).status_code == 200
    held = {"attributes": {"currency": "CHF", "limit": 5, "since": "2020-02-29", "vip": True}}
    assert cast.root.patch(f"accounts/{cast.alice.account_id}", held).status_code == 200
    return make_collection(cast.root, "orders", ORDERS, create_rule="", view_rule="")


def expected(made: dict[str, Any], **others: Any) -> dict[str, Any]:
    """The defaults of a record of acme."""
    moment = made["created_at"]
    values = {"opened_at": moment, "day": moment[:10], "since": "2020-02-29", "limit": 10}
    values |= {"currency": "CHF", "site": "https://example.com", "more": default("now()")}
    return {**values, **others}


def of_fields(record: dict[str, Any], *without: str) -> dict[str, Any]:
    names = [one["name"] for one in ORDERS if one["name"] not in ("title", "due", *without)]
    return {name: record[name] for name in names}


@pytest.mark.usefixtures("orders")
def test_defaults_are_evaluated_for_every_creator(app: Flask, cast: Cast) -> None:
    alice, bob = cast.alice, cast.bob
    of_alice = {"owner": alice.id, "mail": alice.email, "open": True, "kind": "a"}
    made = make_record(alice, "orders")
    assert of_fields(made) == expected(made, **of_alice)
    assert made["due"] > made["day"]
    of_bob = {"owner": bob.id, "mail": bob.email, "open": True, "kind": "b"}
    made = make_record(bob, "orders")
    assert of_fields(made) == expected(made, **of_bob)
    batch = {"records": [{"title": "a"}, {"title": "b", "currency": "USD", "owner": None}]}
    first, second = bob.post("records/orders/batch", batch).json["created"]
    assert of_fields(first) == expected(first, **of_bob)
    sent = {"currency": "USD", "owner": None}
    assert of_fields(second) == expected(second, **of_bob | sent)
    imported = bob.post("records/orders/import", data="title\nx\n", content_type="text/csv")
    assert imported.status_code == 200, imported.json
    (found,) = alice.get("records/orders", query_string={"filter": "title = 'x'"}).json["items"]
    assert of_fields(found) == expected(found, **of_bob)
    create = action("make", "create_record", collection="orders", data={"title": "of a flow"})
    start(alice, make_workflow(alice, [create]))
    work(app)
    query = {"filter": "title = 'of a flow'"}
    (found,) = alice.get("records/orders", query_string=query).json["items"]
    assert of_fields(found) == expected(found, **of_alice)


@pytest.mark.usefixtures("orders")
def test_callers_without_a_value_have_no_default(app: Flask, cast: Cast) -> None:
    nobody = Caller(app, **{"X-Account-ID": cast.alice.slug})
    made = nobody.post("records/orders", {})
    assert made.status_code == 201, made.json
    values = {"owner": None, "mail": None, "open": True, "kind": "b"}
    assert of_fields(made.json) == expected(made.json, **values)
    made = make_record(cast.charlie, "orders")
    values = {"currency": "EUR", "limit": None, "since": None, "owner": cast.charlie.id}
    values |= {"mail": cast.charlie.email, "open": True, "kind": "a"}
    assert of_fields(made) == expected(made, **values)


@pytest.mark.usefixtures("orders")
def test_superadmins_fill_defaults_by_the_account_of_the_record(cast: Cast) -> None:
    values = {"owner": None, "mail": None, "open": True, "kind": "a"}
    acting = cast.root.acting_in(cast.alice.slug)
    for made in (
        make_record(acting, "orders"),
        make_record(cast.root, "orders", account_id=cast.alice.account_id),
    ):
        assert made["account_id"] == cast.alice.account_id
        assert of_fields(made) == expected(made, **values)


def test_defaults_leave_nothing_of_persons_of_other_accounts(cast: Cast) -> None:
    schema = [{"name": "title", "type": "text"}]
    schema += [field(name, "text", f"@request.auth.{name}") for name in ("id", "email", "role")]
    schema = [{**one, "name": f"by_{one['name']}"} for one in schema]
    make_collection(cast.root, schema=schema)
    acting = cast.root.acting_in(cast.alice.slug)
    made = make_record(acting)
    assert (made["by_id"], made["by_email"], made["by_role"]) == (None, None, "admin")
    answer = acting.post("records/posts/import", data="{}", content_type="application/x-ndjson")
    assert answer.status_code == 200, answer.json
    assert cast.root.email not in cast.alice.get("records/posts").text
    assert make_record(cast.alice)["by_email"] == cast.alice.email
    assert make_record(cast.root)["by_email"] == cast.root.email


def test_required_field_is_satisfied_by_its_default(app: Flask, cast: Cast) -> None:
    schema = [field("owner", "user", "@request.auth.id", required=True, on_delete="restrict")]
    make_collection(cast.root, schema=schema, create_rule="")
    assert make_record(cast.bob)["owner"] == cast.bob.id
    nobody = Caller(app, **{"X-Account-ID": cast.alice.slug})
    answer = nobody.post("records/posts", {})
    (problem,) = answer.json["details"]
    assert (problem["field"], problem["code"]) == ("owner", "required_missing")
    answer = cast.bob.post("records/posts", {"owner": None})
    assert [one["code"] for one in answer.json["details"]] == ["required_null"]
    described = cast.bob.get("/openapi.json?collections=1").json["components"]["schemas"]
    assert "required" not in described["posts_create"]


def test_default_of_a_field_that_the_caller_may_not_write(cast: Cast) -> None:
    schema = [
        {"name": "title", "type": "text"},
        field("owner", "user", "@request.auth.id", writable_if="@has_role(admin)"),
        field("mail", "text", "@request.auth.email"),
    ]
    make_collection(cast.root, schema=schema, create_fields=["title", "owner"])
    made = make_record(cast.bob, title="a")
    assert (made["owner"], made["mail"]) == (cast.bob.id, cast.bob.email)
    assert cast.bob.post("records/posts", {"owner": cast.bob.id}).status_code == 400
    assert cast.bob.post("records/posts", {"mail": "x"}).status_code == 403


def test_put_keeps_what_a_default_expression_gave(cast: Cast) -> None:
    schema = [
        {"name": "title", "type": "text", "default": "none"},
        field("at", "datetime", "now()", required=True),
    ]
    make_collection(cast.root, schema=schema)
    made = make_record(cast.alice, title="a")
    path = f"records/posts/{made['id']}"
    changed = cast.bob.put(path, {"title": "b"}).json
    assert (changed["at"], changed["title"]) == (made["at"], "b")
    again = cast.bob.put(path, {"title": "b"}).json
    assert again == changed
    assert cast.bob.put(path, {"at": None}).status_code == 400


def test_value_that_the_field_refuses_is_told_with_the_others(cast: Cast) -> None:
    short = {"options": {"max_length": 3}}
    schema = [
        {"name": "n", "type": "number"},
        field("mail", "text", "@request.auth.email", **short),
    ]
    make_collection(cast.root, schema=schema)
    answer = cast.alice.post("records/posts", {"n": "x"})
    codes = {(one["field"], one["code"]) for one in answer.json["details"]}
    assert codes == {("n", "invalid_type"), ("mail", "too_long")}
    assert "The default is not valid" in answer.text
    assert make_record(cast.alice, mail="a")["mail"] == "a"


REFUSED = {
    "text": ("now()", "title", "1", "@request.auth.nothing", "@account.attributes.gone", "concat("),
    "number": ("'a'", "@now", "@old.n", "@count(posts, true)", "@request.data.n"),
    "boolean": ("1", "created_at = @now", "@rule(part)"),
    "datetime": ("'yesterday'", "1"),
    "date": ("'2026-13-01'", "true"),
    "user": ("1", "@any(posts, true)"),
}


@pytest.mark.parametrize("type", REFUSED)
def test_definition_checks_default_expressions(root: Caller, type: str) -> None:
    for text in REFUSED[type]:
        schema = [{"name": "title", "type": "text"}, field("f", type, text)]
        answer = root.post("collections", {"name": "posts", "schema": schema})
        found = [(one["field"], one["code"]) for one in answer.json.get("details", ())]
        assert found == [("f", "default_invalid")], (text, answer.json)


@pytest.mark.parametrize(
    ("type", "others"),
    [
        ("multi_select", {"options": {"choices": ["a"]}}),
        ("file", {}),
        ("user", {"multiple": True}),
        ("reference", {"collection": "posts"}),
        ("computed", {"expression": "1", "return_type": "number"}),
    ],
)
def test_types_without_default_expressions(root: Caller, type: str, others: Any) -> None:
    schema = [field("f", type, "@request.auth.id", **others)]
    answer = root.post("collections", {"name": "posts", "schema": schema})
    assert answer.status_code == 400
    assert {one["field"] for one in answer.json["details"]} == {"f"}


def test_required_field_with_a_default_expression_needs_values_of_present_records(
    cast: Cast,
) -> None:
    made = make_collection(cast.root)
    make_record(cast.alice, title="a")
    added = {"schema": [field("at", "datetime", "now()", required=True)]}
    answer = cast.root.patch(f"collections/{made['id']}", added)
    (problem,) = answer.json["details"]
    assert (problem["field"], problem["code"], problem["count"]) == ("at", "required", 1)
    added["schema"][0]["required"] = False
    assert cast.root.patch(f"collections/{made['id']}", added).status_code == 200
    assert make_record(cast.alice, title="b")["at"]
    planned = cast.root.post(f"collections/{made['id']}/plan", {"remove_fields": ["at"]}).json
    assert planned["reverse"]["schema"][-1]["required"] is False


def test_default_names_an_unknown_role_or_choice(cast: Cast) -> None:
    make_role(cast.root, "lead")
    answer = cast.root.post(
        "collections", {"name": "posts", "schema": [field("f", "boolean", "@has_role(nobody)")]}
    )
    assert [one["code"] for one in answer.json["details"]] == ["unknown_role"]
    make_collection(cast.root, schema=[field("f", "boolean", "@has_role(lead)")], **OPEN)
    assert make_record(cast.alice)["f"] is False


def test_explain_evaluates_defaults(cast: Cast) -> None:
    schema = [{"name": "title", "type": "text"}, field("owner", "user", "@request.auth.id")]
    rule = "owner = @request.auth.id"
    make_collection(cast.root, schema=schema, **{**OPEN, "create_rule": rule})
    question = {"operation": "create", "data": {"title": "a"}, "user_id": cast.bob.id}
    answer = cast.root.post("collections/posts/rules/explain", question)
    assert answer.json["allowed"] is True, answer.json
