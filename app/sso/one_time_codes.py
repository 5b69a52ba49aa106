"""One-time codes, which client applications and the console exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import orjson

from app import db
from app.accounts.models import User
from app.auth import service as auth
from app.auth import tokens
from app.auth.devices import Origin
from app.auth.mfa import challenges
from app.auth.mfa.gate import EnrolmentRequired, MfaRequired, Proof
from app.auth.service import SignIn
from app.sso import flows, refusals, sign_in
from app.sso.models import OAUTH, SAML, Flow, FlowPurpose, ProviderSetting
from app.sso.refusals import StateRefused
from app.sso.saml import sessions as saml_sessions
from app.sso.sign_in import Cookie, OAuthCallback
from app.types import JSONObject


def exchange(
    code: str, state: str | None, origin: Origin, account: str | None = None
) -> tuple[SignIn, Flow]:
    """Exchange a one-time code for tokens; checks the account if given. Raises StateRefused."""
    flow = flows.find_code(code)
    with _recording(flow, origin):
        if flow is not None:
            sign_in.check_account(flow, account)
        return _trade(flow, state, origin)


def end_for_client(callback: OAuthCallback, cookie: Cookie, origin: Origin) -> tuple[SignIn, Flow]:
    """Complete a client's sign-in with our one-time code or the provider's code."""
    flow = flows.find_code(callback.code)
    if flow is None:
        completed = sign_in.complete_oauth(callback, cookie, origin)
        return exchange(completed.code, completed.flow.client_state, origin)
    with _recording(flow, origin):
        if flow.provider_name != callback.provider or callback.state != flow.client_state:
            raise StateRefused("state", "The code belongs to another sign-in.")
        sign_in.check_account(flow, callback.account)
        sign_in.check_target(flow, callback)
        return _trade(flow, callback.state, origin)


def redeem_in_console(
    code: str, may_finish: Callable[[Flow], bool], origin: Origin
) -> tuple[Flow, User | None]:
    """Redeem the code of a console sign-in in the browser that started it. Raises StateRefused."""
    flow = flows.find_code(code)
    with _recording(flow, origin):
        if flow is None or flow.purpose not in (FlowPurpose.CONSOLE, FlowPurpose.TEST):
            raise StateRefused("code", "There is no such one-time code.")
        if not may_finish(flow):
            raise StateRefused("state", "The sign-in was started in another browser.")
        if flow.purpose == FlowPurpose.TEST:
            flows.redeem(flow)
            return flow, None
        return flow, _redeem(flow)


def test_result(flow: Flow) -> JSONObject:
    """Return the result of a test sign-in."""
    result: JSONObject = orjson.loads(flows.decrypt(flow.outcome)) if flow.outcome else {}
    return result


def _trade(flow: Flow | None, state: str | None, origin: Origin) -> tuple[SignIn, Flow]:
    if flow is None or flow.purpose not in (FlowPurpose.BROWSER, FlowPurpose.API):
        raise StateRefused("code", "There is no such one-time code.")
    if flow.code_needs_state and state != flow.client_state:
        raise StateRefused("state", "The client sent the wrong state.")
    user = _redeem(flow)
    with attaching_challenge(flow):
        signed_in = auth.sign_in(user, origin, proof_of(flow))
    session_id = tokens.read(signed_in.refresh_token, tokens.REFRESH)["sid"]
    attach_session(flow, signed_in.user.id, session_id)
    return signed_in, flow


def attach_session(flow: Flow, user_id: str, session_id: str) -> None:
    """Let single logout find the session of a SAML sign-in. Raises StateRefused if it ended."""
    if flow.category == SAML:
        saml_sessions.attach(flow, user_id, session_id)


@contextmanager
def attaching_challenge(flow: Flow | None) -> Iterator[None]:
    """Attach the challenge if a second factor has yet to start the session of a SAML sign-in."""
    try:
        yield
    except (MfaRequired, EnrolmentRequired) as error:
        if flow is not None and flow.category == SAML:
            steps = (challenges.SIGN_IN, challenges.ENROLMENT)
            challenge = challenges.read(error.extra["mfa_token"], *steps)
            saml_sessions.attach_challenge(flow, challenge.id)
        raise


def proof_of(flow: Flow) -> Proof:
    """Return the proof of identity by a provider: one of the account sets its own policy."""
    key = (flow.account_id, flow.row_id or "")
    is_own = db.db.session.get(ProviderSetting, key) is not None
    if not is_own:
        return Proof.PROVIDER
    return Proof.OWN_PROVIDER_MFA if flow.mfa else Proof.OWN_PROVIDER


def _recording(flow: Flow | None, origin: Origin) -> AbstractContextManager[None]:
    if flow is None:
        return refusals.recording(None, OAUTH, "", origin.ip_address)
    return refusals.recording(flow.account_id, flow.category, flow.provider_name, origin.ip_address)


def _redeem(flow: Flow) -> User:
    # In one transaction, so that the user cannot change between the check and the code's use.
    with db.transaction():
        user = db.db.session.get(User, (flow.account_id, flow.user_id or ""))
        if user is None or not user.may_sign_in:
            raise StateRefused("user", "The user is not active.")
        flows.redeem(flow)
        return user
