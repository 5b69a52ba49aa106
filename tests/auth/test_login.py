"""Signing in by password."""

from __future__ import annotations

import itertools
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.cookies import SimpleCookie
from statistics import median
from threading import Thread
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app.accounts.models import Account, User
from app.auth import passwords, sessions
from app.auth.models import SignInSession
from app.db import db, transaction
from tests.builders import PASSWORD, Caller, Cast, change_user, make_account, make_user
from tests.parallel import at_once
from tests.sql import statements

ANN = {"account": "acme", "email": "ann@acme.example", "password": PASSWORD}


@pytest.fixture
def acme(app: Flask) -> str:
    """An account with a user, and one that is not active any more."""
    account_id = make_account(app, "acme")
    make_user(app, account_id, "ann@acme.example", "admin")
    gone = make_user(app, account_id, "gone@acme.example")
    change_user(app, gone.id, is_active=False)
    return account_id


@pytest.mark.parametrize(
    ("account", "host"),
    [
        ("acme", None),
        (" ACME ", None),
        ("AA0001", None),
        ("aa0001", None),
        ("{id}", None),
        (None, "acme.atrium.test"),
        (None, "ACME.Atrium.Test:8000"),
        ("acme", "globex.atrium.test"),
    ],
)
def test_login_account_by_slug_code_id_or_host(
    anyone: Caller, acme: str, account: str | None, host: str | None
) -> None:
    body = {name: value for name, value in ANN.items() if name != "account"}
    if account:
        body["account"] = account.format(id=acme)
    answer = anyone.post("auth/login", body, headers={"Host": host} if host else {})
    assert (answer.status_code, answer.json["account"]["id"]) == (200, acme)


def test_login_response_has_keys_of_both_variants(anyone: Caller, acme: str) -> None:
    got = anyone.post("auth/login", ANN).json
    assert set(got) == {
        "token",
        "access_token",
        "refresh_token",
        "token_type",
        "expires_in",
        "account",
        "user",
    }
    assert got["token"] == got["access_token"] != got["refresh_token"]
    assert (got["token_type"], got["expires_in"]) == ("bearer", 3600)
    assert set(got["account"]) == {"id", "slug", "name", "account_code", "created_at"}
    user = {name: got["user"][name] for name in ("email", "role", "account_code", "account_id")}
    assert user == {
        "email": "ann@acme.example",
        "role": "admin",
        "account_code": "AA0001",
        "account_id": acme,
    }
    signed_in = Caller(anyone.app, Authorization=f"Bearer {got['token']}")
    me = signed_in.get("auth/me").json
    assert me["user"] == {**got["user"], "attributes": {}}  # which no sign-in tells
    assert me["account"] == got["account"]
    assert (me["user_id"], me["is_superadmin"]) == (got["user"]["id"], False)
    assert {name: me[name] for name in got["user"]} == got["user"]
    assert me["last_login"] is not None


def test_login_email_is_case_insensitive(anyone: Caller, acme: str) -> None:
    answer = anyone.post("auth/login", {**ANN, "email": " Ann@ACME.example"})
    assert (answer.status_code, answer.json["user"]["email"]) == (200, "ann@acme.example")


@pytest.mark.parametrize("password", [PASSWORD.upper(), PASSWORD + " ", " " + PASSWORD, ""])
def test_login_password_is_compared_exactly(anyone: Caller, acme: str, password: str) -> None:
    assert anyone.post("auth/login", {**ANN, "password": password}).status_code == 401


def test_login_with_password_of_other_account_is_401(app: Flask, anyone: Caller, acme: str) -> None:
    make_account(app, "globex")
    assert anyone.post("auth/login", {**ANN, "account": "globex"}).status_code == 401


FAILURES = {
    "unknown account": {"account": "nowhere"},
    "unknown user": {"email": "nobody@acme.example"},
    "wrong password": {"password": "Wrong-horse-1"},
    "inactive user": {"email": "gone@acme.example"},
    "inactive user, wrong password": {"email": "gone@acme.example", "password": "Wrong-horse-1"},
    "no address": {"email": "' OR 1=1 --"},
    "long password": {"password": "x" * 10_000},
}


def test_login_failures_have_one_response(anyone: Caller, acme: str) -> None:
    bodies = set()
    for changes in FAILURES.values():
        answer = anyone.post("auth/login", {**ANN, **changes})
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert "Set-Cookie" not in answer.headers
        bodies.add(answer.text)
    assert len(bodies) == 1
    assert answer.json["error"] == "authentication_failed"
    assert set(answer.json) == {"error", "message"}
    # By these words the published client tells an address that is not verified.
    assert not any(word in answer.json["message"].lower() for word in ("verify", "email"))


def test_login_to_suspended_account_is_401_with_same_body(
    app: Flask, anyone: Caller, acme: str
) -> None:
    wrong = anyone.post("auth/login", {**ANN, "password": "Wrong-horse-1"})
    suspend(app, acme)
    answer = anyone.post("auth/login", ANN)
    assert (answer.status_code, answer.text) == (401, wrong.text)


@pytest.mark.timing
@pytest.mark.usefixtures("real_hashes")
def test_login_failures_run_same_statements_in_same_time(
    app: Flask, anyone: Caller, acme: str
) -> None:
    cases = list(itertools.islice(FAILURES, 4))
    asked, times = {}, {case: list[float]() for case in cases}
    for case in cases:
        with statements(app) as asked[case]:
            anyone.post("auth/login", {**ANN, **FAILURES[case]})
    assert all(sent == asked["unknown user"] for sent in asked.values())
    # Processor time, as the clock on the wall also tells what else this machine does; and more
    # rounds even out the rest, while a real difference would stay.
    for _ in range(6):
        for case in cases * 8:
            started = time.thread_time()
            anyone.post("auth/login", {**ANN, **FAILURES[case]})
            times[case].append(time.thread_time() - started)
        medians = [median(taken) for taken in times.values()]
        spread = max(medians) / min(medians) - 1
        if spread < 0.05:
            break
    assert spread < 0.05, {case: f"{median(taken):.5f}" for case, taken in times.items()}


@pytest.mark.timing
@pytest.mark.usefixtures("real_hashes")
def test_login_with_overlong_password_is_401_without_hashing(anyone: Caller, acme: str) -> None:
    def best_of_five(password: str) -> float:
        times = []
        for _ in range(5):
            started = time.perf_counter()
            anyone.post("auth/login", {**ANN, "password": password})
            times.append(time.perf_counter() - started)
        return min(times)

    assert best_of_five("x" * 10_000) < best_of_five("Wrong-horse-1") / 2


@pytest.mark.parametrize("change", [{}, {"account": ""}], ids=["absent account", "empty account"])
def test_login_without_account_is_400(anyone: Caller, acme: str, change: dict[str, str]) -> None:
    body = {name: value for name, value in ANN.items() if name != "account"} | change
    answer = anyone.post("auth/login", body)
    assert answer.status_code == 400
    assert [(d["field"], d["code"]) for d in answer.json["details"]] == [("account", "required")]


@pytest.mark.parametrize(
    "changes",
    [
        {"email": None},
        {"password": None},
        {"password": 5},
        {"account": ["acme"]},
        {"more": 1},
        {"password": "x" * 20_001},
    ],
)
def test_login_body_with_wrong_shape_is_422(anyone: Caller, changes: dict[str, Any]) -> None:
    assert anyone.post("auth/login", {**ANN, **changes}).status_code == 422


def test_login_ignores_invalid_credential_headers(anyone: Caller, acme: str) -> None:
    stale = {"Authorization": "Bearer nonsense", "X-Account-ID": "nowhere"}
    assert anyone.post("auth/login", ANN, headers=stale).status_code == 200


@pytest.mark.parametrize("env", ["test", "production"])
def test_refresh_cookie_is_http_only_and_secure_in_production(
    app: Flask, anyone: Caller, acme: str, env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(app.extensions["atrium.config"], env=env)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    answer = anyone.post("auth/login", ANN)
    (cookie,) = SimpleCookie(answer.headers["Set-Cookie"]).values()
    assert (cookie.key, cookie.value) == ("service_refresh", answer.json["refresh_token"])
    assert {name: cookie[name] for name in ("httponly", "samesite", "path", "max-age")} == {
        "httponly": True,
        "samesite": "Lax",
        "path": "/api/v1/auth",
        "max-age": str(7 * 86_400),
    }
    assert bool(cookie["secure"]) is (env == "production")
    assert cookie["domain"] == ""
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "changes", [{"is_active": False}, {"password_hash": "another"}], ids=["suspended", "password"]
)
def test_login_during_loss_of_access_is_401_without_session(
    app: Flask,
    anyone: Caller,
    acme: str,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
) -> None:
    ann = make_user(app, acme, "anna@acme.example")
    verify = passwords.verify

    def verify_slowly(password: str, password_hash: str | None) -> bool:
        fits = verify(password, password_hash)
        with ThreadPoolExecutor(1) as meanwhile:
            meanwhile.submit(change_user, app, ann.id, **changes).result()
        return fits

    monkeypatch.setattr(passwords, "verify", verify_slowly)
    answer = anyone.post("auth/login", ANN | {"email": "anna@acme.example"})
    assert (answer.status_code, answer.json["error"]) == (401, "authentication_failed")
    with app.app_context():
        mine = sa.select(SignInSession.id).where(SignInSession.user_id == ann.id)
        assert db.session.scalars(mine).all() == []


def test_login_concurrent_with_deactivation_keeps_no_session(
    app: Flask, cast: Cast, anyone: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoke, bob, threads = sessions.revoke, cast.bob, list[Thread]()
    credentials = {"account": bob.slug, "email": bob.email, "password": PASSWORD}

    def revoke_slowly(*which: Any) -> bool:
        ended = revoke(*which)
        threads.append(Thread(target=anyone.post, args=("auth/login", credentials)))
        threads[-1].start()
        threads[-1].join(0.3)  # where the database does not have it wait
        return ended

    monkeypatch.setattr(sessions, "revoke", revoke_slowly)
    assert cast.alice.patch(f"account/users/{bob.id}", {"is_active": False}).status_code == 200
    for thread in threads:
        thread.join()
    with app.app_context():
        mine = sa.select(SignInSession.id).where(SignInSession.user_id == bob.id)
        assert (len(threads), db.session.scalars(mine).all()) == (1, [])


@pytest.mark.usefixtures("real_hashes")
def test_login_concurrently_20_times_succeeds(anyone: Caller, acme: str) -> None:
    answers = at_once(20, lambda _: anyone.post("auth/login", ANN))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json["refresh_token"] for answer in answers}) == 20


def suspend(app: Flask, account_id: str) -> None:
    with app.app_context(), transaction() as session:
        account = session.get_one(Account, account_id)
        account.is_active, account.version = False, account.version + 1


SPELLINGS = {
    "composed": "Zu\u0308rich-Café-12",
    "ligature": "Pro\ufb01le-horse-12",
    "full width": "\uff30assword-horse-12",
    "Hangul": "A1-\u1112\u1161\u11ab\u1100\u1173\u11af-secret",
    "Vietnamese": "A1-Vie\u0323\u0302t-Nam-x",
    "no-break space": "Correct\u00a0horse-12",
}


@pytest.mark.parametrize("case", SPELLINGS)
@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_password_is_equal_in_all_unicode_forms(
    app: Flask, anyone: Caller, acme: str, case: str, form: str
) -> None:
    chosen, typed = SPELLINGS[case], unicodedata.normalize(form, SPELLINGS[case])  # type: ignore[arg-type]
    with app.app_context():
        change_user(app, _ann(app), password_hash=passwords.hash(chosen))
    for password, status in ((typed, 200), (chosen, 200), (f"{typed}x", 401)):
        answer = anyone.post("auth/login", {**ANN, "password": password})
        assert answer.status_code == status


def test_password_hash_of_unnormalized_text_is_accepted_and_replaced(
    app: Flask, anyone: Caller, acme: str
) -> None:
    decomposed = unicodedata.normalize("NFD", "Zürich-Café-12")
    change_user(app, _ann(app), password_hash=passwords._hasher.hash(decomposed))
    composed = {**ANN, "password": unicodedata.normalize("NFC", decomposed)}
    assert anyone.post("auth/login", composed).status_code == 401
    first = anyone.post("auth/login", {**ANN, "password": decomposed})
    assert first.status_code == 200
    assert anyone.post("auth/login", composed).status_code == 200
    headers = {"Authorization": f"Bearer {first.json['token']}"}
    assert anyone.get("auth/me", headers=headers).status_code == 200, "its session goes on"


def _ann(app: Flask) -> str:
    with app.app_context():
        return str(db.session.scalar(sa.select(User.id).where(User.email == ANN["email"])))


def test_password_length_limit_applies_to_normalized_form(anyone: Caller) -> None:
    started = time.thread_time()
    for password in ("e\u0301" * 5000, "\u0315\u0300\u0334" * 3000, "\ufdfa" * 100):
        answer = anyone.post("auth/login", {**ANN, "password": password})
        assert answer.status_code == 401
        body = {"account_name": "Long", "email": "long@x.example", "password": password}
        assert anyone.post("auth/register", body).status_code == 400
    assert time.thread_time() - started < 5
