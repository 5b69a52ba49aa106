"""Opening a portal session in a browser; its settings, and a look at one."""

from __future__ import annotations

from urllib.parse import urlsplit

from flask import Response, redirect, request
from werkzeug.wrappers import Response as BaseResponse

from app import clock
from app.accounts import tenants
from app.accounts.product import settings as product
from app.auth import account_settings, portals
from app.auth.portals import PATH, PortalPage
from app.auth.responses import origin
from app.console.admin.account_settings import ACCOUNT_SETTINGS
from app.console.shell import forms, portal
from app.console.shell.access import ADMIN, ANYBODY
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.console.shell.scopes import AccountScope
from app.errors import Unauthorized
from app.web.languages import gettext

SETTINGS = f"{ACCOUNT_SETTINGS}/portal"
PREVIEW_SECONDS = 900


@page(SETTINGS, role=ADMIN)
def show_portal_settings(scope: AccountScope, form: Form | None = None) -> Page:
    """The origins that may frame portals, and the form that opens one."""
    account = tenants.get(scope.account.id)
    origins = "\n".join(account.settings.get("frame_ancestors", ()))
    form = (form or Form()).over(Form({"frame_ancestors": origins}))
    form.selected = form.selected or [PortalPage.TEAM]
    listed = account.settings.get("allowed_redirect_uris", ())
    own = product.load()
    links = [product.without_placeholders(link) for link in own.links.values()]
    return form.render(
        "console/settings/portal.html",
        scope=scope,
        pages=[{"id": one.value, "name": name} for one, (name, _) in portal.PAGES.items()],
        return_urls=list(dict.fromkeys([*listed, *([own.url] if own.url else []), *links])),
    )


@page(SETTINGS, "POST", role=ADMIN, form_page=show_portal_settings)
def change_portal_settings(scope: AccountScope) -> BaseResponse:
    """Save the origins, or open a portal as the caller."""
    if "preview" in request.form:
        return _preview(scope)
    form = forms.submitted("frame_ancestors")
    text = form.validated(frame_ancestors=20_000)["frame_ancestors"]
    account_settings.change(scope.account.id, {"frame_ancestors": text.split()}, by=scope.by)
    return redirect_with_notice(gettext("Saved."), "console.show_portal_settings", **scope.url_args)


def _preview(scope: AccountScope) -> BaseResponse:
    form = forms.submitted("return_url", selected="pages")
    form.validated(("return_url",))
    body = {
        "pages": [one for one in PortalPage if one in form.selected] or [PortalPage.TEAM],
        "return_url": form["return_url"],
        "expires_in": PREVIEW_SECONDS,
    }
    url, _ = portals.create(body, by=scope.by)
    return redirect(urlsplit(url).path, 303)


@page(f"{PATH}/open/<token>", role=ANYBODY)
def open_portal(token: str) -> BaseResponse:
    """Use up the address of a portal session, which is given to one browser and not mailed."""
    if request.method == "HEAD":  # of a program that looks at addresses
        return Response(status=204)
    row, secret = portals.open(token, origin())
    caller = portals.authenticate(row.id, secret)
    if caller is None:
        raise Unauthorized
    seconds = int((row.expires_at - clock.now()).total_seconds())
    return portal.enter(row.id, secret, caller, seconds)
