"""Portals: pages of administration under an address of their own, for a page of the product.

Each view that declares `portal` has a second address below `/portal/<session>`. There, nothing but
the cookie of that session counts, and links lead to the pages of the session alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flask import Response, after_this_request, current_app, g, redirect, request, url_for
from flask.globals import request_ctx
from werkzeug.wrappers import Response as BaseResponse

from app import config
from app.accounts.product import faces, images
from app.accounts.product.faces import ShownFace
from app.auth import portals
from app.auth import principal as principals
from app.auth.portals import PATH, PortalPage
from app.auth.principal import Principal
from app.console.shell.access import HOME
from app.db.errors import UNAVAILABLE
from app.errors import Unauthorized
from app.types import cached_property
from app.web import html
from app.web.languages import lazy_gettext

COOKIE = "atrium_portal"
RULE = f"{PATH}/<uuid:portal_id>"
PAGES: Mapping[PortalPage, tuple[object, str]] = {
    PortalPage.TEAM: (lazy_gettext("Team"), "show_team"),
    PortalPage.SSO: (lazy_gettext("Single sign-on"), "show_providers"),
    PortalPage.DOMAINS: (lazy_gettext("Domains"), "show_domains"),
    PortalPage.SCIM: (lazy_gettext("Provisioning"), "show_scim"),
    PortalPage.API_KEYS: (lazy_gettext("API keys"), "show_keys"),
    PortalPage.WEBHOOKS: (lazy_gettext("Webhooks"), "show_webhooks"),
    PortalPage.AUDIT_LOG: (lazy_gettext("Audit log"), "show_audit_log"),
    PortalPage.SECURITY_LOG: (lazy_gettext("Security log"), "show_security_log"),
    PortalPage.USAGE: (lazy_gettext("Usage"), "show_usage"),
    PortalPage.EXPORT: (lazy_gettext("Export"), "show_exports"),
}
"""The name of each page in the navigation, and the view that it begins with."""
WITHOUT_ACCOUNT = {PortalPage.TEAM, PortalPage.API_KEYS, PortalPage.AUDIT_LOG}

# What leads to a page that the session does not open: a question with its form, a form, a button,
# a link. Texts of users cannot look like it, as they are escaped.
_AWAY = rf'"{HOME}[/"?#][^>]*'
_PARTS = (
    (
        re.compile(
            rf'<details class="confirm"(?:(?!</details>).)*? action={_AWAY}>.*?</details>', re.S
        ),
        "",
    ),
    (re.compile(rf"<form\b[^>]*? action={_AWAY}>.*?</form>", re.S), ""),
    (re.compile(rf'<a\b(?=[^>]*? class="btn)[^>]*? href={_AWAY}>.*?</a>', re.S), ""),
    (re.compile(rf"<a\b[^>]*? href={_AWAY}>(.*?)</a>", re.S), r"\1"),
)


class PortalEnded(Unauthorized):
    """A portal session that has ended, or was never this browser's."""

    error = "portal_ended"
    message = "This page has expired. Go back, and open it again."


@dataclass(frozen=True)
class Tab:
    name: str
    url: str
    is_current: bool


class Frame:
    """What surrounds the pages of a portal: the face of its account, tabs, and the way back."""

    def __init__(self, caller: Principal | None, return_url: str | None) -> None:
        self._caller = caller
        self.return_url = return_url

    @property
    def account(self) -> str:
        """The name of the account."""
        return self._caller.home.name if self._caller and self._caller.home else ""

    @cached_property
    def face(self) -> ShownFace:
        shown = faces.plain()
        with suppress(*UNAVAILABLE):
            shown = faces.of(self._caller.home.id if self._caller and self._caller.home else None)
        return shown

    @property
    def ancestors(self) -> Sequence[str]:
        """The origins that may frame the page: those of the account, also as the session ends."""
        account = self._caller.home if self._caller else None
        if account is None and self.return_url is not None:  # of the browser's own session
            account = principals.find_active_account(_secret().partition("-")[0])
        return account.frame_ancestors if account else ()

    @cached_property
    def tabs(self) -> list[Tab]:
        """The pages of the session."""
        if self._caller is None or self._caller.portal is None:
            return []
        view = current_app.view_functions.get(request.endpoint or "")
        current = getattr(getattr(view, "page", None), "portal", None)
        return [
            Tab(str(PAGES[PortalPage(one)][0]), address(one, self._caller), one == current)
            for one in self._caller.portal.pages
        ]


def load() -> Principal | None:
    """Return the user that this request's portal session acts as, if it has not ended.

    From then on, addresses of pages that the session opens are those of the portal.
    """
    portal_id = (request.view_args or {}).pop("portal_id", None)
    if portal_id is None:
        return None
    g.portal_id = portal_id
    after_this_request(finish)
    # Instead of `app.url_defaults`, which all other pages would call for each of their links.
    adapter: Any = request_ctx.url_adapter
    build = adapter.build

    def build_inside(endpoint: str, values: Mapping[str, Any], **options: Any) -> str:
        built: str = build(endpoint, {**values, **_inside(endpoint)}, **options)
        return built

    adapter.build = build_inside
    return portals.authenticate(portal_id, _secret()) if _secret() else None


def _inside(endpoint: str) -> dict[str, Any]:
    caller: Principal | None = g.get("console_caller")
    page = getattr(current_app.view_functions.get(endpoint), "page", None)
    if caller is None or caller.portal is None or page is None:
        return {}
    return {"portal_id": g.portal_id} if page.portal in caller.portal.pages else {}


def frame() -> Frame:
    """What surrounds the page of this request; next to nothing without the database."""
    caller: Principal | None = g.get("console_caller")
    if caller is not None and caller.portal is not None:
        return Frame(caller, caller.portal.return_url)
    portal_id, return_url = g.get("portal_id"), None
    with suppress(*UNAVAILABLE):
        return_url = portals.return_url(portal_id, _secret()) if portal_id else None
    return Frame(None, return_url)


def address(one: str, caller: Principal) -> str:
    """The address of a page of the caller's session."""
    page = PortalPage(one)
    args: dict[str, Any] = {}
    if page not in WITHOUT_ACCOUNT:
        args = {"account_id": caller.require_account_id()}
    return url_for(f"console.{PAGES[page][1]}", portal_id=caller.session_id, **args)


def enter(session_id: str, secret: str, caller: Principal, seconds: int) -> BaseResponse:
    """Give this browser an opened session, and redirect to its first page."""
    g.portal_id, g.console_caller = session_id, caller
    first = caller.portal.pages[0] if caller.portal else PortalPage.TEAM
    response = redirect(address(first, caller), 303)
    # Also in a frame of another site: each site then has a cookie of its own.
    response.set_cookie(
        cookie_name(),
        secret,
        max_age=seconds,
        path=f"{PATH}/{session_id}",
        httponly=True,
        secure=True,
        samesite="None",
        partitioned=True,
    )
    return response


def cookie_name() -> str:
    """The name of the cookie of a session; its path tells it from others."""
    return f"__Secure-{COOKIE}" if config.current().production else COOKIE


def _secret() -> str:
    return request.cookies.get(cookie_name(), "").replace("\0", "")


def finish(response: Response) -> Response:
    """Let a page of a portal lead nowhere else, and be framed by the origins of its account."""
    caller: Principal | None = g.get("console_caller")
    location = response.headers.get("Location", "")
    if caller is not None and caller.portal is not None and f"{location}/".startswith(f"{HOME}/"):
        response.headers["Location"] = address(caller.portal.pages[0], caller)
    if response.mimetype != "text/html" or response.is_streamed:
        return response
    text = response.get_data(as_text=True)
    for pattern, replacement in _PARTS:
        text = pattern.sub(replacement, text)
    response.set_data(text)
    shown = frame()
    policy = html.framed_by(shown.ancestors)
    if origin := images.origin_of(shown.face.logo or ""):
        policy = policy.replace("img-src", f"img-src {origin}")
    response.headers["Content-Security-Policy"] = policy
    return response
