"""Events: what is told of changes, by which doors they come, and how they are listed."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask

from app import clock, db
from app.accounts.domains.models import AccountDomain
from app.accounts.models import Account, GroupMember, User
from app.accounts.usage import notices, request_counter
from app.events import Happened
from app.operator import sealing, service, store
from app.operator.models import EVENTS
from app.operator.types import EventType, expand
from app.realtime.feed import changes
from app.sso.models import ProviderSetting
from tests.auth.test_operator_keys import operator
from tests.builders import PASSWORD, Caller, Cast, make_account, make_collection, make_record
from tests.mailbox import outbox, run_jobs, token_in
from tests.operator import reading
from tests.operator.reading import events, position, told

MARK = "zz-personal"


def invite(alice: Caller, email: str) -> str:
    """An invitation of an address; returns the id."""
    answer = alice.post("invitations", {"email": email, "role": "viewer"})
    assert answer.status_code == 201, answer.json
    return str(answer.json["id"])


def change_user(alice: Caller, user_id: str, **values: Any) -> None:
    """Change a user of the account."""
    answer = alice.patch(f"account/users/{user_id}", values)
    assert answer.status_code == 200, answer.json


def new_user(alice: Caller, email: str) -> str:
    """A new user of the account; returns the id."""
    body = {"email": email, "role": "viewer", "name": MARK}
    answer = alice.post("account/users", body)
    assert answer.status_code == 201, answer.json
    return str(answer.json["id"])


def test_life_of_account_is_told_in_order(cast: Cast) -> None:
    after, root = position(cast.root), cast.root
    made = root.post("accounts", {"name": "Initech"}).json
    own = {"account_id": made["id"]}
    assert root.patch(f"accounts/{made['id']}", {"name": "Initrode"}).status_code == 200
    assert root.put("plans", {"pro": {"flags": ["sla"]}}).status_code == 200
    assert root.patch(f"accounts/{made['id']}", {"plan": "pro"}).status_code == 200
    overrides = {"quotas": {"records": {"hard": 5}}}
    assert root.patch(f"accounts/{made['id']}", {"overrides": overrides}).status_code == 200
    assert root.patch(f"accounts/{made['id']}", {"is_active": False}).status_code == 200
    assert root.patch(f"accounts/{made['id']}", {"is_active": True}).status_code == 200
    assert root.delete(f"accounts/{made['id']}").status_code in (202, 204)
    found = [one for one in events(root, after) if one["account_id"] == made["id"]]
    assert [(one["type"], one["data"]) for one in found if "group" not in one["type"]] == [
        ("account.created", {**own, "template": None}),
        ("account.updated", {**own, "fields": ["name"]}),
        ("plan.changed", {**own, "plan": "pro", "previous_plan": None}),
        ("plan.changed", {**own, "plan": "pro", "previous_plan": "pro"}),
        ("account.suspended", own),
        ("account.updated", {**own, "fields": ["is_active"]}),
        ("account.deleted", own),
    ]
    assert {one["actor"]["id"] for one in found} == {root.id}
    assert len({one["id"] for one in found}) == len(found)


def test_life_of_user_is_told(cast: Cast) -> None:
    alice, after = cast.alice, position(cast.root)
    user_id = new_user(alice, "dora@acme.example")
    own = {"user_id": user_id}
    change_user(alice, user_id, name="Dora")
    change_user(alice, user_id, role="editor")
    change_user(alice, user_id, is_active=False)
    assert alice.delete(f"account/users/{user_id}").status_code == 204
    found = told(cast.root, after, types="user.*")
    assert [type for type, _ in found] == [
        *("user.created", "user.updated", "user.role_changed", "user.deactivated"),
        "user.deleted",
    ]
    assert found[1][1] == {**own, "fields": ["name"]}
    assert found[2][1].keys() == {"user_id", "role_id", "previous_role_id"}
    assert found[3][1] == found[4][1] == own


def test_who_accepts_an_invitation_joins(app: Flask, cast: Cast, anyone: Caller) -> None:
    after = position(cast.root)
    group = cast.alice.post("groups", {"name": "sales"}).json
    body = {"email": "eve@acme.example", "role": "viewer", "groups": ["sales"]}
    invitation = cast.alice.post("invitations", body).json
    run_jobs(app)
    token = token_in(outbox(app)[-1])
    accepted = anyone.post(f"invitations/{token}/accept", {"password": PASSWORD, "name": "Eve"})
    assert accepted.status_code == 200, accepted.json
    revoked = invite(cast.alice, "fred@acme.example")
    assert cast.alice.delete(f"invitations/{revoked}").status_code == 204
    found = told(cast.root, after)
    user_id = next(data["user_id"] for type, data in found if type == "user.joined")
    assert [(type, data) for type, data in found if type != "user.created"] == [
        ("invitation.created", {"invitation_id": invitation["id"]}),
        ("invitation.accepted", {"invitation_id": invitation["id"]}),
        ("user.joined", {"user_id": user_id}),
        ("user.verified", {"user_id": user_id}),
        ("group.member_added", {"group_id": group["id"], "user_id": user_id}),
        ("invitation.created", {"invitation_id": revoked}),
        ("invitation.revoked", {"invitation_id": revoked}),
    ]


def test_deleted_user_leaves_groups_first(cast: Cast) -> None:
    user_id = new_user(cast.alice, "gil@acme.example")
    group = cast.alice.post("groups", {"name": "sales"}).json
    joined = cast.alice.post(f"groups/{group['id']}/users", {"user_id": user_id})
    assert joined.status_code < 300, joined.json
    after = position(cast.root)
    assert cast.alice.delete(f"account/users/{user_id}").status_code == 204
    types = [type for type, _ in told(cast.root, after)]
    assert sorted(types) == ["group.member_removed", "user.deleted"]


def test_domain_and_provider_are_told_as_they_switch(app: Flask, cast: Cast) -> None:
    after, account_id = position(cast.root), cast.alice.account_id
    with app.app_context(), db.transaction() as session:
        domain = AccountDomain(account_id=account_id, domain=f"{MARK}.example", token=MARK)
        provider = ProviderSetting(
            account_id=account_id,
            category="auth_providers",
            provider_name="google",
            display_name=MARK,
            config={"client_id": MARK},
            secrets="{}",
            enabled=False,
        )
        session.add_all([domain, provider])
        session.flush()
        domain.verified_at, provider.enabled = clock.now(), True
        session.flush()
        provider.display_name = "Google"  # nothing is switched
        session.flush()
        domain.verified_at = None
        session.delete(provider)
        session.flush()
        ids = {"domain_id": domain.id}, {"provider_id": provider.id}
    assert sorted(told(cast.root, after), key=str) == sorted(
        [
            ("domain.verified", ids[0]),
            ("domain.lapsed", ids[0]),
            ("provider.enabled", ids[1]),
            ("provider.disabled", ids[1]),
        ],
        key=str,
    )


def test_quota_is_reached_once_and_exceeded_once_an_hour(app: Flask, cast: Cast) -> None:
    make_collection(cast.root)
    limits = {"records": {"soft": 1, "hard": 2}}
    answer = cast.root.patch(f"accounts/{cast.alice.account_id}/quotas", limits)
    assert answer.status_code == 200, answer.json
    after = position(cast.root)
    for _ in range(2):
        make_record(cast.alice, title="x")
    for _ in range(2):
        assert cast.alice.post("records/posts", {"title": "x"}).status_code == 429
        with app.app_context():
            notices.check_quotas({})
    about = {"account_id": cast.alice.account_id, "quota": "records"}
    found = sorted(told(cast.root, after, types="quota.*"))
    assert found == [("quota.exceeded", about), ("quota.reached", about)]
    with time_machine.travel(clock.now() + timedelta(hours=1)), app.app_context():
        request_counter.current().note_refusal(cast.alice.account_id, "records")
        request_counter.flush(request_counter.current())
        request_counter.flush(request_counter.current())
    assert told(cast.root, after, types="quota.exceeded") == [("quota.exceeded", about)] * 2


def test_rolled_back_change_is_not_told(app: Flask, cast: Cast) -> None:
    after = position(cast.root)

    def rename() -> None:
        with app.app_context(), db.transaction() as session:
            session.get_one(User, (cast.bob.account_id, cast.bob.id)).name = "Robert"
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rename()
    assert events(cast.root, after) == []


def test_every_door_is_covered_by_changes_of_rows(app: Flask, cast: Cast) -> None:
    """A change by the model alone is told, as those of console, SCIM, jobs and manifest are."""
    after = position(cast.root)
    with app.app_context(), db.transaction() as session:
        bob = sa.update(User).where(User.account_id == cast.bob.account_id, User.id == cast.bob.id)
        session.execute(bob.values(is_active=False, last_login=clock.now()))
        session.execute(bob.values(last_login=clock.now()))
    assert told(cast.root, after) == [("user.deactivated", {"user_id": cast.bob.id})]


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ({"types": "user.*,nothing"}, 400, "types"),
        ({"types": "user.nothing"}, 400, "types"),
        ({"types": ""}, 400, "types"),
        ({"after": 10**12}, 400, "after"),
        ({"after": -1}, 422, None),
        ({"limit": 0}, 422, None),
        ({"unknown": "1"}, 422, None),
    ],
)
def test_unknown_parameters_are_refused(
    root: Caller, query: dict[str, Any], status: int, field: str | None
) -> None:
    answer = root.get(reading.EVENTS, query_string=query)
    assert answer.status_code == status, answer.json
    if field:
        assert answer.json["details"][0]["field"] == field


def test_events_are_for_superadmins(cast: Cast, anyone: Caller) -> None:
    assert anyone.get(reading.EVENTS).status_code == 401
    for caller in (cast.alice, cast.bob):
        assert caller.get(reading.EVENTS).status_code == 403
    assert cast.root.acting_in(cast.alice.account_id).get(reading.EVENTS).status_code == 200


def test_look_that_is_not_recorded_is_503(root: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise sa.exc.OperationalError(None, None, LookupError("The server is shutting down."))

    monkeypatch.setattr("app.hooks.reads.note_request", fail)
    answer = root.get(reading.EVENTS)
    assert (answer.status_code, answer.json["error"]) == (503, "unavailable")
    assert "items" not in answer.json


def test_pages_follow_each_other_and_types_filter(app: Flask, cast: Cast) -> None:
    after = position(cast.root)
    for number in range(7):
        make_account(app, f"tenant-{number}")
    pages = events(cast.root, after, limit=3)
    assert len(pages) >= 7
    assert pages == events(cast.root, after)
    only = events(cast.root, after, types="account.created", limit=2)
    assert [one["type"] for one in only] == ["account.created"] * 7
    by_kind = events(cast.root, after, types="account.*,plan.changed")
    assert [one["id"] for one in only] == [one["id"] for one in by_kind]


def test_scan_is_bounded_and_goes_on(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "SCANNED", 3)
    after = position(cast.root)
    for number in range(5):
        make_account(app, f"tenant-{number}")
    answer = cast.root.get(reading.EVENTS, query_string={"after": after, "types": "quota.*"}).json
    assert (answer["items"], answer["has_more"]) == ([], True)
    assert answer["next"] == after + 3
    assert len(events(cast.root, after, types="account.created")) == 5


@pytest.mark.long
def test_burst_is_sealed_and_read_in_bounded_memory(app: Flask, cast: Cast) -> None:
    after = position(cast.root)
    with app.app_context(), db.transaction():
        for _ in range(10_000):
            about = {"user_id": cast.bob.id}
            store.record(Happened(cast.bob.account_id, EventType.USER_UPDATED, about))
    tracemalloc.start()
    try:
        found = events(cast.root, after, limit=1000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len({one["id"] for one in found}) == 10_000
    page = cast.root.get(reading.EVENTS, query_string={"after": after, "limit": 1000}).json
    assert (len(page["items"]), page["has_more"]) == (1000, True)
    # What the test itself keeps is most of it: 10,000 events of some 300 bytes.
    assert peak < 40 * 2**20


@pytest.mark.parametrize("days", [30, 2])
def test_expired_position_is_410_and_oldest_is_read(app: Flask, cast: Cast, days: int) -> None:
    if days != 30:  # the default
        settings = app.extensions["atrium.config"]
        app.extensions["atrium.config"] = replace(settings, event_retention_days=days)
    after = position(cast.root)
    make_account(app, "first")
    middle = position(cast.root)
    with time_machine.travel(clock.now() + timedelta(days=days, minutes=1)):
        make_account(app, "second")
        with app.app_context():
            sealing.settle()
            service.purge({})
    answer = cast.root.get(reading.EVENTS, query_string={"after": after})
    assert (answer.status_code, answer.json["error"]) == (410, "feed_expired")
    assert answer.json["oldest"] == middle + 1
    kept = events(cast.root)
    assert kept
    assert all(one["type"].startswith("account") or "group" in one["type"] for one in kept)
    assert events(cast.root, middle) == kept


def test_restored_instance_tells_readers(app: Flask, cast: Cast) -> None:
    make_account(app, "before")
    after = position(cast.root)
    with app.app_context():
        begun = changes.start_generation(always=True)
    answer = cast.root.get(reading.EVENTS, query_string={"after": after})
    assert answer.status_code == 410
    assert events(cast.root) == []
    assert position(cast.root) == begun
    make_account(app, "after")
    assert [one["type"] for one in events(cast.root, begun, types="account.*")] == [
        "account.created"
    ]


def test_data_of_all_types_tells_ids_alone(app: Flask, cast: Cast, anyone: Caller) -> None:
    after = position(cast.root)
    test_life_of_account_is_told_in_order(cast)
    test_life_of_user_is_told(cast)
    test_who_accepts_an_invitation_joins(app, cast, anyone)
    test_domain_and_provider_are_told_as_they_switch(app, cast)
    make_collection(cast.root, "notes")
    hook = {"url": "http://127.0.0.1:9/x", "types": ["records.*"], "collections": ["notes"]}
    assert cast.root.post("operator/webhooks", hook).status_code == 201
    record = make_record(cast.alice, "notes", title=MARK)
    assert cast.alice.patch(f"records/notes/{record['id']}", {"title": "y"}).status_code == 200
    assert cast.alice.delete(f"records/notes/{record['id']}").status_code == 204
    with app.app_context(), db.transaction() as session:
        member = sa.select(GroupMember).where(GroupMember.user_id == cast.alice.id)
        session.delete(session.scalars(member).one())
    make_collection(cast.root, "posts")
    limits = {"records": {"soft": 0, "hard": 0}}
    assert cast.root.patch(f"accounts/{cast.alice.account_id}/quotas", limits).status_code == 200
    assert cast.alice.post("records/posts", {"title": MARK}).status_code == 429
    with app.app_context():
        notices.check_quotas({})
    found = events(cast.root, after)
    assert {one["type"] for one in found} == {one.value for one in EventType}
    plain = {"fields", "template", "plan", "previous_plan", "collection", "quota"}
    for one in found:
        assert all(name in plain or name.endswith("_id") for name in one["data"]), one
        assert one["actor"].keys() == {"kind", "id", "name"}
        assert one["actor"]["name"] is None, one
        text = json.dumps(one).lower()
        assert not any(word in text for word in (MARK, "@", "dora", "eve", PASSWORD.lower())), one


def test_types_expand_by_their_noun() -> None:
    assert expand(["plan.changed"]) == {"plan.changed"}
    assert expand(["invitation.*", "plan.changed"]) == {
        *("invitation.created", "invitation.accepted", "invitation.revoked", "plan.changed")
    }


def test_account_that_is_restored_is_created_again(app: Flask, cast: Cast) -> None:
    account_id = cast.charlie.account_id
    assert cast.root.delete(f"accounts/{account_id}").status_code in (202, 204)
    after = position(cast.root)
    with app.app_context(), db.transaction() as session:
        account = session.get_one(Account, account_id)
        account.closed_at, account.is_active, account.slug = None, True, "globex"
    own = {"account_id": account_id, "template": None}
    assert told(cast.root, after) == [("account.created", own)]


def test_events_of_closed_account_end_with_its_deletion(app: Flask, cast: Cast) -> None:
    after = position(cast.root)
    assert cast.root.delete(f"accounts/{cast.charlie.account_id}").status_code in (202, 204)
    run_jobs(app)
    own = {"account_id": cast.charlie.account_id}
    assert told(cast.root, after) == [("account.deleted", own)]
    with app.app_context():
        assert db.db.session.get_one(Account, cast.charlie.account_id).closed_at
        kept = sa.select(sa.func.count()).where(EVENTS.c.account_id == cast.charlie.account_id)
        assert db.connection().scalar(kept)


def test_actor_is_what_acted(app: Flask, cast: Cast) -> None:
    """By a key, a key of a service user, and a superadmin; names of people and keys stay out."""
    bot = cast.alice.post("account/users", {"kind": "service", "name": "Bot", "role": "admin"}).json
    keys = [
        cast.alice.post("api-keys", {"name": MARK, **body}).json
        for body in ({}, {"user_id": bot["id"]})
    ]
    after = position(cast.root)
    programs = [Caller(app, **{"X-API-Key": one["key"]}) for one in keys]
    for number, one in enumerate((*programs, cast.root.acting_in("acme"), cast.alice)):
        new_user(one, f"{number}@acme.example")
    created = events(cast.root, after, types="user.created")
    assert [one["actor"] for one in created] == [
        {"kind": "api_key", "id": keys[0]["id"], "name": None},
        {"kind": "service", "id": bot["id"], "name": "Bot"},
        {"kind": "operator", "id": cast.root.id, "name": None},
        {"kind": "user", "id": cast.alice.id, "name": None},
    ]


def test_operator_keys_read_events_by_their_scope(app: Flask, cast: Cast) -> None:
    program = operator(app, cast.root, "events:read")
    assert program.get("operator/events").status_code == 200
    assert program.get("operator/webhooks").status_code == 200
    hook = {"url": "https://hooks.example.com/x", "types": ["user.*"]}
    assert program.post("operator/webhooks", hook).status_code == 403
    writer = operator(app, cast.root, "events:write")
    made = writer.post("operator/webhooks", hook)
    assert made.status_code == 201, made.json
    assert made.json["created_by"] == cast.root.id
    taken = writer.post(f"operator/webhooks/{made.json['id']}/take-over")
    assert (taken.status_code, taken.json["error"]) == (403, "scope_denied")
