"""Single logout by SAML, begun here or at the identity provider (SAML profiles, section 4.4)."""

from __future__ import annotations

import binascii
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from lxml import etree
from onelogin.saml2.constants import OneLogin_Saml2_Constants as Names
from onelogin.saml2.utils import OneLogin_Saml2_Utils
from onelogin.saml2.xml_utils import OneLogin_Saml2_XML

from app import clock, db
from app.auth.devices import Origin
from app.errors import InvalidValues, NotFound
from app.sso import connections, flows, refusals, service, sign_in
from app.sso.connections import Connection
from app.sso.models import SAML, FlowPurpose, SamlSession
from app.sso.refusals import ProviderDisabled, SignInRefused, StateRefused
from app.sso.saml import checks, keys, redirect_binding, sessions

log = structlog.get_logger()
LONGEST_RELAY_STATE = 2000
LIFETIME = timedelta(minutes=5)
CLOCK_DRIFT = checks.LEEWAY
MAX_SESSION_INDEXES = 100
NAMESPACES = {"samlp": Names.NS_SAMLP, "saml": Names.NS_SAML}
TAGS = {
    redirect_binding.REQUEST: f"{{{Names.NS_SAMLP}}}LogoutRequest",
    redirect_binding.RESPONSE: f"{{{Names.NS_SAMLP}}}LogoutResponse",
}


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
    request = render_request(connection, started.flow.request_id, named)
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
    request = parse_request(connection, received.xml, is_verified=received.is_verified)
    with db.transaction() as session:
        sessions.mark_used(session, connection, f"logout {request.id}", request.expires_at)
        sessions.end(connection, request.subject, request.session_indexes)
    if not connection.config.get("idp_slo_url"):
        return None
    response = render_response(connection, f"_{secrets.token_hex(20)}", request.id)
    return redirect_binding.url(
        str(connection.config["idp_slo_url"]),
        redirect_binding.RESPONSE,
        redirect_binding.encode(response),
        received.relay_state[:LONGEST_RELAY_STATE],
        keys.signing_key(connection.account.id),
    )


def _finish(connection: Connection, received: _Received) -> str | None:
    response = parse_response(connection, received.xml, is_verified=received.is_verified)
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


@dataclass(frozen=True)
class LogoutRequest:
    """A valid request of an identity provider to end sessions."""

    id: str
    expires_at: datetime
    subject: str
    session_indexes: tuple[str, ...]


@dataclass(frozen=True)
class LogoutResponse:
    """A valid response of an identity provider to our request."""

    in_response_to: str
    status: str


def render_request(connection: Connection, id: str, named: SamlSession) -> bytes:
    """Return our request to end a session, as XML."""
    root = _message(connection, redirect_binding.REQUEST, id)
    root.set("NotOnOrAfter", _timestamp(clock.now() + LIFETIME))
    name = etree.SubElement(root, checks.tag("NameID"))
    for attribute, value in (
        ("Format", named.name_format),
        ("NameQualifier", named.name_qualifier),
        ("SPNameQualifier", named.sp_name_qualifier),
    ):
        if value:
            name.set(attribute, value)
    name.text = named.subject
    if named.session_index:
        etree.SubElement(root, _samlp("SessionIndex")).text = named.session_index
    return _bytes(root)


def render_response(connection: Connection, id: str, in_response_to: str) -> bytes:
    """Return our response that sessions have ended, as XML."""
    root = _message(connection, redirect_binding.RESPONSE, id)
    root.set("InResponseTo", in_response_to)
    status = etree.SubElement(root, _samlp("Status"))
    etree.SubElement(status, _samlp("StatusCode"), Value=Names.STATUS_SUCCESS)
    return _bytes(root)


def parse_request(connection: Connection, xml: bytes, *, is_verified: bool) -> LogoutRequest:
    """Validate a request; without `is_verified`, by its XML signature. Raises SignInRefused."""
    root = _checked(connection, redirect_binding.REQUEST, xml, is_verified)
    names = root.findall(checks.tag("NameID"))
    if root.find(checks.tag("EncryptedID")) is not None:
        raise SignInRefused("encryption", "The logout request has an EncryptedID.")
    if len(names) != 1 or not (names[0].text or "").strip():
        raise SignInRefused("subject", "The logout request must have one NameID.")
    indexes = [(one.text or "").strip() for one in root.findall(_samlp("SessionIndex"))]
    if len(indexes) > MAX_SESSION_INDEXES:
        raise SignInRefused("document", f"More than {MAX_SESSION_INDEXES} session indexes.")
    return LogoutRequest(root.get("ID"), _expiry(root), names[0].text.strip(), tuple(indexes))


def parse_response(connection: Connection, xml: bytes, *, is_verified: bool) -> LogoutResponse:
    """Validate a response; without `is_verified`, by its XML signature. Raises SignInRefused."""
    root = _checked(connection, redirect_binding.RESPONSE, xml, is_verified)
    codes = root.findall(f"{_samlp('Status')}/{_samlp('StatusCode')}")
    status = codes[0].get("Value", "") if codes else ""
    return LogoutResponse(root.get("InResponseTo", ""), status.rpartition(":")[2])


def _checked(connection: Connection, kind: str, xml: bytes, is_verified: bool) -> Any:
    """Parse a message, and check its signature, issuer, destination and times."""
    try:
        xml = checks.sanitize(xml, redirect_binding.LONGEST_MESSAGE)
        root = OneLogin_Saml2_XML.to_etree(xml)
    except checks.UnsafeXml as error:
        raise SignInRefused("document", str(error)) from None
    except (etree.XMLSyntaxError, ValueError):
        raise SignInRefused("document", "The message is not valid XML.") from None
    ids = root.xpath("//@ID")
    if root.tag != TAGS[kind] or root.get("Version") != "2.0" or not root.get("ID"):
        raise SignInRefused("document", "Not a message of single logout.")
    if len(ids) != len(set(ids)):
        raise SignInRefused("signature", "The document has duplicate ids.")
    if not is_verified:
        _verify_signature(connection, root, xml)
    issuers = [(one.text or "").strip() for one in root.findall(checks.tag("Issuer"))]
    if issuers != [connection.config["idp_entity_id"]]:
        raise SignInRefused("issuer", f"The issuer is {', '.join(issuers) or 'missing'}.")
    destination = root.get("Destination")
    if destination != connections.saml_logout_url(connection):
        raise SignInRefused("destination", f"The destination is {destination or 'missing'}.")
    issued_at, now = checks.parse_time(root.get("IssueInstant", "")), clock.now()
    if not now - LIFETIME - CLOCK_DRIFT <= issued_at <= now + CLOCK_DRIFT or _expiry(root) <= now:
        raise SignInRefused("time", "The message is expired or not yet valid.")
    return root


def _expiry(root: Any) -> datetime:
    # Its age is limited, too: nothing has to be remembered for longer.
    latest = checks.parse_time(root.get("IssueInstant", "")) + LIFETIME + 2 * CLOCK_DRIFT
    ends = root.get("NotOnOrAfter")
    # In this order: some providers send the maximum date for no expiry.
    return min(latest - CLOCK_DRIFT, checks.parse_time(ends)) + CLOCK_DRIFT if ends else latest


def _verify_signature(connection: Connection, root: Any, xml: bytes) -> None:
    signatures = list(root.iter(checks.ds("Signature")))
    if len(signatures) != 1 or signatures[0].getparent() is not root:
        raise SignInRefused("signature", "The message is not signed.")
    checks.check_signature(signatures[0])
    (reference,) = signatures[0].iter(checks.ds("Reference"))
    if reference.get("URI") != f"#{root.get('ID')}":
        raise SignInRefused("signature", "The signature does not cover the message.")
    trusted = [OneLogin_Saml2_Utils.format_cert(one) for one in connection.config["idp_x509_cert"]]
    path = f"/samlp:{etree.QName(root).localname}/ds:Signature"
    if not OneLogin_Saml2_Utils.validate_sign(xml, multicerts=trusted, xpath=path):
        raise SignInRefused("signature", "No certificate of the settings verifies the signature.")


def _message(connection: Connection, kind: str, id: str) -> Any:
    root = etree.Element(
        TAGS[kind],
        nsmap=NAMESPACES,
        ID=id,
        Version="2.0",
        IssueInstant=_timestamp(clock.now()),
        Destination=str(connection.config["idp_slo_url"]),
    )
    etree.SubElement(root, checks.tag("Issuer")).text = connections.saml_entity_id(connection)
    return root


def _timestamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _samlp(name: str) -> str:
    return f"{{{Names.NS_SAMLP}}}{name}"


def _bytes(root: Any) -> bytes:
    xml: bytes = etree.tostring(root)
    return xml
