"""Opening a mailed link changes nothing, whoever opens it; and whose password a click confirms."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from app import db
from app.accounts.models import User
from app.auth import mail_tokens
from app.auth.models import LinkPurpose
from tests.auth.test_second_factors import set_up
from tests.builders import PASSWORD, Caller, Cast, make_user
from tests.console.browser import Browser, beside
from tests.mailbox import body_of, link_in, outbox, run_jobs, token_in

NEW = "Better-horse-2"
CHROME = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
ACCEPTS = (
    *(None, "", "*/*", "text/html", CHROME, "application/*", "application/xml"),
    *("application/json, text/plain, */*", "application/json;q=0.9", "application/json, text/html"),
)


def newest(app: Flask, email: str, part: str = "://") -> str:
    """The path of the newest link that was mailed to an address."""
    run_jobs(app)
    mails = [mail for mail in outbox(app) if mail["To"] == email and "://" in body_of(mail)]
    links = [link_in(mail) for mail in mails]
    return [link for link in links if part in link][-1].removeprefix("http://atrium.test")


def verification(app: Flask, cast: Cast) -> str:
    make_user(app, cast.alice.account_id, "ann@acme.example", verified=False)
    cast.alice.post("auth/send-verification", {"email": "ann@acme.example"})
    return newest(app, "ann@acme.example")


def change(app: Flask, cast: Cast) -> str:
    cast.bob.patch("auth/me", {"email": "robert@acme.example"})
    return newest(app, "robert@acme.example")


def undo(app: Flask, cast: Cast) -> str:
    token = {"token": change(app, cast).partition("token=")[2]}
    assert Caller(app).post("auth/verify-email", token).status_code == 200
    return newest(app, cast.bob.email)


def keep(app: Flask, cast: Cast) -> str:
    phone = set_up(cast.bob)
    phone.session.patch("auth/me", {"email": "robert@acme.example"})
    token = newest(app, "robert@acme.example").partition("token=")[2]
    Caller(app).post("auth/verify-email", {"token": token})
    token = newest(app, cast.bob.email, "undo").partition("token=")[2]
    Caller(app).post("auth/undo-email-change", {"token": token, "wait": True})
    return newest(app, "robert@acme.example", "keep-email")


def reset(app: Flask, cast: Cast) -> str:
    body = {"account": "acme", "email": cast.bob.email}
    Caller(app).post("auth/forgot-password", body)
    return newest(app, cast.bob.email)


def magic(app: Flask, cast: Cast) -> str:
    cast.alice.patch("account", {"magic_link": True})
    Caller(app).post("auth/magic-link", {"account": "acme", "email": cast.bob.email})
    return newest(app, cast.bob.email)


def invitation(app: Flask, cast: Cast) -> str:
    cast.alice.post("invitations", {"email": "gus@acme.example"})
    return newest(app, "gus@acme.example")


def set_up_link(app: Flask, cast: Cast) -> str:
    body = {"name": "IT", "email": "it@acme.example"}
    assert cast.alice.post("account/setup-links", body).status_code == 201
    return newest(app, "it@acme.example")


def printed(app: Flask, cast: Cast) -> str:
    with app.app_context():
        root = db.db.session.get_one(User, (cast.root.account_id, cast.root.id))
        return f"/console/sign-in-link?token={mail_tokens.issue(root, LinkPurpose.SIGN_IN)}"


LINKS: tuple[Callable[[Flask, Cast], str], ...] = (
    *(verification, change, undo, keep, reset, magic, invitation, set_up_link, printed),
)


def rows(app: Flask) -> dict[str, list[Any]]:
    """Every row of the database."""
    with app.app_context(), db.transaction() as session:
        tables = sa.inspect(session.connection()).get_table_names()
        found = {name: session.execute(sa.text(f'SELECT * FROM "{name}"')) for name in tables}  # noqa: S608
        return {
            name: sorted(repr([plain(one) for one in row]) for row in found[name]) for name in found
        }


def plain(value: Any) -> Any:
    """A value that looks the same each time."""
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.mark.parametrize("link", LINKS)
def test_mailed_link_get_and_head_change_no_row(
    app: Flask, cast: Cast, link: Callable[[Flask, Cast], str]
) -> None:
    path = link(app, cast)
    before = rows(app)
    for accept in ACCEPTS:
        headers = {} if accept is None else {"Accept": accept}
        client = app.test_client()
        page = client.get(path, headers=headers)
        assert (page.status_code, page.mimetype) == (200, "text/html"), accept
        assert re.search(r'<form[^>]*method="post"', page.text), "a button"
        for action in set(re.findall(r'action="([^"]+)"', page.text)):
            token = path.partition("token=")[2]
            for followed in (action, f"{action}?token={token}"):
                assert client.get(followed, headers=headers).status_code < 500
        assert app.test_client().head(path, headers=headers).status_code == 200
    only_json = {"Accept": "application/json"}
    assert app.test_client().head(path, headers=only_json).status_code == 200
    assert rows(app) == before


def test_email_verification_click_does_not_confirm_inviters_password(
    app: Flask, cast: Cast
) -> None:
    """The inviter accepts for a stranger, who gets the mail, opens it and presses the button."""
    anyone, ceo = Caller(app), "ceo@victimcorp.example"
    shown = cast.alice.post("invitations", {"email": ceo}).json["token"]
    assert anyone.post(f"invitations/{shown}/accept", {"password": PASSWORD}).status_code == 200
    link = newest(app, ceo, "verify-email")
    scanned = app.test_client().get(link, headers={"User-Agent": "SafeLinks"})
    assert "Acme" in scanned.text
    browser, token = Browser(app), link.partition("token=")[2]
    clicked = browser.send("/welcome/verify-email", token=token)
    assert (clicked.status_code, beside(clicked, "password")) == (400, "Required.")
    guessed = browser.send("/welcome/verify-email", token=token, password=NEW)
    assert (guessed.status_code, "password is wrong" in guessed.text) == (400, True)
    credentials = {"account": "acme", "email": ceo, "password": PASSWORD}
    assert anyone.post("auth/login", credentials).json["error"] == "email_not_verified"
    weak = browser.send("/welcome/verify-email", token=token, password="short", is_new="true")
    assert weak.status_code == 400
    done = browser.send("/welcome/verify-email", token=token, password=NEW, is_new="true")
    assert (done.status_code, ceo in done.text) == (200, True)
    assert "/console/sign-in" not in done.text.partition("<main")[2], "no console for a viewer"
    assert anyone.post("auth/login", credentials).json["error"] == "authentication_failed"
    assert anyone.post("auth/login", credentials | {"password": NEW}).status_code == 200


def test_email_verification_by_registered_user_needs_no_password(
    app: Flask, anyone: Caller
) -> None:
    body = {"account_name": "Initech", "email": "eve@initech.example", "password": PASSWORD}
    assert anyone.post("auth/register", body).status_code == 201
    token = newest(app, "eve@initech.example").partition("token=")[2]
    done = Browser(app).send("/welcome/verify-email", token=token, password=PASSWORD)
    assert (done.status_code, "/welcome/sign-in" in done.text) == (200, True)
    login = {"account": "initech", "email": "eve@initech.example", "password": PASSWORD}
    assert anyone.post("auth/login", login).status_code == 200
    again = Browser(app).send("/welcome/verify-email", token=token, password=PASSWORD)
    assert (again.status_code, "invalid or has expired" in again.text) == (400, True)


def test_email_change_link_requires_password_of_user(app: Flask, cast: Cast) -> None:
    token = change(app, cast).partition("token=")[2]
    stranger = Browser(app)
    for form in ({}, {"password": NEW}, {"password": NEW, "is_new": "true"}):
        assert stranger.send("/welcome/verify-email", token=token, **form).status_code == 400
    assert cast.bob.get("auth/me").json["email"] == cast.bob.email
    own = Browser(app, cast.bob)
    assert own.send("/welcome/verify-email", token=token).status_code == 200
    assert cast.bob.get("auth/me").json["email"] == "robert@acme.example"


@pytest.mark.parametrize(
    ("chosen", "status", "signs_in"),
    [
        ({}, 200, PASSWORD),
        ({"password": PASSWORD}, 200, PASSWORD),
        ({"new_password": NEW}, 200, NEW),
        ({"password": NEW}, 400, None),
        ({"new_password": "short"}, 400, None),
    ],
)
def test_email_verification_api_accepts_password(
    app: Flask, cast: Cast, chosen: dict[str, str], status: int, signs_in: str | None
) -> None:
    token = verification(app, cast).partition("token=")[2]
    answer = Caller(app).post("auth/verify-email", {"token": token, **chosen})
    assert answer.status_code == status
    for password in (PASSWORD, NEW):
        login = {"account": "acme", "email": "ann@acme.example", "password": password}
        expected = 200 if password == signs_in else 401
        assert Caller(app).post("auth/login", login).status_code == expected


def test_magic_link_verification_does_not_confirm_password(app: Flask, cast: Cast) -> None:
    cast.alice.patch("account", {"magic_link": True})
    make_user(app, cast.alice.account_id, "ann@acme.example", verified=False)
    body = {"account": "acme", "email": "ann@acme.example"}
    Caller(app).post("auth/magic-link", body)
    run_jobs(app)
    token = {"token": token_in(outbox(app)[-1])}
    assert Caller(app).post("auth/magic-link/verify", token).status_code == 200
    login = Caller(app).post("auth/login", {**body, "password": PASSWORD})
    assert (login.status_code, login.json["error"]) == (401, "authentication_failed")


def test_console_keys_page_offers_new_key_only_to_admins(app: Flask, cast: Cast) -> None:
    """Also after an invitation, whose link leads to the home page."""
    browser = Browser(app)
    path, _, token = invitation(app, cast).partition("?token=")
    page = browser.done(path, token=token, password=PASSWORD)
    assert "Welcome to Acme." in page
    others = [browser.get(path) for path in ("profile", "keys")]
    assert [other.status_code for other in others] == [200, 200]
    for shown in (page, *(other.text for other in others)):
        assert "keys/new" not in shown
        assert "API key</a>" not in shown
    assert "keys/new" in Browser(app, cast.alice).get("keys").text
