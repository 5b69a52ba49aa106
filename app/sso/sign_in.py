"""Signing in by a provider, from the first redirect to the one-time code (contract section 10)."""

from __future__ import annotations

import binascii
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn
from urllib.parse import urlencode, urlsplit, urlunsplit

import orjson
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app import clock, crypto, db
from app.accounts import pii, users
from app.accounts.models import Account, User
from app.accounts.tenants import UNTRUSTED_REDIRECTS
from app.auth import tokens
from app.auth.sessions import Origin
from app.errors import Conflict, InvalidValues, NotFound, problem
from app.sso import account_linking, connections, flows, refusals, service
from app.sso.connections import Connection
from app.sso.flows import StartedFlow
from app.sso.identities import Claims
from app.sso.models import API, BROWSER, CONSOLE, OAUTH, SAML, TEST, Flow, SeenAssertion
from app.sso.oauth import addresses
from app.sso.refusals import (
    Cancelled,
    MemberRefused,
    ProviderDisabled,
    SignInRefused,
    StateRefused,
    TooLarge,
)
from app.types import JSONMapping, JSONObject

Cookie = Callable[[Flow], str | None]
Keep = Callable[[Session], None]


@dataclass(frozen=True)
class OAuthCallback:
    """What came back from the provider of an OAuth sign-in."""

    provider: str
    state: str
    code: str
    error: str | None = None
    issuer: str | None = None
    user: JSONMapping = field(default_factory=dict)
    account: str | None = None  # that the host name carries
    redirect_uri: str | None = None  # where a client says that it was returned to
    path: str | None = None  # of our own address that the browser was returned to


@dataclass(frozen=True)
class SamlCallback:
    """What was posted to an assertion consumer."""

    provider: str  # empty: that of the sign-in which the relay state names
    response: str
    relay_state: str
    account: str | None = None


@dataclass(frozen=True)
class CompletedFlow:
    """A flow that came to its end: whose it is, and the code to be traded for tokens."""

    flow: Flow
    account: Account
    user: User | None
    is_new: bool
    code: str


def start(
    connection: Connection, purpose: str, *, redirect_uri: str | None, client_state: str | None
) -> tuple[str, StartedFlow]:
    """Start a flow; returns the provider's address for it. Raises InvalidValues.

    `redirect_uri` is the client application's, or for the console the page to go on to.
    """
    of_console = purpose in (CONSOLE, TEST)
    target = redirect_uri if of_console else resolve_redirect_uri(connection, redirect_uri)
    if purpose == API and client_state is None:
        client_state = secrets.token_urlsafe(24)
    state = {"redirect_uri": target, "client_state": client_state}
    if connection.provider.category == OAUTH:
        from app.sso.oauth import sign_in  # large: where it is used only

        callback_url = addresses.callback_url(connection)
        begun = flows.start(connection, purpose, callback_url=callback_url, **state)
        return sign_in.authorization_url(connection, begun), begun
    from app.sso.saml import assertions

    begun = flows.start(connection, purpose, **state)
    relay_state = b64encode(begun.state.encode()).decode()
    return assertions.authn_url(connection, begun.flow.request_id, relay_state), begun


def resolve_redirect_uri(connection: Connection, wanted: str | None) -> str:
    """Where a browser returns to: an address of the list, exactly. Raises InvalidValues."""
    settings = connection.account.settings
    allowed = [
        *settings.get("allowed_redirect_uris", ()),
        *connection.config.get("allowed_redirect_uris", ()),
    ]
    usual = settings.get("default_redirect_uri")
    if wanted is None:
        wanted = usual or next(iter(allowed), None)
    if wanted is None:
        message = "Name the address to return to; the account has no usual one."
        raise InvalidValues([problem("redirect_uri", "required", message)])
    if wanted not in allowed and wanted != usual:
        message = "This address is not on the account's list."
        raise InvalidValues([problem("redirect_uri", "invalid_option", message)])
    return wanted


def complete_oauth(came: OAuthCallback, cookie: Cookie, origin: Origin) -> CompletedFlow:
    """End an OAuth sign-in. Raises SignInRefused, which tells nothing; the refusal is kept."""
    found = flows.find(came.state)
    with refusals.recording(_account_of(found), OAUTH, came.provider, origin.ip_address):
        flow, account = _begun(found, came.account)
        check_target(flow, came)
        _check_callback(flow, came)
        flows.consume(flow, OAUTH, came.provider, cookie(flow))
        with refusals.attach_flow(flow):
            return _end_oauth(flow, account, came, cookie(flow))


def _end_oauth(
    flow: Flow, account: Account, came: OAuthCallback, cookie: str | None
) -> CompletedFlow:
    from app.sso.oauth import sign_in

    connection = _connection(account, flow)
    _check_row(flow, connection)

    def ask() -> Claims:
        if came.error:
            raise Cancelled("provider", f"It says: {came.error}")
        if came.issuer and not connection.answers_as(came.issuer):
            raise SignInRefused("issuer", f"The answer is of {came.issuer}.")
        db.db.session.remove()  # no connection is held while others think
        return sign_in.fetch_claims(connection, flow, came.code, came.user)

    return _conclude(connection, flow, cookie, ask, lambda session: None)


def complete_saml(came: SamlCallback, cookie: Cookie, origin: Origin) -> CompletedFlow:
    """End a SAML sign-in. Raises SignInRefused, which tells nothing; the refusal is kept."""
    from app.sso.saml import assertions

    flow = flows.find(_state_in(came.relay_state))
    named = service.find_active_account(came.account)
    account_id = _account_of(flow) if flow else named.id if named else None
    provider = came.provider or (flow.provider_name if flow else "")
    with refusals.recording(account_id, SAML, provider, origin.ip_address):
        if flow is None:
            connection, flow = _unasked(named, came)
            request_id = None
        else:
            _, account = _begun(flow, came.account)
            flows.consume(flow, SAML, provider, cookie(flow))
            connection, request_id = _connection(account, flow), flow.request_id
        seen: list[assertions.Assertion] = []

        def ask() -> Claims:
            seen.append(assertions.parse_response(connection, came.response, request_id))
            return seen[0].claimed

        def keep(session: Session) -> None:
            _take_once(session, connection, seen[0].id, seen[0].expires_at)

        with refusals.attach_flow(flow):
            return _conclude(connection, flow, cookie(flow), ask, keep)


def refuse_large(provider: str, account: str | None, origin: Origin) -> NoReturn:
    """Refuse a response that is too large to be read. Raises TooLarge."""
    named = service.find_active_account(account)
    with refusals.recording(named.id if named else None, SAML, provider, origin.ip_address):
        raise TooLarge("size", "The response is larger than any provider sends one.")


def with_query(address: str, values: Mapping[str, str]) -> str:
    """An address with more in its query."""
    parts = urlsplit(address)
    query = "&".join(filter(None, (parts.query, urlencode(values))))
    return urlunsplit(parts._replace(query=query))


def _conclude(
    connection: Connection, flow: Flow, cookie: str | None, ask: Callable[[], Claims], keep: Keep
) -> CompletedFlow:
    if flow.purpose == TEST:
        return _conclude_test(connection, flow, ask)
    claimed = ask()
    needs_state = flow.client_state is not None and not flows.is_of_browser(flow, cookie)
    needs_state = needs_state and flow.purpose == API
    try:
        return _conclude_once(connection, flow, claimed, keep, needs_state)
    except Conflict:  # the same person, by another sign-in at the same moment: known by now
        return _conclude_once(connection, flow, claimed, keep, needs_state)


def _conclude_once(
    verified_by: Connection, flow: Flow, claimed: Claims, keep: Keep, needs_state: bool
) -> CompletedFlow:
    with db.transaction() as session:
        # The provider took its time: what its account says now is what counts.
        account = session.get_one(Account, flow.account_id, populate_existing=True)
        connection = _connection(account, flow)
        # Settings that a member confirms meanwhile do not vouch for what others said before.
        admits = connection.admits_pii_members and verified_by.admits_pii_members
        connection = replace(connection, admits_pii_members=admits)
        keep(session)
        user, new = account_linking.link(session, connection, claimed)
        _check_return(session, flow, account, user)
        outcome: JSONObject = {"user_id": user.id, "is_new_user": new}
        if flow.purpose == CONSOLE and flow.client_state:
            # It ends at the host name where it was begun, and in the browser that has this there.
            outcome["browser_hash"] = flow.client_state.rpartition(".")[2]
        code = flows.issue_code(session, flow, account, needs_state=needs_state, **outcome)
    return CompletedFlow(flow, account, user, new, code)


def _check_return(session: Session, flow: Flow, account: Account, user: User) -> None:
    # Whoever is at the address has the code, and so the user's session.
    if (
        flow.redirect_uri in account.settings.get(UNTRUSTED_REDIRECTS, ())
        and flow.purpose != CONSOLE
    ):
        users.get_for_update(session, user.account_id, user.id)  # who lets the user in waits
        if pii.is_member(user.account_id, user.id):
            raise MemberRefused(f"Somebody outside pii_access added {flow.redirect_uri}.")


def _conclude_test(connection: Connection, flow: Flow, ask: Callable[[], Claims]) -> CompletedFlow:
    try:
        told = _told(connection, ask())
    except SignInRefused as error:
        told = {"refused": error.check, "detail": error.detail}
    outcome = crypto.encrypt(orjson.dumps(told).decode())
    with db.transaction() as session:
        code = flows.issue_code(
            session, flow, connection.account, needs_state=False, outcome=outcome
        )
    return CompletedFlow(flow, connection.account, None, False, code)


def _told(connection: Connection, claimed: Claims) -> JSONObject:
    told: JSONObject = {
        "issuer": claimed.issuer,
        "subject": claimed.subject,
        "email": claimed.email,
        "email_verified": claimed.email_verified,
        "name": claimed.name,
        "groups": claimed.groups,
    }
    try:
        match = account_linking.find(connection, claimed)
    except SignInRefused as error:
        return told | {"refused": error.check, "detail": error.detail}
    user, role = match.user, match.role
    return told | {
        "how": match.how,
        "user": user.email if user else None,
        "role": role.name if role else None,
    }


def check_target(flow: Flow, came: OAuthCallback) -> None:
    """Refuse a client that was returned to elsewhere. Raises StateRefused."""
    if came.redirect_uri is not None and came.redirect_uri != flow.redirect_uri:
        raise StateRefused("redirect_uri", "The sign-in returns to another address.")


def _check_callback(flow: Flow, came: OAuthCallback) -> None:
    """Refuse what came back to another row's address. Raises StateRefused.

    A code that was issued for that row must reach neither this one's provider nor its account.
    """
    shared = addresses.callback_path(flow.provider_name)
    path = urlsplit(flow.callback_url).path if flow.callback_url else shared
    if came.path is not None and not path.endswith(came.path):
        raise StateRefused("state", "It came back to the address of other settings.")


def _check_row(flow: Flow, connection: Connection) -> None:
    """Refuse a code that was requested with other settings. Raises SwitchedOff."""
    if flow.callback_url is None:  # begun by a former version, at the address that all rows shared
        same = not connections.has_custom_endpoints(connection.config)
    else:
        present = (connection.row_id, addresses.callback_url(connection))
        same = (flow.row_id, flow.callback_url) == present
    if not same:
        raise ProviderDisabled("provider", "Its settings were replaced since the sign-in began.")


def check_account(flow: Flow, named: str | None) -> None:
    """Refuse a sign-in of another account than the one that is named. Raises StateRefused."""
    if named is None:
        return
    account = service.find_active_account(named)
    if account is None or account.id != flow.account_id:
        raise StateRefused("state", "The sign-in belongs to another account.")


def _account_of(flow: Flow | None) -> str | None:
    return flow.account_id if flow else None


def _begun(flow: Flow | None, named: str | None) -> tuple[Flow, Account]:
    if flow is None:
        raise StateRefused("state", "Nobody began this sign-in here.")
    account = db.db.session.get_one(Account, flow.account_id)
    check_account(flow, named)
    return flow, account


def _connection(account: Account, flow: Flow) -> Connection:
    try:
        return service.connection(
            account, flow.category, flow.provider_name, tried=flow.purpose == TEST
        )
    except NotFound:
        raise ProviderDisabled("provider", "It was switched off since the sign-in began.") from None


def _unasked(named: Account | None, came: SamlCallback) -> tuple[Connection, Flow]:
    if not came.provider or named is None:
        raise StateRefused("state", "Nobody began this sign-in here.")
    try:
        connection = service.connection(named, SAML, came.provider)
    except NotFound:
        raise ProviderDisabled("provider", "The account has no such sign-in.") from None
    # What the system sets up for all would let one response into every account.
    if not (connection.is_own and connection.config.get("allow_idp_initiated")):
        raise StateRefused("unsolicited", "Nobody began this sign-in here.")
    try:
        target = resolve_redirect_uri(connection, None)
    except InvalidValues:
        raise SignInRefused("redirect_uri", "The account has no address to return to.") from None
    begun = flows.start(
        connection, BROWSER, redirect_uri=target, client_state=came.relay_state[:1000] or None
    )
    flows.consume(begun.flow, SAML, connection.provider.name, begun.browser)
    return connection, begun.flow


def _take_once(session: Session, connection: Connection, id: str, expires_at: Any) -> None:
    issuer = connection.config["idp_entity_id"]
    seen = SeenAssertion(
        account_id=connection.account.id,
        assertion_hash=tokens.digest(f"{issuer}\n{id}"),
        expires_at=max(expires_at, clock.now()),
    )
    try:
        session.add(seen)
        session.flush()
    except IntegrityError:
        raise SignInRefused("replay", "The assertion was used before.") from None


def _state_in(relay_state: str) -> str:
    try:
        return b64decode(relay_state, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
