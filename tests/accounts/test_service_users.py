"""Service users: made by admins, seen among users, and signed in by nothing."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app.accounts import service_users
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.auth import portals, sessions
from app.auth.devices import Origin
from app.auth.mfa.gate import Proof
from app.auth.models import SignInSession
from app.db import db, transaction
from app.errors import Unauthorized
from tests.builders import PASSWORD, Caller, Cast, make_user
from tests.mailbox import outbox, run_jobs

BOT = {"kind": "service", "name": "Billing bot", "role": "editor"}


def make_service(admin: Caller, **values: Any) -> dict[str, Any]:
    answer = admin.post("account/users", {**BOT, **values})
    assert answer.status_code == 201, answer.json
    made: dict[str, Any] = answer.json
    return made


def test_service_user_has_no_address_and_gets_no_mail(cast: Cast) -> None:
    made = make_service(cast.alice)
    shown = {name: made[name] for name in ("kind", "name", "role", "email", "email_verified")}
    assert shown == {
        "kind": "service",
        "name": "Billing bot",
        "role": "editor",
        "email": None,
        "email_verified": False,
    }
    assert cast.alice.get(f"account/users/{made['id']}").json == made
    run_jobs(cast.alice.app)
    assert outbox(cast.alice.app) == []


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"kind": "service", "role": "viewer"}, 422, "name"),
        ({"kind": "service", "name": "x", "email": "x@acme.example"}, 422, "email"),
        ({"kind": "person", "name": "x"}, 422, "email"),
        ({"kind": "robot", "name": "x"}, 422, "kind"),
        ({"kind": "service", "name": "\u200b"}, 400, "name"),
        ({"kind": "service", "name": "x", "role": "emperor"}, 400, "role"),
    ],
)
def test_service_user_body_is_checked(
    cast: Cast, body: dict[str, Any], status: int, field: str
) -> None:
    answer = cast.alice.post("account/users", body)
    assert answer.status_code == status
    problems = answer.json.get("detail") or answer.json["details"]
    named = {(one.get("loc") or [one["field"]])[-1] for one in problems}
    assert field in named


def test_service_user_name_is_unique_in_its_account(cast: Cast) -> None:
    make_service(cast.alice)
    clash = cast.alice.post("account/users", {**BOT, "name": "BILLING bot"})
    assert (clash.status_code, clash.json["field"]) == (409, "name")
    make_service(cast.charlie)
    other = make_service(cast.alice, name="Import")
    path = f"account/users/{other['id']}"
    assert cast.alice.patch(path, {"name": "billing bot"}).status_code == 409
    renamed = cast.alice.patch(path, {"name": "Night import"})
    assert (renamed.status_code, renamed.json["name"]) == (200, "Night import")
    assert cast.alice.patch(path, {"email": "x@acme.example"}).status_code == 400
    assert cast.alice.patch(path, {"name": None}).status_code == 400


def test_users_are_filtered_by_kind(cast: Cast) -> None:
    bot = make_service(cast.alice)
    services = cast.alice.get("account/users?kind=service").json["items"]
    assert [one["id"] for one in services] == [bot["id"]]
    people = cast.alice.get("account/users?kind=person").json["items"]
    assert {one["id"] for one in people} == {cast.alice.id, cast.bob.id}
    assert cast.root.get("users?kind=service").json["total"] == 1
    assert cast.alice.get("account/users?search=billing").json["total"] == 1
    assert cast.charlie.get("account/users?kind=service").json["total"] == 0


def test_system_account_has_no_service_users(cast: Cast) -> None:
    assert cast.root.post("account/users", BOT).status_code == 409
    assert cast.root.post("users", {**BOT, "account_id": SYSTEM_ACCOUNT_ID}).status_code == 409
    of_acme = cast.root.post("users", {**BOT, "account_id": cast.alice.account_id})
    assert (of_acme.status_code, of_acme.json["account_id"]) == (201, cast.alice.account_id)


def test_service_user_is_not_the_last_admin(app: Flask, cast: Cast) -> None:
    bot = make_service(cast.alice, role="admin")
    last = cast.root.patch(f"users/{cast.alice.id}", {"role": "viewer"})
    assert last.status_code == 409
    assert cast.alice.delete(f"account/users/{bot['id']}").status_code == 204


def test_service_user_signs_in_by_no_door(app: Flask, cast: Cast) -> None:
    bot = make_service(cast.alice, role="admin")
    with app.app_context():
        user = db.session.get_one(User, (cast.alice.account_id, bot["id"]))
        key = user.email_key
        for proof in Proof:
            with pytest.raises(Unauthorized):
                sessions.start(user, Origin(None, None), proof)
            with pytest.raises(Unauthorized):
                sessions.start_in_console(user, Origin(None, None), proof)
        with transaction():
            assert portals._admin(user.account_id, user.id) is None
    anyone = Caller(app)
    for address in ("", key, key.strip(), bot["id"], "Billing bot"):
        of = {"account": "acme", "email": address}
        assert anyone.post("auth/login", {**of, "password": PASSWORD}).status_code >= 400
        for path in ("auth/forgot-password", "auth/resend-verification", "auth/magic-link"):
            anyone.post(path, of)
    for path, body in (
        ("password", {"new_password": PASSWORD}),
        ("password", {"send_reset_link": True}),
        ("verify", None),
        ("resend-verification", None),
    ):
        answer = cast.root.post(f"users/{bot['id']}/{path}", body)
        assert answer.status_code == 409, (path, answer.json)
    portal = {"pages": ["team"], "return_url": "https://app.example.com/", "user_id": bot["id"]}
    assert cast.alice.post("account/portal-sessions", portal).status_code == 400
    run_jobs(app)
    assert outbox(app) == []
    with app.app_context():
        mine = sa.select(sa.func.count()).where(SignInSession.user_id == bot["id"])
        assert db.session.scalar(mine) == 0


def test_directory_and_factors_list_people_alone(cast: Cast) -> None:
    bot = make_service(cast.alice)
    listed = cast.alice.get("directory").json["items"]
    assert bot["id"] not in {one["id"] for one in listed}
    assert listed
    factors = cast.alice.get("account/second-factors").json["items"]
    assert bot["id"] not in {one["user_id"] for one in factors}
    token = cast.alice.post("account/scim/tokens").json["token"]
    scim = Caller(cast.alice.app, Authorization=f"Bearer {token}")
    assert scim.get("/scim/v2/Users").json["totalResults"] == 2
    assert scim.get(f"/scim/v2/Users/{bot['id']}").status_code == 404


def test_ensure_returns_the_same_user(app: Flask, cast: Cast) -> None:
    with app.app_context():
        first = service_users.ensure(cast.alice.account_id, "Rules", "viewer")
        again = service_users.ensure(cast.alice.account_id, "rules", "editor")
        assert (first.id, first.role.name, first.is_service) == (again.id, "viewer", True)
        other = service_users.ensure(cast.charlie.account_id, "Rules", "viewer")
        assert other.id != first.id


def test_erasing_a_service_user_leaves_others_as_they_are(app: Flask, cast: Cast) -> None:
    bot, other = make_service(cast.alice), make_service(cast.alice, name="Other")
    make_user(app, cast.alice.account_id, "dora@acme.example")
    before = cast.alice.get("account/users?kind=person").json["items"]
    assert cast.root.delete(f"users/{bot['id']}").status_code == 204
    run_jobs(app)
    assert cast.alice.get("account/users?kind=person").json["items"] == before
    assert cast.alice.get("account/users?kind=service").json["items"] == [other]
