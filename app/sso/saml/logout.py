"""Single logout by SAML, begun here or at the identity provider (SAML profiles, section 4.4)."""

from __future__ import annotations

import binascii
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from app import db
from app.auth.devices import Origin
from app.errors import InvalidValues, NotFound
from app.sso import flows, refusals, service, sign_in
from app.sso.connections import Connection
from app.sso.models import SAML, FlowPurpose, SamlSession
from app.sso.refusals import ProviderDisabled, SignInRefused, StateRefused
from app.sso.saml import keys, logout_messages, redirect_binding, sessions

log = structlog.get_logger()
LONGEST_RELAY_STATE = 2000


@dataclass(frozen=True)
class PostedMessage:
    """A message by the HTTP-POST binding."""

    request: str = ""
    response: str = ""
    relay_state: str = ""


@dataclass(frozen=True)
class _Received:
    """A message with what verified it; an XML signature is still to be checked."""

    xml: bytes
    relay_state: str
    is_verified: bool


_Reader = Callable[[Connection], _Received]


def start(account_id: str, session_id: str, redirect_uri: str | None) -> str | None:
    """Return the identity provider's sign-out address for a session; None without single logout.

    Call it before the session ends. The browser returns to `redirect_uri`.
    """
    named = sessions.find(account_id, session_id)
    connection = _connection_of(account_id, named) if named else None
    if named is None or connection is None:
        return None
    try:
        key = keys.signing_key(account_id)
    except NotFound:  # ending the session here matters more
        return None
    started = flows.start(
        connection, FlowPurpose.LOGOUT, redirect_uri=redirect_uri, client_state=None
    )
    request = logout_messages.render_request(connection, started.flow.request_id, named)
    return redirect_binding.url(
        str(connection.config["idp_slo_url"]),
        redirect_binding.REQUEST,
        redirect_binding.encode(request),
        b64encode(started.state.encode()).decode(),
        key,
    )


def return_address(account_id: str, session_id: str, requested: str | None) -> str | None:
    """Return the address that a client application returns to, if any. Raises InvalidValues."""
    named = sessions.find(account_id, session_id)
    connection = _connection_of(account_id, named) if named else None
    if connection is None:
        return None
    try:
        return sign_in.resolve_redirect_uri(connection, requested)
    except InvalidValues:
        if requested is None:
            return None
        raise


def receive_query(provider: str, account: str | None, query: str, origin: Origin) -> str | None:
    """Answer a message by the HTTP-Redirect binding; returns where the browser goes.

    None stands for our own page. Raises SignInRefused and records the reason.
    """
    is_request = any(part.startswith(f"{redirect_binding.REQUEST}=") for part in query.split("&"))
    name = redirect_binding.REQUEST if is_request else redirect_binding.RESPONSE

    def read(connection: Connection) -> _Received:
        certificates = connection.config["idp_x509_cert"]
        message = redirect_binding.read(query, name, certificates)
        return _Received(message.xml, message.relay_state, is_verified=True)

    return _receive(provider, account, origin, is_request, read)


def receive_form(
    provider: str, account: str | None, posted: PostedMessage, origin: Origin
) -> str | None:
    """Answer a message by the HTTP-POST binding; returns where the browser goes.

    None stands for our own page. Raises SignInRefused and records the reason.
    """

    def read(connection: Connection) -> _Received:
        try:
            message = "".join((posted.request or posted.response).split())
            xml = b64decode(message, validate=True)
        except (binascii.Error, ValueError):
            raise SignInRefused("document", "The message is not valid base64.") from None
        return _Received(xml, posted.relay_state, is_verified=False)

    return _receive(provider, account, origin, bool(posted.request), read)


def _receive(
    provider: str, account_name: str | None, origin: Origin, is_request: bool, read: _Reader
) -> str | None:
    account = service.find_active_account(account_name)
    with refusals.recording(account.id if account else None, SAML, provider, origin.ip_address):
        try:
            connection = service.connection(account, SAML, provider)
        except NotFound:
            raise ProviderDisabled("provider", "The account does not offer it.") from None
        received = read(connection)
        return _end(connection, received) if is_request else _finish(connection, received)


def _end(connection: Connection, received: _Received) -> str | None:
    request = logout_messages.parse_request(
        connection, received.xml, is_verified=received.is_verified
    )
    with db.transaction() as session:
        sessions.mark_used(session, connection, f"logout {request.id}", request.expires_at)
        sessions.end(connection, request.subject, request.session_indexes)
    if not connection.config.get("idp_slo_url"):
        return None
    response = logout_messages.render_response(connection, f"_{secrets.token_hex(20)}", request.id)
    return redirect_binding.url(
        str(connection.config["idp_slo_url"]),
        redirect_binding.RESPONSE,
        redirect_binding.encode(response),
        received.relay_state[:LONGEST_RELAY_STATE],
        keys.signing_key(connection.account.id),
    )


def _finish(connection: Connection, received: _Received) -> str | None:
    response = logout_messages.parse_response(
        connection, received.xml, is_verified=received.is_verified
    )
    flow = flows.find(sign_in.decode_state(received.relay_state))
    is_logout = flow is not None and flow.purpose == FlowPurpose.LOGOUT
    if flow is None or not is_logout or flow.account_id != connection.account.id:
        raise StateRefused("state", "The sign-out was not started here.")
    if flow.request_id != response.in_response_to:
        raise SignInRefused("InResponseTo", "The response answers another request.")
    flows.consume(flow, SAML, connection.provider.name, None)
    if response.status != "Success":
        log.warning("provider did not sign out", account=flow.account_id, status=response.status)
    return flow.redirect_uri


def _connection_of(account_id: str, named: SamlSession) -> Connection | None:
    """Return the settings of a session's provider, if they still allow its single logout."""
    account = service.find_active_account(account_id)
    try:
        connection = service.connection(account, SAML, named.provider_name)
    except NotFound:
        return None
    same = connection.config["idp_entity_id"] == named.issuer
    return connection if same and connection.config.get("idp_slo_url") else None
