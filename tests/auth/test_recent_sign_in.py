"""What outlives a session needs a recent sign-in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import jwt
import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask

from app import clock, db
from app.accounts.models import PII_GROUP, Group
from tests.builders import PASSWORD, Caller, Cast, change_user
from tests.mailbox import run_jobs

NEW = "Better-horse-2"
REQUIRED = (403, "recent_sign_in_required")
PROVIDER = {
    "category": "auth_providers",
    "provider_name": "google",
    "config": {"client_id": "id", "client_secret": "secret"},
}
Act = Callable[[Caller, Cast], Any]


def pii_group(app: Flask, account_id: str) -> str:
    with app.app_context():
        mine = (Group.account_id == account_id, Group.name == PII_GROUP)
        return db.db.session.scalars(sa.select(Group.id).where(*mine)).one()


def let_in(caller: Caller, cast: Cast) -> Any:
    group = pii_group(caller.app, cast.alice.account_id)
    return caller.post(f"groups/{group}/users", {"user_id": cast.bob.id})


def settings(**body: Any) -> Act:
    return lambda caller, cast: caller.patch("account", body)


ACTS: dict[str, Act] = {
    "own address": lambda caller, cast: caller.patch("auth/me", {"email": "a@acme.example"}),
    "API key": lambda caller, cast: caller.post("api-keys", {"name": "import"}),
    "API key by its other path": lambda caller, cast: caller.post(
        "admin/api-keys", {"name": "import"}
    ),
    "provider": lambda caller, cast: caller.post("admin/configuration", PROVIDER),
    "redirect addresses": settings(allowed_redirect_uris=["https://app.example.com/in"]),
    "default redirect address": settings(default_redirect_uri="https://app.example.com/in"),
    "origins": settings(cors_origins=["https://app.example.com"]),
    "who becomes a user": settings(sso_provisioning=True),
    "tokens in the fragment": settings(sso_tokens_in_fragment=True),
    "member of pii_access": let_in,
    "invitation into pii_access": lambda caller, cast: caller.post(
        "invitations", {"email": "dora@acme.example", "groups": [PII_GROUP]}
    ),
    "address of somebody else": lambda caller, cast: caller.patch(
        f"account/users/{cast.bob.id}", {"email": "robert@acme.example"}
    ),
}
SUPERADMIN_ACTS: dict[str, Act] = {
    "password of somebody else": lambda caller, cast: caller.put(
        f"users/{cast.bob.id}/password", {"new_password": NEW}
    ),
    "address of somebody else": lambda caller, cast: caller.put(
        f"users/{cast.bob.id}", {"email": "robert@acme.example"}
    ),
}


def sign_in(caller: Caller) -> tuple[Caller, dict[str, Any]]:
    """The same user after a login of its own, and the answer of the login."""
    body = {"account": caller.slug, "email": caller.email, "password": PASSWORD}
    pair = Caller(caller.app).post("auth/login", body).json
    return bearing(caller, pair), pair


def bearing(caller: Caller, pair: dict[str, Any]) -> Caller:
    return Caller(caller.app, Authorization=f"Bearer {pair['token']}")  # type: ignore[arg-type]


def outcome(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json.get("error")


def later(minutes: float = 16) -> Any:
    return time_machine.travel(clock.now() + timedelta(minutes=minutes))


def check_act(caller: Caller, cast: Cast, act: Act) -> None:
    """Refused long after the sign-in, and done once the password was given again."""
    user, pair = sign_in(caller)
    with later(14):
        fresh = Caller(caller.app).post("auth/refresh", {"refresh_token": pair["refresh_token"]})
    with later():
        assert outcome(act(user, cast)) == REQUIRED
        # A refresh is no sign-in.
        refreshed = bearing(caller, fresh.json)
        assert outcome(act(refreshed, cast)) == REQUIRED
        answer = refreshed.post("auth/reauthenticate", {"password": PASSWORD})
        assert answer.status_code == 200, answer.json
        assert outcome(act(user, cast)) == REQUIRED, "the token from before is as old as it was"
        assert act(bearing(caller, answer.json), cast).status_code < 300


@pytest.mark.parametrize("name", ACTS)
def test_recent_sign_in_is_required_for_sensitive_acts(cast: Cast, name: str) -> None:
    check_act(cast.alice, cast, ACTS[name])


@pytest.mark.parametrize("name", SUPERADMIN_ACTS)
def test_recent_sign_in_is_required_for_superadmin_acts(cast: Cast, name: str) -> None:
    check_act(cast.root, cast, SUPERADMIN_ACTS[name])


@pytest.mark.parametrize("name", [*ACTS, *SUPERADMIN_ACTS])
def test_api_key_on_sensitive_acts_is_403(app: Flask, cast: Cast, name: str) -> None:
    maker = cast.alice if name in ACTS else cast.root
    text = maker.post("api-keys", {"name": "program"}).json["key"]
    act = ACTS.get(name) or SUPERADMIN_ACTS[name]
    assert outcome(act(Caller(app, **{"X-API-Key": text}), cast)) == (403, "forbidden")


def test_recent_sign_in_is_required_to_change_or_delete_provider(cast: Cast) -> None:
    one = f"admin/configuration/{cast.alice.post('admin/configuration', PROVIDER).json['id']}"
    alice, _ = sign_in(cast.alice)
    with later():
        for answer in (
            alice.patch(one, {"enabled": False}),
            alice.patch(f"{one}/values", {"client_secret": "another"}),
            alice.delete(one),
        ):
            assert outcome(answer) == REQUIRED
    assert alice.get(one).json["enabled"] is True


def test_recent_sign_in_is_not_required_for_unchanged_settings(cast: Cast) -> None:
    same = cast.alice.get("account").json
    alice, _ = sign_in(cast.alice)
    with later():
        for answer in (
            alice.patch("account", {"name": "Acme Ltd", "cors_origins": same["cors_origins"]}),
            alice.patch("auth/me", {"name": "Alice", "email": cast.alice.email}),
            alice.put(f"account/users/{cast.bob.id}", {"email": cast.bob.email, "role": "editor"}),
            alice.post("invitations", {"email": "dora@acme.example"}),
        ):
            assert answer.status_code < 300, answer.json


def test_recent_sign_in_is_replaced_by_current_password_for_own_email(
    app: Flask, cast: Cast
) -> None:
    bob, _ = sign_in(cast.bob)
    with later():
        body = {"email": "robert@acme.example", "current_password": "Wrong-horse-1"}
        wrong = bob.patch("auth/me", body)
        assert (wrong.status_code, wrong.json["details"][0]["field"]) == (400, "current_password")
        assert run_jobs(app) == 0
        assert bob.patch("auth/me", {**body, "current_password": PASSWORD}).status_code == 200
        assert run_jobs(app) == 1
        changed = {"current_password": PASSWORD, "new_password": NEW}
        assert bob.post("auth/change-password", changed).status_code == 200


def test_reauthentication_renews_the_session(app: Flask, cast: Cast) -> None:
    bob, pair = sign_in(cast.bob)
    with later():
        wrong = bob.post("auth/reauthenticate", {"password": "Wrong-horse-1"})
        assert (wrong.status_code, wrong.json["details"][0]["field"]) == (400, "password")
        answer = bob.post("auth/reauthenticate", {"password": PASSWORD})
        assert set(answer.json) == {*pair} - {"account", "user"}
        assert "service_refresh=" in answer.headers["Set-Cookie"]
        assert bob.get("auth/sessions").json["total"] == 1
        old, new = (
            jwt.decode(one["token"], options={"verify_signature": False})
            for one in (pair, answer.json)
        )
        assert new["sid"] == old["sid"]
        assert new["auth_time"] - old["auth_time"] >= 16 * 60 - 1
        body = {"refresh_token": answer.json["refresh_token"]}
        again = Caller(app).post("auth/refresh", body).json
        claims = jwt.decode(again["token"], options={"verify_signature": False})
        assert claims["auth_time"] == new["auth_time"]
        # The token from before was used up.
        stale = {"refresh_token": pair["refresh_token"]}
        assert Caller(app).post("auth/refresh", stale).status_code == 401


def test_reauthentication_refusals_name_the_way_to_sign_in(app: Flask, cast: Cast) -> None:
    key = cast.bob.post("api-keys", {"name": "program"}).json["key"]
    body = {"password": PASSWORD}
    program = Caller(app, **{"X-API-Key": key})
    assert outcome(program.post("auth/reauthenticate", body)) == (403, "forbidden")
    assert Caller(app).post("auth/reauthenticate", body).status_code == 401
    bob, _ = sign_in(cast.bob)
    change_user(app, cast.bob.id, password_hash=None)
    answer = bob.post("auth/reauthenticate", body)
    assert outcome(answer) == REQUIRED
    assert "with your provider" in answer.json["message"]
    old = cast.alice.post("auth/reauthenticate", body)  # a token from before sessions stood in them
    assert (outcome(old), "Sign in again" in old.json["message"]) == (REQUIRED, True)
