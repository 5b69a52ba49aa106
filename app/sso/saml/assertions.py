"""Sign-in with SAML 2.0, by python3-saml with stricter checks.

The library checks schema, signatures, issuer, audience and times; `checks` adds what it leaves
open, and `sanitize` refuses documents that no parser should see.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from onelogin.saml2.authn_request import OneLogin_Saml2_Authn_Request
from onelogin.saml2.constants import OneLogin_Saml2_Constants as Names
from onelogin.saml2.errors import OneLogin_Saml2_ValidationError
from onelogin.saml2.response import OneLogin_Saml2_Response
from onelogin.saml2.settings import OneLogin_Saml2_Settings
from onelogin.saml2.utils import OneLogin_Saml2_Utils

from app.sso import connections
from app.sso.connections import Claims, Connection, group_names
from app.sso.providers import NAME_ID_FORMATS
from app.sso.refusals import Cancelled, SignInRefused
from app.sso.saml import certificates, checks, encryption, keys, redirect_binding
from app.types import JSONMapping, JSONObject

LONGEST_RESPONSE = 256 * 1024
# Safe on raw XML: text and attributes contain no bare `<`, and comments were refused before.
ENCRYPTED = re.compile(rb"<(?:[^\s<>/:]{1,100}:)?Encrypted(Assertion|ID|Attribute)[\s/>]")
PARTS = "Atrium decrypts whole assertions only: encrypt those at the identity provider, or nothing."
STATUS = "urn:oasis:names:tc:SAML:2.0:status:"
CANCELLED = {f"{STATUS}{name}" for name in ("AuthnFailed", "RequestDenied", "NoPassive")}
MULTIPLE_FACTORS = {
    "https://refeds.org/profile/mfa",
    "http://schemas.microsoft.com/claims/multipleauthn",
    "urn:oasis:names:tc:SAML:2.0:ac:classes:MobileTwoFactorContract",
}
LAST = datetime.max.replace(tzinfo=UTC) - checks.LEEWAY
TRANSIENT = "urn:oasis:names:tc:SAML:2.0:nameid-format:transient"
CLAIMS = "http://schemas.xmlsoap.org/ws/2005/05/identity/claims/"
MICROSOFT = "http://schemas.microsoft.com/identity/claims/"
EMAILS = (
    *("email", "mail", "Email", "emailaddress", "emailAddress", "user.email"),
    *(f"{CLAIMS}emailaddress", "urn:oid:0.9.2342.19200300.100.1.3"),
)
NAMES = (
    *("displayName", "displayname", f"{MICROSOFT}displayname", "urn:oid:2.16.840.1.113730.3.1.241"),
    *("name", "cn", "urn:oid:2.5.4.3", f"{CLAIMS}name"),
)
FIRST_NAMES = ("givenName", "givenname", "firstName", "urn:oid:2.5.4.42", f"{CLAIMS}givenname")
SURNAMES = ("sn", "surname", "lastName", "urn:oid:2.5.4.4", f"{CLAIMS}surname")
GROUPS = ("groups", "memberOf", "http://schemas.microsoft.com/ws/2008/06/identity/claims/groups")
Error = OneLogin_Saml2_ValidationError
CHECKS = {
    Error.WRONG_AUDIENCE: "audience",
    Error.WRONG_ISSUER: "issuer",
    Error.ISSUER_MULTIPLE_IN_RESPONSE: "issuer",
    Error.ISSUER_NOT_FOUND_IN_ASSERTION: "issuer",
    Error.WRONG_DESTINATION: "destination",
    Error.EMPTY_DESTINATION: "destination",
    Error.WRONG_INRESPONSETO: "InResponseTo",
    Error.ASSERTION_TOO_EARLY: "time",
    Error.ASSERTION_EXPIRED: "time",
    Error.SESSION_EXPIRED: "time",
    Error.WRONG_SUBJECTCONFIRMATION: "recipient",
    Error.STATUS_CODE_IS_NOT_SUCCESS: "status",
    Error.INVALID_XML_FORMAT: "document",
    Error.MISSING_CONDITIONS: "time",
    Error.DEPRECATED_SIGNATURE_METHOD: "algorithm",
    Error.DEPRECATED_DIGEST_METHOD: "algorithm",
    Error.ENCRYPTED_ATTRIBUTES: "encryption",
    Error.NO_NAMEID: "subject",
    Error.EMPTY_NAMEID: "subject",
}


@dataclass(frozen=True)
class NameID:
    """The NameID of a user, by which the identity provider's single logout names it."""

    value: str
    format: str | None
    qualifier: str | None
    sp_qualifier: str | None


@dataclass(frozen=True)
class Assertion:
    """A valid assertion: claims, id, and until when it could be replayed."""

    claimed: Claims
    id: str
    expires_at: datetime
    name: NameID
    session_index: str | None


def authn_url(connection: Connection, request_id: str, relay_state: str) -> str:
    """Return the identity provider's sign-in URL for a request."""
    request = _Request(_settings(connection, for_xml=True), request_id)
    key = keys.signing_key(connection.account.id) if connection.signs_requests else None
    return redirect_binding.url(
        str(connection.config["idp_sso_url"]),
        redirect_binding.REQUEST,
        request.get_request(),
        relay_state,
        key,
    )


def parse_response(connection: Connection, response: str, request_id: str | None) -> Assertion:
    """Validate a response to a request. Raises SignInRefused with the check."""
    raw, settings = _document(response), _settings(connection)
    private_keys = keys.decryption_keys(connection.account.id) if ENCRYPTED.search(raw) else []
    consumer_url = connections.saml_consumer_url(connection)
    parsed: Any = None
    try:
        if b"Assertion" in ENCRYPTED.findall(raw):
            trusted = connection.config["idp_x509_cert"]
            raw = encryption.decrypt(raw, private_keys, trusted, LONGEST_RESPONSE)
        if encrypted := ENCRYPTED.search(raw):
            kind = encrypted[1].decode()
            raise SignInRefused("encryption", f"The response contains an Encrypted{kind}. {PARTS}")
        parsed = _Response(settings, OneLogin_Saml2_Utils.b64encode(raw))
        checks.check_destination(parsed, consumer_url, request_id)
        # Of settings, never of the request.
        parts = urlsplit(consumer_url)
        request_data: JSONObject = {
            "https": "on" if parts.scheme == "https" else "off",
            "http_host": parts.netloc,
            "script_name": parts.path,
            "get_data": {},
            "post_data": {},
        }
        parsed.is_valid(request_data, request_id, raise_exceptions=True)
        checks.check_strictly(connection, parsed, request_id)
        return _read_assertion(connection, parsed)
    except OneLogin_Saml2_ValidationError as error:
        if error.code == Error.STATUS_CODE_IS_NOT_SUCCESS:
            codes = parsed.document.findall(".//{*}Status//{*}StatusCode")
            if any(code.get("Value") in CANCELLED for code in codes):
                raise Cancelled("status", str(error)) from None
        check = CHECKS.get(error.code, "signature")
        raise SignInRefused(check, _error_detail(connection, error, parsed)) from None
    except SignInRefused:
        raise
    except Exception as error:  # noqa: BLE001 - the library raises any class, even this one
        raise SignInRefused("document", f"Not a SAML response ({type(error).__name__}).") from None


class _Request(OneLogin_Saml2_Authn_Request):  # type: ignore[misc]
    """A request with the id that its flow stores."""

    def __init__(self, settings: OneLogin_Saml2_Settings, request_id: str) -> None:
        self._chosen_id = request_id
        super().__init__(settings)

    def _generate_request_id(self) -> str:
        return self._chosen_id


class _Response(OneLogin_Saml2_Response):  # type: ignore[misc]
    """A response whose times `checks` checks: the library has no leeway, or five minutes."""

    def validate_timestamps(self, **options: object) -> bool:
        """Do nothing."""
        return True

    def get_session_not_on_or_after(self) -> None:
        """Do nothing."""

    def _query_assertion(self, xpath_expr: str) -> list[Any]:
        found: list[Any] = super()._query_assertion(xpath_expr)
        if not xpath_expr.endswith("/saml:SubjectConfirmation"):
            return found
        copies = [deepcopy(confirmation) for confirmation in found]
        for confirmed in (part for copied in copies for part in copied):
            for name in ("NotBefore", "NotOnOrAfter"):
                confirmed.attrib.pop(name, None)
        return copies


def _document(response: str) -> bytes:
    if len(response) > LONGEST_RESPONSE:
        raise SignInRefused("document", f"Longer than {LONGEST_RESPONSE} characters.")
    try:
        raw = b64decode("".join(response.split()), validate=True)
        return checks.sanitize(raw, LONGEST_RESPONSE)
    except checks.UnsafeXml as error:
        raise SignInRefused("document", str(error)) from None
    except (binascii.Error, ValueError):
        raise SignInRefused("document", "The response is not valid base64.") from None


def _settings(connection: Connection, *, for_xml: bool = False) -> OneLogin_Saml2_Settings:
    config = connection.config
    # The library inserts values into XML without escaping.
    convert = _escape_xml if for_xml else str
    return OneLogin_Saml2_Settings(
        {
            "strict": True,
            "debug": False,
            "sp": {
                "entityId": convert(connections.saml_entity_id(connection)),
                "assertionConsumerService": {
                    "url": convert(connections.saml_consumer_url(connection)),
                    "binding": Names.BINDING_HTTP_POST,
                },
                "NameIDFormat": NAME_ID_FORMATS[connection.name_id_format],
            },
            "idp": {
                "entityId": config["idp_entity_id"],
                "singleSignOnService": {
                    "url": convert(config["idp_sso_url"]),
                    "binding": Names.BINDING_HTTP_REDIRECT,
                },
                "x509certMulti": {"signing": list(config["idp_x509_cert"])},
            },
            "security": {
                "wantAssertionsSigned": True,
                "wantAttributeStatement": False,
                "requestedAuthnContext": False,
                "rejectDeprecatedAlgorithm": True,
                "allowRepeatAttributeName": True,
                "allowSingleLabelDomains": True,
            },
        }
    )


def _escape_xml(text: str) -> str:
    return quoteattr(text, {'"': "&quot;"})[1:-1]


def _error_detail(connection: Connection, error: Any, parsed: Any) -> str:
    if error.code == Error.WRONG_AUDIENCE:
        return f"The audience is {', '.join(parsed.get_audiences())}."
    if error.code != Error.INVALID_SIGNATURE:
        return str(error)
    configured = [
        certificates.describe(certificate) for certificate in connection.config["idp_x509_cert"]
    ]
    signed_with = parsed.document.findtext(f".//{checks.ds('X509Certificate')}")
    signing_certificate = (
        certificates.fingerprint(signed_with)
        if signed_with
        else "a certificate that it does not include"
    )
    return f"The response is signed with {signing_certificate}; expected {', '.join(configured)}."


def _read_assertion(connection: Connection, parsed: Any) -> Assertion:
    name_id = parsed.get_nameid_data()
    if name_id.get("Format") == TRANSIENT:
        raise SignInRefused(
            "subject", "The NameID is transient: configure a persistent format at the provider."
        )
    config, attributes = connection.config, parsed.get_attributes()
    subject = name_id["Value"].strip()
    email = _first(attributes, config.get("email_attribute"), EMAILS)
    email = email or (subject if "@" in subject else None)
    groups = [
        text
        for name in ([config["groups_attribute"]] if "groups_attribute" in config else GROUPS)
        for text in attributes.get(name, [])
    ]
    claimed = Claims(
        issuer=config["idp_entity_id"],
        subject=subject,
        email=email.strip() if email else None,
        email_verified=config.get("email_verified", True),
        name=_name(attributes, config.get("name_attribute")),
        groups=group_names(groups, connection),
        mfa=not MULTIPLE_FACTORS.isdisjoint(parsed.get_authn_contexts()),
        sent=attributes,
    )
    assertion = checks.get_assertion(parsed)
    times = [
        element.get("NotOnOrAfter")
        for name in ("SubjectConfirmationData", "Conditions")
        for element in assertion.iter(checks.tag(name))
    ]
    # From then on it is certainly expired. Some providers send the maximum date for no expiry.
    last = min(max(checks.parse_time(text) for text in times if text), LAST)
    name = NameID(
        subject,
        name_id.get("Format"),
        name_id.get("NameQualifier"),
        name_id.get("SPNameQualifier"),
    )
    return Assertion(
        claimed,
        str(assertion.get("ID")),
        last + checks.LEEWAY,
        name,
        parsed.get_session_index(),
    )


def _first(attributes: JSONMapping, custom: str | None, defaults: tuple[str, ...]) -> str | None:
    for name in (custom,) if custom else defaults:
        texts = [value for value in attributes.get(name, ()) if isinstance(value, str)]
        if texts:
            return texts[0]
    return None


def _name(attributes: JSONMapping, custom: str | None) -> str | None:
    name = _first(attributes, custom, NAMES)
    if custom or (name and "@" not in name):  # Entra ID fills `name` with the user's address
        return name
    parts = [_first(attributes, None, names) for names in (FIRST_NAMES, SURNAMES)]
    return " ".join(part for part in parts if part) or name
