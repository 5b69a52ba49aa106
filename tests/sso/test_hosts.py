"""Sign-ins that are begun at an account's host name; providers return to the service's own."""

from __future__ import annotations

from urllib.parse import urlsplit

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.console.browser import is_out
from tests.sso import saml_idp
from tests.sso.flows import Stage, query_of

HOST, BASE = "http://acme.atrium.test", "http://atrium.test"


def at(browser: FlaskClient, address: str) -> TestResponse:
    """Open an address, at the host that it names."""
    parts = urlsplit(address)
    place = f"{parts.path}?{parts.query}" if parts.query else parts.path
    return browser.get(place, base_url=f"{parts.scheme}://{parts.netloc}")


def begun(browser: FlaskClient, address: str) -> str:
    """Begin a sign-in at an account's host name; returns the provider's address."""
    moved = at(browser, address)
    assert (moved.status_code, moved.headers["Location"][: len(BASE)]) == (302, BASE)
    started = at(browser, moved.headers["Location"])
    assert started.status_code == 302, started.text
    return started.headers["Location"]


def test_provider_sign_in_from_account_host_name(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    stage.saml(stage.cast.alice)
    browser = stage.browser()
    asked = begun(browser, f"{HOST}/oauth/google/authorize?client_state=a%26b")
    target, values = stage.provider.authorize(asked)
    back = browser.get(urlsplit(target).path, query_string=values, base_url=BASE)
    assert query_of(back.headers["Location"])["state"] == "a&b"
    assert stage.traded(back)["account"]["slug"] == "acme"
    for path in ("/saml/okta/sso", "/api/v1/auth/saml/sso?provider=okta"):
        browser = stage.browser()
        request = saml_idp.asked(begun(browser, f"{HOST}{path}"))
        response = saml_idp.answer(request).encoded()
        ended = stage.post(browser, response, request.relay_state, base_url=BASE)
        assert stage.traded(ended)["account"]["slug"] == "acme"
    # One that the address itself names is kept, and so is what a client of the API gets.
    moved = stage.browser().get("/oauth/google/authorize?account=globex", base_url=HOST)
    assert query_of(moved.headers["Location"]) == {"account": "globex"}
    started = stage.anyone.post("auth/oauth/google/authorize", {}, base_url=HOST)
    assert (started.status_code, "url" in started.json) == (200, True)


def test_console_provider_sign_in_returns_to_its_host_name(stage: Stage) -> None:
    stage.oauth(stage.cast.alice)
    browser, other = stage.browser(), stage.browser()
    page = at(browser, f"{HOST}/console/sign-in")
    start = "/console/sso/start/auth_providers/google?account=acme"
    assert start in page.text
    target, values = stage.provider.authorize(begun(browser, f"{HOST}{start}"))
    back = browser.get(urlsplit(target).path, query_string=values, base_url=BASE)
    finish = back.headers["Location"]
    assert finish.startswith(f"{HOST}/console/sso/finish?code=")
    elsewhere = finish.replace(HOST, BASE)
    assert [at(*one).status_code for one in ((other, finish), (browser, elsewhere))] == [400, 400]
    assert at(browser, finish).status_code == 303
    assert "Welcome to Acme." in at(browser, f"{HOST}/console").text
    assert is_out(other)
    wanted = begun(other, f"{HOST}{start}&next=/console/profile")
    target, values = stage.provider.authorize(wanted)
    back = other.get(urlsplit(target).path, query_string=values, base_url=BASE)
    assert at(other, back.headers["Location"]).headers["Location"] == "/console/profile"
