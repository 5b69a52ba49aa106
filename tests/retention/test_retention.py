"""Retention: what a policy deletes, with whose rights, and what it leaves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, db
from app.collections import definitions
from app.context import tenancy
from app.portability.retention import service
from tests.builders import OPEN, Caller, Cast, make_collection, make_record, make_user
from tests.mailbox import run_jobs
from tests.security.reading import events
from tests.webhooks.delivering import deliveries, make_webhook

PATH = "account/retention"
VISITS = [
    {"name": "title", "type": "text"},
    {"name": "on", "type": "date"},
    {"name": "at", "type": "datetime"},
]


@pytest.fixture
def visits(cast: Cast) -> dict[str, Any]:
    """A collection with dates."""
    return make_collection(cast.root, "visits", VISITS)


def age(app: Flask, record_id: str, days: int, collection: str = "visits") -> None:
    """Let a record be as old as if it had been created so many days ago."""
    with app.app_context(), tenancy.across_accounts(), db.transaction() as session:
        table = definitions.get(collection).table
        when = clock.now() - timedelta(days=days)
        aged = sa.update(table).where(table.c.id == record_id)
        session.execute(aged.values(created_at=when, updated_at=when))


def save(by: Caller, *rules: dict[str, Any], **logs: int) -> None:
    answer = by.put(PATH, {"records": list(rules), **logs})
    assert answer.status_code == 200, answer.json


def rule(days: int, **more: Any) -> dict[str, Any]:
    return {"collection": "visits", "days": days, **more}


def apply(app: Flask) -> None:
    """Run the hourly job, and what it enqueues."""
    with app.app_context():
        service.apply_all({})
    run_jobs(app)


def titles(by: Caller, collection: str = "visits") -> list[str]:
    return sorted(one["title"] for one in by.get(f"records/{collection}").json["items"])


@pytest.mark.parametrize(
    ("field", "value", "goes"),
    [
        ("created_at", {}, True),
        ("updated_at", {}, True),
        ("on", {"on": "2020-01-01"}, True),
        ("at", {"at": "2020-01-01T00:00:00Z"}, True),
        ("on", {"on": "2199-01-01"}, False),
        ("on", {}, False),  # without the date it stays
    ],
)
def test_retention_deletes_records_by_age(
    app: Flask, cast: Cast, visits: dict[str, Any], field: str, value: dict[str, Any], goes: bool
) -> None:
    old = make_record(cast.alice, "visits", title="old", **value)["id"]
    make_record(cast.alice, "visits", title="new")
    theirs = make_record(cast.charlie, "visits", title="theirs", **value)["id"]
    for id in (old, theirs):
        age(app, id, 31)
    planned = cast.alice.post(f"{PATH}/plan", {"records": [rule(30, field=field)]}).json
    assert planned["records"] == [{"collection": "visits", "count": int(goes)}]
    save(cast.alice, rule(30, field=field))
    apply(app)
    assert titles(cast.alice) == (["new"] if goes else ["new", "old"])
    assert titles(cast.charlie) == ["theirs"]
    entries = cast.root.get(f"audit-logs?record_id={old}&operation=DELETE").json["items"]
    assert {one["user_id"] for one in entries} == ({"retention"} if goes else set())


def test_retention_keeps_restricted_records(app: Flask, cast: Cast, visits: Any) -> None:
    visit = {"name": "visit", "type": "reference", "collection": "visits", "on_delete": "restrict"}
    make_collection(cast.root, "notes", [{"name": "title", "type": "text"}, visit])
    ids = [make_record(cast.alice, "visits", title=f"v{n}")["id"] for n in range(3)]
    make_record(cast.alice, "notes", title="n", visit=ids[1])
    for id in ids:
        age(app, id, 31)
    save(cast.alice, rule(30))
    apply(app)
    assert titles(cast.alice) == ["v1"]


def test_retention_continues_past_restricted_records(
    app: Flask, cast: Cast, visits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit = {"name": "visit", "type": "reference", "collection": "visits", "on_delete": "restrict"}
    make_collection(cast.root, "notes", [{"name": "title", "type": "text"}, visit])
    ids = [make_record(cast.alice, "visits", title=f"v{n}")["id"] for n in range(4)]
    for n, id in enumerate(ids):
        age(app, id, 40 - n)
    for id in ids[:2]:
        make_record(cast.alice, "notes", title="n", visit=id)
    save(cast.alice, rule(30))
    monkeypatch.setattr(service, "PIECE", 1)
    monkeypatch.setattr(service, "MAX_IN_A_RUN", 1)
    apply(app)
    assert titles(cast.alice) == ["v0", "v1", "v3"]


def test_retention_uses_rights_of_admin_who_saved_policy(app: Flask, cast: Cast) -> None:
    rules = OPEN | {"delete_rule": "created_by = @request.auth.id"}
    make_collection(cast.root, "visits", VISITS, **rules)
    erin = make_user(app, cast.alice.account_id, "erin@acme.example", "admin")
    other = Caller(app, erin)
    mine = make_record(other, "visits", title="mine")["id"]
    alices = make_record(cast.alice, "visits", title="alice's")["id"]
    for id in (mine, alices):
        age(app, id, 31)
    planned = other.post(f"{PATH}/plan", {"records": [rule(30)]}).json
    assert planned["records"] == [{"collection": "visits", "count": 1}]
    save(other, rule(30))
    apply(app)
    assert titles(cast.alice) == ["alice's"]
    assert cast.alice.patch(f"account/users/{erin.id}", {"role": "viewer"}).status_code == 200
    another = make_record(other, "visits", title="later")["id"]
    age(app, another, 31)
    apply(app)
    assert titles(cast.alice) == ["alice's", "later"]
    assert cast.alice.get(PATH).json["is_paused"] is True


def test_retention_deletions_are_sent_to_webhooks(app: Flask, cast: Cast, visits: Any) -> None:
    old = make_record(cast.alice, "visits", title="old")["id"]
    age(app, old, 31)
    make_webhook(cast.alice, "http://127.0.0.1:9/", collection="visits", events=["delete"])
    save(cast.alice, rule(30))
    apply(app)
    assert [one.record_id for one in deliveries(app)] == [old]


def test_retention_deletes_deliveries_earlier_than_service_default(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    for owner in (cast.alice, cast.charlie):
        make_webhook(owner, "http://127.0.0.1:9/", events=["create"])
        make_record(owner, title="a")
    later = clock.now() + timedelta(days=8)
    with app.app_context(), db.transaction() as session:
        session.execute(sa.text("UPDATE webhook_deliveries SET due_at = NULL, status = 'failed'"))
    save(cast.alice, deliveries_days=7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now", lambda: later)
        apply(app)
    assert {one.account_id for one in deliveries(app)} == {cast.charlie.account_id}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"deliveries_days": 31}, "deliveries_days"),
    ({"instances_days": 31}, "instances_days"),
    ({"audit_days": 364}, "audit_days"),
    ({"security_days": 364}, "security_days"),
    ({"records": [{"collection": "nowhere", "days": 1}]}, "records[0].collection"),
    ({"records": [{"collection": "closed", "days": 1}]}, "records[0].collection"),
    ({"records": [{"collection": "signed", "days": 1}]}, "records[0].collection"),
    ({"records": [rule(1, field="title")]}, "records[0].field"),
    ({"records": [rule(1), rule(2)]}, "records[1].collection"),
]


@pytest.mark.parametrize(("body", "field"), WRONG)
def test_retention_policy_with_invalid_rule_is_400(
    cast: Cast, visits: Any, body: dict[str, Any], field: str
) -> None:
    make_collection(cast.root, "closed", **dict.fromkeys(OPEN))
    make_collection(cast.root, "signed", options={"require_signature": True})
    for method, path in (("put", PATH), ("post", f"{PATH}/plan")):
        answer = getattr(cast.alice, method)(path, body)
        assert (answer.status_code, answer.json["details"][0]["field"]) == (400, field)
    assert cast.alice.get(PATH).json["records"] == []


def test_retention_policy_by_hidden_date_is_400(app: Flask, cast: Cast) -> None:
    secret = {"name": "born", "type": "date", "pii": True}
    make_collection(cast.root, "visits", [*VISITS, secret])
    other = Caller(app, make_user(app, cast.alice.account_id, "erin@acme.example", "admin"))
    for field in ("on", "created_at"):
        assert other.post(f"{PATH}/plan", {"records": [rule(1, field=field)]}).json["records"]
    refused = other.post(f"{PATH}/plan", {"records": [rule(1, field="born")]})
    (detail,) = refused.json["details"]
    assert (refused.status_code, detail["field"]) == (400, "records[0].field")
    assert "born" not in detail["message"]


def test_retention_policy_requires_recent_sign_in_of_admin(
    app: Flask, cast: Cast, visits: Any
) -> None:
    key = cast.alice.post("api-keys", {"name": "k"}).json["key"]
    by_key = Caller(app, **{"X-API-Key": key})
    assert by_key.put(PATH, {"records": [rule(1)]}).status_code == 403
    assert cast.bob.put(PATH, {"records": [rule(1)]}).status_code == 403
    with pytest.MonkeyPatch.context() as patch:
        later = clock.now() + timedelta(minutes=16)
        patch.setattr(clock, "now", lambda: later)
        refused = cast.alice.put(PATH, {"records": [rule(1)]})
    assert refused.json["error"] == "recent_sign_in_required"


def test_retention_rule_follows_collection_rename_and_deletion(
    app: Flask, cast: Cast, visits: dict[str, Any]
) -> None:
    save(cast.alice, rule(30))
    assert cast.root.patch(f"collections/{visits['id']}", {"name": "calls"}).status_code == 200
    assert cast.alice.get(PATH).json["records"][0]["collection"] == "calls"
    assert cast.root.delete(f"collections/{visits['id']}").status_code == 200
    assert cast.alice.get(PATH).json["records"] == []
    apply(app)


def test_retention_cuts_audit_log_and_chain_verifies(app: Flask, cast: Cast, visits: Any) -> None:
    make_record(cast.alice, "visits", title="old")
    before = cast.root.get(f"audit-logs?account_id={cast.alice.account_id}").json["total"]
    save(cast.alice, audit_days=365)
    later = clock.now() + timedelta(days=366)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now", lambda: later)
        apply(app)
    after = cast.root.get(f"audit-logs?account_id={cast.alice.account_id}").json["total"]
    assert after < before
    verified = app.test_cli_runner().invoke(args=["audit", "verify"])
    assert verified.exit_code == 0, verified.output


def test_retention_cuts_security_log_and_chain_verifies(app: Flask, cast: Cast) -> None:
    cast.alice.post("groups", {"name": "old"})
    before = [one["number"] for one in events(cast.alice)]
    save(cast.alice, security_days=365)
    later = clock.now() + timedelta(days=366)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now", lambda: later)
        apply(app)
    assert not set(before) & {one["number"] for one in events(cast.alice)}
    assert cast.alice.get("account/security-log/verify").json["valid"]
