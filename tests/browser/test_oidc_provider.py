"""Sign-in at a certified OpenID provider, npm's oidc-provider, in a real browser."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from flask import Flask
from playwright.sync_api import expect

from tests import npm
from tests.browser.conftest import Visit
from tests.browser.test_console import sign_in
from tests.browser.test_people import fill, press
from tests.browser.test_sso import tidied
from tests.builders import Cast
from tests.project import free_port

pytestmark = pytest.mark.usefixtures(tidied.__name__)
FOLDER = Path(__file__).parent.parent / "sso" / "oidc_provider"
SLUG, SECRET = "acme-id", "a secret: 100 % + more"


@dataclass
class Provider:
    """The provider's process, and its issuer."""

    process: subprocess.Popen[str]
    issuer: str

    def send(self, line: str) -> None:
        """Send a line, and wait until it is done."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        assert "ready\n" in self.process.stdout  # behind its notices


@pytest.fixture
def provider(live_app: Flask, live_cast: Cast) -> Iterator[Provider]:
    npm.installed(FOLDER)
    base = live_app.extensions["atrium.config"].base_url
    code = live_cast.alice.get("auth/me").json["account"]["account_code"]
    client = {
        "client_id": "atrium",
        "client_secret": SECRET,
        "redirect_uris": [f"{base}/oauth/{SLUG}/callback/{code}"],
    }
    issuer = f"http://127.0.0.1:{free_port()}"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(["node", "server.mjs"], cwd=FOLDER, text=True, **pipes) as process:
        started = Provider(process, issuer)
        started.send(json.dumps({"issuer": issuer, "client": client}))
        yield started
        process.kill()


def log_in(visit: Visit, login: str) -> None:
    """Sign in at the provider's own pages."""
    page = visit.page
    page.locator("input[name=login]").fill(login)
    page.locator("input[name=password]").fill("x")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()


def test_oidc_sign_in_at_certified_provider_with_issuer_only(
    visit: Visit, live_cast: Cast, provider: Provider, look: Callable[[str], None]
) -> None:
    page = visit.page
    live_cast.alice.patch("account", {"sso_email_domains": ["acme.example"]})
    sign_in(visit, live_cast.alice)
    page.get_by_role("link", name="Single sign-on", exact=True).click()
    page.get_by_role("link", name="OpenID Connect").click()
    client = {"client_id": "atrium", "client_secret": SECRET}
    fill(visit, display_name="Acme ID", slug=SLUG, issuer=f"{provider.issuer}/", **client)
    look("oidc-new")
    press(visit, "Add provider")
    enter_that = f"Its issuer is {provider.issuer}: enter exactly that one."
    expect(page.locator("#issuer-error")).to_have_text(enter_that)
    fill(visit, issuer=provider.issuer, client_secret=SECRET)
    press(visit, "Add provider")
    expect(page.get_by_text("Acme ID is set up")).to_be_visible()
    press(visit, "Try the connection")
    expect(page.get_by_text("The provider accepts the client's credentials.")).to_be_visible()
    look("oidc-tried")
    press(visit, "Test a sign-in")
    log_in(visit, "gwen")
    expect(page.get_by_role("status")).to_contain_text("A new user would be created")
    press(visit, "Sign out")
    page.goto("/console/sign-in?account=acme")
    press(visit, "Sign in with Acme ID")  # the provider still knows the browser
    expect(page.get_by_role("button", name="gwen@acme.example")).to_be_visible()
    press(visit, "Sign out")
    provider.send("a new key")  # and no sessions
    page.goto("/console/sign-in?account=acme")
    press(visit, "Sign in with Acme ID")
    log_in(visit, "gwen")
    expect(page.get_by_role("button", name="gwen@acme.example")).to_be_visible()


def test_oidc_sign_in_cancelled_returns_to_client_application(
    visit: Visit, live_app: Flask, live_cast: Cast, provider: Provider
) -> None:
    page, base = visit.page, live_app.extensions["atrium.config"].base_url
    client = f"{base}/health"  # any page: the browser only has to come back to it
    live_cast.alice.patch("account", {"default_redirect_uri": client})
    body = {
        "category": "auth_providers",
        "provider_name": "oidc",
        "slug": SLUG,
        "display_name": "Acme ID",
        "config": {
            "issuer": provider.issuer,
            "client_id": "atrium",
            "client_secret": SECRET,
            "prompt": "login",
        },
    }
    assert live_cast.alice.post("admin/configuration", body).status_code == 201
    page.goto(f"/oauth/{SLUG}/authorize?account=acme&client_state=mine")
    with page.expect_request(lambda one: one.url.startswith(f"{client}?")) as returned:
        page.get_by_role("link", name="Cancel").click()
    came = dict(parse_qsl(urlsplit(returned.value.url).query))
    assert (came["error"], came["state"]) == ("access_denied", "mine")
    assert came["error_description"].startswith("The sign-in was cancelled")
    page.goto("/console/sign-in?account=acme")
    press(visit, "Sign in with Acme ID")
    page.get_by_role("link", name="Cancel").click()
    expect(page.get_by_role("alert")).to_contain_text("The sign-in was cancelled at the provider.")
    press(visit, "Go to the sign-in page")
    expect(page.get_by_role("link", name="Sign in with Acme ID")).to_be_visible()
