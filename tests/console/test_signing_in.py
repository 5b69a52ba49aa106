"""The console: signing in and out, what the home page tells, and what pages may do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from itsdangerous import TimestampSigner
from werkzeug.test import TestResponse

from app import config, create_app
from app.accounts import service as accounts
from app.auth import mail_tokens
from app.auth.models import LinkPurpose
from app.config import Config
from app.console.shell import guard
from tests import builders
from tests.builders import PASSWORD, Caller, Cast, make_collection, make_record
from tests.console.browser import COOKIE, HOSTILE, is_out, sign_in, sign_out, token

WRONG = "Wrong account, user name or password."


OF_ACME = {"People": "2", "Collections": "1", "Records": "0", "Webhooks": "0"}


def figures(page: str) -> dict[str, str]:
    """The figures on the home page by their names."""
    found = re.findall(r"<article[^>]*><a[^>]*><strong>(.*?)</strong> <span>(.*?)</span></a>", page)
    return {name: value for value, name in found}


def test_console_sign_in_sets_http_only_cookie(browser: FlaskClient, alice: Caller) -> None:
    answer = sign_in(browser, alice)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/console")
    (cookie,) = [c for c in answer.headers.getlist("Set-Cookie") if c.startswith(f"{COOKIE}=")]
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=lax", "path=/"} <= attributes
    assert not [part for part in attributes if part.startswith("domain")]
    home = browser.get("/console")
    assert home.status_code == 200
    assert alice.email in home.text
    assert PASSWORD not in home.text
    assert browser.get("/console/sign-in").headers["Location"] == "/console"


def test_console_sign_in_page_suggests_last_account(
    browser: FlaskClient, alice: Caller, charlie: Caller
) -> None:
    def suggested(query: str = "") -> str:
        page = browser.get(f"/console/sign-in{query}").text
        found = re.search(r'<input id="account"[^>]*? value="(.*?)"', page)
        assert found
        return found[1]

    failed = sign_in(browser, alice, password="wrong")
    assert ("atrium_account" in str(failed.headers), suggested()) == (False, "")
    for caller, account in ((alice, alice.account_id), (charlie, charlie.slug)):
        answer = sign_in(browser, caller, account=account)
        (cookie,) = [c for c in answer.headers.getlist("Set-Cookie") if "atrium_account" in c]
        assert {" HttpOnly", " SameSite=Lax", " Path=/"} <= {*cookie.split(";")}
        sign_out(browser)
        assert suggested() == caller.slug
    assert suggested("?account=other") == "other"
    browser.set_cookie("atrium_account", HOSTILE)
    assert "<script>" not in suggested()


def test_console_single_sign_on_for_account_without_provider_is_400(
    browser: FlaskClient, alice: Caller
) -> None:
    answer = sign_in(browser, alice, password="", sso="true")
    assert (answer.status_code, "No single sign-on for this account" in answer.text) == (400, True)
    assert is_out(browser)


def test_console_cookie_in_production_is_secure_with_host_prefix(
    app: Flask, browser: FlaskClient, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Config, "production", property(lambda self: True))
    answer = sign_in(browser, alice)
    (cookie,) = [c for c in answer.headers.getlist("Set-Cookie") if COOKIE in c]
    assert cookie.startswith("__Host-atrium_console=")
    assert "; Secure" in cookie
    assert "; Path=/" in cookie
    with app.app_context():
        assert config.current().production


def test_console_sign_in_form_requires_csrf_token(
    browser: FlaskClient, alice: Caller, bob: Caller
) -> None:
    form = {"account": alice.slug, "email": alice.email, "password": PASSWORD}
    other = token(alice.app.test_client())
    token(browser)
    for wrong in ({}, {"csrf_token": ""}, {"csrf_token": "x"}, {"csrf_token": other}):
        answer = browser.post("/console/sign-in", data={**form, **wrong})
        assert answer.status_code == 400
        assert answer.mimetype == "text/html"
        assert "has expired" in answer.text
        assert COOKIE not in str(answer.headers.getlist("Set-Cookie"))
    assert is_out(browser)


def test_console_csrf_token_of_former_user_is_refused(browser: FlaskClient, cast: Cast) -> None:
    def opened_by_alice() -> dict[str, str]:
        sign_in(browser, cast.alice)
        return {"email": "ed@acme.example", "role": "viewer", "csrf_token": token(browser)}

    for signs_out in (True, False):
        invitation = opened_by_alice()
        if signs_out:
            sign_out(browser)
        sign_in(browser, cast.charlie)
        late = browser.post("/console/team/invite", data=invitation)
        assert (late.status_code, "has expired" in late.text) == (400, True)
    assert cast.charlie.get("invitations").json["total"] == 0
    invitation = opened_by_alice()
    sign_out(browser)
    sign_in(browser, cast.alice)
    assert browser.post("/console/team/invite", data=invitation).status_code == 303


def test_console_forms_survive_secret_key_rotation_process_by_process(
    app: Flask, browser: FlaskClient, alice: Caller
) -> None:
    settings = app.extensions["atrium.config"]
    old, new = settings.secret_key, "another-secret-key-of-the-right-length"
    before = create_app(replace(settings, secret_key_previous=(new,)))
    after = create_app(replace(settings, secret_key=new, secret_key_previous=(old,)))
    form = {"account": alice.slug, "email": alice.email, "password": PASSWORD}
    for shown, sent in ((after, before), (before, after)):
        browser.application = shown
        form["csrf_token"] = token(browser)
        browser.application = sent
        assert browser.post("/console/sign-in", data=form).status_code == 303
        assert sign_out(browser).status_code == 303


def test_console_csrf_token_of_process_with_clock_ahead_is_accepted(
    browser: FlaskClient, alice: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = {"account": alice.slug, "email": alice.email, "password": PASSWORD}
    now = TimestampSigner.get_timestamp
    with monkeypatch.context() as ahead:
        ahead.setattr(TimestampSigner, "get_timestamp", lambda self: now(self) + 60)
        form["csrf_token"] = token(browser)
    assert browser.post("/console/sign-in", data=form).status_code == 303


def test_console_sign_out_requires_csrf_token(browser: FlaskClient, alice: Caller) -> None:
    sign_in(browser, alice)
    assert browser.post("/console/sign-out").status_code == 400
    assert browser.get("/console/sign-out").status_code == 405
    assert not is_out(browser)


@pytest.mark.parametrize(
    "changes",
    [
        {"password": "Wrong-horse-1"},
        {"email": "nobody@acme.example"},
        {"account": "nowhere"},
        {"account": "globex"},
        {"password": "x" * 10_000},
        {"account": "'; DROP TABLE users; --"},
        {"email": "\x00"},
        {"password": ""},
    ],
)
def test_console_sign_in_failures_have_one_message(
    browser: FlaskClient, alice: Caller, changes: dict[str, str]
) -> None:
    answer = sign_in(browser, alice, **changes)
    assert answer.status_code == 401
    assert f'role="alert">{WRONG}<' in answer.text
    assert PASSWORD not in answer.text
    assert COOKIE not in str(answer.headers.getlist("Set-Cookie"))
    assert is_out(browser)


def test_console_sign_in_failure_keeps_inputs_except_password(
    browser: FlaskClient, alice: Caller
) -> None:
    answer = sign_in(browser, alice, password="Wrong-horse-1", next="/console/x")
    for name, value in (("account", "acme"), ("email", alice.email), ("next", "/console/x")):
        assert re.search(rf'name="{name}"[^>]* value="{re.escape(value)}"', answer.text)
    assert "Wrong-horse-1" not in answer.text


def test_console_sign_in_reports_unverified_email_with_right_password_only(
    app: Flask, browser: FlaskClient, alice: Caller
) -> None:
    builders.make_user(app, alice.account_id, "new@acme.example", verified=False)
    right = sign_in(browser, alice, email="new@acme.example")
    assert right.status_code == 401
    assert "Verify your email address" in right.text
    wrong = sign_in(browser, alice, email="new@acme.example", password="Wrong-horse-1")
    assert WRONG in wrong.text
    assert is_out(browser)


def test_console_sign_in_account_comes_from_host(app: Flask, alice: Caller) -> None:
    client = app.test_client()
    page = client.get("/console/sign-in", headers={"Host": "acme.atrium.test"})
    assert re.search(r'name="account"[^>]* value="acme"', page.text)
    assert re.search(r'name="account"[^>]* value=""', client.get("/console/sign-in").text)


def test_console_home_of_superadmin_counts_all_accounts(browser: FlaskClient, cast: Cast) -> None:
    make_collection(cast.root, "posts")
    make_collection(cast.root, "notes")
    for caller in (cast.alice, cast.alice, cast.charlie):
        make_record(caller, "posts")
    sign_in(browser, cast.root)
    page = browser.get("/console").text
    assert figures(page) == {"Accounts": "2", "Users": "4", "Collections": "2", "Records": "3"}
    text = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert "notes 1 field 0 records posts 1 field 3 records" in text


def test_console_home_of_member_counts_own_account(browser: FlaskClient, cast: Cast) -> None:
    make_collection(cast.root, "posts")
    make_record(cast.charlie, "posts")
    sign_in(browser, cast.alice)
    page = browser.get("/console").text
    assert figures(page) == OF_ACME
    assert "AA0001" in page
    assert "Records</th>" not in page
    for other in ("globex", "Globex", cast.charlie.email, cast.root.email):
        assert other not in page
    named = browser.get("/console", headers={"X-Account-ID": "globex"}).text
    assert figures(named) == OF_ACME


def test_console_sign_out_ends_session_on_server(
    app: Flask, browser: FlaskClient, alice: Caller
) -> None:
    sign_in(browser, alice)
    kept = browser.get_cookie(COOKIE)
    assert kept is not None
    answer = sign_out(browser)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/console/sign-in")
    assert browser.get_cookie(COOKIE) is None
    assert is_out(browser)
    thief = app.test_client()
    thief.set_cookie(COOKIE, kept.value)
    assert is_out(thief)


def test_console_sign_out_keeps_other_sessions(app: Flask, alice: Caller) -> None:
    first, second = app.test_client(), app.test_client()
    sign_in(first, alice)
    sign_in(second, alice)
    sign_out(first)
    assert is_out(first)
    assert not is_out(second)


def test_console_session_ends_with_deactivation_or_suspension(
    app: Flask, browser: FlaskClient, alice: Caller, bob: Caller
) -> None:
    other = app.test_client()
    sign_in(browser, alice)
    sign_in(other, bob)
    assert not is_out(browser)
    builders.change_user(app, alice.id, is_active=False)
    assert is_out(browser)
    assert not is_out(other)
    assert sign_in(browser, alice).status_code == 401


def test_console_role_change_shows_at_once(app: Flask, browser: FlaskClient, bob: Caller) -> None:
    sign_in(browser, bob)
    assert "your role is viewer" in browser.get("/console").text
    builders.change_user(app, bob.id, role_id=2)
    assert "your role is editor" in browser.get("/console").text


@pytest.mark.parametrize("value", ["", "x", "AA0001", "AA0001-x", "-", "a" * 3000, "AA0001-\u00e9"])
def test_console_cookie_that_is_forged_is_signed_out(app: Flask, alice: Caller, value: str) -> None:
    client = app.test_client()
    client.set_cookie(COOKIE, value)
    assert is_out(client)


ELSEWHERE = [
    "//evil.example",
    "///evil.example",
    "https:evil.example",
    "https://evil.example",
    "http:/console",
    "\\\\evil.example",
    "/\\evil.example",
    "/console\\evil",
    "\\/evil.example",
    "/\t/evil.example",
    "/console\t",
    "/console\n//evil.example",
    "/consoleevil",
    "/console@evil.example",
    "/console:80@evil.example",
    "/console/../docs",
    "/console/%2e%2e/docs",
    "javascript:alert(1)",
    "data:text/html,x",
    "%2f%2fevil.example",
    "/docs",
    "/api/v1/auth/me",
    "console",
    " /console",
    "/console#x",
    "",
]


def test_console_next_target_outside_console_is_unsafe() -> None:
    assert [target for target in ELSEWHERE if guard.safe_target(target)] == []


def test_console_sign_in_redirects_to_console_pages_only(app: Flask, alice: Caller) -> None:
    for target in ELSEWHERE[::6]:
        answer = sign_in(app.test_client(), alice, next=target)
        assert (answer.status_code, answer.headers["Location"]) == (303, "/console"), target
    for target in ("/console", "/console/", "/console/users/1?page=2&search=a%20b"):
        answer = sign_in(app.test_client(), alice, next=target)
        assert (answer.status_code, answer.headers["Location"]) == (303, target)


def test_console_sign_in_returns_to_requested_page(browser: FlaskClient, alice: Caller) -> None:
    asked = browser.get("/console?page=2&x=%3Cb%3E")
    form = browser.get(asked.headers["Location"])
    assert form.status_code == 200
    found = re.search(r'name="next" value="([^"]*)"', form.text)
    assert found
    target = found[1].replace("&amp;", "&")
    assert target == "/console?page=2&x=%3Cb%3E"
    assert sign_in(browser, alice, next=target).headers["Location"] == target
    assert browser.get("/").headers["Location"] == "/console"


def test_console_sign_in_pages_escape_html(app: Flask, browser: FlaskClient, alice: Caller) -> None:
    hostile = builders.make_account(app, "hostile", HOSTILE)
    user = builders.make_user(app, hostile, "eve@hostile.example", "admin")
    sign_in(browser, Caller(app, user))
    pages = [browser.get("/console").text]
    pages.append(sign_in(app.test_client(), alice, email=HOSTILE, account=HOSTILE).text)
    pages.append(app.test_client().get("/console/sign-in", query_string={"next": HOSTILE}).text)
    for page in pages:
        assert "<script>" not in page
        assert "<img" not in page
        assert "1111113" not in page
        assert "&lt;script&gt;" in page


def test_console_pages_have_strict_csp(browser: FlaskClient, alice: Caller) -> None:
    def pages() -> list[TestResponse]:
        return [browser.get("/console/sign-in"), browser.get("/console"), browser.get("/")]

    answers = [*pages(), browser.post("/console/sign-in"), sign_in(browser, alice), *pages()]
    for answer in answers:
        policy = answer.headers["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert "*" not in policy
        for part in ("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'"):
            assert part in policy
        assert "form-action 'self'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Referrer-Policy"] == "same-origin"
        assert not re.search(r"<script>|<style|\son\w+=|\sstyle=|javascript:", answer.text)


ApiCall = Callable[[FlaskClient], TestResponse]
API_CALLS: list[ApiCall] = [
    lambda client: client.get("/api/v1/auth/me"),
    lambda client: client.get("/api/v1/records/posts"),
    lambda client: client.post("/api/v1/records/posts", json={"title": "x"}),
    lambda client: client.post("/api/v1/auth/logout", json={}),
    lambda client: client.get("/api/v1/collections"),
]


def test_api_with_console_cookie_is_401(browser: FlaskClient, cast: Cast) -> None:
    make_collection(cast.root)
    for caller in (cast.alice, cast.root):
        sign_in(browser, caller)
        secret: Any = browser.get_cookie(COOKIE)
        for call in API_CALLS:
            assert call(browser).status_code == 401
        for header in ({"Authorization": f"Bearer {secret.value}"}, {"X-API-Key": secret.value}):
            answer = browser.get("/api/v1/auth/me", headers=header)
            assert answer.status_code == 401
        sign_out(browser)
    assert cast.alice.get("records/posts").json["total"] == 0


def test_console_with_api_token_is_signed_out(alice: Caller) -> None:
    assert alice.get("/console").status_code == 302
    login = {"account": "acme", "email": alice.email, "password": PASSWORD}
    client = alice.app.test_client()
    refresh_token = client.post("/api/v1/auth/login", json=login).json["refresh_token"]
    for value in (refresh_token, alice.headers["Authorization"].split()[1]):
        client.set_cookie(COOKIE, value)
        assert is_out(client)


def sign_in_path(app: Flask) -> str:
    """The link that `bin/atrium setup` prints."""
    printed = app.test_cli_runner().invoke(args=["setup"]).output
    found = re.search(r"http://\S+(/console/sign-in-link\?token=\S+)", printed)
    assert found
    return found[1]


def test_superadmin_sign_in_link_works_once(app: Flask, cast: Cast) -> None:
    path = sign_in_path(app)
    token_of_link = path.partition("token=")[2]
    client = app.test_client()
    for _ in range(2):  # looking at it uses nothing up
        assert "once" in client.get(path).text
    form = {"csrf_token": token(client), "token": token_of_link}
    answer = client.post("/console/sign-in-link", data=form)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/console")
    assert "You are a superadmin" in client.get("/console").text
    other = app.test_client()
    again = other.post("/console/sign-in-link", data={**form, "csrf_token": token(other)})
    assert (again.status_code, "no longer valid" in again.text) == (400, True)
    newer = sign_in_path(app)
    assert sign_in_path(app) != newer
    assert app.test_client().get(newer).status_code == 400  # the newest alone counts


def test_superadmin_sign_in_link_refuses_mailed_tokens(app: Flask, cast: Cast) -> None:
    with app.app_context():
        user = accounts.first_superadmin()
        assert user
        reset = mail_tokens.issue(user, LinkPurpose.RESET)
    client = app.test_client()
    assert client.get(f"/console/sign-in-link?token={reset}").status_code == 400
    form = {"csrf_token": token(client), "token": reset}
    assert client.post("/console/sign-in-link", data=form).status_code == 400


def test_console_cookie_stays_small_with_many_account_names(app: Flask, cast: Cast) -> None:
    client = app.test_client()
    sign_in(client, cast.root)
    for n in range(8):
        name = "".join(chr(0x1F300 + 97 * n + i % 700) for i in range(200))
        made = cast.root.post("accounts", {"name": name, "slug": f"emoji-{n}"})
        assert made.status_code == 201, made.json
        page = client.get(f"/console/accounts/{made.json['id']}/dashboard")
        assert len(page.headers["Set-Cookie"]) < 4000
    assert page.text.count('href="/console/accounts/') > 5
