"""The hosted sign-in: the address first, the ways of its account, and where it leads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
import time_machine
from flask import Flask
from werkzeug.test import TestResponse

from app import clock
from tests.auth.test_second_factors import set_up
from tests.builders import PASSWORD, Cast
from tests.console.browser import Browser, alert, beside
from tests.welcome.test_links import URL, WORDS, addresses, texts

PROVIDER = {
    "category": "auth_providers",
    "provider_name": "google",
    "display_name": "Acme ID",
    "config": {"client_id": "one", "client_secret": "very secret"},
}
BOB = {"account": "acme", "email": "bob@acme.example"}


@pytest.fixture(autouse=True)
def product(cast: Cast) -> None:
    """The product that pages show."""
    assert cast.root.put("product", {"name": "Helpdesk"}).status_code == 200


def sign_in(browser: Browser, **form: str) -> TestResponse:
    """Send the form with the password."""
    return browser.send("/welcome/sign-in", **{**BOB, "password": PASSWORD, **form})


def test_address_comes_first_and_tells_nothing_of_users(app: Flask, cast: Cast) -> None:
    browser = Browser(app)
    page = browser.get("/welcome/sign-in?account=acme")
    assert (page.status_code, 'name="password"' in page.text) == (200, False)
    assert ("to Acme" in page.text, "Helpdesk" in page.text) == (True, True)
    with time_machine.travel(clock.now(), tick=False):  # tokens of forms have a time
        known, unknown = (
            browser.send("/welcome/sign-in", account="acme", email=f"{name}@acme.example")
            for name in ("bob", "bob2")
        )
    assert (known.status_code, 'name="password"' in known.text) == (200, True)
    assert known.text == unknown.text.replace("bob2@", "bob@")
    failed = [sign_in(browser, email=f"{name}@acme.example", password="x") for name in "ab"]
    assert [one.status_code for one in failed] == [401, 401]
    assert alert(failed[0])
    for shown in (page, known, *failed):
        assert not WORDS.search(texts(shown)), WORDS.findall(texts(shown))


def test_account_is_asked_for_where_nothing_names_it(app: Flask, cast: Cast) -> None:
    browser = Browser(app)
    asked = browser.send("/welcome/sign-in", email="bob@acme.example")
    assert (asked.status_code, bool(beside(asked, "account"))) == (400, True)
    wrong = browser.send("/welcome/sign-in", email="bob@acme.example", account="nope")
    assert (wrong.status_code, "no such organization" in beside(wrong, "account")) == (400, True)
    assert "password" in browser.send("/welcome/sign-in", **BOB).text
    chosen = browser.send("/welcome/accounts", account="acme")
    assert chosen.headers["Location"] == "/welcome/sign-in?account=acme"
    assert browser.send("/welcome/accounts", account="nope").status_code == 400


def test_sign_in_pages_name_a_bounded_number_of_accounts(
    app: Flask, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"login_rate_limit": "on", "sign_in_starts_per_address": 3}
    settings = replace(app.extensions["atrium.config"], **changes)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    browser = Browser(app)
    codes = ["AA0001", "AA0002", "nobody", "AA0001", "globex", "nobody"]
    named = ["Sign in to" in browser.get(f"/welcome/sign-in?account={one}").text for one in codes]
    assert named == [True, True, False, False, False, False]
    # Nobody is kept out, nor does a stranger's page tell who exists.
    with time_machine.travel(clock.now(), tick=False):
        known, unknown = (
            browser.get(f"/welcome/sign-in?account={one}").text.replace(one, "")
            for one in codes[-2:]
        )
    assert unknown == known
    form = {"email": cast.alice.email, "account": "acme", "password": PASSWORD}
    assert browser.send("/welcome/sign-in", **form).status_code == 303
    browser.send("/welcome/sign-out")
    assert "Sign in to" in browser.get("/welcome/sign-in?account=acme").text


def test_ways_are_those_of_the_account(app: Flask, cast: Cast) -> None:
    assert cast.alice.post("admin/configuration", PROVIDER).status_code == 201
    cast.alice.patch("account", {"magic_link": True})
    browser = Browser(app)
    ways = browser.send("/welcome/sign-in", **BOB)
    assert "/welcome/sso/start/auth_providers/google?account=acme" in ways.text
    assert 'name="magic_link"' in ways.text
    mailed = browser.send("/welcome/sign-in", **BOB, magic_link="true")
    assert mailed.headers["Location"] == "/welcome/sign-in?account=acme"
    assert cast.alice.patch("account", {"password_sign_in": False}).status_code == 200
    only = browser.send("/welcome/sign-in", **BOB)
    assert (only.status_code, 'name="password"' in only.text) == (200, False)
    assert "/welcome/sso/start/auth_providers/google" in only.text
    # A form that was open before does not get in, either.
    assert sign_in(browser).status_code == 401


@pytest.mark.parametrize(
    ("requested", "target"),
    [
        ("", "/welcome/profile"),
        ("/welcome/accounts", "/welcome/accounts"),
        ("https://app.acme.example/in", "https://app.acme.example/in"),
        ("https://app.acme.example/in/", "/welcome/profile"),
        ("https://app.acme.example/in?x=1", "/welcome/profile"),
        ("https://evil.example/", "/welcome/profile"),
        ("//evil.example/welcome", "/welcome/profile"),
        ("/welcome/../../evil", "/welcome/profile"),
        ("/\\evil.example", "/welcome/profile"),
        ("javascript:alert(1)", "/welcome/profile"),
        ("/api/v1/auth/me", "/welcome/profile"),
    ],
)
def test_sign_in_leads_to_listed_addresses_only(
    app: Flask, cast: Cast, requested: str, target: str
) -> None:
    cast.alice.patch("account", {"allowed_redirect_uris": ["https://app.acme.example/in"]})
    browser = Browser(app)
    query: Mapping[str, str] = {"account": "acme", "redirect_uri": requested}
    page = browser.client.get("/welcome/sign-in", query_string=query)
    (kept,) = re.findall(r'name="next" value="([^"]*)"', page.text)
    done = sign_in(browser, next=requested)
    assert kept.replace("&amp;", "&") == requested
    if target.startswith("/"):
        assert (done.status_code, done.headers["Location"]) == (303, target)
    else:
        assert (done.status_code, target in addresses(done)) == (200, True)
    again = browser.client.get("/welcome/sign-in", query_string=query)
    assert (again.status_code, again.headers["Location"]) == (302, target)


def test_users_go_to_the_product_and_superadmins_to_the_console(app: Flask, cast: Cast) -> None:
    cast.root.put("product", {"url": URL})
    for caller in (cast.bob, cast.alice):
        done = sign_in(Browser(app), email=caller.email)
        assert (done.status_code, URL.replace("&", "&amp;") in addresses(done)) == (200, True)
    root = sign_in(Browser(app), account=cast.root.slug, email=cast.root.email)
    assert root.headers["Location"] == "/console"


def test_policy_of_second_factors_holds_at_the_hosted_sign_in(app: Flask, cast: Cast) -> None:
    phone, browser = set_up(cast.bob), Browser(app)
    asked = sign_in(browser)
    assert browser.client.get("/welcome/profile").status_code == 302
    hidden = dict(re.findall(r'name="(mfa_token|methods|next)" value="([^"]*)"', asked.text))
    wrong = browser.send("/welcome/second-factor", **hidden, code="000000")
    assert (wrong.status_code, 'action="/welcome/second-factor"' in wrong.text) == (401, True)
    done = browser.send("/welcome/second-factor", **hidden, code=phone.code(1))
    assert (done.status_code, done.headers["Location"]) == (303, "/welcome/profile")
    cast.alice.patch("account", {"mfa": "required"})
    enrolling = sign_in(Browser(app), email=cast.alice.email)
    assert 'action="/welcome/second-factor/set-up"' in enrolling.text
    for shown in (asked, wrong, enrolling):
        assert not WORDS.search(texts(shown)), WORDS.findall(texts(shown))


def test_hosted_page_without_session_leads_to_the_hosted_sign_in(app: Flask, cast: Cast) -> None:
    browser = Browser(app)
    asked = browser.get("/welcome/profile/second-factors")
    assert asked.headers["Location"] == "/welcome/sign-in?next=/welcome/profile/second-factors"
    assert browser.send("/welcome/profile").headers["Location"].startswith("/welcome/sign-in")
    missing = browser.get("/welcome/nothing")
    assert (missing.status_code, bool(WORDS.search(texts(missing)))) == (404, False)


def test_language_of_hosted_page_is_chosen_without_leaving_it(app: Flask) -> None:
    browser = Browser(app)
    path = "/welcome/reset-password?token=AA0001-x"
    (page,) = re.findall(r'name="page" value="([^"]*)"', browser.get(path).text)
    chosen = browser.send("/welcome/language", language="de", page=page)
    assert (chosen.headers["Location"], 'lang="de"' in browser.get(path).text) == (path, True)
    outside = browser.send("/welcome/language", language="en", page="https://evil.example/")
    assert outside.headers["Location"] == "/welcome/sign-in"


def test_profile_is_changed_and_left_on_hosted_pages(app: Flask, cast: Cast) -> None:
    browser = Browser(app)
    sign_in(browser)
    form = {"name": "Bob Bell", "email": cast.bob.email, "language": "en"}
    saved = browser.send("/welcome/profile", **form)
    assert saved.headers["Location"] == "/welcome/profile"
    page = browser.get("/welcome/profile")
    assert ("Bob Bell" in page.text, "Your profile is saved." in page.text) == (True, True)
    wrong = browser.send("/welcome/profile/password", current_password="x", new_password="y")
    assert (wrong.status_code, bool(beside(wrong, "current_password"))) == (400, True)
    named = browser.send("/welcome/profile/second-factors/app", name="Phone")
    assert (named.status_code, "QR code" in named.text) == (200, True)
    everywhere = browser.get("/welcome/accounts")
    for shown in (page, wrong, named, everywhere, browser.get("/welcome/profile/second-factors")):
        assert not WORDS.search(texts(shown)), WORDS.findall(texts(shown))
        assert not [one for one in addresses(shown) if "/console" in one]
    out = browser.send("/welcome/sign-out")
    assert out.headers["Location"] == "/welcome/sign-in"
    assert "/welcome/sign-in" in browser.get("/welcome/profile").headers["Location"]


def test_admin_finds_administration_on_the_profile(app: Flask, cast: Cast) -> None:
    browser = Browser(app)
    sign_in(browser, email=cast.alice.email)
    assert 'href="/console"' in browser.get("/welcome/profile").text
