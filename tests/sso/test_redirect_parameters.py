"""What the service writes into its own redirects, written by a stranger instead."""

from __future__ import annotations

import hashlib
from base64 import b64decode
from urllib.parse import quote, urlsplit

import pytest
import sqlalchemy as sa
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app import crypto, db
from app.sso.models import Flow
from app.sso.responses import RETURN
from tests.console.browser import Browser, token
from tests.sso import saml_idp
from tests.sso.flows import Stage, query_of
from tests.sso.test_hosts import BASE, HOST, at, begun

START = "/console/sso/start/auth_providers/google?account=acme"
SECRET = "what only the attacker knows"
MARK = hashlib.sha256(SECRET.encode()).hexdigest()


def signed(stage: Stage, value: object, purpose: str = RETURN) -> str:
    """A value with the service's signature, as no stranger can make it."""
    with stage.app.app_context():
        return crypto.sign(value, purpose)


def attacker(stage: Stage, host: str) -> FlaskClient:
    """A browser with the cookie that belongs to the mark."""
    browser = stage.browser()
    domain = urlsplit(host).hostname or ""
    browser.set_cookie(f"atrium_sso_{MARK[:12]}", SECRET, domain=domain)
    return browser


def returned(stage: Stage, browser: FlaskClient, asked: str) -> TestResponse:
    """Sign in at the provider, and come back to the service's host name."""
    target, values = stage.provider.authorize(asked)
    return browser.get(urlsplit(target).path, query_string=values, base_url=BASE)


@pytest.mark.parametrize("label", ["www", "mail", "globex", "acme", "system"])
def test_oauth_return_host_forged_in_link_is_400(stage: Stage, label: str) -> None:
    stage.oauth(stage.cast.alice)
    victim = stage.browser()
    forged = (f"{label}.{MARK}", signed(stage, f"{label}.{MARK}", "another purpose"))
    for back in (*forged, f"{signed(stage, f'{label}.{MARK}')}x"):
        asked = at(victim, f"{BASE}{START}&back={quote(back)}")
        assert (asked.status_code, "Start again" in asked.text) == (400, True), back
        assert "Location" not in asked.headers
    assert stage.provider.asked == [] == stage.provider.forms


@pytest.mark.parametrize("label", ["www", "mail", "globex", "system", "aa0001"])
def test_oauth_returns_only_to_host_name_of_flow_account(stage: Stage, label: str) -> None:
    """Even if the service signed it, as it does at every host name that leads to it."""
    stage.oauth(stage.cast.alice)
    victim = stage.browser()
    asked = at(victim, f"{BASE}{START}&back={signed(stage, f'{label}.{MARK}')}")
    ended = returned(stage, victim, asked.headers["Location"])
    finish = ended.headers["Location"]
    assert finish.startswith("/console/sso/finish?code=")
    for host in (BASE, HOST, f"http://{label}.atrium.test"):
        assert at(attacker(stage, host), f"{host}{finish}").status_code == 400
    assert at(victim, f"{BASE}{finish}").status_code == 303
    assert "dora@acme.example" in at(victim, f"{BASE}/console/profile").text


def test_oauth_code_needs_cookies_of_both_host_names(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    # The attacker has the service sign a return to the account, with a mark of its own.
    own = attacker(stage, HOST)
    back = query_of(at(own, f"{HOST}{START}").headers["Location"])["back"]
    victim = stage.browser()
    asked = at(victim, f"{BASE}{START}&back={back}").headers["Location"]
    assert returned(stage, own, asked).status_code == 400  # without the flow's own cookie
    finish = returned(stage, victim, asked).headers["Location"]
    assert finish.startswith(f"{HOST}/console/sso/finish?code=")
    assert at(victim, finish).status_code == 400  # without the cookie of the account's host name
    assert at(victim, finish.replace(HOST, BASE)).status_code == 400
    assert at(victim, f"{HOST}/console").status_code == 302


def test_oauth_flow_of_older_process_returns_to_its_account(stage: Stage) -> None:
    """It stored what the address said."""
    stage.oauth(stage.cast.alice)
    victim = stage.browser()
    asked = at(victim, f"{BASE}{START}").headers["Location"]
    with stage.app.app_context(), db.transaction() as session:
        session.execute(sa.update(Flow).values(client_state=f"www.{MARK}"))
    finish = returned(stage, victim, asked).headers["Location"]
    assert finish.startswith("/console/sso/finish?code=")
    assert at(attacker(stage, BASE), f"{BASE}{finish}").status_code == 400


# Parameters by which the service leads a browser on, and what a stranger could write there.
ELSEWHERE = (
    "https://evil.example",
    "//evil.example",
    "/\\evil.example",
    "/console/../../evil",
    "/console\r\nLocation: https://evil.example",
    "http://acme.atrium.test.evil.example/console",
    "javascript:alert(1)",
    "/oauth/google/authorize?account=acme",
    "x" * 5000,
)


@pytest.mark.parametrize("there", ELSEWHERE)
def test_oauth_next_parameter_leads_to_console_only(stage: Stage, there: str) -> None:
    stage.oauth(stage.cast.alice)
    written = quote(there)
    for host in (BASE, HOST):
        browser = stage.browser()
        first = f"{host}{START}&next={written}"
        asked = begun(browser, first) if host == HOST else at(browser, first).headers["Location"]
        ended = returned(stage, browser, asked)
        finished = browser.get(ended.headers["Location"], base_url=host)
        assert (finished.status_code, finished.headers["Location"]) == (303, "/console")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("account", "globex"),
        ("account", "evil.example/"),
        ("account", "a\0b"),
        ("account", "x" * 3000),
        ("redirect_uri", "https://evil.example/in"),
        ("redirect_uri", "https://client.example.com/signed-in@evil.example"),
        ("client_state", "a&code=stolen&error=x#"),
        ("client_state", "\r\nSet-Cookie: a=b"),
        ("back", f"www.{MARK}"),
        ("code", "AA0001-stolen"),
        ("error", "server_error"),
    ],
)
def test_oauth_start_parameters_cannot_redirect_elsewhere(
    stage: Stage, name: str, value: str
) -> None:
    stage.oauth(stage.cast.alice)
    stage.saml(stage.cast.alice)
    saml = ("/saml/okta/sso", "/api/v1/auth/saml/sso?provider=okta")
    for path in ("/oauth/google/authorize", *saml):
        glue = "&" if "?" in path else "?"
        for host in (BASE, HOST):
            browser = stage.browser()
            found = at(browser, f"{host}{path}{glue}{name}={quote(value)}")
            if host == HOST and found.status_code == 302:
                moved = found.headers["Location"]
                assert moved.startswith(f"{BASE}{urlsplit(path).path}?")
                found = at(browser, moved)
            assert found.status_code in (302, 400, 404, 422), found.text
            if found.status_code != 302:
                continue
            if path in saml:
                relay_state = saml_idp.asked(found.headers["Location"]).relay_state
                assert b64decode(relay_state).decode().startswith("AA")
                continue
            assert found.headers["Location"].startswith(stage.provider.url)
            assert query_of(found.headers["Location"])["state"] != value
            ended = returned(stage, browser, found.headers["Location"])
            target = ended.headers["Location"]
            assert target.startswith(f"{stage.client}?code=AA")
            assert target.isprintable()
            assert query_of(target).get("error") is None
            if name == "client_state":  # the client's own, as it came
                assert query_of(target)["state"] == value


@pytest.mark.parametrize(
    "written",
    [
        "code=AA0001-x&state=y",
        "code=&state=",
        "error=server_error&error_description=Call+555&state=AA0001-x",
        "state=AA0001-x&iss=https://evil.example",
        f"code={'x' * 5000}&state=AA0001-x",
        "code=a&code=b&state=AA0001-%00",
    ],
)
def test_oauth_callback_with_forged_parameters_is_refused(stage: Stage, written: str) -> None:
    made = stage.oauth(stage.cast.alice)
    paths = ("/oauth/google/callback", urlsplit(made["callback_url"]).path)
    for path in (*paths, "/console/sso/finish"):
        found = stage.browser().get(f"{path}?{written}", base_url=BASE)
        assert found.status_code in (400, 422), path
        assert "Location" not in found.headers
        assert "555" not in found.text


@pytest.mark.parametrize(
    "there", ["https://evil.example/x", "//evil.example/x", f"{BASE}.evil.example/console/team"]
)
def test_console_preference_form_ignores_foreign_referer(stage: Stage, there: str) -> None:
    browser = Browser(stage.app, stage.cast.alice)
    form_token = token(browser.client)
    for path in ("/console/language", "/console/theme"):
        found = browser.client.post(
            path, data={"csrf_token": form_token, "language": "de"}, headers={"Referer": there}
        )
        assert found.headers.get("Location", "/console") == "/console"


@pytest.mark.parametrize("until", ["x", "9999-99-99", "2020-01-01T00:00:00Z", "\0", "1" * 5000])
def test_console_resent_deliveries_page_handles_malformed_until(stage: Stage, until: str) -> None:
    cast = stage.cast
    browser = Browser(stage.app, cast.alice)
    account = cast.alice.get("account").json["id"]
    path = f"/console/webhooks/{account}/deliveries/resent"
    assert browser.client.get(path, query_string={"until": until}).status_code in (200, 404)
