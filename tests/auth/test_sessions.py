"""Access tokens end with their sessions, on every process at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import jwt
import pytest
import time_machine
from flask import Flask

from app import clock, create_app
from tests.audit.chains import entries
from tests.builders import PASSWORD, Caller, Cast, make_collection
from tests.console.browser import COOKIE, Browser, is_out, sign_in
from tests.mailbox import outbox, run_jobs, token_in
from tests.sql import statements

NEW = "Better-horse-2"
PATHS = ("auth/me", "records/posts", "records/posts/none", "auth/sessions")


@dataclass
class Session:
    """Somebody who has signed in: their tokens, at two processes."""

    user: Caller
    pair: dict[str, Any]
    here: Caller
    there: Caller

    @classmethod
    def begin(cls, app: Flask, other: Flask, user: Caller) -> Session:
        """Sign in."""
        body = {"account": user.slug, "email": user.email, "password": PASSWORD}
        pair = Caller(app).post("auth/login", body).json
        headers = {"Authorization": f"Bearer {pair['token']}"}
        return cls(user, pair, Caller(app, **headers), Caller(other, **headers))

    def is_alive(self) -> bool:
        """Whether both processes take the access token; they agree."""
        (alive,) = {
            caller.get(path).status_code != 401
            for caller in (self.there, self.here)
            for path in PATHS
        }
        return alive

    @property
    def claims(self) -> dict[str, Any]:
        """What the access token says."""
        claims: dict[str, Any] = jwt.decode(self.pair["token"], options={"verify_signature": False})
        return claims


@pytest.fixture
def other(app: Flask) -> Flask:
    """Another process, so far as caches go."""
    return create_app(app.extensions["atrium.config"])


@pytest.fixture
def sessions(app: Flask, other: Flask, cast: Cast) -> tuple[Session, Session]:
    """Two sessions of bob, both in use."""
    make_collection(cast.root)
    both = Session.begin(app, other, cast.bob), Session.begin(app, other, cast.bob)
    assert all(one.is_alive() for one in both)
    return both


def reset(app: Flask, cast: Cast, session: Session) -> Any:
    run_jobs(app)
    token = token_in(outbox(app)[-1])
    return Caller(app).post("auth/reset-password", {"token": token, "new_password": NEW})


def forget(app: Flask, cast: Cast, session: Session) -> Any:
    body = {"account": "acme", "email": cast.bob.email}
    assert Caller(app).post("auth/forgot-password", body).status_code == 200
    return reset(app, cast, session)


def reuse(app: Flask, cast: Cast, session: Session) -> Any:
    body = {"refresh_token": session.pair["refresh_token"]}
    assert Caller(app).post("auth/refresh", body).status_code == 200
    assert Caller(app).post("auth/refresh", body).status_code == 401
    return None


ENDS_ONE: dict[str, Callable[[Flask, Cast, Session], Any]] = {
    "logout": lambda app, cast, session: session.here.post(
        "auth/logout", {"refresh_token": session.pair["refresh_token"]}
    ),
    "logout without a token": lambda app, cast, session: session.here.post("auth/logout"),
    "ended in the list": lambda app, cast, session: session.here.delete(
        f"auth/sessions/{session.claims['sid']}"
    ),
    "refresh token used again": reuse,
}
ENDS_ALL: dict[str, Callable[[Flask, Cast, Session], Any]] = {
    "logout everywhere": lambda app, cast, session: session.here.post("auth/logout", {"all": True}),
    "changed password": lambda app, cast, session: session.here.post(
        "auth/change-password", {"current_password": PASSWORD, "new_password": NEW}
    ),
    "reset password": forget,
    "password set by a superadmin": lambda app, cast, session: cast.root.put(
        f"users/{cast.bob.id}/password", {"new_password": NEW}
    ),
    "link sent by a superadmin": lambda app, cast, session: cast.root.put(
        f"users/{cast.bob.id}/password", {"send_reset_link": True}
    ),
    "deactivation": lambda app, cast, session: cast.alice.patch(
        f"account/users/{cast.bob.id}", {"is_active": False}
    ),
    "deletion": lambda app, cast, session: cast.alice.delete(f"account/users/{cast.bob.id}"),
}


@pytest.mark.parametrize("end", ENDS_ONE)
def test_access_tokens_end_with_their_session_only(
    app: Flask, cast: Cast, sessions: tuple[Session, Session], end: str
) -> None:
    ended, other = sessions
    answer = ENDS_ONE[end](app, cast, ended)
    assert answer is None or answer.status_code < 300, answer.json
    assert not ended.is_alive()
    assert other.is_alive()


@pytest.mark.parametrize("end", ENDS_ALL)
def test_access_tokens_end_with_all_sessions(
    app: Flask, cast: Cast, sessions: tuple[Session, Session], end: str
) -> None:
    answer = ENDS_ALL[end](app, cast, sessions[0])
    assert answer.status_code < 300, answer.json
    assert not any(one.is_alive() for one in sessions)
    if end == "deactivation":
        cast.alice.patch(f"account/users/{cast.bob.id}", {"is_active": True})
        assert not any(one.is_alive() for one in sessions)


def test_access_token_of_ended_session_writes_nothing(
    cast: Cast, sessions: tuple[Session, Session]
) -> None:
    ended, other = sessions
    assert ended.there.post("records/posts", {"title": "a"}).status_code == 201
    assert other.here.delete(f"auth/sessions/{ended.claims['sid']}").status_code == 204
    assert ended.there.post("records/posts", {"title": "b"}).status_code == 401
    assert ended.there.post("api-keys", {"name": "stays"}).status_code == 401
    assert [one["title"] for one in cast.alice.get("records/posts").json["items"]] == ["a"]


def test_access_token_follows_role_change_and_refresh_is_401(
    app: Flask, cast: Cast, sessions: tuple[Session, Session]
) -> None:
    session, _ = sessions
    assert session.there.get("account/users").status_code == 403
    changed = cast.alice.patch(f"account/users/{cast.bob.id}", {"role": "admin"})
    assert changed.status_code == 200
    assert session.there.get("account/users").status_code == 200
    body = {"refresh_token": session.pair["refresh_token"]}
    assert Caller(app).post("auth/refresh", body).status_code == 401
    assert session.is_alive()
    assert session.here.get("auth/sessions").json["total"] == 0
    assert session.here.post("auth/logout", body).status_code == 200
    assert not session.is_alive()


def test_refreshed_token_keeps_session_and_auth_time(
    app: Flask, other: Flask, sessions: tuple[Session, Session]
) -> None:
    session, _ = sessions
    with time_machine.travel(clock.now() + timedelta(minutes=30)):
        body = {"refresh_token": session.pair["refresh_token"]}
        renewed = Caller(app).post("auth/refresh", body).json
    claims = jwt.decode(renewed["token"], options={"verify_signature": False})
    same = ("sid", "auth_time", "sub")
    assert [claims[name] for name in same] == [session.claims[name] for name in same]
    assert claims["iat"] - claims["auth_time"] >= 1800
    assert session.here.delete(f"auth/sessions/{claims['sid']}").status_code == 204
    headers = {"Authorization": f"Bearer {renewed['token']}"}
    assert Caller(other, **headers).get("auth/me").status_code == 401


def test_access_token_without_sid_is_accepted(app: Flask, bob: Caller) -> None:
    claims = jwt.decode(
        bob.headers["Authorization"].split()[1], options={"verify_signature": False}
    )
    assert "sid" not in claims
    assert bob.get("auth/me").status_code == 200


def test_read_with_session_token_is_one_statement(
    app: Flask, sessions: tuple[Session, Session]
) -> None:
    session, ended = sessions
    ended.here.post("auth/logout", {"refresh_token": ended.pair["refresh_token"]})
    assert session.here.get("records/posts").status_code == 200
    with statements(app) as sent:
        assert session.here.get("records/posts").status_code == 200
    assert [text.split()[0] for text in sent] == ["SELECT"]


def test_session_total_lifetime_ends_despite_refreshes(
    app: Flask, sessions: tuple[Session, Session]
) -> None:
    pair, begun = sessions[0].pair, clock.now()
    for day in range(6, 30, 6):
        with time_machine.travel(begun + timedelta(days=day)):
            answer = Caller(app).post("auth/refresh", {"refresh_token": pair["refresh_token"]})
            assert answer.status_code == 200
            pair = answer.json
    claims = jwt.decode(pair["refresh_token"], options={"verify_signature": False})
    last = begun + timedelta(days=30)
    assert 0 <= last.timestamp() - claims["exp"] < 60, "6 days after the last renewal, and not 7"
    with time_machine.travel(last - timedelta(minutes=2)):
        answer = Caller(app).post("auth/refresh", {"refresh_token": pair["refresh_token"]})
        assert answer.status_code == 200
        pair = answer.json
    with time_machine.travel(last + timedelta(minutes=1)):
        body = {"refresh_token": pair["refresh_token"]}
        assert Caller(app).post("auth/refresh", body).status_code == 401


def test_session_max_days_reduction_applies_to_existing_sessions(
    app: Flask, cast: Cast, sessions: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = Browser(app, cast.bob)
    settings = replace(app.extensions["atrium.config"], session_max_days=2)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    body = {"refresh_token": sessions[0].pair["refresh_token"]}
    with time_machine.travel(clock.now() + timedelta(days=2, minutes=1)):
        assert Caller(app).post("auth/refresh", body).status_code == 401
        assert is_out(browser.client)
    assert entries(cast.root, table_name="sessions") == [], "it was no reuse of a token"
    (cookie,) = [
        one
        for one in sign_in(app.test_client(), cast.bob).headers.getlist("Set-Cookie")
        if one.startswith(COOKIE)
    ]
    assert f"Max-Age={2 * 86_400};" in cookie


def test_sessions_of_account_users_are_listed_and_ended_by_admin(app: Flask, cast: Cast) -> None:
    signing_in = {"account": "acme", "email": cast.bob.email, "password": PASSWORD}
    tokens = [Caller(app).post("auth/login", signing_in).json for _ in range(2)]
    path = f"account/users/{cast.bob.id}/sessions"
    listed = cast.alice.get(path).json
    assert listed["total"] >= 2
    assert not {"token_hash", "refresh_token"} & set(listed["items"][0])
    assert cast.charlie.get(path).status_code == 404
    assert cast.bob.get(path).status_code == 403
    newest = max(listed["items"], key=lambda one: one["created_at"])
    assert cast.charlie.delete(f"{path}/{newest['id']}").status_code == 404
    assert cast.alice.delete(f"{path}/{newest['id']}").status_code == 204
    callers = [Caller(app, Authorization=f"Bearer {one['access_token']}") for one in tokens]
    assert [one.get("auth/me").status_code for one in callers] == [200, 401]
    assert cast.alice.delete(path).status_code == 204
    assert callers[0].get("auth/me").status_code == 401
    assert cast.alice.get(path).json["total"] == 0
