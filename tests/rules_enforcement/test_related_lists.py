"""Lists of people and references in `@any`, `@count`, `@old` and `@changed`."""

from __future__ import annotations

from typing import Any

import pytest
from werkzeug.test import TestResponse

from tests.builders import OPEN, Caller, Cast, make_collection, make_record

NAME = {"name": "name", "type": "text"}
MEMBERS = {"name": "members", "type": "user", "multiple": True}
OF_COMPANY = "@any(companies, id = @record.company && {})"
SEEN_BY = {
    OF_COMPANY.format("@contains(members, @request.auth.id)"): ["both", "own"],
    OF_COMPANY.format("members = @request.auth.id"): ["both", "own"],
    OF_COMPANY.format("members.email = @request.auth.email"): ["both", "own"],
    OF_COMPANY.format("members != @request.auth.id"): ["both", "other"],
    OF_COMPANY.format("!(members = @request.auth.id)"): ["other"],
    OF_COMPANY.format("members.name != @record.name && cities.name = 'Bonn'"): ["both", "other"],
    OF_COMPANY.format("cities.name = @record.name"): [],
    "@count(companies, members = @request.auth.id) = 2 && watchers = @request.auth.id": [
        "other",
        "own",
    ],
    "@any(companies, members = @request.auth.id) && watchers.role = 'viewer'": ["other", "own"],
    "@any(companies, members = @request.auth.id && @contains(@record.watchers, name))": [],
    "@any(cities, @any(companies, cities = @outer.id && id = @record.company && name = 'B'))": [
        "both"
    ],
    "@any(companies, id = @record.company && @any(cities, @outer.cities.name = name))": [
        *("both", "other")
    ],
    "@count(companies, cities.name = 'Bonn' || members = null) = 3": ["both", "other", "own"],
    "@count(companies, members = null) = 1 && company != null": ["both", "other", "own"],
}

HIDDEN_FROM_VIEWERS = ("members.email", "watchers.role")


def make_companies(cast: Cast, rule: str | None = None) -> dict[str, str]:
    cities = {"name": "cities", "type": "reference", "collection": "cities", "multiple": True}
    company = {"name": "company", "type": "reference", "collection": "companies"}
    make_collection(cast.root, "cities", [NAME])
    make_collection(cast.root, "companies", [NAME, MEMBERS, cities])
    rules = dict.fromkeys(OPEN, rule) if rule else {}
    make_collection(
        cast.root, "tasks", [NAME, company, {**MEMBERS, "name": "watchers"}, MEMBERS], **rules
    )
    owner = cast.root.acting_in("acme")
    bonn = make_record(owner, "cities", name="Bonn")["id"]
    alice, bob = cast.alice.id, cast.bob.id
    companies = {
        name: make_record(owner, "companies", name=name, members=members, cities=some)["id"]
        for name, members, some in (
            ("A", [bob], []),
            ("B", [alice, bob], [bonn]),
            ("C", [alice], [bonn]),
            ("D", None, None),
        )
    }
    return {"own": companies["A"], "both": companies["B"], "other": companies["C"]}


def change_rule(cast: Cast, rule: str, name: str = "update_rule") -> TestResponse:
    id = cast.root.get("collections/tasks").json["id"]
    return cast.root.patch(f"collections/{id}", {name: rule})


def names(caller: Caller, **query: Any) -> list[str]:
    answer = caller.get("records/tasks", query_string={"sort": "name", **query})
    assert answer.status_code == 200, answer.json
    return [item["name"] for item in answer.json["items"]]


@pytest.mark.parametrize("rule", SEEN_BY)
def test_lists_within_any_have_one_verdict_when_listed_viewed_and_created(
    cast: Cast, rule: str
) -> None:
    companies = make_companies(cast, rule)
    owner, ids = cast.root.acting_in("acme"), {}
    for name, company in companies.items():
        watchers = [cast.bob.id] if name != "both" else []
        body = {"name": name, "company": company, "watchers": watchers}
        ids[name] = make_record(owner, "tasks", **body)["id"]
        created = cast.bob.post("records/tasks", body)
        assert created.status_code == (201 if name in SEEN_BY[rule] else 403), created.json
        if created.status_code == 201:
            assert owner.delete(f"records/tasks/{created.json['id']}").status_code == 204
    assert names(cast.bob) == SEEN_BY[rule]
    viewed = [n for n in sorted(ids) if cast.bob.get(f"records/tasks/{ids[n]}").status_code == 200]
    assert viewed == SEEN_BY[rule]
    assert change_rule(cast, OPEN["list_rule"], "list_rule").status_code == 200
    if not any(name in rule for name in HIDDEN_FROM_VIEWERS):
        assert names(cast.bob, filter=rule) == SEEN_BY[rule]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            "@any(companies, name = @record.members.name)",
            "Within @any and @count, a name of @record goes through no list.",
        ),
        ("@any(companies, id = @record.members)", "A multi_select can only be compared with null."),
        ("@old.members.name = 'x'", "@old follows no references."),
        (
            "@count(companies, coalesce(members.is_active, false)) > 1",
            "A name that goes through a list stands in conditions.",
        ),
    ],
)
def test_lists_of_the_judged_record_and_of_old_are_refused_where_they_have_no_entries(
    cast: Cast, rule: str, message: str
) -> None:
    make_companies(cast)
    answer = change_rule(cast, rule)
    assert answer.status_code == 400, answer.json
    assert message in answer.get_data(as_text=True)


def test_old_reference_is_followed_by_any(cast: Cast) -> None:
    companies = make_companies(cast)
    rule = '@any(companies, id = @old.company && name = "A")'
    assert change_rule(cast, rule).status_code == 200
    for name, code in (("own", 200), ("other", 403)):
        task = make_record(cast.alice, "tasks", name=name, company=companies[name])["id"]
        changed = {"company": companies["both"]}
        assert cast.alice.patch(f"records/tasks/{task}", changed).status_code == code


def test_lists_before_a_change_guard_those_that_are_written(cast: Cast) -> None:
    make_companies(cast)
    rule = "@contains(members, @request.auth.id) && !@changed(company)"
    refused = change_rule(cast, rule)
    assert refused.status_code == 400
    rule += " && @contains(@old.members, @request.auth.id)"
    assert change_rule(cast, rule).status_code == 200
    task = make_record(cast.alice, "tasks", name="one", members=[cast.alice.id])["id"]
    url = f"records/tasks/{task}"
    assert cast.bob.patch(url, {"members": [cast.bob.id]}).status_code == 403
    assert cast.alice.patch(url, {"members": [cast.bob.id]}).status_code == 403
    both = cast.alice.patch(url, {"members": [cast.alice.id, cast.bob.id]})
    assert both.status_code == 200, both.json
    assert cast.bob.patch(url, {"members": [cast.bob.id]}).status_code == 200
