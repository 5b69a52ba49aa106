"""Undoing a change of address leaves nobody weaker than before it; the present address is told."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa
import time_machine
from flask import Flask

from app import clock, db, jobs
from app.db.functions import database_now
from tests.auth.test_address_changes import OLD, THIEF, login, mails_to, move, outcome, take_back
from tests.auth.test_second_factors import Phone, key, set_up, set_up_in
from tests.builders import Caller, Cast
from tests.console.browser import Browser, alert, beside
from tests.mailbox import body_of, link_in, run_jobs, token_in
from tests.passkeys import Authenticator

__all__ = ["key"]  # a fixture
NEW = "Better-horse-2"
ASKED, INVALID = (401, "mfa_required"), (400, "invalid_token")


@pytest.fixture
def moved(app: Flask, cast: Cast) -> tuple[Phone, str]:
    """Bob, who has left the old mailbox: his phone from before, and the token mailed there."""
    phone = set_up(cast.bob)
    move(app, phone.session)
    return phone, token_in(mails_to(app, OLD)[-1])


def address_of(cast: Cast) -> str:
    return str(cast.alice.get(f"account/users/{cast.bob.id}").json["email"])


def a_day_later(app: Flask) -> None:
    run_jobs(app)
    waiting = jobs.TABLE.c.kind == "auth.undo_email_change"
    with app.app_context(), db.transaction() as session:
        session.execute(sa.update(jobs.TABLE).where(waiting).values(due_at=database_now()))
    run_jobs(app)


def test_email_change_undo_requires_second_factor(
    app: Flask, cast: Cast, anyone: Caller, moved: tuple[Phone, str]
) -> None:
    phone, token = moved
    assert outcome(take_back(anyone, token)) == ASKED
    for code in ("000000", ""):
        guess = {"token": token, "method": "totp", "code": code}
        answer = anyone.post("auth/undo-email-change", guess)
        assert outcome(answer) == (401, "invalid_code")
    assert address_of(cast) == THIEF
    body = {"token": token, "method": "totp", "code": phone.code(1)}
    assert anyone.post("auth/undo-email-change", body).status_code == 200
    reset = {"token": token_in(mails_to(app, OLD)[-1]), "new_password": NEW}
    assert anyone.post("auth/reset-password", reset).status_code == 200
    asked = login(app, OLD, NEW)
    assert outcome(asked) == ASKED
    assert asked.json["methods"] == ["totp", "recovery_code"]
    code = phone.verify(asked.json["mfa_token"], phone.recovery_codes[0], "recovery_code")
    assert code.status_code == 200


def test_email_change_undo_notifies_replaced_address(
    app: Flask, anyone: Caller, cast: Cast
) -> None:
    move(app, cast.bob)
    before = len(mails_to(app, THIEF))
    assert take_back(anyone, token_in(mails_to(app, OLD)[0])).status_code == 200
    (told,) = mails_to(app, THIEF)[before:]
    assert "has its former email address again" in body_of(told)
    assert "token=" not in told.as_string()


def test_email_change_undo_removes_newer_factors_and_codes(
    app: Flask, anyone: Caller, cast: Cast, moved: tuple[Phone, str]
) -> None:
    phone, token = moved
    set_up_in(phone.session, cast.bob)
    codes = phone.session.post("auth/mfa/recovery-codes").json["recovery_codes"]
    body = {"token": token, "method": "recovery_code", "code": codes[0]}
    assert anyone.post("auth/undo-email-change", body).status_code == 200
    (row,) = [
        one for one in cast.alice.get("account/second-factors").json["items"] if one["email"] == OLD
    ]
    assert row["methods"] == ["totp"]
    reset = {"token": token_in(mails_to(app, OLD)[-1]), "new_password": NEW}
    assert anyone.post("auth/reset-password", reset).status_code == 200
    step = login(app, OLD, NEW).json["mfa_token"]
    assert outcome(phone.verify(step, codes[1], "recovery_code")) == (401, "invalid_code")
    assert phone.verify(step, phone.code(1)).status_code == 200


def test_email_change_undo_ignores_factor_added_after_change(
    app: Flask, anyone: Caller, cast: Cast
) -> None:
    move(app, cast.bob)
    body = {"account": "acme", "email": THIEF, "password": "Correct-horse-1"}
    session = Caller(app, Authorization=f"Bearer {anyone.post('auth/login', body).json['token']}")
    set_up_in(session, cast.bob)  # before the mail about the change is written
    assert take_back(anyone, token_in(mails_to(app, OLD)[0])).status_code == 200
    reset = {"token": token_in(mails_to(app, OLD)[-1]), "new_password": NEW}
    assert anyone.post("auth/reset-password", reset).status_code == 200
    assert login(app, OLD, NEW).status_code == 200


def test_email_change_undo_without_factor_waits_and_can_be_stopped(
    app: Flask, anyone: Caller, cast: Cast, moved: tuple[Phone, str]
) -> None:
    _, token = moved
    for _ in range(2):
        waits = anyone.post("auth/undo-email-change", {"token": token, "wait": True})
        assert (waits.status_code, waits.json["due_at"] is None) == (202, False)
    mails = [mail for mail in mails_to(app, THIEF) if "keep-email" in body_of(mail)]
    (told,) = mails
    assert link_in(told).startswith("http://atrium.test/welcome/keep-email?token=")
    assert address_of(cast) == THIEF
    keep = {"token": token_in(told)}
    assert anyone.post("auth/keep-email", keep).status_code == 200
    assert outcome(anyone.post("auth/keep-email", keep)) == INVALID
    assert outcome(take_back(anyone, token)) == INVALID
    a_day_later(app)
    assert address_of(cast) == THIEF


def test_email_change_undo_without_factor_completes_after_24_hours(
    app: Flask, anyone: Caller, cast: Cast, moved: tuple[Phone, str]
) -> None:
    phone, token = moved
    with time_machine.travel(clock.now() + timedelta(days=6, hours=20)):
        waits = anyone.post("auth/undo-email-change", {"token": token, "wait": True})
        assert waits.status_code == 202
    a_day_later(app)
    assert address_of(cast) == OLD
    assert phone.session.get("auth/me").status_code == 401
    reset = {"token": token_in(mails_to(app, OLD)[-1]), "new_password": NEW}
    assert anyone.post("auth/reset-password", reset).status_code == 200
    assert outcome(login(app, OLD, NEW)) == ASKED


def test_email_change_undo_that_waits_is_dropped_by_newer_change(
    app: Flask, anyone: Caller, cast: Cast, moved: tuple[Phone, str]
) -> None:
    phone, token = moved
    anyone.post("auth/undo-email-change", {"token": token, "wait": True})
    move(app, phone.session, "third@elsewhere.example")
    a_day_later(app)
    assert address_of(cast) == "third@elsewhere.example"


def test_email_change_undo_accepts_passkey(
    app: Flask, anyone: Caller, cast: Cast, key: tuple[Authenticator, Caller]
) -> None:
    authenticator, session = key
    move(app, session)
    token = token_in(mails_to(app, cast.alice.email)[-1])
    asked = take_back(anyone, token).json
    assertion = authenticator.get(asked["passkey_options"])
    step = {"method": "passkey", "assertion": assertion, "mfa_token": asked["mfa_token"]}
    signs_in = anyone.post("auth/mfa/verify", step)
    assert outcome(signs_in) == (401, "invalid_mfa_token"), "it begins no session"
    assert anyone.post("auth/undo-email-change", {"token": token, **step}).status_code == 200


def test_console_undo_page_asks_for_factor_or_waits(
    app: Flask, cast: Cast, moved: tuple[Phone, str]
) -> None:
    phone, token = moved
    browser = Browser(app)
    page = browser.get(f"/welcome/undo-email-change?token={token}")
    assert "Restore address in 24 hours" in page.text
    empty = browser.send("/welcome/undo-email-change", token=token)
    assert (empty.status_code, beside(empty, "code")) == (400, "Enter a code, or use your passkey.")
    wrong = browser.send("/welcome/undo-email-change", token=token, code="000000")
    assert wrong.status_code == 401
    assert address_of(cast) == THIEF
    assert "in 24 hours" in browser.done("/welcome/undo-email-change", token=token, wait="true")
    keep = token_in([mail for mail in mails_to(app, THIEF) if "keep-email" in body_of(mail)][-1])
    assert "Keep your address" in browser.get(f"/welcome/keep-email?token={keep}").text
    assert f"Your address is {OLD} again" in browser.done(
        "/welcome/undo-email-change", token=token, code=phone.code(1)
    )
    used = browser.get(f"/welcome/keep-email?token={keep}")
    assert (used.status_code, "no longer valid" in alert(used)) == (400, True)


def test_console_keep_email_button_stops_undo(
    app: Flask, cast: Cast, moved: tuple[Phone, str]
) -> None:
    browser = Browser(app)
    browser.done("/welcome/undo-email-change", token=moved[1], wait="true")
    keep = token_in([mail for mail in mails_to(app, THIEF) if "keep-email" in body_of(mail)][-1])
    assert f"Your address is still {THIEF}" in browser.done("/welcome/keep-email", token=keep)
    assert browser.get(f"/welcome/undo-email-change?token={moved[1]}").status_code == 400


def test_email_change_by_admin_keeps_second_factors(app: Flask, anyone: Caller, cast: Cast) -> None:
    phone = set_up(cast.bob)
    path = f"account/users/{cast.bob.id}"
    assert cast.alice.patch(path, {"email": "b@acme.example"}).status_code == 200
    set_up_in(phone.session, cast.bob)  # by a session that may be somebody else's
    proof = {"token": token_in(mails_to(app, "b@acme.example")[-1])}
    assert anyone.post("auth/verify-email", proof).status_code == 200
    asked = login(app, "b@acme.example")
    assert outcome(asked) == ASKED
    assert phone.verify(asked.json["mfa_token"], phone.code(1)).status_code == 200
    own = cast.alice.get("account/second-factors").json["items"]
    assert [one["methods"] for one in own if one["email"] == "b@acme.example"] == [["totp"]]
