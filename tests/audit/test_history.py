"""What a record was: its changes, its state at a moment, and a state written anew."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from app import clock
from app.audit import sealing
from app.records.history import audit_view
from tests.audit.chains import verified
from tests.builders import Caller, Cast, make_collection, make_record
from tests.console.browser import Browser
from tests.sql import statements

SCHEMA: list[dict[str, Any]] = [
    {"name": "title", "type": "text", "required": True},
    {"name": "views", "type": "number"},
    {"name": "ratio", "type": "number"},
    {"name": "done", "type": "boolean"},
    {"name": "day", "type": "date"},
    {"name": "at", "type": "datetime"},
    {"name": "tags", "type": "json"},
    {"name": "mail", "type": "email", "pii": True, "mask_type": "email"},
    {"name": "loud", "type": "computed", "expression": "upper(title)", "return_type": "text"},
]
FIRST = {
    "title": "one",
    "views": 3,
    "ratio": 0.1,
    "done": False,
    "day": "2026-01-31",
    "at": "2026-01-31T10:00:00.000000Z",
    "tags": {"a": [1, None, "x"]},
    "mail": "ada@acme.example",
}
SECOND = {"title": "two", "views": None, "done": True, "day": None, "tags": ["b"]}
ONE = "records/posts/{}"


def history(caller: Caller, id: str, **asked: Any) -> list[dict[str, Any]]:
    """A record's changes, the newest first."""
    answer = caller.get(f"{ONE.format(id)}/history", query_string=asked)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json["items"]
    return found


def as_of(caller: Caller, id: str, moment: str, **asked: Any) -> Any:
    """The answer to what a record was at a moment."""
    return caller.get(ONE.format(id), query_string={"as_of": moment, **asked})


def test_record_history_has_one_item_per_transaction(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA)
    id = make_record(cast.alice, **FIRST)["id"]
    cast.bob.patch(ONE.format(id), SECOND)
    make_record(cast.alice, title="another")
    found = history(cast.alice, id)
    assert [(one["operation"], one["user_id"]) for one in found] == [
        ("UPDATE", cast.bob.id),
        ("CREATE", cast.alice.id),
    ]
    assert found[0]["user_email"] == cast.bob.email
    told = {one["field"]: (one["old_value"], one["new_value"]) for one in found[0]["changes"]}
    assert told == {name: (FIRST[name], SECOND[name]) for name in SECOND}
    made = {one["field"]: one["new_value"] for one in found[1]["changes"]}
    assert made == FIRST
    assert not any(one["masked"] or one["erased"] for one in found[1]["changes"])
    page = cast.alice.get(f"{ONE.format(id)}/history?limit=1&page=2").json
    assert (page["items"], page["total"]) == ([found[1]], 2)
    beyond = cast.alice.get(f"{ONE.format(id)}/history?page=3").json
    assert (beyond["items"], beyond["total"]) == ([], 2)


def test_record_as_of_returns_state_at_the_moment(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA)
    early = clock.iso(clock.now())
    made = make_record(cast.alice, **FIRST)
    id = made["id"]
    changed = cast.bob.patch(ONE.format(id), SECOND).json
    assert cast.alice.delete(ONE.format(id)).status_code == 204
    deleted, update, create = history(cast.alice, id)
    # What a record says of when it was changed is what its history says, too.
    assert (create["occurred_at"], update["occurred_at"]) == (
        made["updated_at"],
        changed["updated_at"],
    )
    then = as_of(cast.alice, id, made["updated_at"])
    assert (then.status_code, then.json) == (200, made), then.text
    assert then.json["loud"] == "ONE"
    then = as_of(cast.bob, id, changed["updated_at"]).json
    assert then == changed
    assert then["updated_by"] == cast.bob.id
    chosen = as_of(cast.alice, id, update["occurred_at"], fields="title").json
    assert chosen == {"id": id, "title": "two"}
    for moment in (early, deleted["occurred_at"], clock.iso(clock.now())):
        assert as_of(cast.alice, id, moment).status_code == 404
    assert as_of(cast.alice, id, create["occurred_at"], fields="nothing").status_code == 400
    assert as_of(cast.alice, id, "yesterday").status_code == 422


def test_record_restore_writes_former_state(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA)
    made = make_record(cast.alice, **FIRST)
    id = made["id"]
    cast.alice.patch(ONE.format(id), SECOND)
    cast.alice.patch(ONE.format(id), {"views": 9})
    *_, create = history(cast.alice, id)
    back = (f"{ONE.format(id)}/restore", {"audit_id": create["audit_id"]})
    assert cast.bob.post(*back, headers={"If-Match": '"0"'}).status_code == 412
    seen = cast.bob.get(ONE.format(id)).headers["ETag"]
    restored = cast.bob.post(*back, headers={"If-Match": seen})
    assert restored.status_code == 200, restored.text
    assert restored.headers["ETag"] == cast.bob.get(ONE.format(id)).headers["ETag"] != seen
    assert {name: restored.json[name] for name in FIRST} == FIRST | {"mail": "a***@acme.example"}
    assert cast.alice.get(ONE.format(id)).json["mail"] == FIRST["mail"]
    newest = history(cast.alice, id)[0]
    assert (newest["operation"], newest["user_id"]) == ("UPDATE", cast.bob.id)
    assert {one["field"] for one in newest["changes"]} == set(SECOND)
    assert verified(cast.root)["valid"]
    for audit_id in (create["audit_id"] + 10**9, 1):
        missing = cast.alice.post(f"{ONE.format(id)}/restore", {"audit_id": audit_id})
        assert missing.status_code == 404
    assert cast.alice.post(f"{ONE.format(id)}/restore", {"audit_id": 0}).status_code == 422
    cast.alice.delete(ONE.format(id))
    gone = cast.alice.post(f"{ONE.format(id)}/restore", {"audit_id": create["audit_id"]})
    assert gone.status_code == 404


def test_record_history_spans_deletion_and_recreation(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA)
    made = make_record(cast.alice, **FIRST)
    id, path = made["id"], ONE.format(made["id"])
    admin, undo = Browser(app, cast.alice), f"records/{cast.alice.account_id}/posts/{id}/revive"
    changed = cast.bob.patch(path, SECOND).json
    cast.alice.delete(path)
    between = clock.iso(clock.now())
    admin.done(undo)
    again = cast.alice.get(path).json
    assert {n: again[n] for n in SECOND} == SECOND
    cast.alice.patch(path, {"views": 5})
    cast.alice.delete(path)
    _, last, _, deleted, _, first = history(cast.alice, id)
    assert as_of(cast.alice, id, made["updated_at"]).json == made
    assert as_of(cast.bob, id, changed["updated_at"]).json == changed
    assert as_of(cast.alice, id, between).status_code == 404
    then = as_of(cast.alice, id, last["occurred_at"]).json
    assert (then["views"], then["created_at"]) == (5, again["created_at"])
    admin.done(undo)
    assert cast.alice.get(path).json["views"] == 5
    gone = cast.alice.post(f"{path}/restore", {"audit_id": deleted["audit_id"]})
    assert gone.status_code == 404
    restored = cast.alice.post(f"{path}/restore", {"audit_id": first["audit_id"]}).json
    assert {name: restored[name] for name in FIRST} == FIRST
    assert verified(cast.root)["valid"]


def test_record_history_excludes_former_collection_with_same_name(app: Flask, cast: Cast) -> None:
    former = [{"name": name, "type": "text"} for name in ("views", "done", "at", "tags", "note")]
    posts = make_collection(cast.root, schema=former, view_fields=["views"])
    gone, there = [
        make_record(cast.alice, views="many", done="no", at="?", tags="{", note="hush")["id"]
        for _ in range(2)
    ]
    cast.alice.patch(ONE.format(gone), {"views": "more"})
    (update, create) = history(cast.alice, gone)
    cast.alice.delete(ONE.format(gone))
    cast.root.delete(f"collections/{posts['id']}")
    make_collection(cast.root, schema=[*SCHEMA[1:-1], {"name": "note", "type": "text"}])
    admin = Browser(app, cast.alice)
    undo = f"records/{cast.alice.account_id}/posts/{gone}/revive"
    for id in (gone, there):
        assert cast.alice.get(f"{ONE.format(id)}/history").status_code == 404
        assert as_of(cast.alice, id, update["occurred_at"]).status_code == 404
    assert admin.send(undo).status_code == 404
    acting = cast.root.acting_in("acme")
    kept = acting.post("records/posts/import?keep_ids=true", [{"id": gone, "views": 7}])
    assert kept.status_code == 200, kept.json
    (made,) = history(cast.alice, gone)
    assert [(one["field"], one["new_value"]) for one in made["changes"]] == [("views", 7)]
    for entry in (update, create):
        answer = cast.alice.post(f"{ONE.format(gone)}/restore", {"audit_id": entry["audit_id"]})
        assert answer.status_code == 404
    assert as_of(cast.alice, gone, create["occurred_at"]).status_code == 404


def test_record_history_needs_update_rule_and_hides_unviewable_fields(cast: Cast) -> None:
    make_collection(
        cast.root,
        schema=SCHEMA,
        update_rule="created_by = @request.auth.id",
        view_fields=["title", "mail"],
    )
    id = make_record(cast.bob, **FIRST)["id"]
    (create,) = history(cast.bob, id)
    told = {one["field"]: (one["new_value"], one["masked"]) for one in create["changes"]}
    assert told == {"title": ("one", False), "mail": ("a***@acme.example", True)}
    body = {"audit_id": create["audit_id"]}
    for caller, status in ((cast.alice, 403), (cast.charlie, 404)):
        assert caller.get(f"{ONE.format(id)}/history").status_code == status
        assert caller.post(f"{ONE.format(id)}/restore", body).status_code == status
    seen = as_of(cast.bob, id, create["occurred_at"]).json
    assert (seen["mail"], "views" in seen) == ("a***@acme.example", False)
    assert as_of(cast.charlie, id, create["occurred_at"]).status_code == 404


def test_record_history_omits_changes_of_hidden_fields_only(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA, view_fields=["title"])
    id = make_record(cast.alice, **FIRST)["id"]
    for body in ({"views": 5}, {"views": 5}, {"views": 6, "title": "new"}, {"views": 7}):
        cast.bob.patch(ONE.format(id), body)
    found = history(cast.bob, id)
    assert [[c["field"] for c in one["changes"]] for one in found] == [["title"], ["title"]]
    assert cast.bob.get(f"{ONE.format(id)}/history?limit=1").json["total"] == 2
    assert len(history(cast.root.acting_in("acme"), id)) == 4
    restored = cast.bob.post(f"{ONE.format(id)}/restore", {"audit_id": found[0]["audit_id"]})
    assert restored.status_code == 200
    assert cast.root.acting_in("acme").get(ONE.format(id)).json["views"] == 6
    cast.root.put("collections/posts/rules", {"view_rule": None})
    assert [one["operation"] for one in history(cast.bob, id)] == ["CREATE"]


def test_record_restore_refusal_names_no_hidden_field(cast: Cast) -> None:
    make_collection(cast.root, "teams")
    team = {"name": "team", "type": "reference", "collection": "teams"}
    make_collection(cast.root, schema=[*SCHEMA, team], view_fields=["title", "done"])
    teams = [make_record(cast.root.acting_in("acme"), "teams", title=str(n))["id"] for n in (1, 2)]
    id = make_record(cast.alice, **FIRST, team=teams[0])["id"]
    cast.alice.patch(ONE.format(id), {"views": 8, "team": teams[1], "done": True})
    url, body = f"{ONE.format(id)}/restore", {"audit_id": history(cast.bob, id)[-1]["audit_id"]}
    message = "You may not write all fields of this state."
    hidden = {"error": "field_denied", "message": message}
    for closed in ({"update_fields": ["title", "done"]}, {"update_fields": ["title"]}):
        cast.root.put("collections/posts/rules", closed)
        refused = cast.bob.post(url, body)
        assert (refused.status_code, refused.json) == (403, hidden)
    cast.root.put("collections/posts/rules", {"update_fields": "*"})
    cast.root.put("collections/teams/rules", {"view_rule": "@owns_record()"})
    refused = cast.bob.post(url, body)
    assert (refused.status_code, refused.json) == (403, hidden)
    cast.root.put("collections/posts/rules", {"view_fields": "*", "update_fields": ["title"]})
    refused = cast.bob.post(url, body)
    assert sorted(one["field"] for one in refused.json["details"]) == ["done", "team", "views"]


def test_record_as_of_has_metadata_of_its_time(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA, view_fields=["title"])
    id = make_record(cast.alice, **FIRST)["id"]
    moments = [clock.iso(clock.now())]
    # What changes nothing, and what changes nothing that is seen.
    for views in (FIRST["views"], 4):
        cast.bob.patch(ONE.format(id), {"views": views})
        moments.append(clock.iso(clock.now()))
    for _ in range(2):
        for moment in moments[:2]:
            seen = as_of(cast.bob, id, moment).json
            assert (seen["updated_at"] < moments[0], seen["updated_by"]) == (True, cast.alice.id)
        cast.bob.patch(ONE.format(id), {"title": "new"})
    assert as_of(cast.bob, id, moments[2]).json["updated_by"] == cast.alice.id
    whole = as_of(cast.root.acting_in("acme"), id, moments[2]).json
    assert (moments[1] < whole["updated_at"] < moments[2], whole["updated_by"]) == (
        True,
        cast.bob.id,
    )


def test_record_as_of_needs_view_rule_of_today_and_of_the_moment(cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA, view_rule="title != 'secret'")
    id = make_record(cast.alice, title="secret")["id"]
    cast.alice.patch(ONE.format(id), {"title": "open"})
    cast.alice.patch(ONE.format(id), {"title": "secret"})
    moments = [one["occurred_at"] for one in history(cast.root.acting_in("acme"), id)]
    assert [as_of(cast.alice, id, one).status_code for one in moments] == [404, 404, 404]
    cast.alice.patch(ONE.format(id), {"title": "open"})
    assert [as_of(cast.alice, id, one).status_code for one in moments] == [404, 200, 404]
    assert [as_of(cast.root.acting_in("acme"), id, one).status_code for one in moments] == [200] * 3


def test_record_as_of_includes_defaults_backfilled_later(cast: Cast) -> None:
    posts = make_collection(cast.root, schema=SCHEMA[:2])
    id = make_record(cast.alice, title="one", views=1)["id"]
    filled = [SCHEMA[0], {**SCHEMA[1], "required": True, "default": 5}]
    added = {"name": "state", "type": "text", "default": "new"}
    answer = cast.root.put(f"collections/{posts['id']}", {"schema": [*filled, added]})
    assert answer.status_code == 200, answer.json
    between = clock.iso(clock.now())
    cast.alice.patch(ONE.format(id), {"state": "old", "views": 2})
    (_, create) = history(cast.alice, id)
    first = as_of(cast.alice, id, create["occurred_at"]).json
    assert (first["views"], first["state"]) == (1, None)
    later = as_of(cast.alice, id, between).json
    assert (later["views"], later["state"]) == (1, "new")


def test_record_history_needs_at_most_six_statements(app: Flask, cast: Cast) -> None:
    make_collection(cast.root, schema=SCHEMA)
    id = make_record(cast.alice, **FIRST)["id"]
    for n in range(5):
        cast.alice.patch(ONE.format(id), {"views": n})
    history(cast.alice, id)  # seals the changes
    with statements(app) as run:
        assert len(history(cast.alice, id, limit=2)) == 2
    assert len(run) <= 6, run
    # The page is cut by the database, not after all entries have been read.
    assert [" LIMIT " in one for one in run if "old_value" in one] == [True, True]


def test_record_as_of_ignores_what_is_changed_meanwhile(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root, schema=SCHEMA)
    made = make_record(cast.alice, **FIRST)
    read_one = audit_view.reads.read_one

    def read_after_write(*about: Any) -> Any:
        monkeypatch.undo()
        assert cast.bob.patch(ONE.format(made["id"]), {"views": 99}).status_code == 200
        return read_one(*about)

    monkeypatch.setattr(audit_view.reads, "read_one", read_after_write)
    seen = as_of(cast.alice, made["id"], made["updated_at"]).json
    assert (seen["views"], seen["updated_by"]) == (3, cast.alice.id)


def test_record_restore_with_idempotency_key_seals_in_batches(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_collection(cast.root, schema=SCHEMA)
    id = make_record(cast.alice, **FIRST)["id"]
    create = history(cast.alice, id)[-1]
    for n in range(5):
        cast.alice.patch(ONE.format(id), {"views": n})
    monkeypatch.setattr(sealing, "BATCH_SIZE", 2)
    back = (f"{ONE.format(id)}/restore", {"audit_id": create["audit_id"]})
    restored = cast.bob.post(*back, headers={"Idempotency-Key": "back"})
    assert (restored.status_code, restored.json["views"]) == (200, 3)
