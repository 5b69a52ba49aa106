"""The page of an account's retention: it counts first, and deletes when it is saved."""

from __future__ import annotations

from flask import Flask

from tests.builders import Cast, make_collection, make_record
from tests.console.browser import Browser, beside
from tests.retention.test_retention import VISITS, age, apply, titles

WRONG = [
    ("visits/created_at", "", "days"),
    ("visits/created_at", "many", "days"),
    ("visits/created_at", "0", "days"),
    ("visits/created_at", "99999", "days"),
    ("visits/created_at", "30" * 200, "days"),
    ("visits/title", "1", "rule"),
    ("nowhere/created_at", "1", "rule"),
    ("", "1", "rule"),
]


def test_console_retention_policy_preview_and_save(app: Flask, cast: Cast, admin: Browser) -> None:
    make_collection(cast.root, "visits", VISITS)
    age(app, make_record(cast.alice, "visits", title="old")["id"], 31)
    page = f"settings/{cast.alice.account_id}"
    assert f'href="/console/{page}/retention"' in admin.get(page).text
    path = f"{page}/retention"
    assert "Save and delete" not in admin.get(path).text
    shown = admin.get(path).text
    assert '<option value="visits/created_at">' in shown
    rule = {"rows": "2", "rule_0": "visits/created_at", "days_0": "30"}
    form = {**rule, "deliveries_days": "7"}
    planned = admin.send(path, **form, plan="true").text
    assert "Records of visits" in planned
    assert "Save and delete" in planned
    assert titles(cast.alice) == ["old"]
    assert cast.alice.get("account/retention").json["records"] == []
    assert "Saved." in admin.done(path, **form)
    saved = admin.get(path).text
    assert '<option value="visits/created_at" selected>' in saved
    assert 'name="days_0" value="30"' in saved
    assert 'name="days_1" value=""' in saved  # for a further rule
    apply(app)
    assert titles(cast.alice) == []
    for rule, days, field in WRONG:
        refused = admin.send(path, rows="2", rule_1=rule, days_1=days)
        assert (refused.status_code, bool(beside(refused, f"{field}_1"))) == (400, True), (
            rule,
            days,
        )
    assert cast.alice.get("account/retention").json["records"][0]["days"] == 30
    refused = admin.send(path, deliveries_days="many")
    assert beside(refused, "deliveries_days") == "A whole number."
    assert Browser(app, cast.charlie).get(path).status_code == 404
    assert Browser(app, cast.bob).get(path).status_code == 403


def test_console_retention_rules_are_added_and_removed(cast: Cast, admin: Browser) -> None:
    for name in ("visits", "calls"):
        make_collection(cast.root, name, VISITS)
    path = f"settings/{cast.alice.account_id}/retention"
    first = {"rule_0": "visits/created_at", "days_0": "30"}
    more = admin.send(path, rows="1", **first, more="true")
    assert (more.status_code, more.text.count('name="rule_')) == (200, 2)
    assert cast.alice.get("account/retention").json["records"] == []
    admin.done(path, rows="3", **first, rule_2="calls/updated_at", days_2="7")
    kept = cast.alice.get("account/retention").json["records"]
    assert [(one["collection"], one["field"], one["days"]) for one in kept] == [
        ("visits", "created_at", 30),
        ("calls", "updated_at", 7),
    ]
    admin.done(path, rows="3", rule_1="calls/updated_at", days_1="7")
    (left,) = cast.alice.get("account/retention").json["records"]
    assert left["collection"] == "calls"
    for odd in ("", "x", "-1", "9" * 400):
        assert admin.send(path, rows=odd, more="true").status_code == 200
