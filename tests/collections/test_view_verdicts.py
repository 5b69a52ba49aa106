"""Views under random rules and rights: as Python finds them, record by record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.accounts.models import ADMIN, VIEWER
from app.collections import trials
from app.rules import Subject
from tests.builders import Caller, Cast, make_collection, make_record

CUSTOMERS = [{"name": "name", "type": "text"}, {"name": "secret", "type": "text"}]
TICKETS = [
    {"name": "title", "type": "text"},
    {"name": "status", "type": "text"},
    {"name": "amount", "type": "number"},
    {"name": "customer", "type": "reference", "collection": "customers"},
    {"name": "owner", "type": "user"},
]
ADMINS = "@has_role(admin)"
OWN = "owner = @request.auth.id"
OPEN_TO = st.sampled_from((None, ADMINS))
FIELDS = ("title", "status", "amount", "customer", "owner")
PARTS: Mapping[str, tuple[str, ...]] = {
    "flat": ("title", "status", "amount", "owner", "customer.name"),
    "grouped": ("status", "customer.name"),
}


class Setting(NamedTuple):
    """Rules and rights of tickets and customers, and of the views that read them."""

    list_rule: str | None
    view_rule: str | None
    where: str | None
    of_flat: str | None
    of_grouped: str | None
    readable: dict[str, str | None]
    """The `readable_if` of fields of tickets, and of the customer's name."""
    listed: tuple[str, ...]
    pii: bool


settings_ = st.builds(
    Setting,
    st.sampled_from(
        (
            *("true", "", None, "status = 'open'", "amount > 1", OWN, ADMINS),
            *("customer.name = 'Ann'", "customer.secret = 'b' || amount < 3", "amount != 2"),
            "@any(customers, id = @record.customer && secret = 'a')",
        )
    ),
    st.sampled_from(("true", "", None, "name = 'Ann'", "secret != 'a'", ADMINS)),
    st.sampled_from((None, "amount > 1", f"status = 'open' || {OWN}", "customer.secret = 'a'")),
    st.sampled_from(("true", "", None, "customer_name = 'Ann'", "amount >= 2", OWN)),
    st.sampled_from(("true", None, "count > 1", "sum_amount > 2", "customer_name = null")),
    st.fixed_dictionaries(dict.fromkeys(("status", "amount", "customer", "name"), OPEN_TO)),
    st.sampled_from((FIELDS, FIELDS[1:], FIELDS[:3], (*FIELDS[:2], "customer"))),
    st.booleans(),
)


def holds(rule: str | None, record: Mapping[str, Any], caller: Subject) -> bool:
    if rule and "@any" in rule:  # what it says of the customer
        return bool(record["customer"]) and record["customer"]["secret"] == "a"
    return trials.evaluate(rule, record, caller)


class World:
    def __init__(self, cast: Cast) -> None:
        self.root, self.alice, self.bob = cast.root, cast.alice, cast.bob
        customers = {
            name: make_record(cast.alice, "customers", name=name, secret=secret)
            for name, secret in (("Ann", "a"), ("Ben", "b"), ("Cid", "a"))
        }
        owners = {"alice": cast.alice.id, "bob": cast.bob.id, None: None}
        made = [
            ("one", "open", 1, "Ann", "alice"),
            ("two", "open", 2, "Ben", "bob"),
            ("three", "done", 4.5, "Ann", "bob"),
            ("four", None, None, None, None),
            ("five", "open", 1, "Ann", None),
            ("six", "done", 3, "Cid", "alice"),
        ]
        self.rows, self.ids = [], list[str]()
        for title, status, amount, customer, owner in made:
            of = customers.get(str(customer))
            stored = {"title": title, "status": status, "amount": amount, "owner": owners[owner]}
            record = make_record(cast.alice, "tickets", **stored, customer=of and of["id"])
            self.ids.append(record["id"])
            self.rows.append(
                {**stored, "customer": of and {"name": of["name"], "secret": of["secret"]}}
            )

    def set(self, given: Setting) -> None:
        root, of_name = self.root, given.readable["name"]
        amount = {"name": "amount", "pii": given.pii, "mask_type": None}
        specs = [{**spec, "readable_if": given.readable.get(spec["name"])} for spec in TICKETS]
        specs = [spec | amount if spec["name"] == "amount" else spec for spec in specs]
        ids = {
            name: root.get(f"collections/{name}").json["id"] for name in ("tickets", "customers")
        }
        of_customers = {"schema": [{"name": "name", "readable_if": of_name}]}
        rules = {"list_rule": given.list_rule, "list_fields": list(given.listed)}
        bodies = [
            ("PATCH", f"collections/{ids['tickets']}", {"schema": specs, **rules}),
            ("PATCH", f"collections/{ids['customers']}", of_customers),
            ("PUT", "collections/customers/rules", {"view_rule": given.view_rule}),
        ]
        for name, rule in (("flat", given.of_flat), ("grouped", given.of_grouped)):
            id = root.get(f"collections/{name}").json["id"]
            bodies.append(("PATCH", f"collections/{id}", {"where": given.where, "list_rule": rule}))
        for method, path, body in bodies:
            answer = root(method, path, body)
            assert answer.status_code == 200, answer.json

    def expected(self, given: Setting, view: str, caller: Subject) -> Any:
        """The rows that a view shows a caller; None if it is closed."""
        own_rule = given.of_flat if view == "flat" else given.of_grouped
        if own_rule is None or given.list_rule is None:
            return None
        sees = {name: self._sees(given, name, caller) for name in (*FIELDS, "customer.name")}
        masked = given.pii and caller.role != ADMIN
        columns = {path.replace(".", "_"): sees[path] for path in PARTS[view]}
        if view == "grouped" and not all(columns.values()):
            return None
        found = list[dict[str, Any]]()
        for row in self.rows:
            if not holds(given.list_rule, row, caller):
                continue
            if given.where and not holds(given.where, row, caller):
                continue
            of = row["customer"]
            may_view = of is not None and holds(given.view_rule, of, caller)
            found.append({**row, "customer_name": of["name"] if may_view else None})
        if view == "grouped":
            found = self._grouped(found)
            columns |= {"count": True, "sum_amount": sees["amount"] and not masked}
        shown = [row for row in found if holds(own_rule, row, caller)]
        rows = [{name: row[name] for name, seen in columns.items() if seen} for row in shown]
        for row in rows if masked and view == "flat" else ():
            if row.get("amount") is not None:
                row["amount"] = "*" * 8
        return sorted(rows, key=repr)

    def explained(self, view: str, caller: Caller) -> set[str]:
        """The records, or groups that anybody sees, that the caller may list, as explained."""
        found = self.root.acting_in(caller.account_id).get(f"records/{view}?limit=100").json
        ids = self.ids if view == "flat" else [one["id"] for one in found["items"]]
        ids = [*ids, *(one["id"] for one in caller.get(f"records/{view}").json.get("items", ()))]
        opened = set()
        for id in ids:
            question = {"operation": "list", "user_id": caller.id, "record_id": id}
            answer = self.root.post(f"collections/{view}/rules/explain", question)
            if answer.status_code == 404:  # a group of others
                assert view == "grouped"
                continue
            assert answer.status_code == 200, answer.json
            assert answer.json["allowed"] in (True, False), answer.json
            opened |= {id} if answer.json["allowed"] else set()
        return opened

    def _sees(self, given: Setting, path: str, caller: Subject) -> bool:
        name, _, behind = path.partition(".")
        opened = given.readable.get(name) is None or caller.role == ADMIN
        if not behind:
            return name in given.listed and opened
        is_closed = given.view_rule is None or (given.view_rule == ADMINS and caller.role != ADMIN)
        of_name = given.readable["name"] is None or caller.role == ADMIN
        return self._sees(given, name, caller) and not is_closed and of_name

    def _grouped(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        groups = defaultdict[Any, list[Any]](list)
        for row in rows:
            groups[row["status"], row["customer_name"]].append(row["amount"])
        found = []
        for (status, name), amounts in groups.items():
            known = [one for one in amounts if one is not None]
            total = sum(known) if known else None
            found.append({"status": status, "customer_name": name, "count": len(amounts)})
            found[-1]["sum_amount"] = total
        return found


@pytest.fixture
def world(root: Caller, cast: Cast) -> World:
    make_collection(root, "customers", CUSTOMERS)
    make_collection(root, "tickets", TICKETS)
    common = {"type": "view", "from": "tickets", "list_rule": "true"}
    for name, body in (
        ("flat", {"fields": PARTS["flat"]}),
        ("grouped", {"group_by": PARTS["grouped"], "aggregates": ["count()", "sum(amount)"]}),
    ):
        answer = root.post("collections", {"name": name, **common, **body})
        assert answer.status_code == 201, answer.json
    return World(cast)


@pytest.mark.long
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(settings_)
def test_view_has_the_verdicts_of_what_it_reads(app: Flask, world: World, given: Setting) -> None:
    world.set(given)
    for caller, role in ((world.alice, ADMIN), (world.bob, VIEWER)):
        subject = Subject(caller.id, caller.email, role, caller.account_id)
        for view in ("flat", "grouped"):
            with app.app_context():
                expected = world.expected(given, view, subject)
            answer = caller.get(f"records/{view}", query_string={"limit": 100})
            assert (answer.status_code == 200) == (expected is not None), answer.json
            if expected is None:
                assert answer.status_code == 403
                assert world.explained(view, caller) == set()
                continue
            system = {"id", "account_id", "created_at", "updated_at", "created_by", "updated_by"}
            items = [
                {name: value for name, value in item.items() if name not in system}
                for item in answer.json["items"]
            ]
            assert sorted(items, key=repr) == expected
            assert answer.json["total"] == len(expected)
            counted = caller.get(f"records/{view}/aggregate", query_string={"functions": "count()"})
            assert counted.json["results"] == [{"count": len(expected)}]
            assert world.explained(view, caller) == {one["id"] for one in answer.json["items"]}


@pytest.mark.long
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(settings_, settings_)
def test_preview_counts_rows_that_open_and_close(
    app: Flask, world: World, given: Setting, other: Setting
) -> None:
    world.set(given)
    account = world.alice.account_id
    for view, rule in (("flat", other.of_flat), ("grouped", other.of_grouped)):

        def listed(view: str = view) -> dict[str, set[str] | None]:
            found: dict[str, set[str] | None] = {}
            for caller, role in ((world.alice, ADMIN), (world.bob, VIEWER)):
                answer = caller.get(f"records/{view}", query_string={"limit": 100})
                is_hidden = answer.status_code == 403 and answer.json["error"] == "field_denied"
                items = answer.json.get("items", ())
                found[role] = None if is_hidden else {one["id"] for one in items}
            return found

        before = listed()
        body = {"rules": {"list_rule": rule}, "account_id": account}
        compared = world.root.post(f"collections/{view}/rules/diff", body)
        assert compared.status_code == 200, compared.json
        rules = {"list_rule": rule}
        assert world.root.put(f"collections/{view}/rules", rules).status_code == 200
        after = listed()
        for one in compared.json["items"]:
            old, new = before.get(one["role"]), after.get(one["role"])
            if one["operation"] == "list" and old is not None and new is not None:
                assert set(one["gained"]["sample"]) == new - old, one
                assert set(one["lost"]["sample"]) == old - new, one
                assert one["gained"]["count"] == len(new - old)
                assert one["lost"]["count"] == len(old - new)
