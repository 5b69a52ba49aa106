"""Who calls: the people of one account, and those who name another account than their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flask import Flask
from werkzeug.test import TestResponse

from app import clock, config
from app.accounts.models import ADMIN
from app.auth import sessions, tokens
from app.auth.sessions import Origin
from app.console.shell import guard
from app.isolation.calls import Call
from app.isolation.tenants import Tenant
from app.rest.access import Access, access_of


@dataclass
class Caller:
    """A client of the application, with what it sends along."""

    app: Flask
    name: str
    of_api: bool
    headers: dict[str, str] = field(default_factory=dict)

    def send(self, call: Call) -> TestResponse:
        """Send a request, and read all of the answer."""
        options: dict[str, Any] = {}
        if call.body is not None:
            sent = "data" if not call.of_api else "json"
            options[sent] = call.body
        client = self.app.test_client(use_cookies=False)
        headers = {"X-Correlation-ID": "isolation-check", **self.headers, **call.headers}
        # Else requests would share the context of the command, and what they keep in it.
        with self.app.app_context():
            return client.open(
                call.path, method=call.method, headers=headers, buffered=True, **options
            )


def of_tenant(app: Flask, tenant: Tenant) -> dict[str, Caller]:
    """The account's people, by role: with tokens and a key at the API, and in the console."""
    found = {}
    for role, user in tenant.users.items():
        token = tokens.access(
            user_id=user.id,
            account_id=user.account_id,
            email=user.email,
            role=role,
            authenticated_at=clock.now(),
        )
        found[role] = Caller(app, role, True, {"Authorization": f"Bearer {token}"})
        secret = sessions.start_in_console(user, Origin(None, None))
        cookie = {"Cookie": f"{guard.cookie_name()}={secret}"}
        found[f"console {role}"] = Caller(app, f"{role} in the console", False, cookie)
    found["key"] = Caller(app, "API key", True, {"X-API-Key": tenant.key})
    return found


def naming(app: Flask, admin: Caller, other: Tenant) -> list[Caller]:
    """An admin, and nobody, who name an account that is not theirs."""
    named = [("header", {"X-Account-ID": other.slug})]
    domain = config.current().base_domain
    if domain:
        named.append(("host name", {"Host": f"{other.slug}.{domain}"}))
    found = [
        Caller(app, f"{ADMIN} naming the other by {by}", True, admin.headers | more)
        for by, more in named
    ]
    return [*found, *(Caller(app, f"nobody by {by}", True, more) for by, more in named)]


def is_public(app: Flask, endpoint: str) -> bool:
    """Whether a view does not ask who calls."""
    view = app.view_functions[endpoint]
    if view.__module__.startswith("app.console"):
        return bool(getattr(view, "allow_anonymous", False))
    return access_of(view) is Access.PUBLIC


def is_open(app: Flask, endpoint: str) -> bool:
    """Whether who is not signed in may name any account at a view."""
    return access_of(app.view_functions[endpoint]) is Access.ANONYMOUS
