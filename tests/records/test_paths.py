"""Order and groups behind references, under the rules of what they pass through."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from flask import Flask

from tests import sharded_sql
from tests.accounts.test_attributes import define
from tests.builders import OPEN, Caller, Cast, make_collection, make_record
from tests.records.test_cursor import backward, forward, problems, together
from tests.security.test_reads import reads
from tests.sql import statements

SITES = [{"name": "name", "type": "text"}, {"name": "open", "type": "boolean"}]
CUSTOMERS = [
    {"name": "name", "type": "text", "options": {"index": True}},
    {"name": "size", "type": "number"},
    {"name": "since", "type": "date"},
    {"name": "met", "type": "datetime"},
    {"name": "open", "type": "boolean"},
    {"name": "shout", "type": "computed", "expression": "concat(name, '!')", "return_type": "text"},
    {
        "name": "rank",
        "type": "computed",
        "expression": "coalesce(size, 7)",
        "return_type": "number",
    },
    {"name": "secret", "type": "text"},
    {"name": "phone", "type": "text", "pii": True},
    {"name": "notes", "type": "json"},
    {"name": "site", "type": "reference", "collection": "sites"},
    {"name": "partners", "type": "reference", "collection": "sites", "multiple": True},
]
POSTS = [
    {"name": "title", "type": "text"},
    {"name": "customer", "type": "reference", "collection": "customers"},
    {"name": "owner", "type": "user"},
]
SHOWN = [one["name"] for one in CUSTOMERS if one["name"] != "secret"]
OPENED = "open = true || created_by = @request.auth.id"
PATHS = (
    *(f"customer.{name}" for name in ("name", "size", "since", "met", "open", "shout", "rank")),
    *("customer.site.name", "customer.site", "customer.created_at", "customer.created_by.name"),
    *("owner.name", "created_by.name", "customer.id"),
)
EXPANDED = "customer.site,customer.created_by,owner,created_by"


@pytest.fixture
def shop(app: Flask, cast: Cast) -> Cast:
    """Posts of customers at sites, some of them closed to all but alice, who made them."""
    for caller, name in ((cast.alice, "Ann"), (cast.bob, "Bo")):
        assert caller.patch("auth/me", {"name": name}).status_code == 200
    make_collection(cast.root, "sites", SITES, view_rule=OPENED)
    make_collection(
        cast.root, "customers", CUSTOMERS, view_rule=OPENED, view_fields=SHOWN, list_rule=None
    )
    make_collection(cast.root, schema=POSTS)
    chance = random.Random(7)
    sites = [
        make_record(cast.alice, "sites", name=name, open=flag)["id"]
        for name, flag in (("n", True), ("É", True), ("hidden", False), (None, True))
    ]
    customers: list[str | None] = [None]
    for place in range(12):
        values = {
            "name": chance.choice(["a", "B", "ä", "zz", "", None]),
            "size": chance.choice([1, 2.5, -3, None]),
            "since": chance.choice(["2026-01-02", "1999-12-31", None]),
            "met": chance.choice(["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.5Z", None]),
            "open": place % 3 > 0,
            "secret": "s",
            "site": chance.choice([*sites, None]),
        }
        customers.append(make_record(cast.alice, "customers", **values)["id"])
    for place in range(40):
        owner = chance.choice([cast.alice.id, cast.bob.id, None])
        maker = cast.bob if place % 5 == 0 else cast.alice  # who may refer to open ones only
        customer = None if maker is cast.bob else chance.choice(customers)
        make_record(maker, title=f"t{place % 3}", customer=customer, owner=owner)
    return cast


def listed(caller: Caller, **query: Any) -> list[dict[str, Any]]:
    answer = caller.get("records/posts", query_string={"limit": 100, **query})
    assert answer.status_code == 200, answer.json
    items: list[dict[str, Any]] = answer.json["items"]
    return items


def seen(record: Mapping[str, Any], path: str) -> Any:
    """What the caller sees at the end of a path: null where it sees no record on the way."""
    *steps, last = path.split(".")
    value: Any = record
    for step in steps:
        value = value.get("expand", {}).get(step) or {}
    return value.get(last)


def in_order(records: list[dict[str, Any]], path: str, *, descending: bool) -> list[str]:
    """The ids by the values of a path, then by id, nulls last."""
    records = sorted(records, key=lambda one: one["id"])
    present = [one for one in records if seen(one, path) is not None]
    present.sort(key=lambda one: seen(one, path), reverse=descending)  # which is stable
    absent = [one for one in records if seen(one, path) is None]
    return [one["id"] for one in present + absent]


def refusals(caller: Caller, path: str) -> set[tuple[str, str]]:
    """The problems of an order and of groups by a path."""
    query = {"functions": "count()", "group_by": path}
    groups = problems(caller.get("records/posts/aggregate", query_string=query))
    order = problems(caller.get("records/posts", query_string={"sort": path}))
    assert [code for _, code in groups] == [code for _, code in order]
    return {*groups, *order}


@pytest.mark.long
@pytest.mark.parametrize("name", ["alice", "bob"])
def test_order_behind_references_is_that_of_what_caller_sees(shop: Cast, name: str) -> None:
    caller: Caller = getattr(shop, name)
    records = listed(caller, expand=EXPANDED)
    assert len(records) == 40
    for path in PATHS:
        for sign in ("", "-"):
            wanted = in_order(records, path, descending=bool(sign))
            order = f"{sign}{path}"
            assert [one["id"] for one in listed(caller, sort=order)] == wanted, order
            assert together(forward(caller, sort=order, limit=7)) == wanted, order
            assert together(backward(caller, sort=order, limit=7)) == wanted, order
            skipped = listed(caller, sort=order, skip=5, limit=6)
            assert [one["id"] for one in skipped] == wanted[5:11], order


@pytest.mark.parametrize("name", ["alice", "bob"])
def test_groups_behind_references_are_those_of_what_caller_sees(shop: Cast, name: str) -> None:
    caller: Caller = getattr(shop, name)
    records = listed(caller, expand=EXPANDED)
    for path in PATHS:
        query = {"functions": "count()", "group_by": f"title,{path}"}
        answer = caller.get("records/posts/aggregate", query_string=query).json
        wanted = Counter((one["title"], seen(one, path)) for one in records)
        found = {(one["title"], one[path]): one["count"] for one in answer["results"]}
        assert found == wanted, path
        assert answer["total_groups"] == len(wanted)


def test_nothing_tells_hidden_target_from_none(shop: Cast) -> None:
    """Whatever hidden customers are changed to, a caller who sees none of them sees no change."""
    hidden = [
        one["customer"]
        for one in listed(shop.alice, expand="customer")
        if one["customer"] and not one["expand"]["customer"]["open"]
    ]
    assert hidden

    def answers() -> list[Any]:
        found: list[Any] = []
        for path in PATHS:
            found += [[one["id"] for one in listed(shop.bob, sort=path)]]
            found += [together(forward(shop.bob, sort=f"-{path}", limit=9))]
            for having in ("", f"{path} != null && count > 0", "count > 3"):
                query = {"functions": "count()", "group_by": path, "having": having}
                found.append(shop.bob.get("records/posts/aggregate", query_string=query).json)
        return found

    before = answers()
    for id in hidden:
        values = {"name": "aaa", "size": 9**9, "since": "2000-01-01", "site": None}
        changed = shop.alice.patch(f"records/customers/{id}", values)
        assert changed.status_code == 200
        assert shop.alice.patch(f"records/customers/{id}", {"open": False}).status_code == 200
    assert answers() == before
    assert shop.alice.patch(f"records/customers/{hidden[0]}", {"open": True}).status_code == 200
    assert answers() != before


def test_having_names_groups_behind_references(shop: Cast) -> None:
    query = {"functions": "count(),sum(x)", "group_by": "customer.name,title"}
    query |= {"functions": "count()", "having": "customer.name = 'zz' && title != null"}
    found = shop.alice.get("records/posts/aggregate", query_string=query).json
    assert {one["customer.name"] for one in found["results"]} == {"zz"}
    query["having"] = "customer.size > 1"
    refused = shop.alice.get("records/posts/aggregate", query_string=query)
    assert problems(refused) == [("having", "filter_invalid")]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("customer.secret", "unknown_field"),
        ("customer.nothing", "unknown_field"),
        ("nothing.name", "unknown_field"),
        ("customer.phone", "invalid_option"),  # masked
        ("customer.notes", "invalid_option"),  # cannot be compared
        ("customer.partners.name", "invalid_option"),
        ("title.name", "invalid_option"),
        ("customer.site.nothing", "unknown_field"),
        ("customer.created_by.nothing", "unknown_field"),
        ("owner.id.name", "unknown_field"),
        ("owner.email", "unknown_field"),  # not of the directory
        ("customer.site.a.b.c", "invalid_option"),
        ("customer.", "unknown_field"),
        (".", "unknown_field"),
    ],
)
def test_path_that_caller_does_not_see_is_refused(shop: Cast, path: str, code: str) -> None:
    assert refusals(shop.bob, path) == {("sort", code), ("group_by", code)}


def test_closed_collection_is_not_followed(shop: Cast) -> None:
    assert shop.root.put("collections/sites/rules", {"view_rule": None}).status_code == 200
    wanted = {("sort", "invalid_option"), ("group_by", "invalid_option")}
    assert refusals(shop.bob, "customer.site.name") == wanted
    assert refusals(shop.bob, "customer.site.nothing") == wanted
    assert listed(shop.root.acting_in("acme"), sort="customer.site.name")
    assert shop.root.put("collections/customers/rules", {"view_rule": "false"}).status_code == 200
    assert refusals(shop.alice, "customer.name") == wanted


def test_people_who_are_gone_or_not_shown_sort_as_none(app: Flask, shop: Cast) -> None:
    shown = {"rule": "@has_role(admin)", "fields": ["email", "role"]}
    assert shop.root.put("directory/settings", shown).status_code == 200
    wanted = {("sort", "unknown_field"), ("group_by", "unknown_field")}
    assert refusals(shop.bob, "owner.email") == wanted
    assert refusals(shop.alice, "owner.name") == wanted
    query = {"functions": "count()", "group_by": "owner.email"}
    found = shop.alice.get("records/posts/aggregate", query_string=query).json["results"]
    assert [one["owner.email"] for one in found] == [shop.alice.email, shop.bob.email, None]
    make_record(shop.root.acting_in("acme"), owner=None)
    query = {"functions": "count()", "group_by": "created_by.email"}
    found = shop.alice.get("records/posts/aggregate", query_string=query).json["results"]
    assert found[-1] == {"created_by.email": None, "count": 1}


def test_attributes_of_people_and_callers(shop: Cast) -> None:
    define(shop, [{"name": "team", "type": "text", "visible_to": "members"}])
    for caller, team in ((shop.alice, "b"), (shop.bob, "a")):
        changed = shop.root.patch(f"users/{caller.id}", {"attributes": {"team": team}})
        assert changed.status_code == 200, changed.json
    shown = {"rule": "true", "fields": ["name", "attributes.team"]}
    assert shop.root.put("directory/settings", shown).status_code == 200
    query = {"functions": "count()", "group_by": "owner.attributes.team"}
    found = shop.bob.get("records/posts/aggregate", query_string=query).json["results"]
    assert [one["owner.attributes.team"] for one in found] == ["a", "b", None]
    rule = {"view_rule": "@request.auth.attributes.team = 'b' && name = @request.auth.role"}
    assert shop.root.put("collections/sites/rules", rule).status_code == 200
    site = make_record(shop.alice, "sites", name="admin")["id"]
    customer = make_record(shop.alice, "customers", site=site, open=True)["id"]
    make_record(shop.alice, customer=customer)
    rule = {"view_rule": "concat(@request.auth.attributes.team, 'x') = 'bx'"}
    assert shop.root.put("collections/customers/rules", rule).status_code == 200
    query = {"functions": "count()", "group_by": "customer.site.name"}
    found = shop.alice.get("records/posts/aggregate", query_string=query).json["results"]
    assert found == [
        {"customer.site.name": "admin", "count": 1},
        {"customer.site.name": None, "count": 40},
    ]
    [only] = listed(shop.alice, filter="customer.site.name = 'admin'")
    assert only["customer"] == customer


def test_order_behind_references_is_one_statement(app: Flask, shop: Cast, database: str) -> None:
    listed(shop.bob, sort="customer.name")
    queries: tuple[dict[str, str], ...] = (
        {"sort": "customer.name,-customer.site.name", "filter": "customer.site.name != 'x'"},
        {"sort": "-customer.shout", "cursor": ""},
        {"sort": "created_at"},
    )
    counts = []
    for query in queries:
        with statements(app) as sent:
            assert shop.bob.get("records/posts", query_string=query).status_code == 200
        counts.append(len(sent))
        if database == "postgresql":
            assert [one for text in sent for one in sharded_sql.problems(text)] == []
    assert set(counts) == {counts[-1]}


def test_export_and_list_of_all_accounts_sort_behind_references(shop: Cast) -> None:
    wanted = [one["id"] for one in listed(shop.bob, sort="-customer.name,title")]
    exported = shop.bob.get("records/posts/export?format=json&sort=-customer.name,title")
    assert [one["id"] for one in exported.json] == wanted
    everywhere = shop.root.acting_in("*")
    customer = make_record(shop.charlie, "customers", name="A", open=True)["id"]
    theirs = make_record(shop.charlie, customer=customer)["id"]
    found = together(forward(everywhere, sort="customer.name", limit=9))
    assert len(found) == len({*found}) == 41
    names = [one["id"] for one in listed(everywhere, sort="customer.name")]
    assert names == found
    assert theirs in found


def test_personal_data_behind_references_is_noted(shop: Cast) -> None:
    query = {"functions": "count()", "group_by": "customer.phone"}
    assert shop.alice.get("records/posts/aggregate", query_string=query).status_code == 200
    [event] = reads(shop.alice, path="aggregate")
    assert (event["target_type"], event["details"]["fields"]) == ("col_customers", ["phone"])


def test_record_in_the_trash_sorts_and_refers_as_none(root: Caller, alice: Caller) -> None:
    name = {"name": "name", "type": "text"}
    for collection, to in (("teams", None), ("players", "teams")):
        refers = [{"name": "team", "type": "reference", "collection": to, "on_delete": "set_null"}]
        schema = [name, *(refers if to else [])]
        body = {"name": collection, "schema": schema, "options": {"trash": {"days": 30}}, **OPEN}
        assert root.post("collections", body).status_code == 201
    team = make_record(alice, "teams", name="a")["id"]
    player = make_record(alice, "players", name="p", team=team)["id"]
    path = f"records/teams/{team}?expand=players_via_team"
    assert [one["id"] for one in alice.get(path).json["expand"]["players_via_team"]["items"]] == [
        player
    ]
    assert alice.delete(f"records/players/{player}").status_code == 204
    assert alice.get(path).json["expand"]["players_via_team"]["items"] == []
    other = make_record(alice, "players", name="q", team=team)["id"]
    assert alice.delete(f"records/teams/{team}").status_code == 204
    query = {"functions": "count()", "group_by": "team.name"}
    groups = alice.get("records/players/aggregate", query_string=query).json["results"]
    assert groups == [{"team.name": None, "count": 1}]
    found = alice.get("records/players", query_string={"sort": "team.name"}).json["items"]
    assert [one["id"] for one in found] == [other]
