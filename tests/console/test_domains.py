"""The domains of an account in the console, and a sign-in that begins with the address."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskClient

from app.accounts.domains.models import AccountDomain
from app.db import transaction
from tests import mailbox, name_server
from tests.builders import Cast
from tests.console.browser import Browser, beside, sign_in
from tests.name_server import NameServer
from tests.sql import Statement, statements
from tests.test_tenancy import PROVIDER


@pytest.fixture
def dns(app: Flask, monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    with name_server.serving() as server:
        settings = replace(app.extensions["atrium.config"], dns_servers=(server.address,))
        monkeypatch.setitem(app.extensions, "atrium.config", settings)
        yield server


def proved(cast: Cast, dns: NameServer) -> str:
    """The id of acme.example, verified for acme."""
    domain = cast.alice.post("account/domains", {"domain": "acme.example"}).json
    dns.prove(domain)
    answer = cast.alice.post(f"account/domains/{domain['id']}/verify")
    assert answer.status_code == 200
    return str(domain["id"])


def test_console_domain_is_added_and_verified(app: Flask, cast: Cast, dns: NameServer) -> None:
    browser = Browser(app, cast.alice)
    pages = f"sso/{cast.alice.account_id}/domains"
    assert "No domains yet" in browser.get(pages).text
    refused = browser.send(pages, domain="gmail.com")
    assert beside(refused, "domain").startswith("Anyone can have an address")
    made = browser.send(pages, domain="acme.example")
    assert made.status_code == 303
    one = made.headers["Location"].removeprefix("/console/")
    domain = cast.alice.get("account/domains").json["items"][0]
    page = browser.get(one).text
    assert domain["record_name"] in page
    assert domain["record_value"] in page
    missing = browser.send(f"{one}/verify")
    assert (missing.status_code, "There is no TXT record" in missing.text) == (409, True)
    dns.prove(domain)
    assert browser.send(f"{one}/verify").status_code == 303
    assert "acme.example is verified." in browser.get(one).text
    refused = browser.send(one, auto_join="true", auto_join_role="editor", sso_only="true")
    assert (refused.status_code, "Set up a provider first" in refused.text) == (400, True)
    assert browser.send(one, auto_join="true", auto_join_role="editor").status_code == 303
    changed = cast.alice.get("account/domains").json["items"][0]
    assert (changed["auto_join"], changed["auto_join_role"]) == (True, "editor")
    listed = browser.get(pages).text
    assert "join as editor" in listed
    assert 'data-label="Last checked"' in listed
    assert '<option value="editor" selected>' in browser.get(one).text
    for _ in range(2):
        assert browser.send(f"{one}/remove").status_code == 303
    assert cast.alice.get("account/domains").json["items"] == []


def test_console_home_warns_of_missing_domain_record(
    app: Flask, cast: Cast, dns: NameServer
) -> None:
    domain = proved(cast, dns)
    browser = Browser(app, cast.alice)
    assert "acme.example is missing" not in browser.get("").text
    with app.app_context(), transaction() as session:
        session.execute(sa.update(AccountDomain).values(failed_checks=3))
    assert "The DNS record of acme.example is missing" in browser.get("").text
    page = browser.get(f"sso/{cast.alice.account_id}/domains/{domain}").text
    assert "The record is missing." in page
    assert "missing" not in Browser(app, cast.charlie).get("").text


def test_console_domain_pages_of_other_account_are_404(
    app: Flask, cast: Cast, dns: NameServer
) -> None:
    domain = proved(cast, dns)
    browser = Browser(app, cast.charlie)
    own = f"sso/{cast.charlie.account_id}/domains/{domain}"
    for one in (own, f"sso/{cast.alice.account_id}/domains/{domain}"):
        assert browser.get(one).status_code == 404
        for path in (one, f"{one}/verify", f"{one}/remove"):
            assert browser.send(path).status_code == 404
    assert cast.alice.get("account/domains").json["total"] == 1


def test_console_sign_in_finds_account_by_verified_domain(
    browser: FlaskClient, cast: Cast, dns: NameServer
) -> None:
    assert "Specify the account" in sign_in(browser, cast.alice, account="").text
    proved(cast, dns)
    wrong = sign_in(browser, cast.alice, account="", password="wrong")
    assert wrong.status_code == 401
    assert sign_in(browser, cast.alice, account="").status_code == 303
    assert browser.get("/console").status_code == 200


def test_forgot_password_without_account_works_in_verified_domain(
    app: Flask, cast: Cast, dns: NameServer
) -> None:
    def forgot(email: str, **fields: str) -> tuple[int, str, list[Statement]]:
        with statements(app) as sent:
            answer = Browser(app).send(
                "/welcome/forgot-password", account="", email=email, **fields
            )
        return answer.status_code, beside(answer, "account"), sent

    stranger = "nobody@acme.example"
    for email in (cast.bob.email, stranger):  # nobody has proved the domain
        assert forgot(email)[:2] == (400, "Specify the account by slug, code or id.")
    proved(cast, dns)
    known = forgot(cast.bob.email)
    assert known[:2] == (303, "")
    mailbox.run_jobs(app)
    (mail,) = mailbox.outbox(app)
    assert (mail["To"], "/welcome/reset-password?" in mailbox.link_in(mail)) == (
        cast.bob.email,
        True,
    )
    assert forgot(stranger) == known
    mailbox.run_jobs(app)
    assert len(mailbox.outbox(app)) == 1
    assert forgot(f"x@mail.{stranger.partition('@')[2]}")[0] == 400


@pytest.mark.parametrize(
    ("limits", "statuses"),
    [
        ({"mail_tries": 2}, [303, 303, 429]),  # whether the account is named or not
        ({"mail_tries_per_address": 2}, [303, 303, 429]),
        ({"sign_in_starts_per_address": 1}, [303, 303, 429]),
    ],
)
def test_forgot_password_without_account_is_limited(
    app: Flask,
    cast: Cast,
    dns: NameServer,
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, int],
    statuses: list[int],
) -> None:
    proved(cast, dns)
    settings = replace(app.extensions["atrium.config"], login_rate_limit="on", **limits)
    monkeypatch.setitem(app.extensions, "atrium.config", settings)
    form = {"email": cast.bob.email}
    accounts = ("acme", "", "")
    found = [Browser(app).send("/welcome/forgot-password", account=one, **form) for one in accounts]
    assert [answer.status_code for answer in found] == statuses


def test_single_sign_on_by_email_goes_to_only_provider_of_domain(
    browser: FlaskClient, cast: Cast, dns: NameServer
) -> None:
    cast.alice.post("admin/configuration", PROVIDER)
    unknown = sign_in(browser, cast.alice, account="", sso="true")
    assert unknown.status_code == 400
    proved(cast, dns)
    going = sign_in(browser, cast.alice, account="", sso="true", next="/console/profile")
    target = "/console/sso/start/auth_providers/google?account=acme&amp;next=/console/profile"
    assert going.status_code == 200
    assert f'content="0; url={target}"' in going.text
    assert f'href="{target}"' in going.text
    assert "accounts.google.com" in browser.get(target.replace("&amp;", "&")).headers["Location"]


def test_single_sign_on_by_email_offers_several_providers(
    browser: FlaskClient, cast: Cast, dns: NameServer
) -> None:
    cast.alice.post("admin/configuration", PROVIDER)
    github = {**PROVIDER, "provider_name": "github"}
    github["config"] = {"client_id": "x", "client_secret": "y"}
    assert cast.alice.post("admin/configuration", github).status_code == 201
    proved(cast, dns)
    chosen = sign_in(browser, cast.alice, account="", sso="true")
    assert (chosen.status_code, "account=acme" in chosen.headers["Location"]) == (303, True)
    page = browser.get(chosen.headers["Location"]).text
    assert "Sign in with Google" in page
    assert "Sign in with GitHub" in page


def test_single_sign_on_in_named_account_ignores_email_domain(
    browser: FlaskClient, cast: Cast, dns: NameServer
) -> None:
    cast.alice.post("admin/configuration", PROVIDER)
    proved(cast, dns)
    answer = sign_in(browser, cast.alice, account="globex", sso="true")
    assert (answer.status_code, "No single sign-on" in answer.text) == (400, True)
