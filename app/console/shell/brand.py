"""The face that hosted pages show: the product's, or that of the account they are about."""

from __future__ import annotations

from contextlib import suppress

from flask import Response, g, request, url_for
from werkzeug.exceptions import HTTPException

from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.accounts.product import faces, images, settings
from app.accounts.product.faces import ShownFace
from app.accounts.tenants import is_safe_url
from app.auth import principal as principals
from app.auth.login_users import LoginUser
from app.console.shell import access, resubmit
from app.db.errors import UNAVAILABLE
from app.web import html, urls


def show(account_id: str | None) -> None:
    """Let the page of this request show the face of an account."""
    g.page_account_id = account_id


def show_of_account(reference: str) -> str | None:
    """The same for an account that is named by its slug, code or id; returns its slug."""
    account = principals.find_active_account(reference)
    show(account.id if account else None)
    return account.slug if account else None


def show_of_token(token: str) -> str | None:
    """The same for the account that a mailed token names; returns its slug."""
    return show_of_account(token.partition("-")[0][:20])


def show_plain() -> None:
    """Let this page do without the database."""
    g.page_face = faces.plain()


def face() -> ShownFace:
    """The face of this page: of the account that it is about, else of the caller's."""
    if "page_face" not in g:
        caller = g.get("console_caller")
        home = caller.home.id if caller and caller.home else None
        show_plain()
        with suppress(*UNAVAILABLE):
            g.page_face = faces.of(g.get("page_account_id") or home)
    shown: ShownFace = g.page_face
    return shown


def add_headers(response: Response) -> Response:
    """The headers of a page. A hosted one sends no Referer, as addresses have tokens."""
    html.add_security_headers(response)
    if access.is_hosted():
        response.headers["Referrer-Policy"] = "no-referrer"
        is_page = response.mimetype == "text/html"
        if is_page and (origin := images.origin_of(face().logo or "")):
            policy = html.POLICY.replace("img-src", f"img-src {origin}")
            response.headers["Content-Security-Policy"] = policy
    return response


def landing(user: User | LoginUser) -> str:
    """Where users of hosted pages go to: superadmins to the console, others to the product."""
    if user.account_id == SYSTEM_ACCOUNT_ID:
        return url_for("console.show_home")
    return settings.load().url or url_for("welcome.show_profile")


def is_known(address: str, user: User | LoginUser) -> bool:
    """Whether a sign-in may lead to an address: the product's, or one of the account's list."""
    listed = user.account.settings.get("allowed_redirect_uris", ())
    if not is_safe_url(address):
        return False
    return address == settings.load().url or settings.is_listed(address, listed)


def page_address() -> str:
    """The address that shows this page again: a page that answers a form, without its entries."""
    if request.method in ("GET", "HEAD"):
        address = request.full_path.rstrip("?")
        is_api = address.startswith("/auth/")  # of the link that API clients open, too
        return address.replace("/auth", access.HOSTED, 1) if is_api else address
    if not resubmit.has_page():
        return url_for("welcome.sign_in")
    names: dict[str, str] = {}
    with suppress(HTTPException):  # a form that is too large
        names |= {name: request.form.get(name, "") for name in ("token", "account")}
    return urls.with_query(request.path, {name: value for name, value in names.items() if value})
