"""The page of an account's retention: it counts first, and deletes when it is saved."""

from __future__ import annotations

from flask import Flask

from tests.builders import Cast, make_collection, make_record
from tests.console.browser import Browser, beside
from tests.retention.test_retention import VISITS, age, apply, titles


def test_a_policy_is_previewed_and_saved(app: Flask, cast: Cast, admin: Browser) -> None:
    make_collection(cast.root, "visits", VISITS)
    age(app, make_record(cast.alice, "visits", title="old")["id"], 31)
    page = f"settings/{cast.alice.account_id}"
    assert f'href="/console/{page}/retention"' in admin.get(page).text
    path = f"{page}/retention"
    assert "Save and delete" not in admin.get(path).text
    form = {"records": "visits = 30 created_at", "deliveries_days": "7"}
    planned = admin.send(path, **form, plan="true").text
    assert "Records of visits" in planned
    assert "Save and delete" in planned
    assert titles(cast.alice) == ["old"]
    assert cast.alice.get("account/retention").json["records"] == []
    assert "Saved." in admin.done(path, **form)
    assert "visits = 30 created_at" in admin.get(path).text
    apply(app)
    assert titles(cast.alice) == []
    for wrong in ("visits", "visits = many", "visits = 0", "nowhere = 1", "visits = 99999"):
        refused = admin.send(path, records=wrong)
        assert (refused.status_code, bool(beside(refused, "records"))) == (400, True), wrong
    long = f"visits = {'3000':>9994}"
    assert len(long) > 10_000
    assert admin.send(path, records=long).status_code == 400, "cut off, it could be 300 days"
    refused = admin.send(path, deliveries_days="many")
    assert beside(refused, "deliveries_days") == "A whole number."
    assert Browser(app, cast.charlie).get(path).status_code == 404
    assert Browser(app, cast.bob).get(path).status_code == 403
