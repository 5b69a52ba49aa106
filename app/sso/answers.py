"""How a sign-in goes on in the browser: its cookie, its redirects, and the page of a refusal."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from flask import Flask, Response, jsonify, make_response, redirect, render_template, request
from werkzeug.wrappers import Response as BaseResponse

from app import config, errors, pages
from app.accounts.models import Account
from app.auth import service as auth
from app.auth.answers import answer_sign_in, origin, pair
from app.auth.guard import account_of_request
from app.auth.service import SignIn
from app.errors import AppError
from app.sso import codes, flows, service, sign_in
from app.sso.flows import LIFETIME, Begun
from app.sso.models import CONSOLE, SAML, TEST, Flow
from app.sso.service import Connection
from app.sso.sign_in import Ended

NAMED_BY_STATE = 12
CONSOLE_END = "/console/sso/finish"


def init_app(app: Flask) -> None:
    """Tell browsers of refusals by a page; clients of the API get JSON as ever."""
    for path in ("/oauth", "/saml"):
        errors.tell_by_pages(app, path, _tell)


def named_account(reference: str | None) -> Account | None:
    """The account that a request names: itself, by header, by host, or as the only one.

    Raises BadRequest where header and host disagree, whatever the request itself names.
    """
    told = account_of_request()
    return service.account_named(auth.require_account(reference or told).replace("\0", ""))


def started(
    category: str, provider: str, purpose: str, args: dict[str, Any]
) -> tuple[str, Begun, Connection]:
    """A flow for what a request asks."""
    connection = service.connection(named_account(args.get("account")), category, provider)
    wanted, state = args.get("redirect_uri"), args.get("client_state")
    url, begun = sign_in.start(connection, purpose, redirect_uri=wanted, client_state=state)
    return url, begun, connection


def bind(response: Any, begun: Begun, connection: Connection) -> Any:
    """Give the browser what tells it from others when it comes back."""
    posted = connection.provider.category == SAML or connection.provider.posts_callback
    secure = config.current().base_url.startswith("https://")
    response.set_cookie(
        _cookie_name(begun.flow),
        begun.browser,
        max_age=int(LIFETIME.total_seconds()),
        httponly=True,
        secure=secure,
        # Providers that post come from another site; without TLS no browser would take such one.
        samesite="None" if posted and secure else "Lax",
    )
    response.headers["Cache-Control"] = "no-store"
    return response


def leave_for(url: str, begun: Begun, connection: Connection) -> BaseResponse:
    """Send the browser to the provider."""
    found: BaseResponse = bind(redirect(url), begun, connection)
    return found


def cookie_of(flow: Flow) -> str | None:
    """What this browser was given when it began a flow."""
    return request.cookies.get(_cookie_name(flow))


def go_on(ended: Ended) -> BaseResponse:
    """Send the browser on to the client application, or to the console."""
    flow = ended.flow
    if flow.purpose in (CONSOLE, TEST):
        return _unkept(redirect(sign_in.with_query(CONSOLE_END, {"code": ended.code})))
    state = _returned_state(flow)
    target = flow.redirect_uri or ""
    in_fragment = ended.account.settings.get("sso_tokens_in_fragment")
    if in_fragment and flows.is_of_browser(flow, cookie_of(flow)):
        signed_in, _ = codes.trade(ended.code, flow.client_state, origin())
        tokens = {name: str(value) for name, value in pair(signed_in).items() if name != "token"}
        target = f"{target}#{urlencode(tokens | state)}"
    else:
        target = sign_in.with_query(target, {"code": ended.code, **state})
    response = redirect(target)
    secure = config.current().base_url.startswith("https://")
    response.delete_cookie(_cookie_name(flow), httponly=True, secure=secure)
    return _unkept(response)


def answer_provider(signed_in: SignIn, flow: Flow) -> Response:
    """The login answer, and whether the user is new."""
    return answer_sign_in(signed_in, isNewUser=flow.is_new_user, isNewAccount=False)


def _returned_state(flow: Flow) -> dict[str, str]:
    if flow.client_state is None:
        return {}
    names = ["state", "client_state"] + (["relay_state"] if flow.category == SAML else [])
    return dict.fromkeys(names, flow.client_state)


def _cookie_name(flow: Flow) -> str:
    prefix = "__Host-" if config.current().base_url.startswith("https://") else ""
    return f"{prefix}atrium_sso_{flow.state_hash[:NAMED_BY_STATE]}"


def _unkept(response: BaseResponse) -> BaseResponse:
    response.headers["Cache-Control"] = "no-store"
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


def _tell(error: AppError) -> Response:
    if pages.wanted():
        page = render_template("auth/refused.html", problem=error.message)
        response = pages.harden(make_response(page))
    else:
        response = jsonify(error.body())
        response.headers["Cache-Control"] = "no-store"
    response.status_code = error.status
    response.headers.update(error.headers)
    return response
