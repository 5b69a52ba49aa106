"""All mailed links: who scans them, uses them twice or late, or bends where they lead."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import time_machine
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app import clock
from app.web import html
from tests.auth import test_opened_links as made
from tests.auth.test_second_factors import Phone, set_up
from tests.builders import PASSWORD, Caller, Cast
from tests.console.browser import Browser, token

NEW = "Better-horse-2"
EVIL = "evil.example"
URL = "https://www.helpdesk.example/app?a=1&b=2"
WORDS = re.compile(r"atrium|console|konsole|api[- ]?(key|schlüssel)", re.IGNORECASE)
Link = Callable[[Flask, Cast], str]
# What the form of each takes besides the token.
FORMS: dict[str, dict[str, str]] = {
    "verification": {"password": PASSWORD},
    "change": {"password": PASSWORD},
    "undo": {},
    "keep": {},
    "reset": {"new_password": NEW},
    "magic": {},
    "invitation": {"name": "Gus", "password": NEW},
}
LINKS = pytest.mark.parametrize("name", FORMS)


def link_of(name: str, app: Flask, cast: Cast) -> tuple[str, str]:
    """The path of a new link, and its token."""
    cast.root.put("product", {"name": "Helpdesk", "url": URL, "support_email": "help@a.example"})
    link: Link = getattr(made, name)
    path = link(app, cast)
    assert path.startswith(("/welcome/", "/auth/verify-email?")), path
    return path, path.partition("token=")[2]


def submit(client: FlaskClient, path: str, mailed: str, **form: str) -> TestResponse:
    """Send the form of a link's page."""
    data = {"csrf_token": token(client), "token": mailed, **form}
    return client.post(action_of(path), data=data)


def action_of(path: str) -> str:
    """Where the form of a link's page is sent."""
    return path.partition("?")[0].replace("/auth/", "/welcome/")


def addresses(page: TestResponse) -> set[str]:
    """Where the links, forms and files of a page lead."""
    found = set(re.findall(r'(?:href|src|action)="([^"]*)"', page.text))
    return found | set(re.findall(r'content="0; url=([^"]*)"', page.text))


def texts(page: TestResponse) -> str:
    """All of a page but its tokens."""
    return re.sub(r'value="[^"]*"', "", page.text)


@LINKS
def test_page_of_mailed_link_is_branded_and_sends_no_referer(
    app: Flask, cast: Cast, name: str
) -> None:
    path, mailed = link_of(name, app, cast)
    for language in ("en", "de"):
        page = app.test_client().get(path, headers={"Accept-Language": language})
        assert (page.status_code, page.headers["Referrer-Policy"]) == (200, "no-referrer")
        assert page.headers["Content-Security-Policy"] == html.POLICY
        assert page.headers["Cache-Control"] == "no-store"
        assert f'lang="{language}"' in page.text
        assert "Helpdesk" in page.text
        assert not WORDS.search(texts(page)), WORDS.findall(texts(page))
        assert not [one for one in addresses(page) if mailed in unquote(one)]


@LINKS
def test_mailed_link_leads_nowhere_that_its_address_names(
    app: Flask, cast: Cast, name: str
) -> None:
    path, mailed = link_of(name, app, cast)
    client = app.test_client()
    names = ("next", "redirect_uri", "url", "return_url", "page")
    bent = "".join(f"&{one}=https://{EVIL}/{one}" for one in names)
    page = client.get(path.replace("/auth/", "/welcome/") + bent)
    assert page.status_code == 200
    assert not [one for one in addresses(page) if EVIL in one]
    form = {one: f"https://{EVIL}/{one}" for one in names}
    done = submit(client, path, mailed, **FORMS[name], **form)
    assert done.status_code in (200, 303)
    assert EVIL not in done.headers.get("Location", "")
    assert not [one for one in addresses(done) if EVIL in one]


@pytest.mark.parametrize("is_late", [False, True], ids=["used", "expired"])
@LINKS
def test_used_and_expired_mailed_links_are_400_with_a_way_on(
    app: Flask, cast: Cast, name: str, *, is_late: bool
) -> None:
    path, mailed = link_of(name, app, cast)
    if not is_late:
        assert submit(app.test_client(), path, mailed, **FORMS[name]).status_code in (200, 303)
    with time_machine.travel(clock.now() + timedelta(days=8 if is_late else 0)):
        opened = app.test_client().get(path)
        sent = submit(app.test_client(), path, mailed, **FORMS[name])
    for page in (opened, sent):
        assert page.status_code == 400
        assert re.search(r'role="alert"', page.text)
        ways = [one for one in addresses(page) if one.startswith("/welcome/")]
        assert {urlsplit(one).path for one in ways} & {
            "/welcome/sign-in",
            "/welcome/forgot-password",
            "/welcome/resend-verification",
        }
        assert "help@a.example" in page.text
        assert not WORDS.search(texts(page)), WORDS.findall(texts(page))


@LINKS
def test_mailed_link_in_two_tabs_works_once(app: Flask, cast: Cast, name: str) -> None:
    path, mailed = link_of(name, app, cast)
    client = app.test_client()
    first, second = client.get(path), client.get(path)
    assert (first.status_code, second.status_code) == (200, 200)
    forms = [re.search(r'name="csrf_token" value="([^"]+)"', one.text) for one in (first, second)]
    answers = [
        client.post(
            action_of(path),
            data={"csrf_token": form and form[1], "token": mailed, **FORMS[name]},
        )
        for form in forms
    ]
    assert answers[0].status_code in (200, 303)
    assert answers[1].status_code == 400
    assert re.search(r'href="/welcome/', answers[1].text), "a way on"


def test_former_addresses_of_links_lead_to_hosted_pages(app: Flask, cast: Cast) -> None:
    client = app.test_client()
    for former, present in (
        ("/console/reset-password?token=a%2Bb", "/welcome/reset-password?token=a%2Bb"),
        ("/console/magic-link?token=x", "/welcome/magic-link?token=x"),
        ("/console/undo-email-change?token=x", "/welcome/undo-email-change?token=x"),
        ("/console/keep-email?token=x", "/welcome/keep-email?token=x"),
        ("/console/forgot-password?account=acme", "/welcome/forgot-password?account=acme"),
        ("/console/invitations/AA0001-x", "/welcome/invitation?token=AA0001-x"),
    ):
        answer = client.get(former)
        assert (answer.status_code, answer.headers["Location"]) == (302, present)
    _, mailed = link_of("verification", app, cast)
    page = client.get(f"/auth/verify-email?token={mailed}")
    assert (page.status_code, page.headers["Referrer-Policy"]) == (200, "no-referrer")
    assert 'action="/welcome/verify-email"' in page.text


def test_form_of_hosted_page_needs_its_csrf_token(app: Flask, cast: Cast) -> None:
    path, mailed = link_of("reset", app, cast)
    for sent in ({}, {"csrf_token": "x"}, {"csrf_token": ""}):
        data = {"token": mailed, "new_password": NEW, **sent}
        refused = app.test_client().post("/welcome/reset-password", data=data)
        assert refused.status_code == 400
        assert "form has expired" in refused.text
    assert submit(app.test_client(), path, mailed, new_password=NEW).status_code == 303


def test_accepted_invitation_leads_to_the_product_and_signs_in(app: Flask, cast: Cast) -> None:
    path, mailed = link_of("invitation", app, cast)
    client = app.test_client()
    joined = submit(client, path, mailed, name="Gus", password=NEW)
    # Not by a redirect, which browsers refuse from a form to another site.
    assert (joined.status_code, joined.headers.get("Location")) == (200, None)
    assert addresses(joined) >= {"https://www.helpdesk.example/app?a=1&amp;b=2"}
    assert "gus@acme.example" in client.get("/welcome/profile").text
    again = client.get(path)
    assert (again.status_code, "/welcome/profile" in again.text) == (400, True)


@pytest.mark.parametrize("name", ["magic", "invitation"])
def test_link_that_signs_in_leads_to_profile_without_a_product_url(
    app: Flask, cast: Cast, name: str
) -> None:
    path, mailed = link_of(name, app, cast)
    cast.root.put("product", {"url": None})
    done = submit(app.test_client(), path, mailed, **FORMS[name])
    assert (done.status_code, done.headers["Location"]) == (303, "/welcome/profile")


def test_magic_link_asks_for_the_second_factor_and_leads_on(app: Flask, cast: Cast) -> None:
    path, mailed = link_of("magic", app, cast)
    phone: Phone = set_up(cast.bob)
    client = app.test_client()
    asked = submit(client, path, mailed)
    assert (asked.status_code, 'action="/welcome/second-factor"' in asked.text) == (200, True)
    assert not WORDS.search(texts(asked)), WORDS.findall(texts(asked))
    hidden = dict(re.findall(r'name="(mfa_token|methods|next)" value="([^"]*)"', asked.text))
    data = {"csrf_token": token(client), **hidden, "next": f"https://{EVIL}/"}
    done = client.post("/welcome/second-factor", data={**data, "code": phone.code(1)})
    assert (done.status_code, EVIL in done.text) == (200, False)
    assert "https://www.helpdesk.example/app" in done.text
    assert cast.bob.email in client.get("/welcome/profile").text


def test_reset_password_of_user_leads_to_the_sign_in_page_of_the_product(
    app: Flask, cast: Cast
) -> None:
    path, mailed = link_of("reset", app, cast)
    own = "https://www.helpdesk.example/in?account={account}"
    cast.root.put("product", {"links": {"sign_in": own}})
    done = submit(app.test_client(), path, mailed, new_password=NEW)
    assert (done.status_code, own.format(account="acme") in done.text) == (200, True)


def test_invitation_is_void_once_its_page_is_off_the_list(app: Flask, cast: Cast) -> None:
    page = "https://app.acme.example/join"
    cast.alice.patch("account", {"allowed_redirect_uris": [page]})
    body = {"email": "gus@acme.example", "redirect_uri": page}
    shown = cast.alice.post("invitations", body).json["token"]
    mailed = made.newest(app, "gus@acme.example").partition("token=")[2]
    anyone = Caller(app)
    assert anyone.get(f"invitations/{mailed}").json["is_valid"] is True
    cast.alice.patch("account", {"allowed_redirect_uris": []})
    for one in (mailed, shown):
        assert anyone.get(f"invitations/{one}").json["is_valid"] is False
        refused: Any = anyone.post(f"invitations/{one}/accept", {"password": NEW})
        assert (refused.status_code, refused.json["error"]) == (400, "invalid_token")
    cast.alice.post("invitations", {"email": "gus@acme.example"})
    hosted = made.newest(app, "gus@acme.example").partition("token=")[2]
    assert anyone.post(f"invitations/{hosted}/accept", {"password": NEW}).status_code == 200


def test_unverified_user_asks_for_a_new_link_after_the_password(app: Flask, cast: Cast) -> None:
    made.verification(app, cast)
    browser = Browser(app)
    form = {"account": "acme", "email": "ann@acme.example", "password": PASSWORD}
    refused = browser.send("/welcome/sign-in", **form)
    assert refused.status_code == 401
    assert "/welcome/resend-verification?account=acme&amp;email=ann" in refused.text
    before = len(made.outbox(app))
    sent = browser.send("/welcome/resend-verification", account="acme", email="ann@acme.example")
    assert (sent.status_code, sent.headers["Location"]) == (303, "/welcome/sign-in?account=acme")
    made.run_jobs(app)
    assert len(made.outbox(app)) == before + 1
