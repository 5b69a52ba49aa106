"""Sign-in with a provider, from the first redirect to the one-time code."""

from __future__ import annotations

import binascii
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NoReturn
from urllib.parse import urlsplit

import orjson
from sqlalchemy.orm import Session

from app import crypto, db
from app.accounts import pii, users
from app.accounts.models import Account, User
from app.accounts.tenants import UNTRUSTED_REDIRECTS
from app.auth.devices import Origin
from app.errors import Conflict, InvalidValues, NotFound, problem
from app.sso import account_linking, connections, flows, refusals, service
from app.sso.connections import Claims, Connection
from app.sso.flows import StartedFlow
from app.sso.models import OAUTH, SAML, Flow, FlowPurpose
from app.sso.oauth import discovery, exchange
from app.sso.refusals import (
    Cancelled,
    MemberRefused,
    ProviderDisabled,
    SignInRefused,
    StateRefused,
    TooLarge,
)
from app.sso.saml import sessions
from app.types import JSONMapping, JSONObject

Cookie = Callable[[Flow], str | None]
AfterClaims = Callable[[Session], None]


@dataclass(frozen=True)
class OAuthCallback:
    provider: str
    state: str
    code: str
    error: str | None = None
    issuer: str | None = None
    user: JSONMapping = field(default_factory=dict)
    account: str | None = None  # from the host name
    redirect_uri: str | None = None  # as the client reports it
    path: str | None = None  # of our callback


@dataclass(frozen=True)
class SamlCallback:
    """A POST to the assertion consumer."""

    provider: str  # empty: determined by the relay state
    response: str
    relay_state: str
    account: str | None = None


@dataclass(frozen=True)
class CompletedFlow:
    """A completed flow with its user and one-time code."""

    flow: Flow
    account: Account
    user: User | None
    is_new: bool
    code: str


def start(
    connection: Connection,
    purpose: FlowPurpose,
    *,
    redirect_uri: str | None,
    client_state: str | None,
) -> tuple[str, StartedFlow]:
    """Start a flow; returns the provider's address for it. Raises InvalidValues.

    `redirect_uri` is the client application's, or for the console the page to show.
    """
    is_console = purpose in (FlowPurpose.CONSOLE, FlowPurpose.TEST)
    target = redirect_uri if is_console else resolve_redirect_uri(connection, redirect_uri)
    if purpose == FlowPurpose.API and client_state is None:
        client_state = secrets.token_urlsafe(24)
    state = {"redirect_uri": target, "client_state": client_state}
    if connection.provider.category == OAUTH:
        from app.sso.oauth import sign_in  # imported on use: large

        callback_url = connections.callback_url(connection)
        started = flows.start(connection, purpose, callback_url=callback_url, **state)
        try:
            # A test shows what the issuer publishes now.
            discovered = discovery.resolve(connection, fresh=purpose == FlowPurpose.TEST)
        except SignInRefused as error:  # no fault of the visitor, so it counts for no limit
            flow = error.flow = started.flow
            refusals.record(flow.account_id, flow.category, flow.provider_name, error)
            raise
        return sign_in.authorization_url(discovered, started), started
    from app.sso.saml import assertions

    started = flows.start(connection, purpose, **state)
    relay_state = b64encode(started.state.encode()).decode()
    return assertions.authn_url(connection, started.flow.request_id, relay_state), started


def resolve_redirect_uri(connection: Connection, requested: str | None) -> str:
    """Return an address if it is on the account's list, or the default. Raises InvalidValues."""
    settings = connection.account.settings
    allowed = [
        *settings.get("allowed_redirect_uris", ()),
        *connection.config.get("allowed_redirect_uris", ()),
    ]
    default = settings.get("default_redirect_uri")
    if requested is None:
        requested = default or next(iter(allowed), None)
    if requested is None:
        message = "Send the address to return to; the account has no default."
        raise InvalidValues([problem("redirect_uri", "required", message)])
    if requested not in allowed and requested != default:
        message = "This address is not on the account's list."
        raise InvalidValues([problem("redirect_uri", "invalid_option", message)])
    return requested


def complete_oauth(callback: OAuthCallback, cookie: Cookie, origin: Origin) -> CompletedFlow:
    """Complete an OAuth sign-in. Raises SignInRefused and records the reason."""
    flow_or_none = flows.find(callback.state)
    with refusals.recording(_account_id(flow_or_none), OAUTH, callback.provider, origin.ip_address):
        flow, account = _require_started(flow_or_none, callback.account)
        check_target(flow, callback)
        _check_callback(flow, callback)
        flows.consume(flow, OAUTH, callback.provider, cookie(flow))
        with refusals.attach_flow(flow):
            connection = _connection(account, flow)
            _check_row(flow, connection)

            def fetch() -> Claims:
                from app.sso.oauth import sign_in

                if callback.error:
                    detail = f"The provider returned the error {callback.error}"
                    raise Cancelled("provider", detail, callback.error)
                db.db.session.remove()  # hold no connection during requests
                with exchange.place(connection):
                    discovered = discovery.resolve(connection)
                    # A response of another issuer is refused (RFC 9207).
                    if callback.issuer is None and discovered.metadata.sends_issuer:
                        raise SignInRefused("issuer", "The response does not name its issuer.")
                    if callback.issuer and not discovered.answers_as(callback.issuer):
                        raise SignInRefused("issuer", f"The response is from {callback.issuer}.")
                    return sign_in.fetch_claims(discovered, flow, callback.code, callback.user)

            return _conclude(connection, flow, cookie(flow), fetch, lambda session: None)


def complete_saml(callback: SamlCallback, cookie: Cookie, origin: Origin) -> CompletedFlow:
    """Complete a SAML sign-in. Raises SignInRefused and records the reason."""
    from app.sso.saml import assertions

    flow = flows.find(decode_state(callback.relay_state))
    account_or_none = service.find_active_account(callback.account)
    account_id = _account_id(flow) if flow else account_or_none.id if account_or_none else None
    provider = callback.provider or (flow.provider_name if flow else "")
    with refusals.recording(account_id, SAML, provider, origin.ip_address):
        if flow is None:
            connection, flow = _start_unsolicited(account_or_none, callback)
            request_id = None
        else:
            _, account = _require_started(flow, callback.account)
            flows.consume(flow, SAML, provider, cookie(flow))
            connection, request_id = _connection(account, flow), flow.request_id
        parsed: list[assertions.Assertion] = []

        def fetch() -> Claims:
            parsed.append(assertions.parse_response(connection, callback.response, request_id))
            return parsed[0].claimed

        def mark_used(session: Session) -> None:
            sessions.mark_used(session, connection, parsed[0].id, parsed[0].expires_at)
            sessions.record(session, connection, flow, parsed[0])

        with refusals.attach_flow(flow):
            return _conclude(connection, flow, cookie(flow), fetch, mark_used)


def refuse_large(provider: str, account: str | None, origin: Origin) -> NoReturn:
    """Refuse a response that is too large to read. Raises TooLarge."""
    account_or_none = service.find_active_account(account)
    with refusals.recording(
        account_or_none.id if account_or_none else None, SAML, provider, origin.ip_address
    ):
        raise TooLarge("size", "The response is too large.")


def _conclude(
    connection: Connection,
    flow: Flow,
    cookie: str | None,
    fetch: Callable[[], Claims],
    on_commit: AfterClaims,
) -> CompletedFlow:
    if flow.purpose == FlowPurpose.TEST:
        return _conclude_test(connection, flow, fetch)
    claimed = fetch()
    needs_state = flow.client_state is not None and not flows.is_from_browser(flow, cookie)
    needs_state = needs_state and flow.purpose == FlowPurpose.API
    try:
        return _conclude_once(connection, flow, claimed, on_commit, needs_state)
    except Conflict:  # a concurrent sign-in of the same user: a retry finds it
        return _conclude_once(connection, flow, claimed, on_commit, needs_state)


def _conclude_once(
    verified_by: Connection, flow: Flow, claimed: Claims, on_commit: AfterClaims, needs_state: bool
) -> CompletedFlow:
    with db.transaction() as session:
        # The request to the provider took time: use the account's current state.
        account = session.get_one(Account, flow.account_id, populate_existing=True)
        connection = _connection(account, flow)
        # A confirmation during the request does not apply to claims fetched before.
        admits = connection.admits_pii_members and verified_by.admits_pii_members
        connection = replace(connection, admits_pii_members=admits)
        on_commit(session)
        user, new = account_linking.link(session, connection, claimed)
        untrusted = account.settings.get(UNTRUSTED_REDIRECTS, ())
        if flow.redirect_uri in untrusted and flow.purpose != FlowPurpose.CONSOLE:
            # Whoever controls the address gets the code, and with it the user's session. The lock
            # serializes with joining pii_access.
            users.get_for_update(session, user.account_id, user.id)
            if pii.is_member(user.account_id, user.id):
                raise MemberRefused(f"Someone outside pii_access added {flow.redirect_uri}.")
        outcome: JSONObject = {"user_id": user.id, "is_new_user": new, "mfa": claimed.mfa}
        code = flows.issue_code(session, flow, account, needs_state=needs_state, **outcome)
    return CompletedFlow(flow, account, user, new, code)


def _conclude_test(
    connection: Connection, flow: Flow, fetch: Callable[[], Claims]
) -> CompletedFlow:
    result: JSONObject = {}
    try:
        claimed = fetch()
        result = {
            "issuer": claimed.issuer,
            "subject": claimed.subject,
            "email": claimed.email,
            "email_verified": claimed.email_verified,
            "name": claimed.name,
            "groups": claimed.groups,
            "mfa": claimed.mfa,
        }
        match = account_linking.find(connection, claimed)
        result |= {
            "how": match.how,
            "user": match.user.email if match.user else None,
            "role": match.role.name if match.role else None,
        }
    except SignInRefused as error:
        result |= {"refused": error.check, "detail": error.detail}
    outcome = crypto.encrypt(orjson.dumps(result).decode())
    with db.transaction() as session:
        code = flows.issue_code(
            session, flow, connection.account, needs_state=False, outcome=outcome
        )
    return CompletedFlow(flow, connection.account, None, False, code)


def check_target(flow: Flow, callback: OAuthCallback) -> None:
    """Refuse a client with another redirect address. Raises StateRefused."""
    if callback.redirect_uri is not None and callback.redirect_uri != flow.redirect_uri:
        raise StateRefused("redirect_uri", "The redirect address differs from that of the sign-in.")


def _check_callback(flow: Flow, callback: OAuthCallback) -> None:
    """Refuse a callback to the address of other settings. Raises StateRefused.

    A code issued for those settings must not reach this provider or account (mix-up attack).
    """
    shared = connections.callback_path(flow.provider_name)
    path = urlsplit(flow.callback_url).path if flow.callback_url else shared
    if callback.path is not None and not path.endswith(callback.path):
        raise StateRefused("state", "The callback used the address of other settings.")


def _check_row(flow: Flow, connection: Connection) -> None:
    """Refuse a code that was requested with other settings. Raises ProviderDisabled."""
    if flow.callback_url is None:  # started by an older version, at the shared address
        same = not connections.has_custom_endpoints(connection.config)
    else:
        current = (connection.row_id, connections.callback_url(connection))
        same = (flow.row_id, flow.callback_url) == current
    if not same:
        raise ProviderDisabled("provider", "The settings were replaced during the sign-in.")


def check_account(flow: Flow, reference: str | None) -> None:
    """Refuse a sign-in to another account than the requested one. Raises StateRefused."""
    if reference is None:
        return
    account = service.find_active_account(reference)
    if account is None or account.id != flow.account_id:
        raise StateRefused("state", "The sign-in belongs to another account.")


def _account_id(flow: Flow | None) -> str | None:
    return flow.account_id if flow else None


def _require_started(flow: Flow | None, reference: str | None) -> tuple[Flow, Account]:
    if flow is None or flow.purpose == FlowPurpose.LOGOUT:
        raise StateRefused("state", "The sign-in was not started here.")
    account = db.db.session.get_one(Account, flow.account_id)
    check_account(flow, reference)
    return flow, account


def _connection(account: Account, flow: Flow) -> Connection:
    try:
        return service.connection(
            account,
            flow.category,
            flow.provider_name,
            include_disabled=flow.purpose == FlowPurpose.TEST,
        )
    except NotFound:
        raise ProviderDisabled(
            "provider", "The provider was disabled during the sign-in."
        ) from None


def _start_unsolicited(
    account_or_none: Account | None, callback: SamlCallback
) -> tuple[Connection, Flow]:
    if not callback.provider or account_or_none is None:
        raise StateRefused("state", "The sign-in was not started here.")
    try:
        connection = service.connection(account_or_none, SAML, callback.provider)
    except NotFound:
        raise ProviderDisabled("provider", "The account does not offer this sign-in.") from None
    # With the system's settings, one response would be valid for every account.
    if not (connection.is_own and connection.config.get("allow_idp_initiated")):
        raise StateRefused("unsolicited", "The sign-in was not started here.")
    try:
        target = resolve_redirect_uri(connection, None)
    except InvalidValues:
        raise SignInRefused("redirect_uri", "The account has no redirect address.") from None
    started = flows.start(
        connection,
        FlowPurpose.BROWSER,
        redirect_uri=target,
        client_state=callback.relay_state[:1000] or None,
    )
    flows.consume(started.flow, SAML, connection.provider.name, started.browser)
    return connection, started.flow


def decode_state(relay_state: str) -> str:
    """Decode the state of a flow in a relay state; empty if it is not one of ours."""
    try:
        return b64decode(relay_state, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
