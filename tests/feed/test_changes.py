"""`GET /changes`: what changed, in order, as the caller may view it now."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, db
from app.audit import sealing
from app.ids import new_id
from app.realtime.feed import changes
from app.records import purge as accounts_purge
from tests.builders import Caller, Cast, make_collection, make_record
from tests.sql import statements

SCHEMA: list[dict[str, Any]] = [
    {"name": "title", "type": "text"},
    {"name": "views", "type": "number"},
    {"name": "done", "type": "boolean"},
    {"name": "day", "type": "date"},
    {"name": "tags", "type": "json"},
    {"name": "loud", "type": "computed", "expression": "upper(title)", "return_type": "text"},
]


@pytest.fixture(params=[True, False], ids=["audited", "unaudited"])
def audited(app: Flask, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Whether auditing is on, which the feed does not depend on."""
    audit(app, monkeypatch, request.param)


def audit(app: Flask, monkeypatch: pytest.MonkeyPatch, enabled: bool) -> None:
    """Switch auditing on or off."""
    settings = replace(app.extensions["atrium.config"], audit_logging_enabled=enabled)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)


def feed(caller: Caller, **query: Any) -> dict[str, Any]:
    """A page of the feed."""
    answer = caller.get("changes", query_string=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json
    return found


def changed(caller: Caller, **query: Any) -> list[dict[str, Any]]:
    """The changes of records of a page."""
    return [one for one in feed(caller, **query)["items"] if one["event"] != "records.reset"]


def reported(caller: Caller, **query: Any) -> list[tuple[str, str]]:
    """The events and records of a page."""
    return [(one["event"], one["record_id"]) for one in changed(caller, **query)]


def now(caller: Caller) -> int:
    """The newest change."""
    newest: int = feed(caller, limit=1000)["next"]
    return newest


@pytest.mark.usefixtures("audited")
def test_change_feed_items_have_record_before_and_after(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA)
    first = {"title": "one", "views": 3, "done": False, "day": "2026-01-31", "tags": {"a": [1]}}
    made = make_record(cast.alice, **first)
    path = f"records/posts/{made['id']}"
    changed = cast.bob.patch(path, {"title": "two", "views": None}).json
    again = cast.alice.patch(path, {"tags": None}).json
    assert cast.bob.delete(path).status_code == 204
    restored = cast.bob.post(f"{path}/undelete")
    page = feed(cast.alice)
    items = page["items"]
    shown = [(one["event"], one["record"], one.get("previous")) for one in items[:4]]
    assert shown == [
        ("records.create", made, None),
        ("records.update", changed, made),
        ("records.update", again, changed),
        ("records.delete", None, again),
    ]
    if restored.status_code == 200:  # from the audit log
        assert (items[4]["event"], items[4]["record"]) == ("records.create", restored.json)
    assert [one["user_id"] for one in items[:3]] == [cast.alice.id, cast.bob.id, cast.alice.id]
    assert {(one["collection"], one["record_id"]) for one in items} == {("posts", made["id"])}
    numbers = [one["change"] for one in items]
    assert numbers == sorted(set(numbers))
    assert (page["next"], page["has_more"]) == (numbers[-1], False)
    assert items[0]["occurred_at"] == made["created_at"]


@pytest.mark.usefixtures("audited")
def test_change_feed_pages_have_no_gap(cast: Cast) -> None:
    make_collection(cast.root)
    make_collection(cast.root, "notes")
    made = [make_record(cast.alice, ("posts", "notes")[n % 2], title=str(n)) for n in range(7)]
    since, seen = 0, list[str]()
    while True:
        page = feed(cast.alice, since=since, limit=2)
        seen += [one["record_id"] for one in page["items"]]
        since = page["next"]
        if not page["has_more"]:
            break
    assert seen == [one["id"] for one in made]
    assert feed(cast.alice, since=since)["items"] == []
    assert feed(cast.alice, since=since)["next"] == since
    notes = reported(cast.alice, collections="notes")
    assert [id for _, id in notes] == [one["id"] for one in made[1::2]]


def test_change_feed_reports_batch_record_by_record(cast: Cast) -> None:
    make_collection(cast.root)
    bodies = [{"title": str(n)} for n in range(30)]
    made = cast.alice.post("records/posts/batch", {"records": bodies})
    assert made.status_code == 201, made.text
    assert [one["record"]["title"] for one in feed(cast.alice)["items"]] == [
        body["title"] for body in bodies
    ]


def test_change_feed_excludes_other_accounts(cast: Cast) -> None:
    make_collection(cast.root)
    make_record(cast.charlie, title="theirs")
    mine = make_record(cast.alice, title="mine")
    assert reported(cast.alice) == [("records.create", mine["id"])]
    assert reported(cast.root.acting_in("acme")) == [("records.create", mine["id"])]
    assert cast.root.acting_in("*").get("changes").status_code == 400


def test_change_feed_reports_entry_into_view_as_create_and_exit_as_hidden(cast: Cast) -> None:
    make_collection(cast.root, view_rule='title = "open" || created_by = @request.auth.id')
    made = make_record(cast.alice, title="closed")
    path = f"records/posts/{made['id']}"
    since = now(cast.bob)
    assert reported(cast.bob) == []
    opened = cast.alice.patch(path, {"title": "open"}).json
    cast.alice.patch(path, {"title": "closed again"})
    cast.alice.delete(path)
    items = feed(cast.bob, since=since)["items"]
    assert [(one["event"], one["record"]) for one in items] == [
        ("records.create", opened),
        ("records.delete", None),
    ]
    assert [one.get("hidden") for one in items] == [None, True]
    assert not any("previous" in one for one in items)
    assert [event for event, _ in reported(cast.alice)] == [
        "records.create",
        "records.update",
        "records.update",
        "records.delete",
    ]


def test_change_feed_judges_rules_with_references_in_few_statements(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, "teams", schema=[{"name": "name", "type": "text"}])
    schema: list[dict[str, Any]] = [
        {"name": "title", "type": "text"},
        {"name": "team", "type": "reference", "collection": "teams", "on_delete": "set_null"},
    ]
    make_collection(cast.root, schema=schema, view_rule='team.name = "red"')
    red, blue = (make_record(cast.alice, "teams", name=name)["id"] for name in ("red", "blue"))
    mine = [make_record(cast.root.acting_in("acme"), title=str(n), team=red) for n in range(20)]
    make_record(cast.root.acting_in("acme"), title="other", team=blue)
    feed(cast.bob, collections="posts")
    with statements(app) as sent:
        page = feed(cast.bob, collections="posts")
    assert [one["record_id"] for one in page["items"]] == [one["id"] for one in mine]
    assert len(sent) <= 6, sent


def test_change_feed_applies_current_field_lists_and_masks(cast: Cast) -> None:
    schema: list[dict[str, Any]] = [
        {"name": "title", "type": "text"},
        {"name": "mail", "type": "email", "pii": True, "mask_type": "email"},
    ]
    made = make_collection(cast.root, schema=schema)
    record = make_record(cast.alice, title="one", mail="ada@acme.example")
    cast.alice.patch(f"records/posts/{record['id']}", {"mail": "eve@acme.example"})
    for one in feed(cast.bob)["items"]:
        seen = [one["record"], *([one["previous"]] if "previous" in one else [])]
        assert all("@acme.example" not in str(values["mail"][:3]) for values in seen)
        assert "ada@" not in str(one)
        assert "eve@" not in str(one)
    narrowed = cast.root.patch(f"collections/{made['id']}", {"view_fields": ["title"]})
    assert narrowed.status_code == 200, narrowed.text
    assert all("mail" not in one["record"] for one in changed(cast.bob))


@pytest.mark.usefixtures("audited")
def test_change_feed_long_values_are_those_of_the_moment(cast: Cast) -> None:
    schema = [{"name": "title", "type": "text"}, {"name": "body", "type": "text"}]
    make_collection(cast.root, schema=schema)
    long, other = "x" * 20_000, "y" * 20_000
    made = make_record(cast.alice, title="one", body=long)
    path = f"records/posts/{made['id']}"
    for body in ({"title": "two"}, {"body": other}, {"title": "three"}):
        assert cast.alice.patch(path, body).status_code == 200
    items = feed(cast.alice)["items"]
    assert [one["record"]["body"] for one in items] == [long, long, other, other]
    assert [one["previous"]["body"] for one in items[1:]] == [long, long, other]
    cast.alice.delete(path)
    assert [one["record"] and one["record"]["body"] for one in feed(cast.alice)["items"]] == [
        *(long, long, other, other),
        None,
    ]


@pytest.mark.usefixtures("audited")
def test_change_feed_long_values_are_not_those_of_a_change_meanwhile(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = [{"name": "title", "type": "text"}, {"name": "body", "type": "text"}]
    make_collection(cast.root, schema=schema)
    long, scan = "x" * 20_000, changes.scan
    path = f"records/posts/{make_record(cast.alice, title='one', body=long)['id']}"
    assert cast.alice.patch(path, {"title": "two"}).status_code == 200

    def scan_before_write(*about: Any) -> Any:
        monkeypatch.undo()
        found = scan(*about)
        assert cast.bob.patch(path, {"body": "y"}).status_code == 200
        return found

    monkeypatch.setattr(changes, "scan", scan_before_write)
    assert [one["record"]["body"] for one in feed(cast.alice)["items"]] == [long, long]


@pytest.mark.usefixtures("audited")
def test_change_feed_reports_erased_record_only_as_deleted(cast: Cast) -> None:
    make_collection(cast.root)
    made = make_record(cast.alice, title="Ada Lovelace")
    cast.alice.patch(f"records/posts/{made['id']}", {"title": "Ada L."})
    assert cast.alice.post(f"records/posts/{made['id']}/erase").status_code == 200
    page = cast.alice.get("changes")
    assert "Ada" not in page.text
    assert [(one["event"], one.get("hidden")) for one in page.json["items"]] == [
        ("records.delete", True)
    ]


def test_change_feed_hides_erased_record_from_callers_without_view_right(cast: Cast) -> None:
    make_collection(cast.root, view_rule="created_by = @request.auth.id")
    made = make_record(cast.alice, title="Ada Lovelace")
    assert cast.alice.post(f"records/posts/{made['id']}/erase").status_code == 200
    assert reported(cast.bob) == []


def test_change_feed_ignores_default_backfill(cast: Cast) -> None:
    made = make_collection(cast.root)
    mine = make_record(cast.alice, title="one")
    kind = {"name": "kind", "type": "text", "default": "x"}
    changed = cast.root.patch(
        f"collections/{made['id']}", {"schema": [{"name": "title", "type": "text"}, kind]}
    )
    assert changed.status_code == 200, changed.text
    assert reported(cast.alice) == [("records.create", mine["id"])]


def test_change_feed_excludes_former_collection_with_same_name(cast: Cast) -> None:
    made = make_collection(cast.root)
    make_record(cast.alice, title="former")
    since = now(cast.alice)
    assert cast.root.delete(f"collections/{made['id']}").status_code in (200, 204)
    make_collection(cast.root)
    mine = make_record(cast.alice, title="new")
    assert (
        reported(cast.alice)
        == reported(cast.alice, since=since)
        == [("records.create", mine["id"])]
    )


def test_change_feed_without_auditing_keeps_changes_for_set_days(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root)
    audit(app, monkeypatch, False)
    make_record(cast.alice, title="old")
    between = now(cast.alice)
    make_record(cast.alice, title="old, too")
    oldest = now(cast.alice)
    with app.app_context():
        expired = sa.update(changes.FEED).values(occurred_at=clock.now() - timedelta(days=31))
        with db.transaction() as session:
            session.execute(expired)
        changes.purge({})
    fresh = make_record(cast.alice, title="fresh")
    assert reported(cast.alice) == [("records.create", fresh["id"])]
    assert reported(cast.alice, since=oldest) == [("records.create", fresh["id"])]
    refused = cast.alice.get("changes", query_string={"since": between})
    assert (refused.status_code, refused.json["error"]) == (410, "feed_expired")
    assert refused.json["oldest"] == now(cast.alice) > oldest
    audit(app, monkeypatch, True)
    audited = make_record(cast.alice, title="audited")
    assert [id for _, id in reported(cast.alice)] == [fresh["id"], audited["id"]]


@pytest.mark.parametrize(
    ("query", "status", "error"),
    [
        ({"since": -1}, 422, "validation_error"),
        ({"since": "x"}, 422, "validation_error"),
        ({"since": 2**62}, 400, "validation_error"),
        ({"since": 2**63}, 422, "validation_error"),
        ({"limit": 0}, 422, "validation_error"),
        ({"limit": 1001}, 422, "validation_error"),
        ({"collections": "posts,nothing"}, 400, "validation_error"),
        ({"collections": ""}, 400, "validation_error"),
        ({"collections": "closed"}, 403, "rule_denied"),
        ({"unknown": "1"}, 422, "validation_error"),
    ],
)
def test_change_feed_with_invalid_query_is_refused(
    cast: Cast, query: dict[str, Any], status: int, error: str
) -> None:
    make_collection(cast.root)
    make_collection(cast.root, "closed", view_rule=None)
    answer = cast.bob.get("changes", query_string=query)
    assert (answer.status_code, answer.json["error"]) == (status, error), answer.text


def test_change_feed_without_credential_is_401(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, view_rule="", list_rule="")
    assert Caller(app).get("changes").status_code == 401
    assert Caller(app, **{"X-Account-ID": "acme"}).get("changes").status_code == 401


def test_change_feed_with_api_key_follows_its_scopes(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    make_collection(cast.root, "notes")
    scopes = {"collections": ["posts"], "operations": ["view", "create"]}
    made = cast.alice.post("api-keys", {"name": "reader", "scopes": scopes})
    assert made.status_code == 201, made.text
    key = Caller(app, **{"X-API-Key": made.json["key"]})
    make_record(cast.alice, "notes", title="not for it")
    mine = make_record(cast.alice, title="for it")
    assert reported(key) == [("records.create", mine["id"])]
    assert key.get("changes?collections=notes").json["error"] == "scope_denied"


def test_change_feed_reads_large_changes_in_parts(cast: Cast) -> None:
    make_collection(cast.root)
    text = "x" * 900_000
    made = [make_record(cast.alice, title=f"{n}{text}")["id"] for n in range(12)]
    first = feed(cast.alice)
    assert [one["record_id"] for one in first["items"]] == made
    assert not first["has_more"]


def test_change_feed_reads_changes_of_older_process(app: Flask, cast: Cast) -> None:
    # During an upgrade the former version stores changes without what the feed adds.
    make_collection(cast.root, schema=SCHEMA)
    made = make_record(cast.alice, title="one", views=1)
    path = f"records/posts/{made['id']}"
    changed = cast.alice.patch(path, {"title": "two"}).json
    now(cast.alice)  # seals the changes
    with app.app_context(), db.transaction() as session:
        without = {"columns": '["title"]', "old_values": '["one"]', "new_values": '["two"]'}
        row = session.execute(sa.select(changes.CHANGES).order_by(changes.CHANGES.c.last_id.desc()))
        newest = row.mappings().first()
        assert newest is not None
        assert newest["unchanged"] is not None
        same = {**newest, **without, "unchanged": None, "request_id": new_id()}
        number = newest["last_id"] + 1
        session.execute(
            sa.insert(changes.CHANGES).values({**same, "first_id": number, "last_id": number})
        )
    newest_item = feed(cast.alice)["items"][-1]
    assert newest_item["record"]["views"] == changed["views"] == 1
    assert newest_item["record"]["created_at"] == made["created_at"]


def test_change_feed_of_removed_account_is_empty(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit(app, monkeypatch, False)
    make_collection(cast.root)
    make_record(cast.alice, title="Ada")
    with app.app_context():
        accounts_purge.remove_account({"account_id": cast.alice.account_id})
        sealing.settle(cast.alice.account_id)
        own = changes.FEED.c.account_id == cast.alice.account_id
        assert db.connection().execute(sa.select(changes.FEED).where(own)).all() == []
