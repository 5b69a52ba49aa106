"""Signing in by a mailed link."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyotp
import pytest
import time_machine
from flask import Flask

from app import clock
from app.auth import mail_tokens
from app.auth.models import LinkPurpose
from tests.auth.test_lockout import limit
from tests.builders import PASSWORD, Caller, Cast, change_user, make_user
from tests.console.browser import Browser, alert, is_out, token
from tests.mailbox import body_of, check_alike, link_in, outbox, run_jobs, token_in
from tests.parallel import at_once

CLIENT = "https://client.example.com/in?x=1"
INVALID = (400, "invalid_token")
MINUTE = timedelta(minutes=1)


def outcome(answer: Any) -> tuple[int, str | None]:
    """The status and the error of an answer."""
    return answer.status_code, answer.json.get("error")


def request_link(user: Caller, **changes: str) -> Any:
    """The answer to a request for a link."""
    body = {"account": user.slug, "email": user.email, **changes}
    return Caller(user.app).post("auth/magic-link", body)


def mailed_token(user: Caller, **changes: str) -> str:
    """The token of a new link."""
    assert request_link(user, **changes).status_code == 200
    run_jobs(user.app)
    mail = outbox(user.app)[-1]
    assert mail["To"] == user.email
    return token_in(mail)


def verify(app: Flask, token: str, **headers: str) -> Any:
    """The answer to the token of a link."""
    return Caller(app, **headers).post("auth/magic-link/verify", {"token": token})


@pytest.fixture
def people(cast: Cast) -> Cast:
    """The cast, in accounts that allow mailed links and a client application."""
    for admin in (cast.alice, cast.charlie):
        settings = {"magic_link": True, "allowed_redirect_uris": [CLIENT]}
        assert admin.patch("account", settings).status_code == 200
    return cast


def test_magic_link_is_off_by_default(app: Flask, cast: Cast) -> None:
    assert cast.alice.get("account").json["magic_link"] is False
    for account in ("acme", "nowhere"):
        answer = request_link(cast.bob, account=account)
        assert outcome(answer) == (400, "magic_link_off")
    assert run_jobs(app) == 0
    page = app.test_client().get("/console/sign-in?account=acme").text
    assert 'name="magic_link"' not in page


def test_magic_link_signs_in_once(app: Flask, people: Cast) -> None:
    mailed = mailed_token(people.bob)
    answer = verify(app, mailed)
    assert outcome(answer) == (200, None)
    assert answer.json["user"]["email"] == people.bob.email
    assert "service_refresh" in answer.headers["Set-Cookie"]
    bob = Caller(app, Authorization=f"Bearer {answer.json['token']}")
    assert bob.get("auth/me").json["email"] == people.bob.email
    assert outcome(verify(app, mailed)) == INVALID


def test_magic_link_request_has_same_response_for_every_address(app: Flask, people: Cast) -> None:
    acme = people.alice.account_id
    make_user(app, acme, "new@acme.example", verified=False)
    gone = make_user(app, acme, "gone@acme.example")
    change_user(app, gone.id, is_active=False)
    addresses = {
        "known": people.bob.email,
        "unverified": "new@acme.example",
        "inactive": "gone@acme.example",
        "unknown": "nobody@acme.example",
        "of another account": people.charlie.email,
    }
    bodies = {case: {"account": "acme", "email": email} for case, email in addresses.items()}
    check_alike(app, "auth/magic-link", bodies, {"known", "unverified"})


def expired(app: Flask, people: Cast, token: str) -> Any:
    with time_machine.travel(clock.now() + 15 * MINUTE):
        return verify(app, token)


def replaced(app: Flask, people: Cast, token: str) -> Any:
    second = mailed_token(people.bob)
    for _ in range(2):
        mailed_token(people.bob)
    return verify(app, second)


def used_another(app: Flask, people: Cast, token: str) -> Any:
    assert verify(app, mailed_token(people.bob)).status_code == 200
    return verify(app, token)


def switched_off(app: Flask, people: Cast, token: str) -> Any:
    people.alice.patch("account", {"magic_link": False})
    return verify(app, token)


def provider_only(app: Flask, people: Cast, token: str) -> Any:
    people.alice.patch("account", {"password_sign_in": False})
    return verify(app, token)


def deactivated(app: Flask, people: Cast, token: str) -> Any:
    people.alice.patch(f"account/users/{people.bob.id}", {"is_active": False})
    return verify(app, token)


def new_address(app: Flask, people: Cast, token: str) -> Any:
    change_user(app, people.bob.id, email="b@acme.example", email_key="b@acme.example")
    return verify(app, token)


def new_password(app: Flask, people: Cast, token: str) -> Any:
    body = {"current_password": PASSWORD, "new_password": "Better-horse-2"}
    assert people.bob.post("auth/change-password", body).status_code == 200
    return verify(app, token)


def of_another_account(app: Flask, people: Cast, token: str) -> Any:
    return verify(app, token, **{"X-Account-ID": "globex"})


def renamed_account(app: Flask, people: Cast, token: str) -> Any:
    code = people.charlie.get("account").json["account_code"]
    return verify(app, f"{code}-{token.partition('-')[2]}")


def as_reset(app: Flask, people: Cast, token: str) -> Any:
    body = {"token": token, "new_password": "Better-horse-2"}
    return Caller(app).post("auth/reset-password", body)


def reset_token(app: Flask, people: Cast, token: str) -> Any:
    body = {"account": "acme", "email": people.bob.email}
    Caller(app).post("auth/forgot-password", body)
    run_jobs(app)
    return verify(app, token_in(outbox(app)[-1]))


def removed_redirect(app: Flask, people: Cast, token: str) -> Any:
    to_client = mailed_token(people.bob, redirect_uri=CLIENT)
    people.alice.patch("account", {"allowed_redirect_uris": []})
    return verify(app, to_client)


ATTACKS: list[Callable[[Flask, Cast, str], Any]] = [
    *(
        expired,
        replaced,
        used_another,
        switched_off,
        provider_only,
        deactivated,
        new_address,
        new_password,
    ),
    *(of_another_account, renamed_account, as_reset, reset_token, removed_redirect),
    lambda app, people, token: verify(app, token[:-1]),
    lambda app, people, token: verify(app, f"{token}\0"),
    lambda app, people, token: verify(app, ""),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_magic_link_verification_refuses_other_tokens(
    app: Flask, people: Cast, attack: Callable[[Flask, Cast, str], Any]
) -> None:
    answer = attack(app, people, mailed_token(people.bob))
    assert answer.status_code in (400, 422)
    assert "token" not in answer.json


def test_magic_link_concurrent_verifications_sign_in_once(app: Flask, people: Cast) -> None:
    mailed = mailed_token(people.bob)
    statuses = at_once(4, lambda n: verify(app, mailed).status_code)
    assert sorted(statuses) == [200, 400, 400, 400]


def test_magic_link_requires_second_factor(app: Flask, people: Cast) -> None:
    secret = people.bob.post("auth/mfa/totp", {"name": "Phone"}).json["secret"]
    code = pyotp.TOTP(secret).at(clock.now())
    assert people.bob.post("auth/mfa/totp/confirm", {"code": code}).status_code == 200
    mailed = mailed_token(people.bob)
    answer = verify(app, mailed)
    assert outcome(answer) == (401, "mfa_required")
    assert "Set-Cookie" not in answer.headers
    assert outcome(verify(app, mailed)) == INVALID


def test_magic_link_verifies_email_and_ends_earlier_sessions(app: Flask, people: Cast) -> None:
    dora = Caller(app, make_user(app, people.alice.account_id, "dora@x.example", verified=False))
    assert verify(app, mailed_token(dora)).json["user"]["email_verified"] is True
    assert dora.get("auth/me").status_code == 401, "a token from before the verification"


def test_magic_link_redirect_uri_must_be_on_allow_list(app: Flask, people: Cast) -> None:
    for uri in (f"{CLIENT}2", "https://evil.example/", "javascript:alert(1)", ""):
        answer = request_link(people.bob, redirect_uri=uri)
        assert answer.json["details"][0]["field"] == "redirect_uri", answer.json
    mailed = mailed_token(people.bob, redirect_uri=CLIENT)
    assert link_in(outbox(app)[-1]) == f"{CLIENT}&token={mailed}"
    assert verify(app, mailed).status_code == 200


def test_magic_link_of_member_is_not_sent_to_redirect_uri(app: Flask, people: Cast) -> None:
    outside = "https://outside.example/in"
    make_user(app, people.alice.account_id, "eve@acme.example", "admin")
    body = {"account": "acme", "email": "eve@acme.example", "password": PASSWORD}
    eve = Caller(app, Authorization=f"Bearer {Caller(app).post('auth/login', body).json['token']}")
    uris = {"allowed_redirect_uris": [CLIENT, outside]}
    assert eve.patch("account", uris).status_code == 200
    for uri in (outside, CLIENT):  # which a member has listed
        mailed_token(people.alice, redirect_uri=uri)
        link = link_in(outbox(app)[-1])
        assert link.startswith("http://atrium.test/welcome/magic-link"), "alice is a member"
    mailed = mailed_token(people.bob, redirect_uri=outside)
    assert link_in(outbox(app)[-1]).startswith(outside)
    groups = people.alice.get("groups").json["items"]
    group = next(one["id"] for one in groups if one["name"] == "pii_access")
    joined = people.alice.post(f"groups/{group}/members", {"user_id": people.bob.id})
    assert joined.status_code in (200, 201, 204), joined.json
    assert outcome(verify(app, mailed)) == INVALID, "bob has become a member since"


def test_magic_link_requests_are_limited(
    app: Flask, people: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(app, monkeypatch, mail_tries=3)
    statuses = [request_link(people.bob).status_code for _ in range(4)]
    assert statuses == [200, 200, 200, 429]
    assert request_link(people.alice).status_code == 200


def test_magic_link_sign_in_by_console(app: Flask, people: Cast) -> None:
    browser = Browser(app)
    assert 'name="magic_link"' in browser.get("sign-in?account=acme").text
    form = {"account": "acme", "magic_link": "true"}
    assert browser.send("sign-in", **form, email="").status_code == 400
    shown = browser.done("sign-in", **form, email=people.bob.email)
    assert "If this user exists, we have sent a link to sign in." in shown
    run_jobs(app)
    mail = outbox(app)[-1]
    assert "within 15 minutes" in body_of(mail)
    path = link_in(mail).removeprefix("http://atrium.test")
    for _ in range(2):  # a mail scanner
        assert browser.client.head(path).status_code == 200
        page = browser.get(path)
        assert f"as {people.bob.email}" in page.text
    (mailed,) = re.findall(r'name="token" value="([^"]+)"', page.text)
    assert is_out(browser.client)
    assert app.test_client().post("/welcome/magic-link", data={"token": mailed}).status_code == 400
    assert browser.send("/welcome/magic-link", token=mailed).location == "/welcome/profile"
    assert not is_out(browser.client)
    other = app.test_client()
    again = {"csrf_token": token(other), "token": mailed}
    refused = other.post("/welcome/magic-link", data=again)
    assert (refused.status_code, "no longer valid" in alert(refused)) == (400, True)
    assert is_out(other)


def test_magic_link_requests_by_stranger_void_and_block_no_link(
    app: Flask, people: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(app, monkeypatch)
    first = mailed_token(people.bob)
    body = {"account": "acme", "email": people.bob.email}
    for stranger in ("192.0.2.7", "127.0.0.1"):
        sent_from = {"environ_overrides": {"REMOTE_ADDR": stranger}}
        seen = [
            Caller(app).post("auth/magic-link", body, **sent_from).status_code for _ in range(12)
        ]
        assert seen[-1] == 429
    run_jobs(app)
    sent_from = {"environ_overrides": {"REMOTE_ADDR": "192.0.2.8"}}
    for path in ("auth/magic-link", "auth/forgot-password"):
        assert Caller(app).post(path, body, **sent_from).status_code == 200
    assert outcome(verify(app, first)) == (200, None)


@pytest.mark.parametrize("path", ["auth/forgot-password", "auth/resend-verification"])
def test_mailed_links_are_not_voided_by_requests_of_stranger(
    app: Flask, people: Cast, path: str
) -> None:
    make_user(app, people.alice.account_id, "new@acme.example", verified=False)
    body = {"account": "acme", "email": "new@acme.example"}
    for address in ("192.0.2.8", *["192.0.2.7"] * 5):
        sent_from = {"environ_overrides": {"REMOTE_ADDR": address}}
        assert Caller(app).post(path, body, **sent_from).status_code == 200
        run_jobs(app)
    tokens = [token_in(mail) for mail in outbox(app)]
    valid = [_is_valid(app, path, token) for token in tokens[1:]]
    assert (valid.count(True), valid[-1]) == (3, True)
    assert _is_valid(app, path, tokens[0])


def _is_valid(app: Flask, path: str, token: str) -> bool:
    purpose = LinkPurpose.RESET if "password" in path else LinkPurpose.VERIFICATION
    with app.app_context():
        return mail_tokens.find(token, purpose) is not None
