"""Sign-in by providers in a real browser: set up, tested, used; by OpenID and by SAML."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from flask import Flask
from playwright.sync_api import expect

from app.outbound import dns_client
from tests.browser.conftest import Visit
from tests.browser.test_console import sign_in
from tests.browser.test_people import fill, press
from tests.builders import Cast
from tests.name_server import published_records
from tests.sso import openid, saml_idp
from tests.sso.flows import forget_deleted


@pytest.fixture
def provider() -> Iterator[openid.Provider]:
    with openid.providing() as provider:
        provider.who["email"] = "gwen@acme.example"
        yield provider


@pytest.fixture
def identity_provider() -> Iterator[saml_idp.Server]:
    server = saml_idp.Server(subject="fay@acme.example", attributes={"displayName": ["Fay"]})
    yield server
    server.close()


@pytest.fixture(autouse=True)
def tidied(live_app: Flask, live_cast: Cast) -> Iterator[None]:
    """Leave acme as it was: other tests count, and let the same people join."""
    yield
    live_cast.alice.patch("account", {"sso_email_domains": []})
    for row in live_cast.alice.get("admin/configuration").json["items"]:
        live_cast.alice.delete(f"admin/configuration/{row['id']}")
    for user in live_cast.alice.get("account/users").json["items"]:
        if user["auth_provider"] != "password":
            live_cast.alice.delete(f"account/users/{user['id']}")
    forget_deleted(live_app)


def test_google_provider_set_up_and_sign_in(
    visit: Visit, live_cast: Cast, provider: openid.Provider, look: Callable[[str], None]
) -> None:
    page = visit.page
    live_cast.alice.patch("account", {"sso_email_domains": ["acme.example"]})
    sign_in(visit, live_cast.alice)
    page.get_by_role("link", name="Single sign-on", exact=True).click()
    look("sso-overview")
    page.get_by_role("link", name="Google").click()
    page.get_by_role("heading", name="Advanced").click()
    config = provider.config()
    fill(visit, **config)
    look("sso-new")
    press(visit, "Add provider")
    expect(page.get_by_text("Google is set up")).to_be_visible()
    press(visit, "Try the connection")
    expect(page.get_by_text("1 usable key.")).to_be_visible()
    look("sso-tried")
    press(visit, "Test a sign-in")
    expect(page.get_by_role("status")).to_contain_text("A new user would be created")
    look("sso-tested")
    provider.lies = lambda claims, header: claims.update(aud="x")  # type: ignore[func-returns-value]
    page.locator(".breadcrumb a").click()
    page.get_by_role("link", name="Google").click()
    press(visit, "Test a sign-in")
    expect(page.get_by_role("alert")).to_contain_text("audience")
    provider.lies = None
    page.locator(".breadcrumb a").click()
    look("sso-listed")
    press(visit, "Sign out")
    page.goto("/console/sign-in")
    page.locator("#account").fill("acme")
    look("sso-sign-in")
    press(visit, "Single sign-on for another account")
    expect(page.get_by_role("link", name="Sign in with Google")).to_be_visible()
    page.wait_for_load_state("networkidle")
    look("sso-offered")
    press(visit, "Sign in with Google")
    expect(page.get_by_role("heading", name="Acme")).to_be_visible()
    expect(page.get_by_role("button", name="gwen@acme.example")).to_be_visible()
    press(visit, "Sign out")
    assert visit.faults == []


def test_sign_in_by_email_leads_to_provider_of_domain(
    visit: Visit, live_cast: Cast, provider: openid.Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns_client, "txt_records", published_records)
    alice, page = live_cast.alice, visit.page
    body = {"category": "auth_providers", "provider_name": "google", "config": provider.config()}
    assert alice.post("admin/configuration", body).status_code == 201
    domain = (
        f"account/domains/{alice.post('account/domains', {'domain': 'acme.example'}).json['id']}"
    )
    assert alice.post(f"{domain}/verify").status_code == 200
    assert alice.patch(domain, {"auto_join": True}).status_code == 200
    try:
        page.goto("/console/sign-in")
        page.locator("#account").fill("")
        page.locator("#email").fill("gwen@acme.example")
        press(visit, "Continue with single sign-on")
        expect(page.get_by_role("button", name="gwen@acme.example")).to_be_visible()
        press(visit, "Sign out")
    finally:
        alice.delete(domain)
    assert visit.faults == []


def test_saml_sign_in_returns_to_client_application(
    visit: Visit, live_app: Flask, live_cast: Cast, identity_provider: saml_idp.Server
) -> None:
    page, base = visit.page, live_app.extensions["atrium.config"].base_url
    client = f"{base}/health"  # any page: the browser only has to come back to it
    live_cast.alice.patch("account", {"default_redirect_uri": client})
    body = {
        "category": "saml_providers",
        "provider_name": "okta",
        "config": saml_idp.config(idp_sso_url=identity_provider.url),
    }
    assert live_cast.alice.post("admin/configuration", body).status_code == 201
    page.goto("/saml/okta/sso?account=acme")
    with page.expect_request(lambda one: one.url.startswith(f"{client}?")) as returned:
        press(visit, "Continue")
    code = returned.value.url.partition("code=")[2].partition("&")[0]
    signed_in = live_cast.bob.post("auth/exchange", {"code": code})
    assert (signed_in.status_code, signed_in.json["user"]["name"]) == (200, "Fay")
    page.goto("/console/sign-in?account=acme")
    press(visit, "Sign in with Okta")
    press(visit, "Continue")
    expect(page.get_by_role("button", name="fay@acme.example")).to_be_visible()
