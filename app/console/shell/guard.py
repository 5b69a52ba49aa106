"""Who looks at a console page: a server-side session in a cookie, checked on every request."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import urlsplit

from flask import current_app, g, redirect, request, session, url_for
from flask_wtf.csrf import CSRFProtect
from sqlalchemy.exc import DBAPIError
from werkzeug.wrappers import Response as BaseResponse

from app import config
from app.accounts.models import User
from app.auth import credentials, sessions
from app.auth import service as auth
from app.auth.guard import limit_body
from app.auth.login_users import LoginUser
from app.auth.principal import Principal
from app.auth.responses import origin
from app.console.shell import resubmit
from app.console.shell.forms import Form
from app.db import errors, versioned_cache
from app.errors import Forbidden, Unauthorized, Unavailable
from app.rest.access import across_accounts
from app.sso import service as providers

RERUNS = 10
LARGEST_UNSIGNED = 2**19  # bytes; a form that was sent too late comes back encrypted (`unsent`)
SIGN_IN = "console/sign_in.html"
REAUTHENTICATE = "console/reauthenticate.html"
FORMS_OF = "forms_of"
View = TypeVar("View", bound=Callable[..., Any])
Step = TypeVar("Step")
csrf = CSRFProtect()

CONSOLE_PATH = re.compile(r"/console(/[\w./~-]*)?(\?[\w.~&=%+/-]*)?", re.ASCII)


def open_to_all(view: View) -> View:
    """Mark a page that needs nobody to be signed in."""
    view.open_to_all = True  # type: ignore[attr-defined]
    return across_accounts(view)


def for_admins(view: View) -> View:
    """Mark a page for admins of the account."""
    view.for_admins = True  # type: ignore[attr-defined]
    return view


def for_superadmins(view: View) -> View:
    """Mark a page for superadmins."""
    view.for_superadmins = True  # type: ignore[attr-defined]
    return view


def steady(view: View) -> View:
    """Show a page of records again when what it went by has changed meanwhile.

    Like the API's `optimistic`: the page must do all its writing in one transaction.
    """

    @wraps(view)
    def run(*args: Any, **options: Any) -> Any:
        for _ in range(RERUNS):
            try:
                with versioned_cache.reloading():
                    return view(*args, **options)
            except (versioned_cache.Stale, DBAPIError) as error:
                _look_again(error, view)
        raise Unavailable

    return run  # type: ignore[return-value]


def steady_steps(steps: Callable[[], Iterator[Step]]) -> Iterator[Step]:
    """The same for what a page does bit by bit, in one transaction: it may begin anew."""
    view = current_app.view_functions[request.endpoint or ""]
    for _ in range(RERUNS):
        try:
            with versioned_cache.reloading():
                yield from steps()
            return
        except (versioned_cache.Stale, DBAPIError) as error:
            _look_again(error, view)
    raise Unavailable


def _look_again(error: versioned_cache.Stale | DBAPIError, view: Callable[..., Any]) -> None:
    if isinstance(error, DBAPIError) and not errors.is_stale_schema(error):
        raise error
    g.pop("console_caller")
    recognise()
    _check_rank(known_caller(), view)


def cookie_name() -> str:
    """The name of the session cookie; in production one that browsers bind to this host."""
    return "__Host-atrium_console" if config.current().production else "atrium_console"


def check() -> Any:
    """Before every page: a valid form token, and somebody signed in."""
    recognise()
    if caller() is None:
        limit_body(LARGEST_UNSIGNED)
    csrf.protect()
    known, view = caller(), current_app.view_functions[request.endpoint or ""]
    if getattr(view, "open_to_all", False):
        return None
    if known is not None:
        _check_rank(known, view)
        return resubmit.shown_again()
    kept = resubmit.kept()
    if kept is None:
        return redirect(url_for("console.sign_in", next=_page_to_return_to()))
    # As an answer to the form, not at an address of its own: none is long enough.
    form = Form({"next": _page_to_return_to() or "", resubmit.FIELD: kept}, status=401)
    return sign_in_page(form, offered=())


def sign_in_page(form: Form, offered: Sequence[Any]) -> tuple[str, int]:
    """The page to sign in, with the providers of the account that is named."""
    lacks_file, sso = resubmit.lacks_file(form[resubmit.FIELD]), providers.any_enabled()
    return form.page(SIGN_IN, offered=offered, sso=sso, lacks_file=lacks_file)


def ask_for_password() -> tuple[str, int]:
    """The page that asks for the password again, for what needs a recent sign-in."""
    kept = {"next": _page_to_return_to() or "", resubmit.FIELD: resubmit.kept() or ""}
    return password_page(Form(kept, status=403))


def password_page(form: Form) -> tuple[str, int]:
    """The same page with a form that was sent; who has no password signs in anew."""
    user, lacks_file = auth.get_user(known_caller()), resubmit.lacks_file(form[resubmit.FIELD])
    has_password = user.password_hash is not None
    form.values["next"] = local_target(form["next"]) or ""
    return form.page(REAUTHENTICATE, has_password=has_password, lacks_file=lacks_file)


def recognise() -> None:
    """Learn from the cookie who looks at the page, unless that is known already."""
    if "console_caller" in g:
        return
    found = credentials.console_principal(request.cookies.get(cookie_name(), "").replace("\0", ""))
    g.console_caller, g.console_session_id = found or (None, None)


def _check_rank(caller: Principal, view: Callable[..., Any]) -> None:
    if getattr(view, "for_superadmins", False) and not caller.is_superadmin:
        raise Forbidden("This page is for superadmins only.")
    if getattr(view, "for_admins", False) and not caller.is_admin:
        raise Forbidden(
            "This page is for admins of the account. Ask one of them for what you need."
        )


def _page_to_return_to() -> str | None:
    # What a form was sent to cannot be opened: the page that showed the form can.
    return page_before() if request.method == "POST" else request.full_path.rstrip("?")


def caller() -> Principal | None:
    """Who is signed in to the console."""
    found: Principal | None = g.get("console_caller")
    return found


def known_caller() -> Principal:
    """Who is signed in, on a page that lets nobody else in."""
    found = caller()
    if found is None:
        raise Unauthorized
    return found


def own_account() -> str:
    """The id of the account whose pages these are."""
    return known_caller().require_account_id()


def begin_session(user: User | LoginUser, target: str, status: int = 303) -> BaseResponse:
    """Sign a user in to the console in this browser, and go on to a page.

    A session that the browser had before ends.
    """
    end_known_session()
    secret = sessions.start_in_console(user, origin())
    _void_forms_of_others(user.id)
    response = redirect(target, status)
    response.set_cookie(
        cookie_name(),
        secret,
        max_age=int(sessions.lifetime().total_seconds()),
        httponly=True,
        samesite="Lax",
        secure=config.current().production,
    )
    return response


def _void_forms_of_others(user_id: str) -> None:
    # What somebody else left open in this browser must not be sent in this user's name. Who signs
    # in again after the session has ended keeps theirs.
    if session.get(FORMS_OF, user_id) != user_id:
        session.pop("csrf_token", None)
    session[FORMS_OF] = user_id


def end_session(target: str) -> BaseResponse:
    """End the session of this browser, and go on to a page."""
    end_known_session()
    response = redirect(target, 303)
    response.delete_cookie(
        cookie_name(), httponly=True, samesite="Lax", secure=config.current().production
    )
    return response


def end_known_session() -> None:
    """End the session that this browser shows, if it is alive."""
    recognise()
    known = caller()
    if known and known.home:
        sessions.end(*sessions.user_key(known), g.console_session_id)


def local_target(target: str | None) -> str | None:
    """A path of this site's console to go on to after signing in, or None for anything else."""
    # Browsers drop control characters, take "\\" for "/", and resolve "..": none is let through.
    fits = target and CONSOLE_PATH.fullmatch(target) and ".." not in target
    return target if fits else None


def page_before() -> str | None:
    """The page of the console that this request was made from, if the browser tells."""
    before = urlsplit(request.referrer or "")
    if before.netloc != request.host:
        return None
    return local_target(f"{before.path}?{before.query}" if before.query else before.path)
