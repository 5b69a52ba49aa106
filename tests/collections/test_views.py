"""Collections of type `view`."""

from __future__ import annotations

import re
from typing import Any

import pytest
from werkzeug.test import TestResponse

from tests.builders import Caller, make_collection, make_record

CUSTOMERS = [
    {"name": "name", "type": "text"},
    {"name": "secret", "type": "text", "readable_if": "@has_role(admin)"},
]
TICKETS = [
    {"name": "title", "type": "text"},
    {"name": "status", "type": "select", "options": {"choices": ["open", "done"]}},
    {"name": "amount", "type": "number"},
    {"name": "customer", "type": "reference", "collection": "customers"},
    {"name": "owner", "type": "user"},
    {"name": "salary", "type": "number", "pii": True},
    {"name": "inner", "type": "text", "readable_if": "@has_role(admin)"},
    {"name": "double", "type": "computed", "expression": "amount * 2", "return_type": "number"},
]
READ = {"list_rule": "true", "view_rule": "true"}


def make_view(root: Caller, name: str = "summary", **body: Any) -> dict[str, Any]:
    """A new view of tickets, open to the signed-in unless rules say otherwise."""
    answer = root.post(
        "collections", {"name": name, "type": "view", "from": "tickets", **READ, **body}
    )
    assert answer.status_code == 201, answer.json
    made: dict[str, Any] = answer.json
    return made


def rows(caller: Caller, view: str = "summary", **query: Any) -> list[dict[str, Any]]:
    answer = caller.get(f"records/{view}", query_string=query)
    assert answer.status_code == 200, answer.json
    assert answer.json["total"] == len(answer.json["items"])
    found: list[dict[str, Any]] = answer.json["items"]
    return found


def problems(answer: TestResponse) -> list[tuple[str, str]]:
    assert answer.status_code == 400, answer.json
    return [(one["field"], one["code"]) for one in answer.json["details"]]


@pytest.fixture
def tickets(root: Caller, alice: Caller) -> list[dict[str, Any]]:
    make_collection(root, "customers", CUSTOMERS)
    make_collection(root, "tickets", TICKETS)
    ann = make_record(alice, "customers", name="Ann", secret="a")
    ben = make_record(alice, "customers", name="Ben", secret="b")
    made: list[dict[str, Any]] = [
        {"title": "one", "status": "open", "amount": 1, "customer": ann["id"], "owner": alice.id},
        {"title": "two", "status": "open", "amount": 2.5, "customer": ben["id"], "salary": 7},
        {"title": "three", "status": "done", "amount": 4, "customer": ann["id"], "inner": "x"},
        {"title": "four", "amount": None},
    ]
    return [make_record(alice, "tickets", **one) for one in made]


def test_view_shows_fields_and_names_through_references(
    root: Caller, alice: Caller, bob: Caller, tickets: list[dict[str, Any]]
) -> None:
    made = make_view(root, fields=["title", "customer.name", "double"])
    assert (made["type"], made["record_count"]) == ("view", 0)
    assert [one["name"] for one in made["schema"]] == ["title", "customer_name", "double"]
    found = rows(bob)
    assert [(one["title"], one["customer_name"], one["double"]) for one in found] == [
        ("four", None, None),
        ("three", "Ann", 8),
        ("two", "Ben", 5),
        ("one", "Ann", 2),
    ]
    first = tickets[0]
    assert found[-1] == {
        **{name: first[name] for name in ("id", "account_id", "created_at", "updated_at")},
        **{name: first[name] for name in ("created_by", "updated_by")},
        "title": "one",
        "customer_name": "Ann",
        "double": 2,
    }
    assert bob.get(f"records/summary/{first['id']}").json == found[-1]
    assert rows(bob, filter='customer_name = "Ann" && double > 2')[0]["title"] == "three"
    assert [one["title"] for one in rows(bob, sort="customer_name,-title", fields="title")] == [
        *("three", "one", "two", "four"),
    ]
    assert [one["title"] for one in rows(bob, customer_name="Ben")] == ["two"]


def test_view_groups(root: Caller, bob: Caller, tickets: list[dict[str, Any]]) -> None:
    make_view(
        root,
        group_by=["status"],
        aggregates=["count()", "sum(amount)", "max(title)", "avg(double)"],
    )
    found = rows(bob)
    assert [
        (one["status"], one["count"], one["sum_amount"], one["max_title"]) for one in found
    ] == [
        ("done", 1, 4, "three"),
        ("open", 2, 3.5, "two"),
        (None, 1, None, "four"),
    ]
    assert found[1].keys() == {
        *("id", "account_id", "status", "count", "sum_amount", "max_title", "avg_double"),
    }
    for one in found:
        assert bob.get(f"records/summary/{one['id']}").json == one
    assert [one["status"] for one in rows(bob, filter="count > 1")] == ["open"]
    assert [one["count"] for one in rows(bob, sort="-sum_amount")] == [1, 2, 1]


VALUES: list[dict[str, Any]] = [
    {},
    {"word": 'Zoë "\\\n\t\x1f\x7f\u2028😀/', "live": True, "day": "0999-01-02"},
    {"number": 1, "price": "1.50", "at": "2026-01-02T03:04:05.6+02:00", "live": False},
    {"number": 1.0, "price": "1.5", "at": "2026-01-02T01:04:05.600Z", "live": False},
    {"number": -2.5e-7, "price": "-100.000", "word": ""},
    {"number": 1e22, "price": "0"},
    {"number": 9007199254740993, "price": "-0.0001"},
]
KEYS = [
    {"name": "word", "type": "text"},
    {"name": "number", "type": "number"},
    {"name": "price", "type": "decimal", "options": {"precision": 20, "scale": 4}},
    {"name": "live", "type": "boolean"},
    {"name": "day", "type": "date"},
    {"name": "at", "type": "datetime"},
    {"name": "half", "type": "computed", "return_type": "number", "expression": "number / 2"},
    {"name": "next", "type": "computed", "return_type": "datetime"}
    | {"expression": "date_add(at, 1, 'days')"},
]


@pytest.mark.both_databases
def test_ids_of_groups_are_those_of_the_other_database(root: Caller, alice: Caller) -> None:
    make_collection(root, "tickets", KEYS)
    for values in VALUES:
        make_record(alice, "tickets", **values)
    make_view(root, group_by=[one["name"] for one in KEYS], aggregates=["count()"])
    found = [one["id"] for one in rows(alice)]
    assert sorted(found) == [
        "118671a3-e288-d4b7-8b5a-06dd8b0070f7",
        "632e3298-c1ec-35c6-a59a-d58596e1dbea",
        "6eb0dc86-282c-4d06-8510-6e5a6a964d09",
        "7bccf468-c10b-d487-5e57-5933b93dcfbd",
        "e4572c26-1a8a-903a-eb1a-4c253d9836be",
        "ef08f261-1826-7144-6e5a-2b0aba7ff5d5",
    ]
    for id in found:
        assert alice.get(f"records/summary/{id}").json["id"] == id


def test_view_is_only_read(root: Caller, alice: Caller, tickets: list[dict[str, Any]]) -> None:
    make_view(root, fields=["title"])
    id = tickets[0]["id"]
    for answer in (
        alice.post("records/summary", {"title": "x"}),
        alice.patch(f"records/summary/{id}", {"title": "x"}),
        alice.put(f"records/summary/{id}", {"title": "x"}),
        alice.delete(f"records/summary/{id}"),
        alice.post("records/summary/batch", {"records": [{"title": "x"}]}),
        alice.post("records/summary/import", [{"title": "x"}]),
        alice.post(f"records/summary/{id}/restore", {"audit_id": 1}),
        alice.post(f"records/summary/{id}/erase"),
        root.post("records/summary", {"title": "x"}),
    ):
        assert (answer.status_code, answer.json["error"]) == (405, "view_read_only"), answer.json
        assert answer.headers["Allow"] == "GET"
    for address in (f"{id}/history", f"{id}?as_of=2026-01-01T00:00:00Z"):
        answer = alice.get(f"records/summary/{address}")
        assert (answer.status_code, answer.json["error"]) == (400, "is_view"), answer.json


def test_cursor_walks_a_view(root: Caller, bob: Caller, tickets: list[dict[str, Any]]) -> None:
    make_view(root, fields=["title"], group_by=["customer.name"], aggregates=["count()"])
    titles, cursor = [], ""
    while cursor is not None:
        page = bob.get(
            "records/summary", query_string={"cursor": cursor, "limit": 1, "sort": "-title"}
        )
        assert page.status_code == 200, page.json
        titles += [one["title"] for one in page.json["items"]]
        cursor = page.json["next_cursor"]
    assert titles == ["two", "three", "one", "four"]


def test_view_is_ordered_behind_references_and_refers_to_records(
    root: Caller, alice: Caller, bob: Caller, tickets: list[dict[str, Any]]
) -> None:
    make_view(root, fields=["title", "customer", "owner"], where="title != 'one'")
    make_view(root, "by_customer", group_by=["customer"], aggregates=["count()"])
    assert [one["title"] for one in rows(bob, sort="customer.name,title")] == [
        "three",
        "two",
        "four",
    ]
    query = {"functions": "count()", "group_by": "customer.name"}
    grouped = bob.get("records/summary/aggregate", query_string=query).json["results"]
    assert [one["customer.name"] for one in grouped] == ["Ann", "Ben", None]
    page = bob.get("records/by_customer", query_string={"sort": "-customer.name", "cursor": ""})
    assert [one["count"] for one in page.json["items"]] == [1, 2, 1]
    names = "summary_via_customer,by_customer_via_customer"
    customers = bob.get("records/customers", query_string={"expand": names, "sort": "name"}).json
    found = [
        (
            one["name"],
            [row["title"] for row in one["expand"]["summary_via_customer"]["items"]],
            [row["count"] for row in one["expand"]["by_customer_via_customer"]["items"]],
        )
        for one in customers["items"]
    ]
    assert found == [("Ann", ["three"], [2]), ("Ben", ["two"], [1])]
    refused = bob.get("records/summary?sort=customer.secret")
    assert problems(refused) == [("sort", "unknown_field")]


PROBES = (
    "records/summary?sort=inner",
    "records/summary?sort=-salary",
    "records/summary?sort=customer_secret",
    "records/summary?filter=inner = 'x'",
    "records/summary?filter=salary > 1",
    "records/summary?filter=customer.secret = 'a'",
    "records/summary?filter=customer_secret ~ 'a%'",
    "records/summary?inner=x",
    "records/summary?fields=inner,customer_secret",
    "records/summary?sort=customer_name&limit=1",
    "records/summary?sort=customer.secret",
    "records/summary?cursor=&limit=1&sort=-customer_name",
    "records/summary?cursor=&limit=1&sort=inner",
    "records/summary?expand=customer,owner",
    "records/summary/aggregate?functions=count(),sum(amount),min(inner)",
    "records/summary/aggregate?functions=count(),sum(amount),max(title)&group_by=customer_name",
    "records/summary/aggregate?functions=count()&group_by=inner",
    "records/summary/export?format=csv",
    "records/groups?sort=-sum_amount",
    "records/groups?filter=count > 1",
    "records/groups?sort=customer_name&cursor=&limit=1",
    "records/groups?filter=max_inner = 'x'",
    "records/groups?sort=max_inner",
    "records/groups/aggregate?functions=count(),sum(count),max(sum_amount),min(max_inner)",
    "records/groups/export?format=json",
    "records/by_inner",
    "records/by_inner/aggregate?functions=count()",
    "records/by_salary?filter=count > 0",
)


def test_views_tell_nothing_of_what_is_hidden(
    root: Caller, alice: Caller, bob: Caller, tickets: list[dict[str, Any]]
) -> None:
    """What a caller may not see is changed: not one answer is another one."""
    own = "owner = @request.auth.id || title = 'three'"
    tickets_id = root.get("collections/tickets").json["id"]
    assert root.patch(f"collections/{tickets_id}", {"list_rule": own}).status_code == 200
    rules = {"view_rule": "name = 'Ann' || @has_role(admin)"}
    assert root.put("collections/customers/rules", rules).status_code == 200
    fields = ["title", "amount", "customer", "customer.name", "customer.secret", "inner", "salary"]
    make_view(root, fields=[*fields, "owner"])
    aggregates = ["count()", "sum(amount)", "max(inner)", "sum(salary)"]
    make_view(root, "groups", group_by=["customer.name"], aggregates=aggregates)
    make_view(root, "by_inner", group_by=["inner"], aggregates=["count()"])
    make_view(root, "by_salary", group_by=["salary"], aggregates=["count()"])
    mine = make_record(
        alice, "tickets", title="mine", owner=bob.id, customer=tickets[1]["customer"]
    )
    seen = (tickets[2]["id"], mine["id"])
    for id in seen:  # a mask says that there is a value
        assert alice.patch(f"records/tickets/{id}", {"salary": 1}).status_code == 200

    def answers() -> list[tuple[str, int, str]]:
        found = []
        for path in (
            *PROBES,
            f"records/summary/{mine['id']}",
            f"records/summary/{tickets[0]['id']}",
        ):
            answer = bob.get(path)
            assert answer.status_code < 500
            text = re.sub(r'"?(updated_at|next_cursor)"?[:,] *"[^"]*"', "", answer.text)
            found.append((path, answer.status_code, re.sub(r"T[0-9:.]+Z", "", text)))
        return found

    before = answers()
    assert [item["title"] for item in bob.get("records/summary").json["items"]] == ["mine", "three"]
    groups = bob.get("records/groups").json["items"]
    assert [(one["customer_name"], one["count"]) for one in groups] == [("Ann", 1), (None, 1)]
    assert all("max_inner" not in one for one in groups)
    assert bob.get("records/by_inner").json["error"] == "field_denied"
    hidden = {"title": "hidden", "amount": 99, "inner": "zz", "salary": 1000}
    for one in (tickets[0], tickets[1], tickets[3]):  # which bob may not list
        assert alice.patch(f"records/tickets/{one['id']}", hidden).status_code == 200
    make_record(alice, "tickets", **hidden, customer=tickets[0]["customer"], status="done")
    assert alice.delete(f"records/tickets/{tickets[3]['id']}").status_code == 204
    for id in seen:
        changed = {"inner": "other", "salary": 5}
        assert alice.patch(f"records/tickets/{id}", changed).status_code == 200
    for id, values in (
        (tickets[0]["customer"], {"secret": "y"}),
        (tickets[1]["customer"], {"name": "Zoe", "secret": "z"}),
    ):
        assert alice.patch(f"records/customers/{id}", values).status_code == 200
    assert answers() == before
