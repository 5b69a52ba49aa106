"""The trash of collections: what a deletion puts away, and what brings it back or ends it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from flask import Flask

from app import clock, db
from app.collections.models import TrashedRecord
from app.context import tenancy
from app.db import transaction
from app.files import purge as files
from app.ids import new_id
from app.records import trash
from app.records.store import trash as stored
from tests import sql
from tests.auth.test_api_keys import machine
from tests.builders import Caller, Cast, changes_of_records, make_collection, make_record
from tests.bundle.accounts import export, import_
from tests.files.test_files import upload
from tests.parallel import at_once
from tests.usage.test_meters import used
from tests.usage.test_quotas import limit
from tests.webhooks.delivering import deliveries, make_webhook

TRASH = {"options": {"trash": {"days": 30}}}
ALL_TYPES: list[dict[str, Any]] = [
    {"name": "title", "type": "text", "required": True},
    {"name": "code", "type": "text", "unique": True},
    {"name": "amount", "type": "number"},
    {"name": "big", "type": "number"},
    {"name": "price", "type": "decimal", "options": {"precision": 20, "scale": 2}},
    {"name": "words", "type": "text_list"},
    {"name": "number", "type": "sequence", "options": {"prefix": "N-"}},
    {"name": "done", "type": "boolean"},
    {"name": "day", "type": "date"},
    {"name": "at", "type": "datetime"},
    {"name": "notes", "type": "json"},
    {"name": "kind", "type": "select", "options": {"choices": ["a", "b"]}},
    {"name": "tags", "type": "multi_select", "options": {"choices": ["x", "y"]}},
    {"name": "double", "type": "computed", "expression": "amount * 2", "return_type": "number"},
]
VALUES = {
    "title": "Émile 😀 'x' \"y\" {z}",
    "code": "A-1",
    "amount": 0.1,
    "price": "123456789012345678.90",
    "words": ["b", "A", "b c"],
    "big": 9_007_199_254_740_993,
    "done": True,
    "day": "2026-02-28",
    "at": "2026-02-28T23:59:59.123456Z",
    "notes": {"b": [1, 2.50], "a": None},
    "kind": "a",
    "tags": ["y", "x"],
}


def reference(name: str, to: str, on_delete: str | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "reference", "collection": to, "on_delete": on_delete, **more}


def put_away(caller: Caller, collection: str, record: dict[str, Any]) -> None:
    answer = caller.delete(f"records/{collection}/{record['id']}")
    assert answer.status_code == 204, answer.json


def in_trash(caller: Caller, collection: str, **query: Any) -> list[dict[str, Any]]:
    answer = caller.get(f"records/{collection}", query_string={"trash": "true", **query})
    assert answer.status_code == 200, answer.json
    items: list[dict[str, Any]] = answer.json["items"]
    return items


def restored(caller: Caller, collection: str, record: dict[str, Any]) -> Any:
    return caller.post(f"records/{collection}/{record['id']}/restore", {})


def age(app: Flask, days: int) -> None:
    """Make what is in the trash so many days older."""
    with app.app_context(), transaction() as session:
        earlier = clock.now() - timedelta(days=days)
        session.execute(sa.update(TrashedRecord).values(deleted_at=earlier))


def test_deleted_record_is_gone_and_comes_back_as_it_was(root: Caller, alice: Caller) -> None:
    make_collection(root, "things", ALL_TYPES, **TRASH)
    before = make_record(alice, "things", **VALUES)
    put_away(alice, "things", before)

    assert alice.get(f"records/things/{before['id']}").status_code == 404
    assert alice.patch(f"records/things/{before['id']}", {"title": "b"}).status_code == 404
    assert alice.delete(f"records/things/{before['id']}").status_code == 404
    listed = alice.get("records/things").json
    assert (listed["items"], listed["total"]) == ([], 0)
    counted = alice.get("records/things/aggregate?functions=count()").json
    assert counted["results"] == [{"count": 0}]

    [one] = in_trash(alice, "things")
    assert one["deleted_by"] == alice.id
    assert one["deleted_at"] > before["updated_at"]
    assert {name: one[name] for name in before} == before

    answer = restored(alice, "things", before)
    assert answer.status_code == 200, answer.json
    after = alice.get(f"records/things/{before['id']}").json
    assert answer.json == after
    changing = ("updated_at", "updated_by")
    assert {**after, **{name: before[name] for name in changing}} == before
    assert after["updated_at"] > before["updated_at"]
    assert in_trash(alice, "things") == []
    assert restored(alice, "things", before).status_code == 404


def test_trash_is_listed_as_records_are(root: Caller, alice: Caller) -> None:
    make_collection(root, "things", ALL_TYPES, **TRASH)
    made = [
        make_record(alice, "things", title=f"n{n}", amount=n, price=n, tags=["x"])
        for n in range(12)
    ]
    for one in made[:10]:
        put_away(alice, "things", one)
    everything = {"trash": "true", "sort": "-amount", "limit": 4}
    first = alice.get("records/things", query_string=everything).json
    assert [one["amount"] for one in first["items"]] == [9, 8, 7, 6]
    assert first["total"] == 10
    found = in_trash(alice, "things", filter='amount >= 3 && double < 16 && @contains(tags, "x")')
    assert sorted(one["amount"] for one in found) == [3, 4, 5, 6, 7]
    assert [one["title"] for one in in_trash(alice, "things", amount="5")] == ["n5"]
    exact = in_trash(alice, "things", filter="price > 7.5", sort="-price")
    assert [one["price"] for one in exact] == ["9.00", "8.00"]
    assert in_trash(alice, "things", filter='deleted_at > "2020-01-01" && title = "n11"') == []
    shown = in_trash(alice, "things", fields="title,deleted_at", sort="deleted_at", limit=1)
    assert list(shown[0]) == ["id", "title", "deleted_at"]

    seen, query = list[str](), {**everything, "cursor": ""}
    while query["cursor"] is not None:
        page = alice.get("records/things", query_string=query).json
        seen += [one["title"] for one in page["items"]]
        query["cursor"] = page["next_cursor"]
    assert seen == [f"n{n}" for n in reversed(range(10))]


def test_latest_deletion_comes_first_by_an_index(app: Flask, root: Caller, alice: Caller) -> None:
    made = make_collection(root, **TRASH)
    records = [make_record(alice, title=str(n)) for n in range(4)]
    for one in (records[n] for n in (1, 3, 0, 2)):
        put_away(alice, "posts", one)
    assert [one["title"] for one in in_trash(alice, "posts")] == ["2", "0", "3", "1"]
    with app.app_context(), transaction() as session:
        rows = [
            {"account_id": new_id(), "collection_id": made["id"], "id": new_id()}
            for _ in range(5000)
        ]
        facts = {"record": {}, "size": 1, "deleted_at": clock.now()}
        session.execute(sa.insert(TrashedRecord), [{**row, **facts} for row in rows])
    with sql.statements(app) as sent:
        assert len(in_trash(alice, "posts", include_total="false")) == 4
    (listing,) = (one for one in sent if "FROM trashed_records" in one)
    with app.app_context():
        if db.has_one_writer():
            plan = db.connection().exec_driver_sql(
                f"EXPLAIN QUERY PLAN {listing}", listing.parameters
            )
            assert "ix_trashed_records_account_deleted_at" in str(plan.all())


def test_parameter_means_nothing_without_a_trash(root: Caller, alice: Caller) -> None:
    make_collection(root)
    refused = alice.get("records/posts?trash=true")
    assert (refused.status_code, refused.json["details"][0]["code"]) == (400, "unknown_field")
    record = make_record(alice, title="a")
    assert restored(alice, "posts", record).status_code == 422
    make_collection(root, "flagged", [{"name": "trash", "type": "boolean"}])
    make_record(alice, "flagged", trash=True)
    assert len(in_trash(alice, "flagged")) == 1


def test_parameter_is_true_or_false(root: Caller, alice: Caller) -> None:
    make_collection(root, **TRASH)
    put_away(alice, "posts", make_record(alice, title="past"))
    make_record(alice, title="present")
    listed = alice.get("records/posts?trash=false").json["items"]
    assert [one["title"] for one in listed] == ["present"]
    for value in ("yes", "", "1"):
        assert alice.get("records/posts", query_string={"trash": value}).status_code == 400


def test_trash_shows_what_one_may_list_and_delete(
    root: Caller, alice: Caller, bob: Caller, charlie: Caller
) -> None:
    rules = {
        "list_rule": 'title != "secret"',
        "delete_rule": 'created_by = @request.auth.id || @request.auth.role = "admin"',
    }
    make_collection(root, **TRASH, **rules)
    own, other = make_record(bob, title="own"), make_record(alice, title="other")
    secret = make_record(bob, title="secret")
    for one in (own, other, secret):
        put_away(alice, "posts", one)
    assert [one["title"] for one in in_trash(bob, "posts")] == ["own"]
    assert {one["title"] for one in in_trash(alice, "posts")} == {"own", "other"}
    assert in_trash(charlie, "posts") == []
    assert restored(bob, "posts", other).status_code == 403
    assert restored(charlie, "posts", own).status_code == 404
    gone = f"records/posts/{other['id']}?permanently=true"
    assert [one.delete(gone).status_code for one in (bob, charlie)] == [403, 404]
    assert restored(bob, "posts", own).status_code == 200


def test_closed_operations_close_the_trash(root: Caller, alice: Caller, bob: Caller) -> None:
    rules = {"delete_rule": '@request.auth.role = "admin"', "view_rule": None}
    made = make_collection(root, **TRASH, **rules)
    record = make_record(alice, title="a")
    put_away(alice, "posts", record)
    assert in_trash(bob, "posts") == []
    assert restored(bob, "posts", record).status_code == 404
    root.put(f"collections/{made['id']}/rules", {"delete_rule": None})
    refused = alice.get("records/posts?trash=true")
    assert (refused.status_code, refused.json["error"]) == (403, "rule_denied")


def test_rules_of_others_do_not_find_it(root: Caller, alice: Caller, bob: Caller) -> None:
    make_collection(root, "passes", [{"name": "holder", "type": "text"}], **TRASH)
    rule = "@any(passes, holder = @request.auth.id)"
    make_collection(root, "rooms", [reference("pass", "passes", "set_null")], list_rule=rule)
    card = make_record(alice, "passes", holder=bob.id)
    make_record(alice, "rooms")
    assert bob.get("records/rooms").json["total"] == 1
    put_away(alice, "passes", card)
    assert bob.get("records/rooms").json["total"] == 0
    refused = alice.post("records/rooms", {"pass": card["id"]})
    assert refused.json["details"][0]["code"] == "invalid_reference"
    restored(alice, "passes", card)
    assert bob.get("records/rooms").json["total"] == 1


def test_rule_with_any_of_its_own_collection_looks_at_the_present(
    root: Caller, alice: Caller
) -> None:
    rule = '@count(posts, title = "a") = 0'
    made = make_collection(root, **TRASH)
    root.put(f"collections/{made['id']}/rules", {"list_rule": rule})
    record = make_record(alice, title="a")
    put_away(alice, "posts", record)
    assert len(in_trash(alice, "posts")) == 1
    make_record(alice, title="a")
    assert in_trash(alice, "posts") == []


def test_unique_value_is_free_and_clashes_on_the_way_back(root: Caller, alice: Caller) -> None:
    make_collection(root, "things", ALL_TYPES, **TRASH)
    first = make_record(alice, "things", title="a", code="A")
    put_away(alice, "things", first)
    second = make_record(alice, "things", title="b", code="A")
    refused = restored(alice, "things", first)
    assert (refused.status_code, refused.json["details"][0]["field"]) == (409, "code")
    assert refused.json["details"][0]["code"] == "not_unique"
    put_away(alice, "things", second)
    assert {one["code"] for one in in_trash(alice, "things")} == {"A"}
    assert restored(alice, "things", first).status_code == 200
    assert restored(alice, "things", second).status_code == 409


@pytest.mark.parametrize("on_delete", ["restrict", "cascade", "set_null"])
@pytest.mark.parametrize("multiple", [False, True])
@pytest.mark.parametrize("also", [False, True])
def test_references_by_on_delete(
    root: Caller, alice: Caller, on_delete: str, multiple: bool, also: bool
) -> None:
    make_collection(root, "teams", **TRASH)
    field = {**reference("team", "teams", on_delete), "multiple": multiple}
    make_collection(root, "members", [field], **(TRASH if also else {}))
    team = make_record(alice, "teams", title="a")
    value = [team["id"]] if multiple else team["id"]
    member = make_record(alice, "members", team=value)
    answer = alice.delete(f"records/teams/{team['id']}")
    left = alice.get(f"records/members/{member['id']}")
    if on_delete == "restrict":
        assert (answer.status_code, left.status_code) == (409, 200)
        assert in_trash(alice, "teams") == []
        return
    assert answer.status_code == 204
    if on_delete == "set_null":
        assert left.json["team"] == ([] if multiple else None)
        restored(alice, "teams", team)
        assert alice.get(f"records/members/{member['id']}").json == left.json
        return
    assert left.status_code == 404
    if not also:
        restored(alice, "teams", team)
        assert alice.get(f"records/members/{member['id']}").status_code == 404
        return
    alone = restored(alice, "members", member)  # its reference needs no value
    assert (alone.status_code, alone.json["team"]) == (200, [] if multiple else None)
    put_away(alice, "members", member)
    restored(alice, "teams", team)
    assert restored(alice, "members", member).status_code == 200


def test_required_reference_waits_for_its_target(root: Caller, alice: Caller) -> None:
    make_collection(root, "teams", **TRASH)
    required = reference("team", "teams", "cascade", required=True)
    make_collection(root, "members", [required], **TRASH)
    team = make_record(alice, "teams", title="a")
    member = make_record(alice, "members", team=team["id"])
    put_away(alice, "teams", team)
    assert [one["team"] for one in in_trash(alice, "members")] == [team["id"]]
    refused = restored(alice, "members", member)
    assert (refused.status_code, refused.json["details"][0]["field"]) == (409, "team")
    assert refused.json["details"][0]["code"] == "invalid_reference"
    assert restored(alice, "teams", team).status_code == 200
    assert restored(alice, "members", member).json["team"] == team["id"]


def test_users_leave_records_in_the_trash(root: Caller, alice: Caller, bob: Caller) -> None:
    people = [
        {"name": "owner", "type": "user"},
        {"name": "watchers", "type": "user", "multiple": True},
    ]
    make_collection(root, "tasks", people, **TRASH)
    kept = make_record(alice, "tasks", owner=bob.id, watchers=[bob.id, alice.id])
    goes = [{"name": "of", "type": "user", "on_delete": "cascade"}]
    make_collection(root, "cards", goes, **TRASH)
    card = make_record(alice, "cards", of=bob.id)
    for collection, one in (("tasks", kept), ("cards", card)):
        put_away(alice, collection, one)
    other = make_record(bob, "tasks")
    put_away(bob, "tasks", other)
    assert root.post(f"users/{bob.id}/erase").status_code == 200
    assert in_trash(alice, "cards") == []
    assert bob.id not in alice.get("records/tasks?trash=true").text
    back = restored(alice, "tasks", kept)
    assert (back.status_code, back.json["owner"], back.json["watchers"]) == (200, None, [alice.id])


def test_batch_and_cascade_over_many_records(root: Caller, alice: Caller) -> None:
    make_collection(root, "teams", **TRASH)
    make_collection(root, "members", [reference("team", "teams", "cascade")], **TRASH)
    team = make_record(alice, "teams", title="a")
    for _ in range(2):
        bodies = [{"team": team["id"]}] * 600
        assert alice.post("records/members/batch", {"records": bodies}).status_code == 201
    put_away(alice, "teams", team)
    listed = alice.get("records/members?trash=true&limit=1").json
    assert listed["total"] == 1200
    ids = [one["id"] for one in in_trash(alice, "members", limit=3)]
    for id in ids:
        assert restored(alice, "members", {"id": id}).status_code == 200
    assert alice("DELETE", "records/members/batch", {"ids": ids}).status_code == 200
    assert alice.get("records/members?trash=true&limit=1").json["total"] == 1200


def test_feed_webhooks_and_history_tell_of_both_ways(
    app: Flask, root: Caller, alice: Caller
) -> None:
    make_collection(root, "things", ALL_TYPES, **TRASH)
    make_webhook(alice, "https://hooks.example/in", collection="things")
    record = make_record(alice, "things", **VALUES)
    put_away(alice, "things", record)
    back = restored(alice, "things", record).json
    items = changes_of_records(alice)
    assert [one["event"] for one in items] == [
        "records.create",
        "records.delete",
        "records.create",
    ]
    assert [one.get("restored") for one in items] == [None, None, True]
    assert items[-1]["record"] == back
    payloads = [row.payload for row in deliveries(app)]
    assert ['"restored":true' in one for one in payloads] == [False, False, True]
    history = alice.get(f"records/things/{record['id']}/history").json["items"]
    assert [one["operation"] for one in history] == ["CREATE", "DELETE", "CREATE"]
    put_away(alice, "things", record)
    assert len(changes_of_records(alice)) == 4


def test_restored_record_has_its_history_and_versions(root: Caller, alice: Caller) -> None:
    make_collection(root, **TRASH)
    record = make_record(alice, title="a")
    path = f"records/posts/{record['id']}"
    first = alice.get(f"{path}/history").json["items"][0]["audit_id"]
    alice.patch(path, {"title": "b"})
    put_away(alice, "posts", record)
    assert alice.get(f"{path}/history").json["total"] == 3
    assert alice.post(f"{path}/restore", {"audit_id": first}).status_code == 404
    restored(alice, "posts", record)
    assert alice.post(f"{path}/restore", {"audit_id": first}).json["title"] == "a"


def test_permanent_deletion_passes_by_the_trash(root: Caller, alice: Caller) -> None:
    make_collection(root, **TRASH)
    past, present = make_record(alice, title="past"), make_record(alice, title="present")
    put_away(alice, "posts", past)
    for one in (past, present):
        path = f"records/posts/{one['id']}?permanently=true"
        assert [alice.delete(path).status_code for _ in range(2)] == [204, 404]
    assert in_trash(alice, "posts") == []
    assert alice.get("records/posts").json["total"] == 0
    entries = alice.get("account/audit-logs?table_name=trashed_records").json["items"]
    assert [one["operation"] for one in entries] == ["DELETE"]


def test_old_records_are_purged(app: Flask, root: Caller, alice: Caller, charlie: Caller) -> None:
    make_collection(root, "posts", **TRASH)
    for caller in (alice, alice, charlie):
        put_away(caller, "posts", make_record(caller, title="old"))
    age(app, 31)
    young = make_record(alice, title="young")
    put_away(alice, "posts", young)
    with app.app_context():
        trash.purge_old({})
    assert [one["title"] for one in in_trash(alice, "posts")] == ["young"]
    assert in_trash(charlie, "posts") == []
    [entry] = alice.get("account/audit-logs?table_name=trashed_records").json["items"]
    assert (entry["user_id"], entry["extra_metadata"]["count"]) == ("trash", 2)


def test_files_stay_until_the_purge(app: Flask, root: Caller, alice: Caller) -> None:
    make_collection(root, "posts", [{"name": "paper", "type": "file"}], **TRASH)
    file = upload(alice)
    record = make_record(alice, paper=file["id"])
    link = alice.post(f"files/{file['id']}/link", {"expires_in": 3600}).json["url"]
    put_away(alice, "posts", record)
    assert alice.get(f"files/{file['id']}").status_code == 404
    assert alice.get(link.partition("/api/v1/")[2]).status_code == 404
    assert in_trash(alice, "posts")[0]["paper"]["id"] == file["id"]
    with app.app_context():
        _release_long_ago()
        files.expire({})
    assert restored(alice, "posts", record).json["paper"] == record["paper"]
    assert alice.get(f"files/{file['id']}").status_code == 200
    put_away(alice, "posts", record)
    alice.delete(f"records/posts/{record['id']}?permanently=true")
    with app.app_context():
        _release_long_ago()
        files.expire({})
        with transaction() as session:
            assert session.execute(sa.select(files.FILES)).all() == []


def _release_long_ago() -> None:
    with transaction() as session:
        session.execute(
            sa.update(files.FILES)
            .where(files.FILES.c.released_at.is_not(None))
            .values(released_at=clock.now() - timedelta(days=3000))
        )


def test_quotas_count_bytes_but_no_records(root: Caller, alice: Caller) -> None:
    make_collection(root, **TRASH)
    record = make_record(alice, title="x" * 10_000)
    put_away(alice, "posts", record)
    level = used(alice)
    assert level["records"] == 0
    assert level["row_bytes"] > 10_000
    limit(root, alice, records=1)
    other = make_record(alice, title="b")
    refused = restored(alice, "posts", record)
    assert (refused.status_code, refused.json["quota"]) == (429, "records")
    alice.delete(f"records/posts/{other['id']}")
    assert restored(alice, "posts", record).status_code == 200


def test_erasure_reaches_the_trash(root: Caller, alice: Caller) -> None:
    make_collection(root, **TRASH)
    past, present = make_record(alice, title="past"), make_record(alice, title="present")
    put_away(alice, "posts", past)
    for one in (past, present):
        assert alice.post(f"records/posts/{one['id']}/erase").status_code == 200
    assert in_trash(alice, "posts") == []


def test_schema_changes_reach_the_trash(root: Caller, alice: Caller) -> None:
    made = make_collection(root, "things", ALL_TYPES, **TRASH)
    first = make_record(alice, "things", title="a", amount=1, big=2, kind="a")
    put_away(alice, "things", first)
    path = f"collections/{made['id']}"
    renames = {"amount": {"name": "total"}, "big": {"name": "large"}}
    present = [one for one in root.get(path).json["schema"] if one["name"] != "notes"]
    schema = [
        {**one, **new, "rename_from": one["name"]} if new else one
        for one in present
        for new in [renames.get(one["name"])]
    ]
    next(one for one in schema if one["name"] == "double")["expression"] = "total * 2"
    state = {"name": "state", "type": "text", "required": True, "default": "new"}
    change = {"schema": [*schema, state], "remove_fields": ["notes"]}
    plan = root.post(f"{path}/plan", change).json
    assert "plan_hash" in plan, plan
    answer = root.put(path, change | {"plan_hash": plan["plan_hash"]})
    assert answer.status_code == 200, answer.json
    [one] = in_trash(alice, "things", filter="total = 1 && large = 2")
    assert (one["double"], one["state"]) == (2, None)
    back = restored(alice, "things", first).json
    assert (back["total"], back["large"], back["state"]) == (1, 2, "new")
    put_away(alice, "things", first)
    choices = {"name": "kind", "options": {"choices": ["b"]}}
    assert root.patch(path, {"schema": [choices]}).status_code == 200
    refused = restored(alice, "things", first)
    assert (refused.status_code, refused.json["details"][0]["field"]) == (400, "kind")


def test_trash_is_switched_off_with_a_plan(root: Caller, alice: Caller, charlie: Caller) -> None:
    made = make_collection(root, **TRASH)
    path, off = f"collections/{made['id']}", {"options": {"trash": None}}
    for caller in (alice, alice, charlie):
        put_away(caller, "posts", make_record(caller, title="a"))
    refused = root.patch(path, off)
    assert (refused.status_code, refused.json["error"]) == (400, "plan_required")
    plan = root.post(f"{path}/plan", off).json
    assert plan["data_lost"] == [{"field": None, "count": 3}]
    assert [one["operation"] for one in plan["operations"]] == ["discard_trash"]
    assert plan["reverse"]["options"] == {"trash": {"days": 30}}
    assert len(in_trash(alice, "posts")) == 2
    answer = root.patch(path, off | {"plan_hash": plan["plan_hash"]})
    assert answer.json["options"] == {"require_signature": False}
    assert root.patch(path, TRASH).json["options"]["trash"] == {"days": 30}
    assert in_trash(alice, "posts") == []
    [entry] = alice.get("account/audit-logs?table_name=trashed_records").json["items"]
    assert entry["extra_metadata"]["count"] == 2
    assert root.patch(path, off).status_code == 200  # nothing is there


@pytest.mark.parametrize("days", [0, 3651, "x", None, 1.5])
def test_days_have_bounds(root: Caller, days: object) -> None:
    body = {"name": "posts", "schema": [{"name": "a", "type": "text"}]}
    answer = root.post("collections", {**body, "options": {"trash": {"days": days}}})
    assert answer.status_code == 422


@pytest.mark.parametrize("name", ["trash", "deleted_at", "deleted_by"])
def test_names_of_the_trash_are_reserved(root: Caller, name: str) -> None:
    field = {"name": name, "type": "text"}
    answer = root.post("collections", {"name": "posts", "schema": [field], **TRASH})
    assert (answer.status_code, answer.json["details"][0]["code"]) == (400, "name_reserved")
    made = make_collection(root, schema=[field])
    assert root.patch(f"collections/{made['id']}", TRASH).status_code == 400
    other = make_collection(root, "others", **TRASH)
    assert root.patch(f"collections/{other['id']}", {"schema": [field]}).status_code == 400


def test_signatures_and_scopes_hold_for_the_trash(root: Caller, alice: Caller, app: Flask) -> None:
    make_collection(root, options={"trash": {"days": 30}, "require_signature": True})
    record = alice.post("records/posts", {"title": "a"})
    assert record.status_code == 428
    made = make_collection(root, "notes", **TRASH)
    note = make_record(alice, "notes", title="a")
    put_away(alice, "notes", note)
    root.patch(f"collections/{made['id']}", {"options": {"require_signature": True}})
    assert restored(alice, "notes", note).status_code == 428
    path = f"records/notes/{note['id']}?permanently=true"
    assert alice.delete(path).status_code == 428
    root.patch(f"collections/{made['id']}", {"options": {"require_signature": False}})

    lists = machine(app, alice, scopes={"operations": ["list"]})
    deletes = machine(app, alice, scopes={"operations": ["list", "delete"]})
    assert lists.get("records/notes?trash=true").status_code == 403
    assert restored(lists, "notes", note).status_code == 403
    assert len(in_trash(deletes, "notes")) == 1
    assert restored(deletes, "notes", note).status_code == 200


def test_trash_goes_with_collection_and_account(
    app: Flask, root: Caller, alice: Caller, charlie: Caller
) -> None:
    made = [make_collection(root, name, **TRASH)["id"] for name in ("posts", "notes")]
    for name in ("posts", "notes"):
        for caller in (alice, charlie):
            put_away(caller, name, make_record(caller, name, title="a"))
    assert root.delete(f"collections/{made[0]}").status_code == 200
    make_collection(root, **TRASH)
    assert in_trash(alice, "posts") == []
    assert len(in_trash(alice, "notes")) == 1


@pytest.mark.needs_servers
def test_bundle_carries_the_trash(app: Flask, cast: Cast, tmp_path: Any) -> None:
    make_collection(cast.root, "things", ALL_TYPES, **TRASH)
    record = make_record(cast.alice, "things", **VALUES)
    put_away(cast.alice, "things", record)
    [before] = in_trash(cast.alice, "things")
    file = export(app, tmp_path)
    made = import_(app, file, "--as", "root@system.example", "--slug", "copy")
    assert made.exit_code == 0, made.output
    account = cast.root.get("accounts?search=copy").json["items"][0]["id"]
    there = cast.root.acting_in(account)
    [one] = in_trash(there, "things")
    changing = ("account_id", "created_by", "updated_by", "deleted_by")
    assert {**one, **{name: before[name] for name in changing}} == before
    assert len({one[name] for name in changing} - {cast.alice.id}) == 2  # a user of its own
    assert restored(there, "things", record).status_code == 200
    assert len(in_trash(cast.alice, "things")) == 1


def test_concurrent_ways_out_of_the_trash_end_in_one(root: Caller, alice: Caller) -> None:
    make_collection(root, "things", ALL_TYPES, **TRASH)
    for way in ("restore", "purge"):
        record = make_record(alice, "things", title=way, code="A")
        path = f"records/things/{record['id']}"
        put_away(alice, "things", record)

        def back(path: str = path) -> int:
            return alice.post(f"{path}/restore", {}).status_code

        def gone(path: str = path) -> int:
            return alice.delete(f"{path}?permanently=true").status_code

        calls = [back, back if way == "restore" else gone, back]
        answers = at_once(3, lambda number, calls=calls: calls[number]())  # type: ignore[misc]
        # A deletion for good may come behind a restore, too: then the record is gone all the same.
        assert set(answers) <= {200, 204, 404}
        live = alice.get(path).status_code == 200
        there = any(one["id"] == record["id"] for one in in_trash(alice, "things"))
        assert not there
        assert live is (way == "restore" or 204 not in answers)
        if live:
            assert alice.delete(f"{path}?permanently=true").status_code == 204


def test_unique_value_goes_to_one_of_those_that_want_it_at_once(
    root: Caller, alice: Caller
) -> None:
    make_collection(root, "things", ALL_TYPES, **TRASH)
    record = make_record(alice, "things", title="a", code="A")
    put_away(alice, "things", record)

    def back() -> int:
        return restored(alice, "things", record).status_code

    def other() -> int:
        return alice.post("records/things", {"title": "b", "code": "A"}).status_code

    assert sorted(at_once(2, lambda number: (back, other)[number]())) in ([200, 409], [201, 409])
    assert alice.get("records/things?code=A").json["total"] == 1


def test_killed_deletion_leaves_the_record_in_one_place(
    root: Caller, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(root, **TRASH)
    record = make_record(alice, title="a")

    def end(*args: object) -> None:
        raise KeyboardInterrupt

    path = f"records/posts/{record['id']}"
    ways = {"put_away": lambda: alice.delete(path), "forget": lambda: alice.post(f"{path}/restore")}
    for name, call in ways.items():
        monkeypatch.setattr(stored, name, end)
        with pytest.raises(KeyboardInterrupt):
            call()
        monkeypatch.undo()
        live = alice.get("records/posts").json["total"]
        assert live + len(in_trash(alice, "posts")) == 1
        if live:
            put_away(alice, "posts", record)
    assert restored(alice, "posts", record).status_code == 200


def test_manifest_states_the_trash(root: Caller, alice: Caller) -> None:
    make_collection(root, **TRASH)
    put_away(alice, "posts", make_record(alice, title="a"))
    manifest = root.get("manifest/export").json
    [posts] = [one for one in manifest["collections"] if one["name"] == "posts"]
    assert posts["options"] == {"trash": {"days": 30}}
    assert root.post("manifest/plan", {"manifest": manifest}).json["has_changes"] is False
    posts["options"] = {"trash": None}
    only = {"version": manifest["version"], "collections": [posts]}
    plan = root.post("manifest/plan", {"manifest": only}).json
    changed = [one["operation"] for one in plan["operations"][0]["changes"]]
    assert changed == ["discard_trash", "change_option"]
    body = {"manifest": only, "plan_hash": plan["plan_hash"]}
    assert root.post("manifest/apply", body).status_code == 200
    back = {"manifest": plan["reverse"]}
    planned = root.post("manifest/plan", back).json["plan_hash"]
    assert root.post("manifest/apply", back | {"plan_hash": planned}).status_code == 200
    assert in_trash(alice, "posts") == []


def test_etag_of_a_deleted_record_is_that_of_the_record(root: Caller, alice: Caller) -> None:
    make_collection(root, "things", ALL_TYPES, **TRASH)
    record = make_record(alice, "things", **VALUES)
    path = f"records/things/{record['id']}"
    old = alice.get(path).headers["ETag"]
    new = alice.patch(path, {"amount": 0.2}).headers["ETag"]
    put_away(alice, "things", record)

    def restoring(etag: str) -> int:
        return alice.post(f"{path}/restore", {}, headers={"If-Match": etag}).status_code

    assert [restoring(etag) for etag in (old, new)] == [412, 200]
    gone = alice.get(path).headers["ETag"]
    put_away(alice, "things", record)
    purges = [
        alice.delete(f"{path}?permanently=true", headers={"If-Match": etag}).status_code
        for etag in (new, gone)
    ]
    assert purges == [412, 204]


def test_values_fill_what_became_required_meanwhile(root: Caller, alice: Caller) -> None:
    made = make_collection(root, "things", ALL_TYPES, **TRASH)
    record = make_record(alice, "things", **VALUES)
    put_away(alice, "things", record)
    path, at = f"collections/{made['id']}", f"records/things/{record['id']}/restore"
    state = {"name": "state", "type": "text", "required": True}
    paper = {"name": "paper", "type": "file", "required": True}
    kind = {"name": "kind", "options": {"choices": ["b"]}}
    assert root.patch(path, {"schema": [state, paper, kind]}).status_code == 200

    def refused(**values: Any) -> set[tuple[str, str]]:
        answer = alice.post(at, {"values": values})
        assert answer.status_code == 400, answer.json
        return {(one["field"], one["code"]) for one in answer.json["details"]}

    missing = {("state", "required_missing"), ("paper", "required_missing")}
    assert refused() == {*missing, ("kind", "invalid_option")}
    assert refused(kind="b", none=1, double=2, number="N-9") == {
        *missing,
        *(("none", "unknown_field"), ("double", "field_read_only"), ("number", "field_read_only")),
    }
    assert refused(kind="a", state="", paper="x") == {
        *(("kind", "invalid_option"), ("state", "required")),
        *(("paper", "file_unknown"), ("paper", "required_missing")),
    }
    file = upload(alice)
    sent = {"state": "new", "paper": file["id"], "kind": "b", "tags": {"$add": ["y"]}}
    answer = alice.post(at, {"values": {**sent, "words": {"$remove": ["A"], "$add": ["z"]}}})
    assert answer.status_code == 200, answer.json
    expected = {"state": "new", "kind": "b", "words": ["b", "b c", "z"], "number": record["number"]}
    assert expected.items() <= answer.json.items()
    assert answer.json["paper"]["id"] == file["id"]
    assert alice.get(f"records/things/{record['id']}").json == answer.json
    assert in_trash(alice, "things") == []


def test_values_are_judged_as_an_update(root: Caller, alice: Caller, bob: Caller) -> None:
    rules = {"update_rule": '@request.auth.role = "admin" && title != "no" && @old.title != "b"'}
    fields = [
        {"name": "title", "type": "text", "unique": True},
        {"name": "grade", "type": "text", "writable_if": '@request.auth.email = "x"'},
    ]
    make_collection(root, "posts", fields, **TRASH, **rules)
    record, taken = make_record(alice, title="a"), make_record(alice, title="taken")
    make_record(alice, title="no")
    put_away(alice, "posts", record)

    def answer(caller: Caller, **values: Any) -> tuple[int, Any]:
        sent = caller.post(f"records/posts/{record['id']}/restore", {"values": values})
        return sent.status_code, (sent.json or {}).get("error")

    assert answer(bob, title="c") == (403, "rule_denied")
    assert answer(alice, title="no") == (403, "rule_denied")  # not that it is taken
    assert answer(alice, title="taken")[0] == 409
    assert answer(alice, grade="1") == (400, "validation_error")
    assert len(in_trash(alice, "posts")) == 1
    assert answer(alice, title="c") == (200, None)
    put_away(alice, "posts", taken)
    wrong = alice.post(f"records/posts/{taken['id']}/restore", {"audit_id": 1, "values": {}})
    assert (wrong.status_code, wrong.json["detail"][0]["loc"]) == (422, ["body", "values"])
    assert restored(bob, "posts", taken).status_code == 200
    assert alice.post(f"records/posts/{taken['id']}/restore", {"values": []}).status_code == 422


def test_old_records_are_purged_in_pieces(app: Flask, root: Caller, alice: Caller) -> None:
    made = make_collection(root, **TRASH)
    with app.app_context(), tenancy.across_accounts(), transaction() as session:
        key = {"account_id": alice.account_id, "collection_id": made["id"]}
        facts = {"record": {}, "size": 1, "deleted_at": clock.now() - timedelta(days=31)}
        rows = [{**key, **facts, "id": new_id()} for _ in range(2 * trash.PIECE + 1)]
        session.execute(sa.insert(TrashedRecord), rows)
    with app.app_context():
        trash.purge_old({})
    entries = alice.get("account/audit-logs?table_name=trashed_records").json["items"]
    numbers = [one["extra_metadata"]["count"] for one in entries]
    assert sorted(numbers) == [1, trash.PIECE, trash.PIECE]
    assert in_trash(alice, "posts") == []


LISTS = [
    {"name": "title", "type": "text"},
    {"name": "words", "type": "text_list"},
    {"name": "hidden_from", "type": "user", "multiple": True},
]


@pytest.mark.parametrize(
    ("rule", "sees"),
    [
        ("!@contains(hidden_from, @request.auth.id)", False),
        ("hidden_from != @request.auth.id", False),
        ("@contains(hidden_from, @request.auth.id)", True),
        ('!@contains(words, "locked")', False),
        ('words = "locked" && !(words = "other")', True),
        ("@contains(hidden_from, created_by)", False),
    ],
)
def test_lists_are_judged_as_they_were(
    root: Caller, alice: Caller, bob: Caller, rule: str, sees: bool
) -> None:
    rules = dict.fromkeys(("list_rule", "view_rule", "delete_rule"), rule)
    make_collection(root, "posts", LISTS, **TRASH, **rules)
    record = make_record(alice, title="a", words=["locked"], hidden_from=[bob.id])
    empty = make_record(alice)
    assert [one["id"] for one in bob.get("records/posts").json["items"]].count(record["id"]) == sees
    for one in (record, empty):
        assert root.acting_in("acme").delete(f"records/posts/{one['id']}").status_code == 204
    assert [one["id"] for one in in_trash(bob, "posts")].count(record["id"]) == sees
    assert ("locked" in bob.get(f"users/{bob.id}/export").text) is sees
    path = f"records/posts/{record['id']}"
    assert bob.delete(f"{path}?permanently=true").status_code == (204 if sees else 404)


def test_filters_of_the_trash_find_entries_of_lists(root: Caller, alice: Caller) -> None:
    make_collection(root, "teams", **TRASH)
    members = {**reference("teams", "teams", "set_null"), "multiple": True}
    make_collection(root, "posts", [*LISTS, members, reference("team", "teams")], **TRASH)
    team = make_record(alice, "teams", title="a")
    record = make_record(alice, words=["a", "b"], teams=[team["id"]], team=team["id"])
    put_away(alice, "posts", record)
    put_away(alice, "posts", make_record(alice, words=["c"]))
    for found in ('@contains(words, "a")', 'words = "b"', f'teams = "{team["id"]}"'):
        assert [one["id"] for one in in_trash(alice, "posts", filter=found)] == [record["id"]]
    assert in_trash(alice, "posts", filter='@contains(words, "d")') == []
    assert len(in_trash(alice, "posts", filter='words != "a"')) == 2
    for refused in (
        'team.title = "a"',
        'teams.title = "a"',
        "@any(teams, id = @record.team)",
        "@count(teams, id = @record.team) = 0",
    ):
        query = {"trash": "true", "filter": refused}
        answer = alice.get("records/posts", query_string=query)
        assert (answer.status_code, answer.json["details"][0]["code"]) == (400, "filter_invalid")
        assert "trash" in answer.json["details"][0]["message"]


ASKING = [
    'project.level != "secret"',
    '!(projects.level = "secret")',
    "!@any(blocks, doc = @record.id && who = @request.auth.id)",
    "@count(blocks, doc = @record.id) = 0",
]


@pytest.mark.parametrize("asks", ASKING)
@pytest.mark.parametrize("on_delete", ["cascade", "set_null"])
def test_what_rules_ask_of_other_records_opens_nothing(
    root: Caller, alice: Caller, bob: Caller, asks: str, on_delete: str
) -> None:
    make_collection(root, "projects", [{"name": "level", "type": "text"}])
    fields = [
        {"name": "title", "type": "text"},
        reference("project", "projects", on_delete),
        {**reference("projects", "projects", "set_null"), "multiple": True},
    ]
    made = make_collection(root, "docs", fields, **TRASH)
    people = {"name": "who", "type": "user"}
    make_collection(root, "blocks", [people, reference("doc", "docs", "cascade")])
    rule = f'{asks} || @request.auth.role = "admin" || title = "open"'
    opened = dict.fromkeys(("list_rule", "view_rule"), rule)
    assert root.put(f"collections/{made['id']}/rules", opened).status_code == 200
    project = make_record(alice, "projects", level="secret")
    to = {"project": project["id"], "projects": [project["id"]]}
    record, open_ = make_record(alice, "docs", **to), make_record(alice, "docs", title="open")
    make_record(alice, "blocks", doc=record["id"], who=bob.id)
    assert [one["id"] for one in bob.get("records/docs").json["items"]] == [open_["id"]]
    for one in (record, open_):
        put_away(alice, "docs", one)
    assert alice.delete(f"records/projects/{project['id']}").status_code == 204

    assert [one["id"] for one in in_trash(bob, "docs")] == [open_["id"]]
    assert {one["id"] for one in in_trash(alice, "docs")} == {record["id"], open_["id"]}
    etag = {"If-Match": '"x"'}
    path = f"records/docs/{record['id']}"
    assert bob.post(f"{path}/restore", {}, headers=etag).status_code == 412
    asks_for_project = "project" in asks
    answers = [restored(one, "docs", record) for one in (bob, alice)]
    if asks_for_project:  # it would come back without, open to all
        assert [one.status_code for one in answers] == [409, 409]
        name = "project" if "project." in asks else "projects"
        assert answers[0].json["details"][0]["field"] == name
        cleared = {"project": None, "projects": []}
        answer = alice.post(f"{path}/restore", {"values": cleared})
        assert answer.status_code == 200, answer.json
    else:
        assert [one.status_code for one in answers] == [404, 200]
    assert restored(bob, "docs", open_).status_code == 200


@pytest.mark.parametrize("asks", ASKING)
def test_deleting_rules_that_ask_others_close_the_trash(
    root: Caller, alice: Caller, bob: Caller, asks: str
) -> None:
    make_collection(root, "projects", [{"name": "level", "type": "text"}])
    many = {**reference("projects", "projects", "set_null"), "multiple": True}
    fields = [reference("project", "projects", "set_null"), many]
    made = make_collection(root, "docs", fields, **TRASH)
    people = {"name": "who", "type": "user"}
    make_collection(root, "blocks", [people, reference("doc", "docs", "cascade")])
    path = f"collections/{made['id']}/rules"
    rule = f'{asks} || @request.auth.role = "admin"'
    assert root.put(path, {"delete_rule": rule, "update_rule": rule}).status_code == 200
    record = make_record(alice, "docs")
    put_away(bob, "docs", record)
    assert in_trash(bob, "docs") == []
    assert restored(bob, "docs", record).status_code == 403
    assert bob.delete(f"records/docs/{record['id']}?permanently=true").status_code == 403
    root.put(path, {"delete_rule": "true"})
    given = {"values": {"project": None}}
    assert bob.post(f"records/docs/{record['id']}/restore", given).status_code == 403
    assert alice.post(f"records/docs/{record['id']}/restore", given).status_code == 200


def test_restore_tells_nothing_of_hidden_fields(root: Caller, alice: Caller, bob: Caller) -> None:
    make_collection(root, "targets", **TRASH)
    hidden = {"readable_if": '@request.auth.role = "admin"'}
    kind = {"name": "kind", "type": "select", "options": {"choices": ["a", "b"]}}
    fields = [
        {"name": "title", "type": "text"},
        {"name": "badge", "type": "text", "unique": True, **hidden},
        reference("to", "targets", "cascade", required=True, **hidden),
        {**kind, **hidden},
    ]
    made = make_collection(root, "docs", fields, **TRASH)
    target = make_record(alice, "targets", title="t")
    record = make_record(alice, "docs", badge="x", to=target["id"], kind="a")
    put_away(alice, "docs", record)
    other = make_record(alice, "docs", badge="x", to=target["id"])

    def told(status: int, name: str) -> None:
        answers = [restored(one, "docs", record) for one in (bob, alice)]
        assert [one.status_code for one in answers] == [status, status]
        assert answers[1].json["details"][0]["field"] == name
        assert answers[0].json["details"] == [
            {**answers[0].json["details"][0], "field": None, "code": "field_denied"}
        ]
        assert not any(word in answers[0].text for word in (f'"{name}"', "targets", "choices"))

    told(409, "badge")
    put_away(alice, "docs", other)
    put_away(alice, "targets", target)
    told(409, "to")
    restored(alice, "targets", target)
    fewer = {"name": "kind", "options": {"choices": ["b"]}}
    assert root.patch(f"collections/{made['id']}", {"schema": [fewer]}).status_code == 200
    told(400, "kind")


def test_references_to_itself_come_back_and_lost_ones_are_named(
    root: Caller, alice: Caller, bob: Caller
) -> None:
    many = {**reference("many", "nodes", "set_null"), "multiple": True}
    hidden = {"readable_if": '@request.auth.role = "admin"'}
    secret = reference("secret", "nodes", "cascade", **hidden)
    make_collection(root, "nodes", [reference("up", "nodes", "cascade"), many, secret], **TRASH)
    own = make_record(alice, "nodes")
    values = {"up": own["id"], "many": [own["id"]], "secret": own["id"]}
    assert alice.patch(f"records/nodes/{own['id']}", values).status_code == 200
    put_away(alice, "nodes", own)
    back = restored(alice, "nodes", own).json
    assert {name: back[name] for name in values} == values
    assert "_lost" not in back
    child = make_record(alice, "nodes", **values)
    put_away(alice, "nodes", child)
    put_away(alice, "nodes", own)
    back = restored(bob, "nodes", child)
    assert (back.json["up"], back.json["many"], back.json["_lost"]) == (None, [], ["up", "many"])
    live = alice.get(f"records/nodes/{child['id']}")
    assert back.headers["ETag"] == bob.get(f"records/nodes/{child['id']}").headers["ETag"]
    assert (live.json["secret"], "_lost" in live.json) == (None, False)


def test_masks_sent_back_change_nothing(root: Caller, alice: Caller, bob: Caller) -> None:
    options = {"options": {"choices": ["a", "b"]}}
    kind = {"name": "kind", "type": "select", "pii": True, **options}
    made = make_collection(root, "docs", [kind], **TRASH)
    record = make_record(alice, "docs", kind="a")
    put_away(alice, "docs", record)
    [shown] = in_trash(bob, "docs")
    fewer = {"name": "kind", "options": {"choices": ["b"]}}
    assert root.patch(f"collections/{made['id']}", {"schema": [fewer]}).status_code == 200
    answer = bob.post(f"records/docs/{record['id']}/restore", {"values": {"kind": shown["kind"]}})
    assert answer.status_code == 400
    assert [one["field"] for one in answer.json["details"]] == ["kind"]


def test_what_leaves_the_trash_for_good_is_named(root: Caller, alice: Caller) -> None:
    make_collection(root, **TRASH)

    def entries() -> list[Any]:
        answer = alice.get("account/audit-logs?table_name=trashed_records")
        return [one["extra_metadata"] for one in answer.json["items"]]

    purged, replaced = make_record(alice, title="a"), make_record(alice, title="b")
    for one in (purged, replaced):
        put_away(alice, "posts", one)
    assert alice.delete(f"records/posts/{purged['id']}?permanently=true").status_code == 204
    expected = {"collection": "posts", "count": 1, "record_id": purged["id"]}
    assert [one.items() >= expected.items() for one in entries()] == [True]
    sent = orjson.dumps({"id": replaced["id"], "title": "new"})
    answer = root.acting_in("acme").post(
        "records/posts/import?keep_ids=true", data=sent, content_type="application/x-ndjson"
    )
    assert answer.status_code in (200, 201), answer.json
    assert in_trash(alice, "posts") == []
    assert replaced["id"] in [one["record_id"] for one in entries()]
