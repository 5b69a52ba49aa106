"""How long an account lets its sessions last, unused and in total."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import jwt
import pytest
import time_machine
from flask import Flask

from app import clock
from tests.auth.test_sessions import Session, other
from tests.builders import PASSWORD, Caller, Cast
from tests.console.browser import Browser, is_out, sign_in

__all__ = ["other"]

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
IDLE, TOTAL = {"session_idle_hours": 1}, {"session_max_hours": 1}
LIMITS = pytest.mark.parametrize("limits", [IDLE, TOTAL], ids=["idle", "total"])


def login(user: Caller) -> dict[str, Any]:
    """The tokens of a sign-in."""
    body = {"account": user.slug, "email": user.email, "password": PASSWORD}
    pair: dict[str, Any] = Caller(user.app).post("auth/login", body).json
    return pair


def refresh(app: Flask, pair: dict[str, Any]) -> Any:
    """The answer to a refresh."""
    return Caller(app).post("auth/refresh", {"refresh_token": pair["refresh_token"]})


def expiry(token: str) -> float:
    """When a token expires, in seconds since the epoch."""
    return float(jwt.decode(token, options={"verify_signature": False})["exp"])


@pytest.fixture
def long_tokens(app: Flask, other: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Access tokens that outlive the sessions of the tests."""
    for one in (app, other):
        settings = one.extensions["atrium.config"]
        longer = replace(settings, access_token_expire_minutes=24 * 60)
        monkeypatch.setitem(one.extensions, "atrium.config", longer)


@LIMITS
def test_session_limits_bound_token_lifetimes(
    app: Flask, cast: Cast, long_tokens: None, limits: dict[str, int]
) -> None:
    assert cast.alice.patch("account", limits).status_code == 200
    now, pair = clock.now().timestamp(), login(cast.bob)
    for name in ("access_token", "refresh_token"):
        assert 3590 < expiry(pair[name]) - now < 3660, name
    assert 3590 < pair["expires_in"] <= 3600
    with time_machine.travel(clock.now() + 61 * MINUTE):
        assert refresh(app, pair).status_code == 401
        headers = {"Authorization": f"Bearer {pair['access_token']}"}
        assert Caller(app, **headers).get("auth/me").status_code == 401


def test_session_use_extends_idle_limit_not_total_limit(app: Flask, cast: Cast) -> None:
    cast.alice.patch("account", {"session_idle_hours": 2, "session_max_hours": 3})
    begun, pair = clock.now(), login(cast.bob)
    for minutes, lasts in ((90, 90), (150, 30)):
        with time_machine.travel(begun + minutes * MINUTE):
            pair = refresh(app, pair).json
            left = expiry(pair["refresh_token"]) - clock.now().timestamp()
            assert abs(left - lasts * 60) < 60
            assert pair["expires_in"] <= left + 1
    with time_machine.travel(begun + 181 * MINUTE):
        assert refresh(app, pair).status_code == 401


@LIMITS
def test_session_limit_reduction_ends_sessions_on_every_process(
    app: Flask, other: Flask, cast: Cast, long_tokens: None, limits: dict[str, int]
) -> None:
    session = Session.begin(app, other, cast.bob)
    browser = Browser(app, cast.bob)
    with time_machine.travel(clock.now() + 2 * HOUR):
        assert session.here.get("auth/me").status_code == 200
        assert session.there.get("auth/me").status_code == 200
        fresh = login(cast.alice)
        alice = Caller(app, Authorization=f"Bearer {fresh['token']}")
        assert alice.patch("account", limits).status_code == 200
        assert session.there.get("auth/me").status_code == 401
        assert session.here.get("auth/me").status_code == 401
        assert refresh(other, session.pair).status_code == 401
        assert is_out(browser.client)
        assert alice.get("auth/me").status_code == 200
        listed = alice.get(f"account/users/{cast.bob.id}/sessions").json
        assert listed["total"] == 0


def test_cached_session_ends_on_time(app: Flask, cast: Cast, long_tokens: None) -> None:
    pair = login(cast.bob)
    cast.alice.patch("account", {"session_max_hours": 2})
    bob = Caller(app, Authorization=f"Bearer {pair['token']}")
    with time_machine.travel(clock.now() + 119 * MINUTE):
        assert bob.get("auth/me").status_code == 200
    with time_machine.travel(clock.now() + 121 * MINUTE):
        assert bob.get("auth/me").status_code == 401


def test_refresh_on_one_process_extends_session_on_another(
    app: Flask, other: Flask, cast: Cast, long_tokens: None
) -> None:
    session = Session.begin(app, other, cast.bob)
    cast.alice.patch("account", {"session_idle_hours": 2})
    assert session.there.get("auth/me").status_code == 200
    with time_machine.travel(clock.now() + 100 * MINUTE):
        assert refresh(app, session.pair).status_code == 200
    with time_machine.travel(clock.now() + 150 * MINUTE):
        assert session.there.get("auth/me").status_code == 200
    with time_machine.travel(clock.now() + 230 * MINUTE):
        assert session.there.get("auth/me").status_code == 401


def test_console_session_is_extended_by_page_views_only(app: Flask, cast: Cast) -> None:
    cast.alice.patch("account", IDLE)
    browser, begun = Browser(app, cast.bob), clock.now()
    for minutes in (50, 100):
        with time_machine.travel(begun + minutes * MINUTE):
            assert not is_out(browser.client)
    with time_machine.travel(begun + 150 * MINUTE):
        headers = {"X-Requested-With": "XMLHttpRequest"}
        assert browser.client.get("/console", headers=headers).status_code == 200
    with time_machine.travel(begun + 161 * MINUTE):
        assert is_out(browser.client), "what a script requested was no use"


def test_session_last_used_at_is_written_every_five_minutes(app: Flask, cast: Cast) -> None:
    browser, begun = Browser(app, cast.bob), clock.now()

    def last_use() -> str:
        assert browser.get("profile").status_code == 200
        (session,) = cast.bob.get("auth/sessions").json["items"]
        return str(session["last_used_at"])

    started_at = last_use()
    used = []
    for minutes in (4, 6, 7, 12):
        with time_machine.travel(begun + minutes * MINUTE):
            used.append(last_use())
    assert used[0] == started_at
    assert used[1] == used[2] > used[0]
    assert used[3] > used[2]


def test_session_limits_of_account_are_bounded_by_service(app: Flask, cast: Cast) -> None:
    limits = {"session_idle_hours": 720, "session_max_hours": 8760}
    assert cast.alice.patch("account", limits).status_code == 200
    assert cast.alice.get("account").json.items() >= limits.items()
    left = expiry(login(cast.bob)["refresh_token"]) - clock.now().timestamp()
    assert abs(left - 7 * 86_400) < 60
    nulls = dict.fromkeys(limits)
    assert cast.alice.patch("account", nulls).json.items() >= nulls.items()


@pytest.mark.parametrize("hours", [0, -1, 1.5, "many", True, 8761])
@pytest.mark.parametrize("name", ["session_idle_hours", "session_max_hours"])
def test_session_limits_with_invalid_hours_are_422(cast: Cast, name: str, hours: object) -> None:
    assert cast.alice.patch("account", {name: hours}).status_code == 422


def test_session_limits_apply_to_own_account_only(app: Flask, cast: Cast) -> None:
    cast.alice.patch("account", {"session_max_hours": 1})
    pair, browser = login(cast.charlie), Browser(app, cast.charlie)
    with time_machine.travel(clock.now() + 5 * HOUR):
        assert refresh(app, pair).status_code == 200
        assert not is_out(browser.client)


def test_session_limits_require_recent_sign_in_and_no_api_key(app: Flask, cast: Cast) -> None:
    key = cast.alice.post("api-keys", {"name": "one"}).json["key"]
    refused = Caller(app, **{"X-API-Key": key}).patch("account", IDLE)
    assert refused.status_code == 403
    pair = login(cast.alice)
    alice = Caller(app, Authorization=f"Bearer {pair['token']}")
    with time_machine.travel(clock.now() + 16 * MINUTE):
        for body in (IDLE, {"password_sign_in": False}):
            answer = alice.patch("account", body)
            assert (answer.status_code, answer.json["error"]) == (403, "recent_sign_in_required")
        unchanged = {"password_sign_in": True, "session_idle_hours": None, "mfa": "optional"}
        assert alice.patch("account", unchanged).status_code == 200
    assert sign_in(app.test_client(), cast.bob).status_code == 303
