"""Messages of SAML's single logout: ours, and the checked ones of identity providers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lxml import etree
from onelogin.saml2.constants import OneLogin_Saml2_Constants as Names
from onelogin.saml2.utils import OneLogin_Saml2_Utils
from onelogin.saml2.xml_utils import OneLogin_Saml2_XML

from app import clock
from app.sso import connections
from app.sso.connections import Connection
from app.sso.models import SamlSession
from app.sso.refusals import SignInRefused
from app.sso.saml import checks, redirect_binding

LIFETIME = timedelta(minutes=5)
CLOCK_DRIFT = checks.LEEWAY
MAX_SESSION_INDEXES = 100
NAMESPACES = {"samlp": Names.NS_SAMLP, "saml": Names.NS_SAML}
TAGS = {
    redirect_binding.REQUEST: f"{{{Names.NS_SAMLP}}}LogoutRequest",
    redirect_binding.RESPONSE: f"{{{Names.NS_SAMLP}}}LogoutResponse",
}


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
