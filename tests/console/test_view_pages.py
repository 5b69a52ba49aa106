"""Pages of views: the form, the list and a record, which nobody changes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from flask import Flask

from app.collections import view_service
from tests.builders import Caller, Cast, make_collection, make_record
from tests.console.browser import Browser
from tests.console.test_schemas import inputs

SCHEMA = [
    {"name": "title", "type": "text"},
    {"name": "status", "type": "select", "options": {"choices": ["open", "done"]}},
    {"name": "amount", "type": "number"},
]
FORM = {
    "name": "by_status",
    "from": "tickets",
    "fields": "",
    "where": "amount > 1",
    "group_by": "status",
    "aggregates": "count(), sum(amount)",
}


def view_of(root: Caller, name: str) -> Any:
    return root.get(f"collections/{name}").json


def test_view_is_made_and_changed_by_its_form(app: Flask, cast: Cast, superadmin: Browser) -> None:
    make_collection(cast.root, "tickets", SCHEMA)
    assert "New view" in superadmin.get("collections").text
    answer = superadmin.send("collections/new-view", **FORM)
    made = view_of(cast.root, "by_status")
    assert answer.status_code == 303
    assert answer.headers["Location"].endswith(f"/console/collections/{made['id']}")
    assert made["view"] == {
        "from": "tickets",
        "fields": [],
        "where": "amount > 1",
        "group_by": ["status"],
        "aggregates": ["count()", "sum(amount)"],
    }
    page = superadmin.get(f"collections/{made['id']}").text
    assert "view of tickets" in page
    assert "sum(amount)" in page
    assert "Edit fields" not in page
    form = superadmin.get(f"collections/{made['id']}/view").text
    assert "count()\nsum(amount)" in form
    wrong = superadmin.send(f"collections/{made['id']}/view", **{**FORM, "group_by": "nothing"})
    assert wrong.status_code == 400
    assert "There is no field nothing." in wrong.text
    changed = {**FORM, "name": "open_ones", "where": ""}
    assert superadmin.send(f"collections/{made['id']}/view", **changed).status_code == 303
    assert view_of(cast.root, "open_ones")["view"]["where"] is None
    for caller in (cast.alice, cast.bob):
        browser = Browser(app, caller)
        for path in ("collections/new-view", f"collections/{made['id']}/view"):
            assert browser.get(path).status_code == 403
            assert browser.send(path, **FORM).status_code == 403


def test_view_is_listed_without_what_changes_it(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, "tickets", SCHEMA)
    record = make_record(cast.alice, "tickets", title="Leak", status="open", amount=3)
    read = {"type": "view", "from": "tickets", "list_rule": "true", "view_rule": "true"}
    for name, parts in (
        ("flat", {"fields": ["title", "amount"]}),
        ("grouped", {"group_by": ["status"], "aggregates": ["sum(amount)"]}),
    ):
        made = cast.root.post("collections", {"name": name, **read, **parts})
        assert made.status_code == 201, made.json
    browser = Browser(app, cast.alice)
    records = f"records/{cast.alice.account_id}"
    assert "flat" in browser.get(records).text
    (group,) = cast.alice.get("records/grouped").json["items"]
    for name, id, shown in (("flat", record["id"], "Leak"), ("grouped", group["id"], "open")):
        page = browser.get(f"{records}/{name}")
        assert page.status_code == 200
        assert shown in page.text
        assert "New record" not in page.text
        assert "/import" not in page.text
        one = browser.get(f"{records}/{name}/{id}")
        assert one.status_code == 200
        assert "The records of a view are only read." in one.text
        assert 'value="save"' not in one.text
        assert "Delete" not in one.text
        assert browser.get(f"{records}/{name}/export/csv").status_code == 200


def test_page_of_a_view_says_how_it_is_slow(
    app: Flask, cast: Cast, superadmin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_service, "MANY", 1)
    make_collection(cast.root, "tickets", SCHEMA)
    make_record(cast.alice, "tickets", title="Leak")
    view = {"name": "flat", "type": "view", "from": "tickets", "fields": ["title"]}
    made = cast.root.post("collections", view).json
    page = superadmin.get(f"collections/{made['id']}").text
    assert "Lists that filter or sort by title read all 1 records of tickets" in page
    german = {"Accept-Language": "de"}
    page = superadmin.client.get(f"/console/collections/{made['id']}", headers=german).text
    assert "Listen, die nach title filtern oder sortieren, lesen alle 1 Datensätze" in page
    path = f"collections/{view_of(cast.root, 'tickets')['id']}/schema"
    sent = inputs(superadmin.get(path).text) | {"rename_0": "topic"}
    plan = superadmin.send(path, **sent, do="plan").text
    assert re.search(r">flat<.*Fields.*title.*topic", plan, re.DOTALL)


def test_list_of_a_grouped_view_has_bars(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, "teams", [{"name": "name", "type": "text"}])
    price = {"name": "price", "type": "decimal", "options": {"precision": 9, "scale": 2}}
    team = {"name": "team", "type": "reference", "collection": "teams"}
    make_collection(cast.root, "tickets", [*SCHEMA, price, team])
    red = make_record(cast.alice, "teams", name="Red <team>")["id"]
    for amount, value, of in ((3, "7.50", red), (1, "-2.50", None), (2, None, None)):
        make_record(cast.alice, "tickets", amount=amount, price=value, team=of)
    parts = {"group_by": ["team"], "aggregates": ["count()", "sum(price)", "max(title)"]}
    read = {"type": "view", "from": "tickets", "list_rule": "true", "view_rule": "true"}
    made = cast.root.post("collections", {"name": "by_team", **read, **parts})
    assert made.status_code == 201, made.json
    browser = Browser(app, cast.alice)
    page = browser.get(f"records/{cast.alice.account_id}/by_team?sort=count").text
    charts = re.findall(r'<figure class="chart groups">.*?</figure>', page, re.DOTALL)
    assert [re.findall("<strong>(.*?)<", one) for one in charts] == [
        ["count by team"],
        ["sum_price by team"],
    ]
    bar = r'"row">(.*?)<.*?<rect(.*?) x="(.*?)".*?width="(.*?)".*?text-end">(.*?)<'
    assert re.findall(bar, charts[0], re.DOTALL) == [
        ("Red &lt;team&gt;", "", "0.0", "50.0", "1"),
        ("none", "", "0.0", "100.0", "2"),
    ]
    assert re.findall(bar, charts[1], re.DOTALL) == [
        ("Red &lt;team&gt;", "", "25.0", "75.0", "7.50"),
        ("none", ' class="failed"', "0.0", "25.0", "-2.50"),
    ]
    assert "chart groups" not in browser.get(f"records/{cast.alice.account_id}/tickets").text
    few = browser.get(f"records/{cast.alice.account_id}/by_team?column=count").text
    assert "count by team" in few
    assert "sum_price by team" not in few
