"""A changed address is told to the old one, which takes it back for seven days."""

from __future__ import annotations

from datetime import timedelta
from email.message import EmailMessage
from typing import Any

import pytest
import time_machine
from flask import Flask

from app import clock
from tests.builders import PASSWORD, Caller, Cast, make_user
from tests.console.browser import Browser, alert
from tests.mailbox import body_of, link_in, outbox, run_jobs, token_in

NEW = "Better-horse-2"
THIEF = "thief@elsewhere.example"
OLD = "bob@acme.example"


def mails_to(app: Flask, email: str) -> list[EmailMessage]:
    run_jobs(app)
    return [mail for mail in outbox(app) if mail["To"] == email]


def move(app: Flask, caller: Caller, email: str = THIEF) -> None:
    """Give a user another address, as whoever has the token does."""
    assert caller.patch("auth/me", {"email": email}).status_code == 200
    token = token_in(mails_to(app, email)[-1])
    assert Caller(app).post("auth/verify-email", {"token": token}).status_code == 200
    assert caller.get("auth/me").json["email"] == email


def take_back(caller: Caller, token: str) -> Any:
    return caller.post("auth/undo-email-change", {"token": token})


def login(app: Flask, email: str, password: str = PASSWORD) -> Any:
    body = {"account": "acme", "email": email, "password": password}
    return Caller(app).post("auth/login", body)


def outcome(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json["error"]


def test_email_change_undo_link_restores_address_after_takeover(
    app: Flask, anyone: Caller, cast: Cast
) -> None:
    move(app, cast.bob)
    (told,) = mails_to(app, OLD)
    assert THIEF not in told.as_string()
    assert link_in(told).startswith("http://atrium.test/welcome/undo-email-change?token=")
    # The thief makes the user their own, as the finding did.
    anyone.post("auth/forgot-password", {"account": "acme", "email": THIEF})
    reset = {"token": token_in(mails_to(app, THIEF)[-1]), "new_password": "Stolen-horse-1"}
    assert anyone.post("auth/reset-password", reset).status_code == 200
    thief = Caller(app, Authorization=f"Bearer {login(app, THIEF, 'Stolen-horse-1').json['token']}")
    key = thief.post("api-keys", {"name": "back door"}).json["key"]

    with time_machine.travel(clock.now() + timedelta(days=6, hours=23)):
        assert take_back(anyone, token_in(told)).status_code == 200
        assert outcome(take_back(anyone, token_in(told))) == (400, "invalid_token")
    assert thief.get("auth/me").status_code == cast.bob.get("auth/me").status_code == 401
    assert Caller(app, **{"X-API-Key": key}).get("auth/me").status_code == 401
    for email in (THIEF, OLD):
        for password in (PASSWORD, "Stolen-horse-1"):
            assert login(app, email, password).status_code == 401
    mailed = mails_to(app, OLD)[-1]
    assert "/welcome/reset-password?token=" in link_in(mailed)
    reset = {"token": token_in(mailed), "new_password": NEW}
    assert anyone.post("auth/reset-password", reset).status_code == 200
    answer = login(app, OLD, NEW)
    assert (answer.status_code, answer.json["user"]["id"]) == (200, cast.bob.id)
    assert answer.json["user"]["email_verified"] is True


def test_email_change_twice_lets_first_undo_link_win(
    app: Flask, anyone: Caller, cast: Cast
) -> None:
    move(app, cast.bob)
    move(app, cast.bob, "second@elsewhere.example")
    first = token_in(mails_to(app, OLD)[0])
    later = token_in(mails_to(app, THIEF)[-1])
    assert take_back(anyone, first).status_code == 200
    assert outcome(take_back(anyone, later)) == (400, "invalid_token")
    assert cast.alice.get(f"account/users/{cast.bob.id}").json["email"] == OLD


def test_email_change_undo_by_later_owner_keeps_first_link_valid(
    app: Flask, anyone: Caller, cast: Cast
) -> None:
    move(app, cast.bob)
    move(app, cast.bob, "second@elsewhere.example")
    later = token_in(mails_to(app, THIEF)[-1])
    assert take_back(anyone, later).status_code == 200
    assert take_back(anyone, token_in(mails_to(app, OLD)[0])).status_code == 200
    assert cast.alice.get(f"account/users/{cast.bob.id}").json["email"] == OLD


def test_email_change_undo_link_expires_after_seven_days(
    app: Flask, anyone: Caller, bob: Caller
) -> None:
    move(app, bob)
    token = token_in(mails_to(app, OLD)[0])
    with time_machine.travel(clock.now() + timedelta(days=7, minutes=1)):
        assert outcome(take_back(anyone, token)) == (400, "invalid_token")


def test_email_change_undo_link_survives_get_and_head(app: Flask, cast: Cast) -> None:
    move(app, cast.bob)
    link = link_in(mails_to(app, OLD)[0])
    path = link.removeprefix("http://atrium.test")
    browser = Browser(app)
    for method in ("HEAD", "GET", "GET"):
        page = browser.client.open(path, method=method)
        assert page.status_code == 200
    for part in (OLD, THIEF, "Acme", "It was you? Close this page"):
        assert part in page.text, part
    token = path.partition("token=")[2]
    unasked = browser.client.post("/welcome/undo-email-change", data={"token": token})
    assert unasked.status_code == 400, "without the form's token"
    page = browser.done("/welcome/undo-email-change", token=token)
    assert f"Your address is {OLD} again" in page
    used = browser.send("/welcome/undo-email-change", token=token)
    for answer in (used, browser.get(path), browser.get("/welcome/undo-email-change")):
        assert (answer.status_code, "no longer valid" in alert(answer)) == (400, True)


@pytest.mark.parametrize("token", ["", "nonsense", "AA0001-" + "x" * 43])
def test_email_change_undo_with_bad_token_is_invalid_token(
    app: Flask, cast: Cast, token: str
) -> None:
    move(app, cast.bob)
    assert outcome(take_back(Caller(app), token)) == (400, "invalid_token")


def test_email_change_undo_to_taken_address_is_409_and_link_stays(
    app: Flask, anyone: Caller, cast: Cast
) -> None:
    move(app, cast.bob)
    token = token_in(mails_to(app, OLD)[0])
    other = make_user(app, cast.bob.account_id, OLD)
    assert outcome(take_back(anyone, token)) == (409, "conflict")
    assert cast.alice.delete(f"account/users/{other.id}").status_code == 204
    assert take_back(anyone, token).status_code == 200


@pytest.mark.parametrize("by", ["admin", "superadmin"])
def test_email_change_by_admin_notifies_old_address(app: Flask, cast: Cast, by: str) -> None:
    who, path = (cast.alice, "account/users") if by == "admin" else (cast.root, "users")
    assert who.patch(f"{path}/{cast.bob.id}", {"email": "b@acme.example"}).status_code == 200
    (told,) = mails_to(app, OLD)
    assert "An admin changed it" in body_of(told)
    assert "token=" not in told.as_string()
    # Nobody proved that the next one is theirs.
    assert who.patch(f"{path}/{cast.bob.id}", {"email": "c@acme.example"}).status_code == 200
    assert len(mails_to(app, "b@acme.example")) == 1


def test_email_change_by_admin_of_own_address_can_be_undone(
    app: Flask, anyone: Caller, cast: Cast
) -> None:
    path = f"account/users/{cast.alice.id}"
    assert cast.alice.patch(path, {"email": THIEF}).status_code == 200
    (told,) = mails_to(app, cast.alice.email)
    assert (
        anyone.post("auth/verify-email", {"token": token_in(mails_to(app, THIEF)[-1])}).status_code
        == 200
    )
    assert take_back(anyone, token_in(told)).status_code == 200
    assert cast.root.get(f"users/{cast.alice.id}").json["email"] == cast.alice.email


def test_email_change_of_case_only_sends_no_mail(app: Flask, cast: Cast) -> None:
    assert cast.bob.patch("auth/me", {"email": "BOB@acme.example"}).status_code == 200
    assert mails_to(app, OLD) == []
