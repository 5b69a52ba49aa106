"""Whatever an attacker does, no reader keeps what it may not see, and none is left in silence."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from app import clock
from app.accounts import groups
from app.accounts.models import User
from app.auth import principal as principals
from app.db import db
from app.realtime.feed import changes
from app.records.history import service as history
from tests import builders
from tests.builders import Caller, Cast, make_collection, make_record
from tests.bundle.accounts import export, import_, run
from tests.conftest import make_own_app
from tests.feed.test_changes import audit, feed, now
from tests.feed.test_generations import refusal
from tests.feed.test_members import MEMBER, Scene, joined
from tests.feed.test_rights import attributes, group, resets, role, rules
from tests.mailbox import run_jobs

ROOT = ("--as", "root@system.example")


def test_membership_that_is_undeleted_shows_its_records_again(app: Flask, cast: Cast) -> None:
    scene = Scene(cast, MEMBER)
    scene.join()
    scene.follow()
    own = joined(scene)
    scene.drop("members", own)
    assert set(scene.follow()) == {"-r0", "-r1"}
    with app.app_context():
        alice = principals.for_user(cast.alice.account_id, cast.alice.id)
        assert alice is not None
        history.undelete("members", own, by=alice)
    assert set(scene.follow()) == {"+r0", "+r1"}
    assert scene.operator.post(f"records/members/{own}/erase").status_code == 200
    assert "reset" in scene.follow()
    assert scene.copy == {}


def test_membership_restored_to_a_former_state_moves_what_is_in_view(cast: Cast) -> None:
    scene = Scene(cast, MEMBER)
    scene.join()
    scene.follow()
    own = joined(scene)
    first = scene.operator.get(f"records/members/{own}/history").json["items"][0]
    scene.change("members", own, project=scene.projects[1])
    assert set(scene.follow()) == {"-r0", "-r1", "+b0", "+b1"}
    answer = scene.operator.post(f"records/members/{own}/restore", {"audit_id": first["audit_id"]})
    assert answer.status_code == 200, answer.text
    assert set(scene.follow()) == {"+r0", "+r1", "-b0", "-b1"}


def test_memberships_restored_by_the_operator_are_told(app: Flask, cast: Cast) -> None:
    scene = Scene(cast, MEMBER)
    scene.join()
    scene.follow()
    moment = clock.iso(clock.now())
    scene.drop("members", joined(scene))
    assert set(scene.follow()) == {"-r0", "-r1"}
    result = run(app, "account", "restore", "acme", "--at", moment, "--yes", *ROOT)
    assert result.exit_code == 0, result.output
    assert set(scene.follow()) == {"+r0", "+r1"}


def test_import_of_a_bundle_ends_positions_of_before(
    app: Flask, cast: Cast, tmp_path: Path
) -> None:
    scene = Scene(cast, MEMBER)
    scene.join()
    scene.follow()
    file, email = export(app, tmp_path), cast.bob.email
    # What was seen after the export is not in the bundle.
    scene.drop("members", joined(scene))
    scene.follow()
    assert cast.root.delete(f"accounts/{cast.alice.account_id}").status_code == 204
    run_jobs(app)
    result = import_(app, file, *ROOT)
    assert result.exit_code == 0, result.output
    with app.app_context():
        user = db.session.query(User).filter_by(email=email).one()
        reader = Caller(app, user)
    for since in (1, scene.since):
        assert refusal(reader, since) == (410, "feed_expired")
    newest = now(reader)
    assert newest > scene.since
    operator = cast.root.acting_in("acme")
    member = operator.get("records/members").json["items"][0]
    assert operator.delete(f"records/members/{member['id']}").status_code < 300
    told = feed(reader, since=newest, collections="tasks")["items"]
    assert {(one["event"], one["record_id"]) for one in told} == {
        ("records.delete", id) for id in scene.tasks[0]
    }


def test_purge_of_unaudited_changes_ends_positions_before_marks_and_memberships(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit(app, monkeypatch, False)
    scene = Scene(cast, MEMBER)
    scene.join()
    scene.follow()
    before = scene.since
    assert role("editor")(cast).status_code < 300
    assert rules("tasks", view_rule='title = "0"')(cast).status_code == 200
    scene.drop("members", joined(scene))
    after = now(cast.bob)
    later = clock.now() + timedelta(days=60)
    with app.app_context(), monkeypatch.context() as patch:
        patch.setattr(clock, "now", lambda: later)
        changes.purge({})
    assert refusal(cast.bob, before) == (410, "feed_expired")
    assert feed(cast.bob, since=after)["items"] == []
    assert rules("tasks", view_rule='title = "1"')(cast).status_code == 200
    assert resets(cast.bob, after) == ["tasks"]


def test_key_follows_its_collection_and_gains_no_other(app: Flask, cast: Cast) -> None:
    made = make_collection(cast.root)
    make_collection(cast.root, "notes")
    make_record(cast.alice, title="a")
    scopes = {"collections": ["posts"], "operations": ["view"]}
    made_key = cast.alice.post("api-keys", {"name": "mine", "scopes": scopes})
    key = Caller(app, **{"X-API-Key": made_key.json["key"]})
    since = now(key)
    wider = {"scopes": {"collections": ["notes", "posts"]}}
    assert cast.alice.patch(f"api-keys/{made_key.json['id']}", wider).status_code == 422
    make_record(cast.alice, "notes", title="not for it")
    renamed = cast.root.patch(f"collections/{made['id']}", {"name": "articles"})
    assert renamed.status_code == 200, renamed.text
    assert set(resets(key, since)) >= {"articles", "posts"}
    make_record(cast.alice, "articles", title="for it")
    (item,) = feed(key, since=now(cast.alice) - 1)["items"]
    assert (item["event"], item["collection"]) == ("records.create", "articles")


def test_key_of_a_member_follows_the_memberships_of_its_user(app: Flask, cast: Cast) -> None:
    scene = Scene(cast, MEMBER)
    made = cast.bob.post("api-keys", {"name": "reader", "scopes": {"collections": ["tasks"]}})
    assert made.status_code == 201, made.text
    scene.reader = Caller(app, **{"X-API-Key": made.json["key"]})
    scene.reader.id = cast.bob.id
    scene.join()
    assert set(scene.follow()) == {"+r0", "+r1"}
    scene.drop("members", joined(scene))
    assert set(scene.follow()) == {"-r0", "-r1"}


def test_feed_of_all_accounts_is_refused(cast: Cast) -> None:
    make_collection(cast.root)
    everywhere = cast.root.acting_in("*")
    assert everywhere.get("changes").status_code == 400
    assert everywhere.get("realtime/subscribe").status_code == 400
    assert everywhere.post("realtime/tickets").status_code == 400


@pytest.mark.parametrize("mine", [True, False])
def test_import_of_many_memberships_is_told(cast: Cast, mine: bool) -> None:
    """Of 1,200 new members, one is the reader."""
    scene = Scene(cast, MEMBER)
    body = [
        {"project": scene.projects[0], "user": scene.other, "level": str(n)} for n in range(1200)
    ]
    if mine:
        body[600]["user"] = scene.reader.id
    for start in (0, 600):
        part = {"records": body[start : start + 600]}
        made = scene.operator.post("records/members/batch", part)
        assert made.status_code == 201, made.text
    told = scene.follow()
    assert set(told) in ({"+r0", "+r1"}, {"reset"}) if mine else told == []


def test_groups_and_their_members_that_are_deleted_are_told(cast: Cast) -> None:
    ids = [cast.alice.post("groups", {"name": name}).json["id"] for name in ("staff", "crew")]
    make_collection(cast.root, view_rule='@has_group("staff") || title = @request.auth.role')
    assert group("staff", joins=True)(cast).status_code < 300
    assert group("crew", joins=True)(cast).status_code < 300
    since = now(cast.bob)
    refused = cast.alice.delete(f"groups/{ids[0]}")
    assert refused.status_code == 409  # a rule names it
    assert resets(cast.bob, since) == []
    assert rules("posts", view_rule='@has_role("viewer")')(cast).status_code == 200
    assert resets(cast.bob, since) == ["posts"]
    since = now(cast.bob)
    assert cast.alice.delete(f"groups/{ids[0]}").status_code < 300
    assert resets(cast.bob, since) == []


def test_members_that_the_directory_sets_are_told(app: Flask, cast: Cast) -> None:
    id = cast.alice.post("groups", {"name": "staff"}).json["id"]
    make_collection(cast.root, view_rule='@has_group("staff")')
    for members in ([cast.bob.id], []):
        since = now(cast.bob)
        with app.app_context():
            groups.set_members(cast.alice.account_id, id, members)
        assert resets(cast.bob, since) == ["posts"]


def test_role_that_is_deleted_leaves_no_reader_with_it(app: Flask, cast: Cast) -> None:
    made = cast.root.post("roles", {"name": "lead"})
    assert made.status_code == 201, made.text
    make_collection(cast.root, view_rule='@has_role("viewer")')
    assert role("lead")(cast).status_code < 300
    since = now(cast.bob)
    assert cast.root.delete(f"roles/{made.json['id']}").status_code == 409
    assert role("viewer")(cast).status_code < 300
    assert cast.root.delete(f"roles/{made.json['id']}").status_code < 300
    assert resets(cast.bob, since) == ["posts"]


@pytest.mark.parametrize("kind", ["users", "accounts"])
def test_attribute_that_is_removed_is_told(cast: Cast, kind: str) -> None:
    path = {"users": "@request.auth.attributes.team", "accounts": "@account.attributes.team"}[kind]
    team = {"name": "team", "type": "text"}
    assert cast.root.put(f"attributes/{kind}", {"fields": [team]}).status_code == 200
    rule = {"view_rule": f'{path} = "a"', "list_rule": f'{path} = "a"'}
    make_collection(cast.root, **rule)
    of = {"users": "bob", "accounts": "account"}[kind]
    assert attributes(of, team="a")(cast).status_code < 300
    make_record(cast.alice, title="seen")
    since = now(cast.bob)
    assert cast.bob.get("records/posts").json["items"]
    gone: dict[str, Any] = {"remove_fields": ["team"]}
    plan = cast.root.post(f"attributes/{kind}/plan", gone).json
    gone["plan_hash"] = plan["plan_hash"]
    assert cast.root.put(f"attributes/{kind}", gone).status_code == 409  # a rule names it
    assert resets(cast.bob, since) == []
    assert rules("posts", view_rule='title = "seen"', list_rule="true")(cast).status_code == 200
    assert resets(cast.bob, since) == ["posts"]
    since = now(cast.bob)
    removed = cast.root.put(f"attributes/{kind}", gone)
    assert removed.status_code == 200, removed.text
    assert resets(cast.bob, since) == []


def test_account_that_was_suspended_is_told_what_changed_meanwhile(cast: Cast) -> None:
    make_collection(cast.root)
    make_record(cast.alice, title="a")
    since = now(cast.bob)
    path = f"accounts/{cast.alice.account_id}"
    assert cast.root.patch(path, {"is_active": False}).status_code == 200
    assert cast.bob.get("changes").status_code == 401
    assert rules("posts", view_rule='title = "b"')(cast).status_code == 200
    assert cast.bob.get("changes").status_code == 401
    assert cast.root.patch(path, {"is_active": True}).status_code == 200
    assert resets(cast.bob, since) == ["posts"]


def test_restored_backup_ends_positions_among_marks(database: str, tmp_path: Path) -> None:
    """Numbers of marks are not given again, and what changed of rights since the backup is gone."""
    app = make_own_app(database, tmp_path)
    cast = builders.make_cast(app)
    make_collection(cast.root, view_rule='title = "a"')
    file = tmp_path / "atrium.backup"
    make_record(cast.root.acting_in("acme"), title="a")
    assert run(app, "backup", file).exit_code == 0
    for title in "bcd":
        assert rules("posts", view_rule=f'title = "{title}"')(cast).status_code == 200
        assert role("editor")(cast).status_code < 300
        position = now(cast.bob)
    assert run(app, "restore", file, "--replace").exit_code == 0
    assert refusal(cast.bob, position) == (410, "feed_expired")
    assert rules("posts", view_rule='title = "e"')(cast).status_code == 200
    assert refusal(cast.bob, position) == (410, "feed_expired")
    page = feed(cast.bob)
    assert [one["event"] for one in page["items"]] == ["records.reset"]
    assert page["items"][0]["change"] > position
    assert page["next"] > position


@pytest.mark.parametrize("kind", ["number", "date", "boolean", "datetime", "email"])
def test_memberships_may_be_tied_by_values_of_any_type(cast: Cast, kind: str) -> None:
    values = {
        "number": (1.5, 2),
        "date": ("2026-01-31", "2026-02-01"),
        "boolean": (True, False),
        "datetime": ("2026-01-31T00:00:00Z", "2026-02-01T12:00:00.123456Z"),
        "email": ("a@acme.example", "b@acme.example"),
    }[kind]
    code, user = {"name": "code", "type": kind}, {"name": "user", "type": "user"}
    make_collection(cast.root, "members", [code, user], view_rule=None)
    rule = "@any(members, code = @record.code && user = @request.auth.id)"
    make_collection(cast.root, schema=[code], view_rule=rule, list_rule=rule)
    operator = cast.root.acting_in("acme")
    made = [make_record(operator, code=value)["id"] for value in (*values, None)]
    since = now(cast.bob)
    member = make_record(operator, "members", code=values[0], user=cast.bob.id)["id"]
    told = feed(cast.bob, since=since, collections="posts")
    assert [(one["event"], one["record_id"]) for one in told["items"]] == [
        ("records.create", made[0])
    ]
    assert operator.patch(f"records/members/{member}", {"code": values[1]}).status_code == 200
    told = feed(cast.bob, since=told["next"], collections="posts")
    assert {(one["event"], one["record_id"]) for one in told["items"]} == {
        ("records.delete", made[0]),
        ("records.create", made[1]),
    }
