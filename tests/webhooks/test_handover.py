"""What an admin who leaves has made: paused, listed, and told to the admins who stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.accounts import users
from app.audit.security_log.models import SecurityStream
from app.context import tenancy
from tests import builders
from tests.builders import Caller, Cast
from tests.console.browser import Browser
from tests.mailbox import body_of, outbox, run_jobs
from tests.receivers import Receiver, receiving
from tests.scim.conftest import Directory
from tests.security.test_streams import STREAM, send
from tests.webhooks.delivering import deliver, deliveries, make_webhook

REDIRECT = "https://elsewhere.example/signed-in"
GOOGLE = {"category": "auth_providers", "provider_name": "google"}
GOOGLE |= {"config": {"client_id": "one", "client_secret": "very secret"}}


@pytest.fixture
def dan(app: Flask, cast: Cast) -> Caller:
    """A second admin of acme."""
    builders.make_collection(cast.root)
    return Caller(app, builders.make_user(app, cast.alice.account_id, "dan@acme.example", "admin"))


def by_directory(cast: Cast, dan: Caller) -> Any:
    directory = Directory(cast.alice)
    replaced = {"op": "replace", "path": "active", "value": False}
    return directory.patch(f"Users/{dan.id}", {"Operations": [replaced]})


WAYS: dict[str, Callable[[Cast, Caller], Any]] = {
    "deactivated": lambda cast, dan: cast.alice.patch(
        f"account/users/{dan.id}", {"is_active": False}
    ),
    "demoted": lambda cast, dan: cast.alice.patch(f"account/users/{dan.id}", {"role": "viewer"}),
    "deleted": lambda cast, dan: cast.alice.delete(f"account/users/{dan.id}"),
    "deactivated by a superadmin": lambda cast, dan: cast.root.patch(
        f"users/{dan.id}", {"is_active": False}
    ),
    "erased": lambda cast, dan: cast.root.post(f"users/{dan.id}/erase"),
    "deactivated by the directory": by_directory,
}


def left(admin: Caller, user: Caller) -> dict[str, dict[str, Any]]:
    """What a user leaves, by kind."""
    answer = admin.get(f"account/users/{user.id}/left")
    assert answer.status_code in (200, 404), answer.text
    return {item["kind"]: item for item in answer.json.get("items", ())}


def bodies(receiver: Receiver) -> list[Any]:
    """The titles that a receiver of records has."""
    return [request.json["record"]["title"] for request in receiver.requests]


@pytest.mark.parametrize("way", WAYS)
def test_webhook_of_former_admin_is_paused_until_taken_over(
    app: Flask, cast: Cast, dan: Caller, way: str
) -> None:
    alice = cast.alice
    with receiving() as hook, receiving() as log:
        webhook = make_webhook(dan, hook.url)["id"]
        assert dan.put(STREAM, {"url": log.url}).status_code == 200
        builders.make_record(alice, title="before")
        deliver(app)
        send(app)
        number = len(log.requests)
        assert (bodies(hook), number) == (["before"], 1)
        builders.make_record(alice, title="waits")
        assert WAYS[way](cast, dan).status_code in (200, 204)
        builders.make_record(alice, title="after")
        deliver(app)
        send(app, later=600)
        assert (bodies(hook), len(log.requests)) == (["before"], number)
        shown = alice.get(f"webhooks/{webhook}").json
        assert shown["enabled"]
        assert shown["paused_at"]
        assert alice.get(STREAM).json["paused_at"]
        assert set(left(alice, dan)) == {"webhook", "security_stream"}
        # Nothing was lost meanwhile.
        taken = alice.post(f"webhooks/{webhook}/take-over").json
        assert (taken["paused_at"], taken["created_by"]) == (None, alice.id)
        taken = alice.post(f"{STREAM}/take-over").json
        assert (taken["paused_at"], taken["created_by"]) == (None, alice.id)
        deliver(app)
        send(app, later=1200)
        assert sorted(bodies(hook)) == ["after", "before", "waits"]
        first = [request.json["first_number"] for request in log.requests]
        last = [request.json["last_number"] for request in log.requests]
        assert first == [1, *(number + 1 for number in last[:-1])]
        assert left(alice, dan) == {}


def test_objects_left_by_former_admin_are_listed_and_mailed(
    app: Flask, cast: Cast, dan: Caller
) -> None:
    alice = cast.alice
    make_webhook(dan, "http://127.0.0.1:9/secret-path")
    dan.put(STREAM, {"url": "http://127.0.0.1:9/secret-path"})
    assert dan.post("account/scim/tokens").status_code == 201
    assert dan.post("account/setup-links", {"name": "IT of Dan"}).status_code == 201
    assert dan.post("admin/configuration", GOOGLE).status_code == 201
    assert dan.patch("account", {"allowed_redirect_uris": [REDIRECT]}).status_code == 200
    alice.patch("account", {"cors_origins": ["https://client.example"]})
    kinds = ["webhook", "security_stream", "scim_token", "setup_link"]
    kinds += ["provider", "redirect_address"]
    assert list(left(alice, dan)) == kinds
    assert left(alice, dan)["redirect_address"]["name"] == REDIRECT
    assert not any(item["paused_at"] for item in left(alice, dan).values())
    assert left(alice, cast.alice) == {}
    before = len(outbox(app))
    cast.alice.delete(f"account/users/{dan.id}")
    run_jobs(app)
    (mail,) = [one for one in outbox(app)[before:] if "leaves something behind" in one["Subject"]]
    assert mail["To"] == alice.email
    text = body_of(mail)
    assert "1 SCIM token, which still works" in text
    assert f"/console/team/left/{dan.id}" in text
    for chosen in ("IT of Dan", REDIRECT, "secret-path", "127.0.0.1"):
        assert chosen not in text + body_of(mail, "html")
    assert list(left(alice, dan)) == kinds
    item = left(alice, dan)["scim_token"]
    assert alice.delete(f"account/scim/tokens/{item['id']}").status_code == 204
    alice.patch("account", {"allowed_redirect_uris": []})
    assert {"scim_token", "redirect_address"}.isdisjoint(left(alice, dan))


def test_objects_left_by_former_admin_access_per_role(cast: Cast, dan: Caller) -> None:
    make_webhook(dan, "http://127.0.0.1:9/")
    path = f"account/users/{dan.id}/left"
    assert cast.bob.get(path).status_code == 403
    assert Caller(dan.app).get(path).status_code == 401
    assert cast.charlie.get(path).status_code == 404
    assert cast.alice.get(f"account/users/{cast.bob.id}/left").json == {"items": []}
    assert len(cast.root.acting_in("acme").get(path).json["items"]) == 1


def test_webhook_of_former_superadmin_is_paused_in_each_account(app: Flask, cast: Cast) -> None:
    system = cast.root.account_id
    other = Caller(app, builders.make_user(app, system, "sue@atrium.example", "admin"))
    builders.make_collection(cast.root)
    made = {
        slug: make_webhook(other.acting_in(slug), "http://127.0.0.1:9/")
        for slug in ("acme", "globex")
    }
    # Whatever the role, users of the system account are superadmins.
    assert cast.root.patch(f"users/{other.id}", {"role": "viewer"}).status_code == 200
    assert cast.alice.get(f"webhooks/{made['acme']['id']}").json["paused_at"] is None
    before = len(outbox(app))
    assert cast.root.delete(f"users/{other.id}").status_code == 204
    for admin, slug in ((cast.alice, "acme"), (cast.charlie, "globex")):
        assert admin.get(f"webhooks/{made[slug]['id']}").json["paused_at"]
        assert list(left(admin, other)) == ["webhook"]
    run_jobs(app)
    assert {mail["To"] for mail in outbox(app)[before:]} >= {cast.alice.email, cast.charlie.email}


def test_webhook_is_not_paused_by_password_or_other_changes(
    app: Flask, cast: Cast, dan: Caller
) -> None:
    webhook = make_webhook(dan, "http://127.0.0.1:9/")["id"]
    assert (
        cast.root.post(f"users/{dan.id}/password", {"password": "Another-horse-2"}).status_code
        == 200
    )
    assert cast.alice.patch(f"account/users/{dan.id}", {"name": "Dan"}).status_code == 200
    assert cast.alice.patch(f"account/users/{cast.bob.id}", {"role": "editor"}).status_code == 200
    assert cast.alice.get(f"webhooks/{webhook}").json["paused_at"] is None


def test_webhook_pause_ends_only_by_takeover(app: Flask, cast: Cast, dan: Caller) -> None:
    webhook = make_webhook(dan, "http://127.0.0.1:9/")["id"]
    WAYS["deactivated"](cast, dan)
    path = f"webhooks/{webhook}"
    for change in ({"enabled": False}, {"enabled": True}, {"headers": {"X-A": "b"}}):
        assert cast.alice.patch(path, change).json["paused_at"]
    builders.make_record(cast.alice, title="waits")
    assert [one.due_at for one in deliveries(app)] == [None]
    resent = cast.alice.post(f"{path}/deliveries/redeliver", {"since": "2020-01-01T00:00:00Z"})
    assert (resent.status_code, "paused" in resent.json["message"]) == (409, True)
    # Back as an admin, dan takes it over like anybody else.
    cast.alice.patch(f"account/users/{dan.id}", {"is_active": True})
    assert cast.alice.get(path).json["paused_at"]
    dan = Caller(app, users_of(app, dan))
    assert dan.post(f"{path}/take-over").json["paused_at"] is None
    assert all(one.due_at for one in deliveries(app))


def users_of(app: Flask, caller: Caller) -> Any:
    with app.app_context(), tenancy.across_accounts():
        user = users.get(None, caller.id)
        assert user.account.slug
        assert user.role.name
        db.db.session.expunge_all()
        return user


def test_security_stream_without_owner_is_not_paused(app: Flask, cast: Cast, dan: Caller) -> None:
    with receiving() as log:
        dan.put(STREAM, {"url": log.url})
        with app.app_context(), db.transaction() as session:
            own = SecurityStream.account_id == cast.alice.account_id
            session.execute(sa.update(SecurityStream).where(own).values(created_by=None))
        WAYS["deactivated"](cast, dan)
        send(app)
        assert log.requests
        assert cast.alice.get(STREAM).json["paused_at"] is None


def test_console_lists_objects_left_by_former_admin(app: Flask, cast: Cast, dan: Caller) -> None:
    webhook = make_webhook(dan, "http://127.0.0.1:9/")["id"]
    dan.put(STREAM, {"url": "http://127.0.0.1:9/"})
    assert dan.post("account/scim/tokens").status_code == 201
    browser = Browser(app, cast.alice)
    assert f"/console/team/left/{dan.id}" in browser.get(f"team/users/{dan.id}").text
    assert "/team/left/" not in browser.get(f"team/users/{cast.bob.id}").text
    page = browser.done(f"team/users/{dan.id}/deactivate")
    assert "Made by dan@acme.example" in page
    account_id = cast.alice.account_id
    assert "Take over" in browser.get(f"webhooks/{account_id}/{webhook}").text
    assert "Take over" in browser.get(f"security-log/{account_id}/receiver").text
    browser.done(f"webhooks/{account_id}/{webhook}/take-over")
    browser.done(f"security-log/{account_id}/receiver/take-over")
    assert cast.alice.get(STREAM).json["paused_at"] is None
    page = browser.done(f"team/users/{dan.id}/remove")
    assert "Made by a removed user" in page
    assert "Revoke the token" in page
    superadmin = Browser(app, cast.root).get(f"accounts/{account_id}/team/left/{dan.id}")
    assert "Revoke the token" in superadmin.text
    assert Browser(app, cast.bob).get(f"team/left/{dan.id}").status_code == 403
