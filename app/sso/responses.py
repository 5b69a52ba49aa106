"""Browser side of a sign-in: cookie, redirects and the error page."""

from __future__ import annotations

import hmac
import re
import secrets
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from flask import Flask, Response, g, jsonify, make_response, redirect, render_template, request
from itsdangerous import BadSignature
from werkzeug.wrappers import Response as BaseResponse

from app import config, crypto
from app.accounts.models import Account
from app.auth import lockout, tokens
from app.auth import service as auth
from app.auth.guard import account_of_host, account_of_request
from app.auth.mfa.gate import EnrolmentRequired, MfaRequired
from app.auth.responses import origin, sign_in_response, token_pair
from app.auth.service import SignIn
from app.errors import AppError
from app.sso import flows, one_time_codes, service, sign_in
from app.sso.connections import Connection
from app.sso.flows import LIFETIME, StartedFlow
from app.sso.models import SAML, Flow, FlowPurpose
from app.sso.refusals import SignInRefused, StateRefused
from app.sso.sign_in import CompletedFlow
from app.types import JSONObject
from app.web import error_handlers, html, urls

NAMED_BY_MARK = 12
HOSTED = "/welcome"
FINISH = "/sso/finish"
RETURN = "sso return"
# As a flow stores it: the account's slug, and the digest of the browser's cookie at its host name.
RETURN_HOST = re.compile(r"([a-z][a-z0-9-]{2,31})\.([0-9a-f]{64})")


def init_app(app: Flask) -> None:
    """Register an HTML page for refusals; API clients get JSON."""
    for path in ("/oauth", "/saml"):
        error_handlers.register_error_page(app, path, _error_page)


def requested_account(reference: str | None) -> Account | None:
    """Find the account that a request names: by parameter, header or host, or the only one.

    Raises BadRequest if header and host disagree.
    """
    account = account_of_request()
    return service.find_active_account(auth.require_account(reference or account).replace("\0", ""))


def start_flow(
    category: str, provider: str, purpose: FlowPurpose, args: JSONObject
) -> tuple[str, StartedFlow, Connection]:
    """Start a flow for a request. Raises TooManyRequests beyond the limit per address."""
    lockout.count_sso_start(request.remote_addr)
    connection = service.connection(requested_account(args.get("account")), category, provider)
    redirect_uri, state = args.get("redirect_uri"), args.get("client_state")
    url, begun = sign_in.start(connection, purpose, redirect_uri=redirect_uri, client_state=state)
    return url, begun, connection


def begin(category: str, provider: str, purpose: FlowPurpose, args: JSONObject) -> BaseResponse:
    """Redirect a browser to the provider, via the base URL."""
    return redirect_to_base() or redirect_to_provider(
        *start_flow(category, provider, purpose, args)
    )


def redirect_to_base(**more: str) -> BaseResponse | None:
    """Redirect a browser from an account's host name to the base URL.

    Providers return to the base URL, and the flow's cookie is limited to that host.
    """
    if account_of_host() is None:
        return None
    default = account_of_request()
    account = request.args.get("account") or default or ""
    query = {**request.args.to_dict(), "account": account, **more}
    location = f"{config.current().base_url}{quote(request.path)}?{urlencode(query)}"
    return no_store(redirect(location))


def begin_in_console(
    category: str, provider: str, account: str, target: str | None
) -> BaseResponse:
    """Start a sign-in to the console, which returns to the host name where it was started.

    Raises StateRefused if anybody else wrote `back`.
    """
    secret = secrets.token_urlsafe(32)
    mark = tokens.digest(secret)
    base_redirect = redirect_to_base(back=crypto.sign(f"{account_of_host()}.{mark}", RETURN))
    if base_redirect is not None:
        _set_cookie(base_redirect, mark, secret, posted=False)
        return base_redirect
    state = None
    if back := request.args.get("back"):
        try:
            state = crypto.unsign(back, RETURN)
        except BadSignature:
            raise StateRefused("state", "The address was not made by this service.") from None
    args = {"account": account, "client_state": state, "redirect_uri": target}
    return redirect_to_provider(*start_flow(category, provider, FlowPurpose.CONSOLE, args))


def set_flow_cookie(response: Any, begun: StartedFlow, connection: Connection) -> Any:
    """Set the cookie that identifies the browser on return."""
    posted = connection.provider.category == SAML or connection.provider.posts_callback
    _set_cookie(response, begun.flow.state_hash, begun.browser, posted=posted)
    response.headers["Cache-Control"] = "no-store"
    return response


def _set_cookie(response: Any, mark: str, secret: str, *, posted: bool) -> None:
    # A provider's cross-site POST carries only SameSite=None cookies, which browsers accept over
    # TLS and on loopback.
    secure = _is_secure() or (posted and _is_loopback())
    response.set_cookie(
        _cookie_name(mark),
        secret,
        max_age=int(LIFETIME.total_seconds()),
        httponly=True,
        secure=secure,
        samesite="None" if posted and secure else "Lax",
    )


def _is_secure() -> bool:
    return config.current().base_url.startswith("https://")


def _is_loopback() -> bool:
    host = urlsplit(config.current().base_url).hostname or ""
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _delete_cookie(response: BaseResponse, flow: Flow) -> None:
    secure = _is_secure() or _is_loopback()
    response.delete_cookie(_cookie_name(flow.state_hash), httponly=True, secure=secure)


def redirect_to_provider(url: str, begun: StartedFlow, connection: Connection) -> BaseResponse:
    """Redirect to the provider and set the flow's cookie."""
    response: BaseResponse = set_flow_cookie(redirect(url), begun, connection)
    return response


def flow_cookie(flow: Flow) -> str | None:
    """Return the browser's cookie for a flow."""
    return request.cookies.get(_cookie_name(flow.state_hash))


def may_finish(flow: Flow) -> bool:
    """Whether this browser has the cookie of a console sign-in, at the host it returns to.

    A sign-in that returns to an account's host name has shown the flow's own cookie before, at the
    service's.
    """
    host = _return_host(flow)
    if host is None:
        return flows.is_from_browser(flow, flow_cookie(flow))
    slug, mark = host.groups()
    secret = request.cookies.get(_cookie_name(mark), "")
    return account_of_host() == slug and hmac.compare_digest(mark, tokens.digest(secret))


def redirect_to_client(completed: CompletedFlow) -> BaseResponse:
    """Redirect to the client application, or to the console."""
    flow = completed.flow
    if flow.purpose in (FlowPurpose.CONSOLE, FlowPurpose.TEST):
        target = f"{_pages(flow)}{FINISH}"
        if host := _return_host(flow):
            settings = config.current()
            base = urlsplit(settings.base_url)
            port = f":{base.port}" if base.port else ""
            target = f"{base.scheme}://{host[1]}.{settings.base_domain}{port}{target}"
        return no_store(redirect(urls.with_query(target, {"code": completed.code})))
    state = _returned_state(flow)
    target = flow.redirect_uri or ""
    in_fragment = completed.account.settings.get("sso_tokens_in_fragment")
    if in_fragment and flows.is_from_browser(flow, flow_cookie(flow)):
        target = f"{target}#{urlencode(_fragment(completed) | state)}"
    else:
        target = urls.with_query(target, {"code": completed.code, **state})
    response = redirect(target)
    _delete_cookie(response, flow)
    return no_store(response)


def _fragment(completed: CompletedFlow) -> dict[str, str]:
    """Return the tokens of a completed sign-in, or the step that it lacks."""
    try:
        signed_in, _ = one_time_codes.exchange(
            completed.code, completed.flow.client_state, origin()
        )
    except (MfaRequired, EnrolmentRequired) as error:
        step = {"mfa_token": error.extra["mfa_token"], "methods": " ".join(error.extra["methods"])}
        return {"error": error.error, "error_description": error.message, **step}
    pair = token_pair(signed_in)
    return {name: str(value) for name, value in pair.items() if name != "token"}


def provider_sign_in_response(signed_in: SignIn, flow: Flow) -> Response:
    """Return the response of a login with `isNewUser`."""
    return sign_in_response(signed_in, isNewUser=flow.is_new_user, isNewAccount=False)


def _returned_state(flow: Flow) -> dict[str, str]:
    if flow.client_state is None:
        return {}
    return dict.fromkeys(("state", "client_state", "relay_state"), flow.client_state)


def _return_host(flow: Flow) -> re.Match[str] | None:
    """Return the host name that a console sign-in returns to, if the flow's account owns it.

    Other labels below the base domain may belong to other servers.
    """
    host = (
        RETURN_HOST.fullmatch(flow.client_state or "")
        if flow.purpose == FlowPurpose.CONSOLE
        else None
    )
    account = service.find_active_account(flow.account_id) if host else None
    is_own = host and account and account.slug == host[1] and config.current().base_domain
    return host if is_own else None


def _cookie_name(mark: str) -> str:
    prefix = "__Host-" if _is_secure() else ""
    return f"{prefix}atrium_sso_{mark[:NAMED_BY_MARK]}"


def _pages(flow: Flow) -> str:
    """Where a sign-in to pages began: at the hosted ones, or at the console."""
    return HOSTED if (flow.redirect_uri or "").startswith(HOSTED) else "/console"


def no_store(response: BaseResponse) -> BaseResponse:
    """Keep a response out of caches, and its address out of referrers."""
    response.headers["Cache-Control"] = "no-store"
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


def _error_page(error: AppError) -> Response:
    flow = error.flow if isinstance(error, SignInRefused) else None
    if not html.prefers_html():
        response = jsonify(error.body())
        response.headers["Cache-Control"] = "no-store"
    elif isinstance(error, SignInRefused) and error.client_flow:
        # To the client application, with an error of RFC 6749, section 4.1.2.1.
        params = {"error": error.code, "error_description": error.message}
        params |= _returned_state(error.client_flow)
        target = urls.with_query(error.client_flow.redirect_uri or "", params)
        redirected: Any = redirect(target)
        _delete_cookie(redirected, error.client_flow)
        return no_store(redirected)  # type: ignore[return-value]
    else:
        account = service.find_active_account(flow.account_id) if flow else None
        slug = account.slug if account else None
        g.is_hosted, g.page_account_id = True, account.id if account else None
        began = _pages(flow) if flow and flow.purpose == FlowPurpose.CONSOLE else HOSTED
        sign_in = f"{began}/sign-in?account={quote(slug)}" if slug else f"{began}/sign-in"
        page = render_template("welcome/refused.html", problem=error.message, sign_in=sign_in)
        response = html.add_security_headers(make_response(page))
    response.status_code = error.status
    response.headers.update(error.headers)
    return response
