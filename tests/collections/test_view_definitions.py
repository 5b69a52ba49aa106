"""Definitions of views: what is refused, and how they follow what they read."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, db
from app.collections import definitions
from app.ids import new_id
from tests.builders import Caller, make_collection, make_record
from tests.collections.test_views import CUSTOMERS, TICKETS, make_view, problems, rows, tickets

__all__ = ["tickets"]
VIEW = {"name": "summary", "type": "view", "from": "tickets"}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"from": "nothing", "fields": ["title"]}, [("from", "invalid_reference")]),
        ({}, [("fields", "required")]),
        ({"fields": ["nothing"]}, [("fields", "unknown_field")]),
        ({"fields": ["title.name"]}, [("fields", "unknown_field")]),
        ({"fields": ["owner.nothing"]}, [("fields", "unknown_field")]),
        ({"fields": ["title"], "where": "nothing = 1"}, [("where", "rule_invalid")]),
        ({"aggregates": ["sum(title)"]}, [("aggregates", "invalid_option")]),
        ({"aggregates": ["first(title)"]}, [("aggregates", "invalid_option")]),
        ({"aggregates": ["count()"], "group_by": ["id"]}, [("id", "name_reserved")]),
        ({"fields": ["title"], "create_rule": "true"}, [("create_rule", "invalid_option")]),
        ({"fields": ["title"], "list_rule": "amount = 1"}, [("list_rule", "rule_invalid")]),
        ({"fields": ["title"], "indexes": []}, [("indexes", "invalid_option")]),
    ],
)
def test_wrong_views_are_refused(
    root: Caller, tickets: list[dict[str, Any]], parts: dict[str, Any], expected: Any
) -> None:
    assert problems(root.post("collections", {**VIEW, **parts})) == expected


def test_names_of_columns_do_not_clash(root: Caller) -> None:
    make_collection(root, "customers", CUSTOMERS)
    make_collection(root, "tickets", [*TICKETS, {"name": "customer_name", "type": "text"}])
    body = {**VIEW, "fields": ["customer.name", "customer_name"]}
    assert problems(root.post("collections", body)) == [("fields", "name_duplicate")]


def test_nothing_is_built_on_a_view(root: Caller, tickets: list[dict[str, Any]]) -> None:
    make_view(root, fields=["title"])
    above = {"name": "above", "type": "view", "from": "summary", "fields": ["title"]}
    assert problems(root.post("collections", above)) == [("from", "invalid_reference")]
    field = {"name": "one", "type": "reference", "collection": "summary"}
    refused = root.post("collections", {"name": "refs", "schema": [field]})
    assert problems(refused) == [("one", "reference_collection_required")]
    looks = {"list_rule": "@any(summary, title = @record.title)"}
    assert problems(root.put("collections/tickets/rules", looks)) == [("list_rule", "rule_invalid")]
    taken = root.post("collections", {"name": "Summary", "schema": [{"name": "a", "type": "text"}]})
    assert taken.status_code == 409
    webhook = {"collection": "summary", "url": "https://example.com", "events": ["create"]}
    assert problems(root.post("webhooks", webhook)) == [("collection", "is_view")]
    assert root.get("changes?collections=summary").json["error"] == "is_view"


def test_view_follows_what_it_reads(
    root: Caller, bob: Caller, tickets: list[dict[str, Any]]
) -> None:
    make_view(
        root,
        fields=["title", "customer.name"],
        where="customer.name != 'Ben'",
        list_rule="customer_name != 'x' && title != 'y'",
        list_fields=["title", "customer_name"],
    )
    ids = {name: root.get(f"collections/{name}").json["id"] for name in ("tickets", "customers")}
    for name, former, new in (("tickets", "title", "topic"), ("customers", "name", "label")):
        body = {"schema": [{"name": new, "rename_from": former}]}
        assert root.patch(f"collections/{ids[name]}", body).status_code == 200
    assert root.patch(f"collections/{ids['customers']}", {"name": "clients"}).status_code == 200
    made = root.get("collections/summary").json
    assert made["view"] == {
        "from": "tickets",
        "fields": ["topic", "customer.label"],
        "where": "customer.label != 'Ben'",
        "group_by": [],
        "aggregates": [],
    }
    rules = root.get("collections/summary/rules").json
    assert rules["list_rule"] == "customer_label != 'x' && topic != 'y'"
    assert rules["list_fields"] == ["topic", "customer_label"]
    found = [(one["topic"], one["customer_label"]) for one in rows(bob)]
    assert found == [("four", None), ("three", "Ann"), ("one", "Ann")]
    removal = {"remove_fields": ["label"]}
    refused = root.post(f"collections/{ids['customers']}/plan", removal)
    assert ("summary.fields", "unknown_field") in problems(refused)
    assert root.delete(f"collections/{ids['tickets']}").status_code == 409
    gone = root.delete(f"collections/{ids['tickets']}?with=summary").json
    assert [one["collection_name"] for one in gone["also_deleted"]] == ["summary"]
    assert bob.get("records/summary").status_code == 404


def test_view_is_changed_and_planned(
    root: Caller, bob: Caller, tickets: list[dict[str, Any]]
) -> None:
    id = make_view(root, fields=["title"])["id"]
    plan = root.post(f"collections/{id}/plan", {"fields": ["title", "amount"]}).json
    assert [(one["operation"], one["property"]) for one in plan["operations"]] == [
        ("change_view", "fields")
    ]
    changed = {"fields": ["title", "amount"], "plan_hash": plan["plan_hash"]}
    assert root.patch(f"collections/{id}", changed).status_code == 200
    assert root.patch(f"collections/{id}", changed).json["error"] == "plan_stale"
    assert rows(bob)[-1]["amount"] == 1
    renamed = root.patch(f"collections/{id}", {"name": "overview", "where": "amount > 1"})
    assert renamed.status_code == 200
    assert [one["title"] for one in rows(bob, "overview")] == ["three", "two"]
    assert problems(root.patch(f"collections/{id}", {"type": "base"})) == [
        ("type", "type_change_not_allowed")
    ]
    assert root.delete(f"collections/{id}").json["records_deleted"] == 0
    assert len(bob.get("records/tickets").json["items"]) == 4


def test_manifest_has_views(root: Caller, bob: Caller, tickets: list[dict[str, Any]]) -> None:
    view = {"name": "open_ones", "type": "view", "from": "tickets", "fields": ["title"]}
    view |= {"where": "status = 'open'", "rules": {"list_rule": "true"}}

    def applied(item: dict[str, Any]) -> list[Any]:
        manifest = {"version": 1, "collections": [item]}
        plan = root.post("manifest/plan", {"manifest": manifest, "strict": True}).json
        assert plan["problems"] == []
        body = {"manifest": manifest, "plan_hash": plan["plan_hash"]}
        assert root.post("manifest/apply", body).status_code == 200
        return [(one["action"], one["name"]) for one in plan["operations"]]

    assert applied(view) == [("create", "open_ones")]
    assert applied(view) == []
    assert [one["title"] for one in rows(bob, "open_ones")] == ["two", "one"]
    assert applied({**view, "fields": ["title", "amount"]}) == [("update", "open_ones")]
    exported = root.get("manifest/export").json["collections"]
    (own,) = [one for one in exported if one["name"] == "open_ones"]
    assert own["fields"] == ["title", "amount"]
    assert applied(own) == []
    assert applied({"name": "open_ones", "removed": True}) == [("remove", "open_ones")]
    copied = root.get("collections/export").json
    assert make_record(bob, "tickets", title="x")
    assert all(one["name"] != "open_ones" for one in copied["collections"])


def test_manifest_counts_access_to_views(
    root: Caller, bob: Caller, tickets: list[dict[str, Any]]
) -> None:
    make_view(root, fields=["title"])
    make_view(root, "groups", group_by=["status"], aggregates=["count()"])

    def counted(*items: dict[str, Any]) -> set[tuple[str, str, int, int]]:
        manifest = {"version": 1, "collections": [*items]}
        plan = root.post("manifest/plan", {"manifest": manifest}).json
        assert plan["problems"] == []
        return {
            (one["collection"], one["operation"], one["gained"], one["lost"])
            for one in plan["access"]
            if one["role"] == "viewer"
        }

    summary = {"name": "summary", "rules": {"list_rule": "title != 'one'"}}
    assert counted(summary) == {("summary", "list", 0, 1)}
    groups = {"name": "groups", "where": "status != null", "rules": {"view_rule": "count > 1"}}
    assert counted(groups) == {("groups", "list", 0, 1), ("groups", "view", 0, 2)}
    base = {"name": "tickets", "rules": {"list_rule": "status = 'open'"}}
    expected = {(name, op, 0, 2) for name in ("summary", "groups") for op in ("list", "view")}
    assert counted(base) == {("tickets", "list", 0, 2), *expected}


def test_fragments_of_a_condition_are_planned(root: Caller, tickets: list[dict[str, Any]]) -> None:
    assert root.put("rules/fragments", {"started": "status != null"}).status_code == 200
    make_view(root, fields=["title"], where="@rule(started)")
    plan = root.post("rules/fragments/plan", {"started": "status = 'open'"})
    assert plan.status_code == 200, plan.json
    found = {
        (one["collection"], one["operation"], role["role"], role["lost"])
        for one in plan.json["effect"]
        for role in one["roles"]
    }
    assert ("summary", "list", "viewer", 1) in found


@pytest.mark.parametrize(
    ("rules", "parts", "record", "allowed", "collection"),
    [
        ({}, {}, 0, True, "summary"),
        ({"list_rule": None}, {}, 0, False, "tickets"),
        ({"list_rule": "amount > 1"}, {}, 0, False, "tickets"),
        ({"list_rule": "amount > 1"}, {}, 1, True, "summary"),
        ({"list_rule": "amount > 1"}, {}, None, None, "tickets"),
        ({}, {"where": "status = 'done'"}, 0, False, "tickets"),
        ({}, {"view_rule": "customer_name = 'Ann'"}, 0, True, "summary"),
        ({}, {"view_rule": "customer.name = 'Ann'"}, 1, False, "summary"),
        ({}, {"view_rule": "@has_role(admin)"}, 0, False, "summary"),
    ],
)
def test_explanation_names_the_rule_that_decides(
    root: Caller,
    bob: Caller,
    tickets: list[dict[str, Any]],
    rules: dict[str, Any],
    parts: dict[str, Any],
    record: int | None,
    allowed: bool | None,
    collection: str,
) -> None:
    if rules:
        assert root.put("collections/tickets/rules", rules).status_code == 200
    make_view(root, fields=["title", "customer", "customer.name"], **parts)
    question = {"operation": "view", "user_id": bob.id}
    question |= {} if record is None else {"record_id": tickets[record]["id"]}
    found = root.post("collections/summary/rules/explain", question)
    assert found.status_code == 200, found.json
    assert (found.json["allowed"], found.json["collection"]) == (allowed, collection)
    made_up = {"id": bob.id, "email": bob.email, "role": "viewer", "account_id": bob.account_id}
    del question["user_id"]
    other = root.post("collections/summary/rules/explain", {**question, "auth": made_up}).json
    assert other == found.json
    writes = root.post("collections/summary/rules/explain", {**question, "operation": "delete"})
    assert (writes.status_code, writes.json["allowed"]) == (200, False)


def test_views_have_no_history(root: Caller, alice: Caller, tickets: list[dict[str, Any]]) -> None:
    make_view(root, fields=["title"])
    record = f"records/summary/{tickets[0]['id']}"
    for answer in (
        alice.get(f"{record}/history"),
        alice.get(f"{record}?as_of=2026-01-01T00:00:00Z"),
        alice.post(f"{record}/restore", {"audit_id": 1}),
        alice.post(f"{record}/erase"),
        root.get(f"{record}/history"),
    ):
        code = (answer.status_code, answer.json["error"])
        assert code in {(405, "view_read_only"), (400, "is_view")}, answer.json


@pytest.mark.parametrize("is_view_first", [False, True])
def test_manifest_makes_a_collection_and_its_view_at_once(
    root: Caller, bob: Caller, tickets: list[dict[str, Any]], is_view_first: bool
) -> None:
    make_view(root, fields=["title", "customer.name"], where="customer.name != 'Ben'")
    grouped = {"where": "status = 'open'", "group_by": ["owner.name"], "aggregates": ["count()"]}
    make_view(root, "grouped", **grouped)
    exported = root.get("manifest/export").json["collections"]
    ids = {one["name"]: one["id"] for one in root.get("collections").json["items"]}
    for name in ("summary", "grouped", "tickets", "customers"):
        assert root.delete(f"collections/{ids[name]}").status_code == 200
    manifest = {"version": 1, "collections": exported[:: -1 if is_view_first else 1]}
    plan = root.post("manifest/plan", {"manifest": manifest}).json
    assert plan["problems"] == []
    body = {"manifest": manifest, "plan_hash": plan["plan_hash"]}
    assert root.post("manifest/apply", body).status_code == 200
    assert root.get("manifest/export").json["collections"] == exported
    customer = make_record(bob, "customers", name="Ann")["id"]
    make_record(bob, "tickets", title="new", status="open", customer=customer)
    assert [one["title"] for one in rows(bob)] == ["new"]
    assert [one["count"] for one in rows(bob, "grouped")] == [1]


def test_plan_of_a_base_lists_the_views_that_follow(
    root: Caller, tickets: list[dict[str, Any]]
) -> None:
    id = make_view(root, fields=["title", "customer.name"], list_rule="title != 'x'")["id"]
    make_view(root, "apart", fields=["amount"])
    base = root.get("collections/tickets").json["id"]
    body = {"schema": [{"name": "topic", "type": "text", "rename_from": "title"}]}
    plan = root.post(f"collections/{base}/plan", body).json
    followed = [
        (one["field"], one["property"], one.get("after"))
        for one in plan["operations"]
        if one["operation"] == "change_view"
    ]
    assert followed == [
        ("summary", "fields", ["topic", "customer.name"]),
        ("summary", "list_rule", "topic != 'x'"),
    ]
    more = {"fields": ["title", "customer.name", "status"]}
    assert root.patch(f"collections/{id}", more).status_code == 200
    stale = root.patch(f"collections/{base}", {**body, "plan_hash": plan["plan_hash"]})
    assert (stale.status_code, stale.json["error"]) == (409, "plan_stale")
    customers = root.get("collections/customers").json["id"]
    assert root.patch(f"collections/{id}", {"list_rule": "true"}).status_code == 200
    shorter = {"schema": [{"name": "name", "type": "text", "options": {"max_length": 9}}]}
    operations = root.post(f"collections/{customers}/plan", shorter).json["operations"]
    assert operations[-1] == {"operation": "change_view", "field": "summary", "property": "schema"}


@pytest.mark.long
def test_plan_warns_of_slow_views(
    app: Flask, root: Caller, alice: Caller, tickets: list[dict[str, Any]]
) -> None:
    base = root.get("collections/tickets").json["id"]
    index = {"schema": [{"name": "title", "options": {"index": True}}]}
    assert root.patch(f"collections/{base}", index).status_code == 200
    id = make_view(root, fields=["title"])["id"]

    def warnings(**parts: Any) -> list[str]:
        body = {"fields": [], "where": None, "group_by": [], "aggregates": [], **parts}
        plan = root.post(f"collections/{id}/plan", body)
        assert plan.status_code == 200, plan.json
        found: list[str] = plan.json["warnings"]
        return found

    assert warnings(fields=["title", "amount"], where="amount > 1") == []  # there are few
    now = clock.now()
    same = {"account_id": alice.account_id, "created_at": now, "updated_at": now}
    with app.app_context(), db.transaction():
        table = definitions.get("tickets").table
        rows = [{**same, "id": new_id(), "amount": n} for n in range(9_996)]
        db.connection().execute(sa.insert(table), rows)
    number = "all 10,000 records of tickets"
    indexed = "customer, owner, title"
    assert warnings(fields=["title", "amount", "status"], where="amount > 1") == [
        f"`where` reads {number}, as many as an account has: compare {indexed} by =.",
        f"Lists that filter or sort by amount, status read {number}: index these fields there.",
    ]
    of_joined = (
        f"Lists that filter or sort by customer_name read {number}, as no index reaches behind"
        f" references: narrow `where` by {indexed} =, or have the value in a field of tickets, too."
    )
    assert warnings(fields=["title", "customer.name"]) == [of_joined]
    assert warnings(group_by=["status"], aggregates=["sum(amount)"]) == [
        f"summary groups {number}, as many as an account has: narrow `where` by {indexed} =."
    ]
    assert warnings(fields=["title", "customer.name"], where="title = 'one'") == []
    assert warnings(fields=["title"]) == []


def test_what_views_lack_is_said(root: Caller, bob: Caller, tickets: list[dict[str, Any]]) -> None:
    make_view(root, fields=["title"])
    for query, expected in (
        ("search=x", "This is a view: filter it, or search the collection that it reads."),
        ("trash=true", "This is a view: list the trash of the collection that it reads."),
    ):
        answer = bob.get(f"records/summary?{query}")
        assert (answer.status_code, answer.json["details"][0]["message"]) == (400, expected)
    looks = {"list_rule": "@any(summary, title = @record.title)"}
    refused = root.put("collections/tickets/rules", looks).json["details"][0]
    expected = "summary is a view: look at the collection that it reads."
    assert (refused["message"], refused["position"]) == (expected, 5)
    field = {"name": "one", "type": "reference", "collection": "summary"}
    refused = root.post("collections", {"name": "refs", "schema": [field]}).json["details"][0]
    assert refused["message"].endswith("of records, not of a view.")
