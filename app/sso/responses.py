"""How a sign-in goes on in the browser: its cookie, its redirects, and the page of a refusal."""

from __future__ import annotations

import re
import secrets
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from flask import Flask, Response, jsonify, make_response, redirect, render_template, request
from werkzeug.wrappers import Response as BaseResponse

from app import config
from app.accounts.models import Account
from app.auth import lockout, tokens
from app.auth import service as auth
from app.auth.guard import account_of_host, account_of_request
from app.auth.responses import origin, sign_in_response, token_pair
from app.auth.service import SignIn
from app.errors import AppError
from app.http import error_handlers, html
from app.sso import flows, one_time_codes, service, sign_in
from app.sso.connections import Connection
from app.sso.flows import LIFETIME, StartedFlow
from app.sso.models import API, BROWSER, CONSOLE, SAML, TEST, Flow
from app.sso.oauth.exchange import Unreachable
from app.sso.refusals import SignInRefused
from app.sso.sign_in import CompletedFlow
from app.types import JSONObject

NAMED_BY_MARK = 12
CONSOLE_FINISH = "/console/sso/finish"
# The host name to end at, and the digest of what the browser holds there.
BACK = re.compile(r"([a-z][a-z0-9-]{2,31})\.([0-9a-f]{64})")


def init_app(app: Flask) -> None:
    """Tell browsers of refusals by a page; clients of the API get JSON as ever."""
    for path in ("/oauth", "/saml"):
        error_handlers.register_error_page(app, path, _tell)


def requested_account(reference: str | None) -> Account | None:
    """The account that a request names: itself, by header, by host, or as the only one.

    Raises BadRequest where header and host disagree, whatever the request itself names.
    """
    told = account_of_request()
    return service.find_active_account(auth.require_account(reference or told).replace("\0", ""))


def start_flow(
    category: str, provider: str, purpose: str, args: JSONObject
) -> tuple[str, StartedFlow, Connection]:
    """A flow for what a request asks. Raises TooManyRequests past the limit of an address."""
    lockout.count_sso_start(request.remote_addr)
    connection = service.connection(requested_account(args.get("account")), category, provider)
    wanted, state = args.get("redirect_uri"), args.get("client_state")
    url, begun = sign_in.start(connection, purpose, redirect_uri=wanted, client_state=state)
    return url, begun, connection


def begin(category: str, provider: str, purpose: str, args: JSONObject) -> BaseResponse:
    """Send a browser to the provider, from the address that providers return it to."""
    return redirect_to_base() or redirect_to_provider(
        *start_flow(category, provider, purpose, args)
    )


def redirect_to_base(**more: str) -> BaseResponse | None:
    """Lead a browser from an account's host name to the same path of the service's own.

    Providers return there, and no other host is shown the cookie that the browser is known by.
    """
    if account_of_host() is None:
        return None
    told = account_of_request()
    named = request.args.get("account") or told or ""
    query = {**request.args.to_dict(), "account": named, **more}
    there = f"{config.current().base_url}{quote(request.path)}?{urlencode(query)}"
    return _unkept(redirect(there))


def begin_in_console(
    category: str, provider: str, account: str, target: str | None
) -> BaseResponse:
    """Begin a sign-in to a page of the console, which ends at the host name where it was begun."""
    secret = secrets.token_urlsafe(32)
    mark = tokens.digest(secret)
    away = redirect_to_base(back=f"{account_of_host()}.{mark}")
    if away is not None:
        _give(away, mark, secret, posted=False)
        return away
    back = BACK.fullmatch(request.args.get("back", ""))
    state = back[0] if back else None
    args = {"account": account, "client_state": state, "redirect_uri": target}
    return redirect_to_provider(*start_flow(category, provider, CONSOLE, args))


def set_flow_cookie(response: Any, begun: StartedFlow, connection: Connection) -> Any:
    """Give the browser what tells it from others when it comes back."""
    posted = connection.provider.category == SAML or connection.provider.posts_callback
    _give(response, begun.flow.state_hash, begun.browser, posted=posted)
    response.headers["Cache-Control"] = "no-store"
    return response


def _give(response: Any, mark: str, secret: str, *, posted: bool) -> None:
    # Providers that post come from another site, where only such a cookie is sent along. Browsers
    # take it by TLS, and from their own machine.
    secure = _is_secure() or (posted and _is_loopback())
    response.set_cookie(
        _cookie_name(mark),
        secret,
        max_age=int(LIFETIME.total_seconds()),
        httponly=True,
        secure=secure,
        samesite="None" if posted and secure else "Lax",
    )


def _forget(response: Any, flow: Flow) -> None:
    secure = _is_secure() or _is_loopback()
    response.delete_cookie(_cookie_name(flow.state_hash), httponly=True, secure=secure)


def _is_secure() -> bool:
    return config.current().base_url.startswith("https://")


def _is_loopback() -> bool:
    host = urlsplit(config.current().base_url).hostname or ""
    return host == "localhost" or host.startswith("127.") or host == "::1"


def redirect_to_provider(url: str, begun: StartedFlow, connection: Connection) -> BaseResponse:
    """Send the browser to the provider."""
    found: BaseResponse = set_flow_cookie(redirect(url), begun, connection)
    return found


def flow_cookie(flow: Flow) -> str | None:
    """What this browser was given when it began a flow."""
    given = request.cookies.get(_cookie_name(flow.state_hash))
    return given or request.cookies.get(_cookie_name(flow.browser_hash))


def redirect_to_client(ended: CompletedFlow) -> BaseResponse:
    """Send the browser on to the client application, or to the console."""
    flow = ended.flow
    if flow.purpose in (CONSOLE, TEST):
        target = f"{_host_to_end_at(flow)}{CONSOLE_FINISH}"
        return _unkept(redirect(sign_in.with_query(target, {"code": ended.code})))
    state = _returned_state(flow)
    target = flow.redirect_uri or ""
    in_fragment = ended.account.settings.get("sso_tokens_in_fragment")
    if in_fragment and flows.is_of_browser(flow, flow_cookie(flow)):
        signed_in, _ = one_time_codes.exchange(ended.code, flow.client_state, origin())
        tokens = {
            name: str(value) for name, value in token_pair(signed_in).items() if name != "token"
        }
        target = f"{target}#{urlencode(tokens | state)}"
    else:
        target = sign_in.with_query(target, {"code": ended.code, **state})
    response = redirect(target)
    response.delete_cookie(
        _cookie_name(flow.state_hash), httponly=True, secure=_is_secure() or _is_loopback()
    )
    return _unkept(response)


def provider_sign_in_response(signed_in: SignIn, flow: Flow) -> Response:
    """The login answer, and whether the user is new."""
    return sign_in_response(signed_in, isNewUser=flow.is_new_user, isNewAccount=False)


def _returned_state(flow: Flow) -> dict[str, str]:
    if flow.client_state is None:
        return {}
    return dict.fromkeys(("state", "client_state", "relay_state"), flow.client_state)


def _host_to_end_at(flow: Flow) -> str:
    back, settings = BACK.fullmatch(flow.client_state or ""), config.current()
    if flow.purpose != CONSOLE or not back or not settings.base_domain:
        return ""
    base = urlsplit(settings.base_url)
    port = f":{base.port}" if base.port else ""
    return f"{base.scheme}://{back[1]}.{settings.base_domain}{port}"


def _cookie_name(mark: str) -> str:
    prefix = "__Host-" if _is_secure() else ""
    return f"{prefix}atrium_sso_{mark[:NAMED_BY_MARK]}"


def _unkept(response: BaseResponse) -> BaseResponse:
    response.headers["Cache-Control"] = "no-store"
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


def _tell_client(error: AppError, flow: Flow) -> Response:
    """Return the browser to the client application with the names of RFC 6749, section 4.1.2.1."""
    code = "temporarily_unavailable" if isinstance(error, Unreachable) else "access_denied"
    told = {"error": code, "error_description": error.message, **_returned_state(flow)}
    back: Any = redirect(sign_in.with_query(flow.redirect_uri or "", told))
    back.delete_cookie(
        _cookie_name(flow.state_hash), httponly=True, secure=_is_secure() or _is_loopback()
    )
    return _unkept(back)  # type: ignore[return-value]


def _tell(error: AppError) -> Response:
    flow = error.flow if isinstance(error, SignInRefused) else None
    if html.prefers_html() and flow is not None and flow.purpose in (BROWSER, API):
        return _tell_client(error, flow)
    if html.prefers_html():
        page = render_template("auth/refused.html", problem=error.message)
        response = html.add_security_headers(make_response(page))
    else:
        response = jsonify(error.body())
        response.headers["Cache-Control"] = "no-store"
    response.status_code = error.status
    response.headers.update(error.headers)
    return response
