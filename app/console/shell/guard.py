"""Authenticates console requests by a server-side session, and checks the caller's role."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import urlsplit

from flask import (
    after_this_request,
    g,
    make_response,
    redirect,
    render_template,
    request,
    session,
    url_for,
)
from flask_wtf.csrf import CSRFError, CSRFProtect, ValidationError, validate_csrf
from sqlalchemy.exc import DBAPIError
from werkzeug.wrappers import Response as BaseResponse

from app import config
from app.accounts.models import User
from app.accounts.sign_in_settings import SERVICE_LIMITS
from app.auth import magic_links, sessions, tokens
from app.auth import principal as principals
from app.auth import service as auth
from app.auth.guard import ACCOUNT, limit_body
from app.auth.login_users import LoginUser
from app.auth.mfa import gate
from app.auth.mfa.challenges import Challenge
from app.auth.mfa.gate import Proof
from app.auth.mfa.models import Method
from app.auth.principal import Principal
from app.auth.responses import origin, remember_device
from app.console.shell import access, brand, forms, navigation, portal, realms, resubmit
from app.console.shell.access import (
    ADMIN,
    ANY_FEATURE,
    ANYBODY,
    HOME,
    PORTAL,
    SETUP,
    SUPERADMIN,
    PageAccess,
)
from app.console.shell.forms import Form
from app.console.shell.portal import PortalEnded
from app.context import tenancy
from app.db import errors, versioned_cache
from app.errors import Forbidden, NotFound, Unauthorized, Unavailable
from app.sso import one_time_codes, setup_links
from app.sso import service as providers
from app.sso.models import Flow
from app.web import languages
from app.web.languages import gettext

MAX_ATTEMPTS = 10
FILE = "application/octet-stream"
MAX_ANONYMOUS_BODY = 2**19  # bytes; saved forms come back encrypted (`unsent`)
SIGN_IN = "console/sign_in.html"
REAUTHENTICATE = "console/reauthenticate.html"
FORM_OWNER = "forms_of"
SETUP_COOKIE = "atrium_setup"
View = TypeVar("View", bound=Callable[..., Any])
Step = TypeVar("Step")
csrf = CSRFProtect()

OWN_PATH = re.compile(r"/(console|welcome)(/[\w./~-]*)?(\?[\w.~&=%+/-]*)?", re.ASCII)


class ConsoleClosed(Forbidden):
    """A user whose role does not open the console."""

    message = "Your role does not open the console."


def retry_stale(view: View) -> View:
    """Run a view again with fresh data if a cached version was stale.

    Like the API's `optimistic`: the view must write in a single transaction.
    """

    @wraps(view)
    def run(*args: object, **options: object) -> object:
        for _ in range(MAX_ATTEMPTS):
            try:
                with versioned_cache.reloading(unless_current=True):
                    return view(*args, **options)
            except (versioned_cache.Stale, DBAPIError) as error:
                _reload_caller(error)
        raise Unavailable

    return run  # type: ignore[return-value]


def retry_stale_steps(steps: Callable[[], Iterator[Step]]) -> Iterator[Step]:
    """`retry_stale` for a generator that works in one transaction: it may start again."""
    for _ in range(MAX_ATTEMPTS):
        try:
            with versioned_cache.reloading(unless_current=True):
                yield from steps()
            return
        except (versioned_cache.Stale, DBAPIError) as error:
            _reload_caller(error)
    raise Unavailable


def _reload_caller(error: versioned_cache.Stale | DBAPIError) -> None:
    if isinstance(error, DBAPIError) and not errors.is_stale_schema(error):
        raise error
    g.pop("console_caller")
    load_caller()
    _check_access(require_caller(), access.of_request())


def cookie_name(name: str = "atrium_console") -> str:
    """The name of the session cookie, or another's; in production browsers bind it to this host."""
    return f"__Host-{name}" if config.current().production else name


def authorize() -> Any:
    """Before each request: check the CSRF token, the session and the caller's role."""
    load_caller()
    current, page = caller(), access.of_request()
    if current is None:
        limit_body(MAX_ANONYMOUS_BODY)
    elif page.takes_file and request.mimetype == FILE:
        request.max_content_length = config.current().file_max_bytes
    if current is None and g.get("portal_id"):
        raise PortalEnded
    _check_csrf()
    if page.role is ANYBODY:
        return None
    if current is not None:
        _check_access(current, page)
        return resubmit.restore_form() if request.method == "POST" else None
    if page.setup and cookie_name(SETUP_COOKIE) in request.cookies:
        return redirect(url_for("console.show_setup"), 303)
    saved = None if access.is_hosted() else resubmit.encode_form()
    if saved is None:
        return redirect(url_for(".sign_in", next=_return_path()))
    # No redirect: an address is too short for the saved form.
    values = {
        "account": realms.suggested_account(),
        "next": _return_path() or "",
        resubmit.FIELD: saved,
    }
    return sign_in_page(Form(values, status=401))


def _check_csrf() -> None:
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return
    # Hosted pages send no Referer, which the library wants to see besides the token.
    if not access.is_hosted():
        csrf.protect()
        return
    try:
        validate_csrf(request.form.get("csrf_token"))
    except ValidationError as error:
        raise CSRFError(str(error)) from error


def sign_in_page(form: Form, offered: Sequence[object] = ()) -> tuple[str, int]:
    """The sign-in page with the identity providers of the account; a hosted one asks for less."""
    if access.is_hosted():
        return address_page(form)
    lacks_file, sso = resubmit.lacks_file(form[resubmit.FIELD]), providers.has_enabled()
    context = {"offered": offered, "sso": sso, "lacks_file": lacks_file}
    settings = config.current()
    only = settings.single_tenant_account if settings.single_tenant else ""
    context["mails_links"] = magic_links.is_offered(form["account"] or only)
    return form.render(SIGN_IN, suggested=realms.suggested_account(), **context)


def address_page(form: Form, *, shows_account: bool = True) -> tuple[str, int]:
    """The hosted sign-in page, which asks for the address first."""
    account = providers.find_active_account(form["account"]) if shows_account else None
    brand.show(account.id if account else None)
    return form.render("welcome/sign_in.html", account=account)


def reauthentication_page() -> tuple[str, int]:
    """The page that asks for the password again, for actions that need a recent sign-in."""
    values = {"next": _return_path() or "", resubmit.FIELD: resubmit.encode_form() or ""}
    return render_reauthentication(Form(values, status=403))


def render_reauthentication(form: Form) -> tuple[str, int]:
    """The reauthentication page with a form; users without a password must sign in again."""
    user, lacks_file = auth.get_user(require_caller()), resubmit.lacks_file(form[resubmit.FIELD])
    form.values["next"] = safe_target(form["next"]) or ""
    return form.render(
        REAUTHENTICATE,
        has_password=gate.has_password(user),
        needs_factor=gate.needs_factor(user),
        has_passkey=any(factor.kind == Method.PASSKEY for factor in gate.factors_of(user)),
        lacks_file=lacks_file,
    )


def load_caller() -> None:
    """Load the caller of this request from the session cookie, once."""
    if "console_caller" in g:
        return
    if request.path.startswith(f"{PORTAL}/"):  # where other cookies do not count
        current = portal.load()
        g.console_caller, g.console_session_id = current, current and current.session_id
        request.environ[ACCOUNT] = current and current.require_account_id()
        return
    session_caller = tokens.console_principal(
        _cookie(cookie_name()),
        records_use=request.headers.get("X-Requested-With") != "XMLHttpRequest",
    )
    holder = None if session_caller else _setup_holder()
    g.console_caller, g.console_session_id = session_caller or holder or (None, None)
    is_opening = request.path.startswith(f"{SETUP}/") and access.of_request().role is ANYBODY
    if holder or is_opening:
        g.is_hosted = True
        after_this_request(brand.add_headers)
    request.environ[ACCOUNT] = g.console_caller and g.console_caller.metered_account.id


def _cookie(name: str) -> str:
    return request.cookies.get(name, "").replace("\0", "")


def _setup_holder() -> tuple[Principal, str] | None:
    """The holder of a setup link and the link's id, on the pages that the link is for."""
    page, secret = access.of_request(), _cookie(cookie_name(SETUP_COOKIE))
    holder = setup_links.authenticate(secret) if page.setup and secret else None
    if holder is None or page.setup not in (ANY_FEATURE, *(holder.setup or ())):
        return None
    return holder, holder.user_id or ""


def _check_access(caller: Principal, page: PageAccess) -> None:
    if not caller.opens_console and not access.is_hosted():
        raise ConsoleClosed
    if caller.portal is not None and page.portal not in caller.portal.pages:
        raise NotFound
    if page.role is SUPERADMIN and not caller.is_superadmin:
        raise Forbidden(gettext("This page is for superadmins only."))
    if page.role is ADMIN and not caller.is_admin:
        raise Forbidden(
            gettext("This page is for admins of the account. Ask one of them for help.")
        )
    if page.recent_sign_in:
        caller.require_recent_sign_in()


def _return_path() -> str | None:
    # The target of a form cannot be opened with GET; the page with the form can.
    return referring_page() if request.method == "POST" else request.full_path.rstrip("?")


def caller() -> Principal | None:
    """The signed-in caller, if any."""
    current: Principal | None = g.get("console_caller")
    return current


def require_caller() -> Principal:
    """The signed-in caller. Raises Unauthorized."""
    current = caller()
    if current is None:
        raise Unauthorized
    return current


def own_account_id() -> str:
    """The id of the caller's account."""
    return require_caller().require_account_id()


def start_session(
    user: User | LoginUser,
    target: str,
    proof: Proof,
    status: int = 303,
    flow: Flow | None = None,
    passed: Challenge | None = None,
) -> BaseResponse:
    """Sign a user in to the pages in this browser, by a flow of a provider or not, and redirect.

    The browser's previous session ends. Raises as `gate.check`, and ConsoleClosed if the target is
    a page of the console and the user's role does not open it.
    """
    forms.accept()
    g.after_sign_in = target if status == 303 else ""
    with one_time_codes.attaching_challenge(flow):
        try:
            check_opens(user, target)
        except ConsoleClosed:
            gate.check(user, proof, passed)  # tells nobody else about the role
            raise
        secret = sessions.start_in_console(user, origin(), proof, passed)
    end_current_session()
    started = tokens.console_principal(secret) if flow else None
    if flow and started:
        one_time_codes.attach_session(flow, user.id, started[1])
    _invalidate_foreign_forms(user.id)
    response = _lead_to(target, status)
    response.set_cookie(
        cookie_name(),
        secret,
        max_age=int(SERVICE_LIMITS.lifetime.total_seconds()),
        httponly=True,
        samesite="Lax",
        secure=config.current().production,
    )
    end_setup(response)
    remember_device(response, user)
    if user.language:
        languages.remember(response, user.language)
    return response


def target_after_sign_in(user: User | LoginUser, requested: str) -> str:
    """The page of ours that was requested, or an address that the operator or the account lists.

    Else where the console or the hosted pages begin.
    """
    if path := safe_target(requested):
        return path
    if not access.is_hosted():
        return url_for("console.show_home")
    return requested if brand.is_known(requested, user) else brand.landing(user)


def _lead_to(target: str, status: int) -> BaseResponse:
    if target.startswith("/"):
        return redirect(target, status)
    # Browsers refuse redirects of forms to other sites (form-action).
    return make_response(render_template("welcome/continue.html", target=target))


def check_opens(user: User | LoginUser, target: str) -> None:
    """Raise ConsoleClosed if the target is a page of the console, which the role does not open."""
    if not target.startswith(HOME):
        return
    with tenancy.in_account(user.account_id):
        principal = principals.for_user_verified(user.account_id, user.id)
    if principal is None or not principal.opens_console:
        forms.accept()  # no other entry helps
        raise ConsoleClosed


def start_setup(link_id: str, secret: str, lifetime: timedelta) -> BaseResponse:
    """Make this browser the holder of a setup link, which ends its session, and redirect."""
    end_current_session()
    _invalidate_foreign_forms(link_id)
    response = forget_session(redirect(url_for("console.show_setup"), 303))
    response.set_cookie(
        cookie_name(SETUP_COOKIE),
        secret,
        max_age=int(lifetime.total_seconds()),
        httponly=True,
        samesite="Lax",
        secure=config.current().production,
    )
    return response


def end_setup(response: BaseResponse) -> BaseResponse:
    """Delete the cookie of a setup link's holder with a response."""
    secure = config.current().production
    response.delete_cookie(cookie_name(SETUP_COOKIE), httponly=True, samesite="Lax", secure=secure)
    return response


def _invalidate_foreign_forms(user_id: str) -> None:
    # Forms that another user left open in this browser must not be submitted in this user's name.
    # A user who signs in again keeps theirs.
    if session.get(FORM_OWNER, user_id) != user_id:
        session.pop("csrf_token", None)
        navigation.forget_accounts()
    session[FORM_OWNER] = user_id


def end_session(target: str) -> BaseResponse:
    """End the session of this browser, and redirect."""
    end_current_session()
    return forget_session(redirect(target, 303))


def forget_session(response: BaseResponse) -> BaseResponse:
    """Delete the session's cookie with a response."""
    response.delete_cookie(
        cookie_name(), httponly=True, samesite="Lax", secure=config.current().production
    )
    return response


def provider_logout_url() -> str | None:
    """The identity provider's sign-out address for this session, if it began there."""
    load_caller()
    current = caller()
    if current is None or current.home is None or current.setup is not None:
        return None
    from app.sso.saml import logout  # imported on use: large

    target = f"{config.current().base_url}{url_for('.sign_in')}"
    return logout.start(current.home.id, g.console_session_id, target)


def end_current_session() -> None:
    load_caller()
    current = caller()
    if current and current.home and current.setup is None:
        sessions.end(*sessions.user_key(current), g.console_session_id)


def safe_target(target: str | None) -> str | None:
    """The path if it is a page of ours, else None; prevents open redirects."""
    # Browsers drop control characters, read "\\" as "/" and resolve "..": refuse all three.
    fits = target and OWN_PATH.fullmatch(target) and ".." not in target
    return target if fits else None


def referring_page() -> str | None:
    """The page of ours that sent this request, by its Referer header."""
    before = urlsplit(request.referrer or "")
    if before.netloc != request.host:
        return None
    return safe_target(f"{before.path}?{before.query}" if before.query else before.path)
