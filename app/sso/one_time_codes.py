"""One-time codes: traded for tokens by client applications, taken by the console (contract 10)."""

from __future__ import annotations

from contextlib import AbstractContextManager

import orjson

from app import db
from app.accounts.models import User
from app.auth import service as auth
from app.auth.service import SignIn
from app.auth.sessions import Origin
from app.sso import flows, refusals, sign_in
from app.sso.models import API, BROWSER, CONSOLE, OAUTH, TEST, Flow
from app.sso.refusals import StateRefused
from app.sso.sign_in import Cookie, OAuthCallback
from app.types import JSONObject


def exchange(
    code: str, state: str | None, origin: Origin, account: str | None = None
) -> tuple[SignIn, Flow]:
    """Trade a one-time code of the account, if one is named, for tokens. Raises StateRefused."""
    flow = flows.find_code(code)
    with _noted(flow, origin):
        if flow is not None:
            sign_in.check_account(flow, account)
        return _trade(flow, state, origin)


def end_for_client(came: OAuthCallback, cookie: Cookie, origin: Origin) -> tuple[SignIn, Flow]:
    """Sign in a client that was returned with a code: ours, or still the provider's."""
    flow = flows.find_code(came.code)
    if flow is None:
        ended = sign_in.complete_oauth(came, cookie, origin)
        return exchange(ended.code, ended.flow.client_state, origin)
    with _noted(flow, origin):
        if flow.provider_name != came.provider or came.state != flow.client_state:
            raise StateRefused("state", "The code is of another sign-in.")
        sign_in.check_account(flow, came.account)
        sign_in.check_target(flow, came)
        return _trade(flow, came.state, origin)


def redeem_in_console(code: str, cookie: Cookie, origin: Origin) -> tuple[Flow, User | None]:
    """What a sign-in of the console came to, in the browser that began it. Raises StateRefused."""
    flow = flows.find_code(code)
    with _noted(flow, origin):
        if flow is None or flow.purpose not in (CONSOLE, TEST):
            raise StateRefused("code", "There is no such one-time code.")
        if not flows.is_of_browser(flow, cookie(flow)):
            raise StateRefused("state", "The sign-in was begun in another browser.")
        if flow.purpose == TEST:
            flows.redeem(flow)
            return flow, None
        return flow, _redeemed(flow)


def test_result(flow: Flow) -> JSONObject:
    """What a test came to."""
    found: JSONObject = orjson.loads(flows.decrypt(flow.outcome)) if flow.outcome else {}
    return found


def _trade(flow: Flow | None, state: str | None, origin: Origin) -> tuple[SignIn, Flow]:
    if flow is None or flow.purpose not in (BROWSER, API):
        raise StateRefused("code", "There is no such one-time code.")
    if flow.code_needs_state and state != flow.client_state:
        raise StateRefused("state", "The client does not know its state.")
    return auth.sign_in(_redeemed(flow), origin), flow


def _noted(flow: Flow | None, origin: Origin) -> AbstractContextManager[None]:
    if flow is None:
        return refusals.recording(None, OAUTH, "", origin.ip_address)
    return refusals.recording(flow.account_id, flow.category, flow.provider_name, origin.ip_address)


def _redeemed(flow: Flow) -> User:
    # Read while the code is good: a session begins for the user as of then, or not at all.
    with db.transaction():
        user = _user_of(flow)
        flows.redeem(flow)
        return user


def _user_of(flow: Flow) -> User:
    user = db.db.session.get(User, (flow.account_id, flow.user_id or ""))
    if user is None or not user.may_sign_in:
        raise StateRefused("user", "The user is not active.")
    return user
