"""Mails about sign-ins from new devices, and ending other sessions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask

from app import clock, crypto
from app.auth import devices
from tests.auth.test_sessions import Session, other
from tests.builders import PASSWORD, Caller, Cast
from tests.console.browser import Browser, is_out, sign_in
from tests.mailbox import body_of, outbox, run_jobs

__all__ = ["other"]

FIREFOX = "Mozilla/5.0 (Windows NT 10.0; rv:133.0) Gecko/20100101 Firefox/133.0"
NEWER_FIREFOX = FIREFOX.replace("133", "140")
SAFARI = "Mozilla/5.0 (Macintosh; Intel Mac OS X 14_7) Version/18.0 Safari/605.1.15"
HOUR = timedelta(hours=1)


def login(user: Caller, agent: str = FIREFOX, cookie: str = "", address: str = "192.0.2.7") -> str:
    """Sign in; returns the device cookie."""
    body = {"account": user.slug, "email": user.email, "password": PASSWORD}
    headers = {"User-Agent": agent} | ({"Cookie": f"atrium_device={cookie}"} if cookie else {})
    environ = {"REMOTE_ADDR": address}
    answer = Caller(user.app).post("auth/login", body, headers=headers, environ_overrides=environ)
    assert answer.status_code == 200, answer.json
    (sent,) = (
        one for one in answer.headers.getlist("Set-Cookie") if one.startswith(f"{devices.COOKIE}=")
    )
    assert "HttpOnly" in sent
    return sent.partition("=")[2].partition(";")[0]


def mails(user: Caller) -> list[Any]:
    """The mails about new devices so far."""
    run_jobs(user.app)
    return [mail for mail in outbox(user.app) if mail["Subject"] == "New sign-in to Acme"]


def test_new_device_mail_is_not_sent_for_first_sign_in(cast: Cast) -> None:
    login(cast.bob)
    assert mails(cast.bob) == []


def test_new_device_mail_names_device_address_and_date(cast: Cast) -> None:
    login(cast.bob)
    login(cast.bob, SAFARI, address="198.51.100.9")
    (mail,) = mails(cast.bob)
    assert mail["To"] == cast.bob.email
    for kind in ("plain", "html"):
        text = body_of(mail, kind)
        assert "Safari on macOS, 198.51.100.9" in text
        assert "/welcome/profile" in text
        assert f"{clock.now():%Y-%m-%d}" in text


@pytest.mark.parametrize(
    ("agent", "address", "is_new"),
    [
        (FIREFOX, "192.0.2.7", False),
        (NEWER_FIREFOX, "192.0.2.7", False),
        (FIREFOX, "198.51.100.9", True),
        (SAFARI, "192.0.2.7", True),
        ("", "192.0.2.7", True),
    ],
)
def test_new_device_without_cookie_is_detected_by_agent_and_network(
    cast: Cast, agent: str, address: str, is_new: bool
) -> None:
    login(cast.bob)
    login(cast.bob, agent, address=address)
    assert len(mails(cast.bob)) == is_new


def test_device_cookie_is_valid_for_its_users_only(cast: Cast) -> None:
    cookie = login(cast.bob)
    login(cast.alice, SAFARI, address="198.51.100.1")
    both = login(cast.alice, FIREFOX, cookie, address="203.0.113.5")
    assert [mail["To"] for mail in mails(cast.bob)] == [cast.alice.email]
    for user in (cast.alice, cast.bob):
        login(user, SAFARI, both, address="203.0.113.99")
    assert len(mails(cast.bob)) == 1


@pytest.mark.parametrize("forged", ["x", "WyJhIl0.x", "\u00e9", "a" * 5000])
def test_device_cookie_that_is_forged_is_ignored(cast: Cast, forged: str) -> None:
    login(cast.bob)
    login(cast.bob, SAFARI, forged.encode("utf-8").decode("latin-1"))
    assert len(mails(cast.bob)) == 1


def test_device_cookie_signed_for_other_purpose_is_ignored(app: Flask, cast: Cast) -> None:
    cookie = login(cast.bob)
    with app.app_context():
        known = crypto.unsign(cookie, devices.PURPOSE)
        other_purpose = crypto.sign(known, "mfa sign-in")
    login(cast.bob, SAFARI, other_purpose)
    assert len(mails(cast.bob)) == 1


def test_device_cookie_holds_at_most_ten_users(app: Flask, cast: Cast) -> None:
    with app.app_context():
        # As earlier releases wrote it.
        cookie = crypto.sign([str(number) for number in range(10)], devices.PURPOSE)
        known = crypto.unsign(login(cast.bob, FIREFOX, cookie), devices.PURPOSE)
    assert len(known["users"]) == 10
    assert known["users"][1:] == [str(number) for number in range(9)]


def test_new_device_mail_is_sent_once_an_hour(cast: Cast) -> None:
    login(cast.bob)
    for number in range(4):
        login(cast.bob, SAFARI, address=f"198.51.{number}.1")
    assert len(mails(cast.bob)) == 1
    with time_machine.travel(clock.now() + HOUR + timedelta(minutes=1)):
        login(cast.bob, SAFARI, address="203.0.113.1")
        assert len(mails(cast.bob)) == 2


def test_new_device_mail_can_be_disabled_per_account(cast: Cast) -> None:
    assert cast.alice.patch("account", {"new_device_mail": False}).status_code == 200
    login(cast.bob)
    login(cast.bob, SAFARI)
    assert mails(cast.bob) == []


def test_new_device_mail_is_not_sent_for_console_browser_with_cookie(
    app: Flask, cast: Cast
) -> None:
    browser = Browser(app, cast.bob)
    login(cast.bob, SAFARI)
    assert len(mails(cast.bob)) == 1
    with time_machine.travel(clock.now() + 2 * HOUR):
        for address in ("198.51.100.1", "203.0.113.1"):
            browser.client.environ_base["REMOTE_ADDR"] = address
            browser.send("sign-out")
            assert sign_in(browser.client, cast.bob).status_code == 303
        assert len(mails(cast.bob)) == 1


def test_new_device_mail_is_not_sent_for_failed_sign_in(app: Flask, cast: Cast) -> None:
    login(cast.bob)
    body = {"account": "acme", "email": cast.bob.email, "password": "Wrong-horse-1"}
    headers = {"User-Agent": SAFARI}
    assert Caller(app).post("auth/login", body, headers=headers).status_code == 401
    assert mails(cast.bob) == []


def test_sessions_end_others_keeps_only_present_session(
    app: Flask, other: Flask, cast: Cast
) -> None:
    present, ended = (Session.begin(app, other, cast.bob) for _ in range(2))
    alice = Session.begin(app, other, cast.alice)
    browser = Browser(app, cast.bob)
    key = cast.bob.post("api-keys", {"name": "one"}).json["key"]
    assert ended.there.get("auth/me").status_code == 200
    by_key = Caller(app, **{"X-API-Key": key})
    assert by_key.post("auth/sessions/end-others").status_code == 403
    assert present.here.post("auth/sessions/end-others").status_code == 204
    assert [one.there.get("auth/me").status_code for one in (present, ended, alice)] == [
        200,
        401,
        200,
    ]
    assert is_out(browser.client)
    assert by_key.get("auth/me").status_code == 200
    assert present.here.get("auth/sessions").json["total"] == 1


def test_console_profile_ends_all_other_sessions(app: Flask, cast: Cast) -> None:
    browser, lost = Browser(app, cast.bob), Browser(app, cast.bob)
    cast.bob.post("api-keys", {"name": "nightly import"})
    page = browser.get("profile").text
    assert "End all other sessions" in page
    assert "nightly import" in page
    assert "Your other sessions have ended." in browser.done("profile/sessions/end-others")
    assert is_out(lost.client)
    assert "End all other sessions" not in browser.get("profile").text
