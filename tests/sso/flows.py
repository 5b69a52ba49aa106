"""Whole sign-ins over HTTP: a browser, the service, a provider, and the client application."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskClient
from lxml import etree
from werkzeug.test import TestResponse

from app import db
from app.accounts.models import DeletedAddress, User
from app.sso.models import Refusal
from tests.builders import Caller, Cast
from tests.sso import openid, saml_idp

HTML = {"Accept": "text/html"}


def query_of(address: str) -> dict[str, str]:
    """The query of an address."""
    return dict(parse_qsl(urlsplit(address).query))


def forget_deleted(app: Flask) -> None:
    """Let users who were deleted join again."""
    with app.app_context(), db.transaction() as session:
        session.execute(sa.delete(DeletedAddress))


@dataclass
class Stage:
    """The application, its accounts, and a client application of theirs."""

    app: Flask
    cast: Cast
    provider: openid.Provider
    client: str = "https://client.example.com/signed-in"
    anyone: Caller = field(init=False)

    def __post_init__(self) -> None:
        self.anyone = Caller(self.app)

    def changed(self, patch: pytest.MonkeyPatch, **settings: Any) -> None:
        """Let the application have other settings for a while."""
        present = self.app.extensions["atrium.config"]
        patch.setitem(self.app.extensions, "atrium.config", replace(present, **settings))

    def browser(self) -> FlaskClient:
        """A browser without cookies."""
        return self.app.test_client()

    def oauth(self, by: Caller, name: str = "google", **more: Any) -> dict[str, Any]:
        """Set an OAuth provider up, at this provider."""
        return self._set_up(by, "auth_providers", name, self.provider.config(**more))

    def oidc(self, by: Caller, slug: str | None = None, **more: Any) -> dict[str, Any]:
        """Set an OpenID provider up by the issuer of this provider."""
        named = {} if slug is None else {"slug": slug}
        return self._set_up(
            by, "auth_providers", "oidc", self.provider.issuer_config(**more), **named
        )

    def saml(self, by: Caller, name: str = "okta", **more: Any) -> dict[str, Any]:
        """Set a SAML provider up."""
        return self._set_up(by, "saml_providers", name, saml_idp.config(**more))

    def _set_up(
        self, by: Caller, category: str, name: str, config: Any, **more: str
    ) -> dict[str, Any]:
        body = {"category": category, "provider_name": name, "config": config, **more}
        answer = by.post("admin/configuration", body)
        assert answer.status_code == 201, answer.json
        made: dict[str, Any] = answer.json
        return made

    def begin(
        self, browser: FlaskClient, name: str = "google", account: str = "acme", **query: str
    ) -> str:
        """Start an OAuth sign-in; returns the provider's address."""
        answer = browser.get(f"/oauth/{name}/authorize", query_string={"account": account, **query})
        assert answer.status_code == 302, answer.text
        return answer.headers["Location"]

    def back(self, browser: FlaskClient, address: str, **changes: Any) -> TestResponse:
        """Sign in at the provider and come back."""
        target, values = self.provider.authorize(address)
        given = {name: one for name, one in {**values, **changes}.items() if one is not None}
        return browser.get(urlsplit(target).path, query_string=given)

    def sign_in(self, name: str = "google", account: str = "acme", **query: str) -> TestResponse:
        """A whole OAuth sign-in, up to where the browser returns to."""
        browser = self.browser()
        return self.back(browser, self.begin(browser, name, account, **query))

    def traded(self, answer: TestResponse) -> dict[str, Any]:
        """What the client application is given for the code that it was returned with."""
        assert answer.status_code == 302, answer.text
        code = query_of(answer.headers["Location"])["code"]
        signed_in = self.anyone.post("auth/exchange", {"code": code})
        assert signed_in.status_code == 200, signed_in.json
        found: dict[str, Any] = signed_in.json
        return found

    def begin_saml(
        self, browser: FlaskClient, name: str = "okta", account: str = "acme", **query: str
    ) -> saml_idp.Asked:
        """Start a SAML sign-in; returns the request that the identity provider gets."""
        answer = browser.get(f"/saml/{name}/sso", query_string={"account": account, **query})
        assert answer.status_code == 302, answer.text
        return saml_idp.asked(answer.headers["Location"])

    def post(
        self,
        browser: FlaskClient,
        response: str,
        relay_state: str,
        name: str = "okta",
        account: str = "acme",
        **options: Any,
    ) -> TestResponse:
        """Post a response to the assertion consumer, as a browser does."""
        form = {"SAMLResponse": response, "RelayState": relay_state}
        return browser.post(f"/saml/{name}/acs?account={account}", data=form, **options)

    def assert_in(self, name: str = "okta", account: str = "acme", **changes: Any) -> TestResponse:
        """A whole SAML sign-in, up to where the browser returns to."""
        browser = self.browser()
        request = self.begin_saml(browser, name, account)
        response = saml_idp.answer(request, **changes).encoded()
        return self.post(browser, response, request.relay_state, name, account)

    def metadata(self, name: str = "okta", account: str = "acme") -> Any:
        """Our metadata of an account, as an element."""
        answer = self.anyone.get(f"auth/saml/metadata?account={account}&provider={name}")
        assert answer.status_code == 200, answer.text
        return etree.fromstring(answer.data)

    def certificates(self, use: str = "encryption") -> list[str]:
        """The certificates in acme's metadata."""
        path = f"//md:KeyDescriptor[@use='{use}']//ds:X509Certificate/text()"
        return list(self.metadata().xpath(path, namespaces=saml_idp.NAMESPACES))

    def users(self) -> list[tuple[str, str]]:
        """Every user: account and address."""
        with self.app.app_context():
            rows = db.db.session.execute(sa.select(User.account_id, User.email).order_by(User.id))
            return [(row[0], row[1]) for row in rows]

    def forget(self, *emails: str) -> None:
        """Remove users of acme, so that they sign in for the first time again."""
        for one in self.cast.alice.get("account/users?limit=100").json["items"]:
            if one["email"] in emails:
                assert self.cast.alice.delete(f"account/users/{one['id']}").status_code == 204
        forget_deleted(self.app)

    def checks(self, by: Caller) -> list[str]:
        """The checks of the last refusals, newest first."""
        answer = by.get("account/sso/refusals")
        assert answer.status_code == 200, answer.json
        return [one["check"] for one in answer.json["items"]]

    def last_refusal(self) -> tuple[str, str]:
        """The newest refusal of all accounts: its check and its detail."""
        with self.app.app_context():
            found = db.db.session.scalars(sa.select(Refusal).order_by(Refusal.id.desc()).limit(1))
            newest = found.one()
            return newest.check, newest.detail
