"""Callers: the users of one account, and callers who name an account other than their own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from flask import Flask
from werkzeug.test import TestResponse

from app import clock, config
from app.accounts.models import ADMIN
from app.auth import portals, sessions, tokens
from app.auth import principal as principals
from app.auth.devices import Origin
from app.auth.mfa.gate import Proof
from app.console.shell import guard, portal
from app.isolation.calls import DIRECTORY, PORTAL, Call
from app.isolation.tenants import MAIL_DOMAIN, Tenant
from app.web.access import AccessLevel, access_of


@dataclass
class Caller:
    """A client of the application, with its headers."""

    app: Flask
    name: str
    of_api: bool
    headers: dict[str, str] = field(default_factory=dict)

    def send(self, call: Call) -> TestResponse:
        """Send a request and read the whole response."""
        options: dict[str, Any] = {}
        if call.body is not None:
            body_option = "data" if not call.of_api else "json"
            options[body_option] = call.body
        client = self.app.test_client(use_cookies=False)
        headers = {"X-Correlation-ID": "isolation-check", **self.headers, **call.headers}
        # A context of its own: requests would otherwise share the state of the command's.
        with self.app.app_context():
            return client.open(
                call.path, method=call.method, headers=headers, buffered=True, **options
            )


def for_tenant(app: Flask, tenant: Tenant) -> dict[str, Caller]:
    """Return the account's callers by name: users by role, a portal, an API key, a directory."""
    callers = {}
    for role, user in tenant.users.items():
        token = tokens.access(user, authenticated_at=clock.now())
        callers[role] = Caller(app, role, True, {"Authorization": f"Bearer {token}"})
        secret = sessions.start_in_console(user, Origin(None, None), Proof.PASSKEY)
        cookie = {"Cookie": f"{guard.cookie_name()}={secret}"}
        callers[f"console {role}"] = Caller(app, f"{role} in the console", False, cookie)
    callers[PORTAL] = _portal(app, tenant)
    callers["key"] = Caller(app, "API key", True, {"X-API-Key": tenant.key})
    by_token = {"Authorization": f"Bearer {tenant.scim_token}"}
    callers[DIRECTORY] = Caller(app, DIRECTORY, True, by_token)
    return callers


def _portal(app: Flask, tenant: Tenant) -> Caller:
    """The holder of a portal session with all pages, as the account's admin has opened it."""
    user = tenant.users[ADMIN]
    by = principals.for_user_verified(user.account_id, user.id)
    if by is None:
        raise LookupError("The admin of the account is gone.")
    body = {"pages": list(portals.PortalPage), "return_url": f"https://{MAIL_DOMAIN}/"}
    now = clock.now()
    by, id = replace(by, auth_time=now.timestamp()), tenant.new_id(PORTAL)
    token = portals.add(user, body, now + timedelta(hours=1), by=by, id=id)
    _, secret = portals.open(token, Origin(None, None))
    return Caller(app, PORTAL, False, {"Cookie": f"{portal.cookie_name()}={secret}"})


def naming_account(app: Flask, admin: Caller, victim: Tenant) -> list[Caller]:
    """Return an admin and an anonymous caller who name another account."""
    named = [("header", {"X-Account-ID": victim.slug})]
    domain = config.current().base_domain
    if domain:
        named.append(("host name", {"Host": f"{victim.slug}.{domain}"}))
    callers = [
        Caller(app, f"{ADMIN} naming the other by {by}", True, admin.headers | more)
        for by, more in named
    ]
    return [*callers, *(Caller(app, f"nobody by {by}", True, more) for by, more in named)]


def is_public(app: Flask, endpoint: str) -> bool:
    """Whether a view needs no authentication."""
    return access_of(app.view_functions[endpoint]).level is AccessLevel.PUBLIC


def is_open(app: Flask, endpoint: str) -> bool:
    """Whether anonymous callers may name any account at a view."""
    return access_of(app.view_functions[endpoint]).level is AccessLevel.ANONYMOUS
