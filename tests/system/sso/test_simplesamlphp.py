"""Sign-in and single logout, both ways, with SimpleSAMLphp (package simplesamlphp of Debian)."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.builders import Caller
from tests.sso.flows import Stage
from tests.system.sso.simplesamlphp import Person, SimpleSamlPhp

pytestmark = pytest.mark.slow
BASE = "http://atrium.test"


@pytest.fixture(scope="module")
def running() -> Iterator[SimpleSamlPhp]:
    with SimpleSamlPhp() as server:
        yield server


@pytest.fixture
def person() -> Iterator[Person]:
    with requests.Session() as session:
        session.trust_env = False
        yield Person(session)


def set_up(stage: Stage, server: SimpleSamlPhp, **options: Any) -> None:
    """Exchange metadata, each by its own address."""
    url = f"{server.url}/saml2/idp/metadata.php"
    given = {"category": "saml_providers", "provider_name": "generic"}
    made = stage.cast.alice.post(
        "admin/configuration", {**given, "enabled": False, "config": {}}
    ).json
    path = "auth/saml/metadata?account=acme&provider=generic"
    server.know(stage.anyone.get(path).data, **options)
    config = {"metadata_url": url, "email_attribute": "mail"}
    answer = stage.cast.alice.patch(
        f"admin/configuration/{made['id']}", {"enabled": True, "config": config}
    )
    assert answer.status_code == 200, answer.json
    assert answer.json["config"]["idp_slo_url"].startswith(server.url)


def opened(client: FlaskClient, target: tuple[str, dict[str, str]]) -> TestResponse:
    """Go where the identity provider leads, which is one of our addresses."""
    address, form = target
    assert address.startswith(BASE), target
    path = address.removeprefix(BASE)
    return client.post(path, data=form) if form else client.get(path)


def sign_in(stage: Stage, person: Person, *, encrypted: bool = False) -> Caller:
    browser = stage.browser()
    started = browser.get("/saml/generic/sso?account=acme")
    address, form = person.open(started.headers["Location"])
    assert (b"EncryptedAssertion" in b64decode(form["SAMLResponse"])) is encrypted
    answer = opened(browser, (address, form))
    assert answer.status_code == 302, stage.last_refusal()
    signed_in = stage.traded(answer)
    assert signed_in["user"]["email"] == "dora@acme.example"
    assert signed_in["user"]["name"] == "Dora"
    return Caller(stage.app, Authorization=f"Bearer {signed_in['access_token']}")


def is_active(caller: Caller) -> bool:
    return bool(caller.get("auth/me").status_code == 200)


@pytest.mark.parametrize("encrypted", [False, True])
def test_saml_sign_in_and_logout_with_simplesamlphp(
    stage: Stage, running: SimpleSamlPhp, person: Person, encrypted: bool
) -> None:
    set_up(stage, running, **{"assertion.encryption": encrypted})
    caller = sign_in(stage, person, encrypted=encrypted)
    logout_url = caller.post("auth/saml/logout").json["logout_url"]
    assert not is_active(caller)
    returned = opened(stage.browser(), person.open(logout_url))
    assert (returned.status_code, returned.headers["Location"]) == (302, stage.client)
    assert stage.cast.alice.get("account/sso/refusals").json["total"] == 0


def test_saml_logout_begun_at_simplesamlphp(
    stage: Stage, running: SimpleSamlPhp, person: Person
) -> None:
    set_up(stage, running)
    caller = sign_in(stage, person)
    begin = f"{running.url}/saml2/idp/initSLO.php?RelayState={running.url}/logout.php"
    address, form = person.open(begin)
    assert is_active(caller)
    answer = opened(stage.browser(), (address, form))
    assert answer.status_code == 302, stage.last_refusal()
    assert not is_active(caller)
    parts = urlsplit(answer.headers["Location"])
    assert f"{parts.scheme}://{parts.netloc}" == running.url
    final = person.session.get(answer.headers["Location"], timeout=30)
    assert final.status_code == 200
    assert "logged out" in final.text.lower()
