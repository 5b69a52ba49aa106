"""Checks that python3-saml leaves open: of documents before they are parsed, and of responses.

The exact destination, recipient and expiry of every confirmation, InResponseTo, the algorithms and
transforms of signatures, and that the assertion itself is signed, once.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from onelogin.saml2.constants import OneLogin_Saml2_Constants as Names
from onelogin.saml2.utils import OneLogin_Saml2_Utils

from app import clock
from app.sso import connections
from app.sso.connections import Connection
from app.sso.refusals import SignInRefused

SIGNATURES = {Names.RSA_SHA256, Names.RSA_SHA384, Names.RSA_SHA512}
DIGESTS = {Names.SHA256, Names.SHA384, Names.SHA512}
ENVELOPED = "http://www.w3.org/2000/09/xmldsig#enveloped-signature"
EXCLUSIVE = "http://www.w3.org/2001/10/xml-exc-c14n#"
TIMES = ("NotBefore", "NotOnOrAfter", "SessionNotOnOrAfter")
LEEWAY = timedelta(seconds=60)  # of times, both ways, as for ID tokens
BEARER = "urn:oasis:names:tc:SAML:2.0:cm:bearer"
ENCODING = re.compile(rb"""\A\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")
DECLARATION = re.compile(rb"\A\s*<\?xml[^>]{0,200}\?>")
COMMENT = re.compile(rb"<!--(?:(?!--).)*-->", re.DOTALL)
ALLOWED_ENCODINGS = (b"utf-8", b"us-ascii", b"ascii")
BOM = b"\xef\xbb\xbf"


class UnsafeXml(ValueError):
    """Raised for a document that no parser should see, with the reason."""


def sanitize(raw: bytes, max_bytes: int, *, strip_comments: bool = False) -> bytes:
    """Return a document that a parser may see. Raises UnsafeXml.

    Refuses document types (entities, bombs), comments and CDATA (they split texts), encodings other
    than UTF-8 (which would hide all that), and large documents. Metadata, which admins paste as the
    provider wrote it, may contain comments: `strip_comments` removes them first.
    """
    if len(raw) > max_bytes:
        raise UnsafeXml(f"The document has more than {max_bytes} bytes.")
    raw = raw.removeprefix(BOM)
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise UnsafeXml("The document is not in UTF-8.") from None
    declared = ENCODING.match(raw)
    if declared and declared[1].lower() not in ALLOWED_ENCODINGS:
        raise UnsafeXml("The document is not in UTF-8.")
    rest = DECLARATION.sub(b"", raw, count=1)
    if strip_comments:  # before the checks
        rest = COMMENT.sub(b"", rest)
    if b"<!" in rest:
        raise UnsafeXml("The document has a document type, a comment or CDATA.")
    if b"<?" in rest:
        raise UnsafeXml("The document has processing instructions.")
    if b"\0" in raw or not rest.strip():
        raise UnsafeXml("The document is empty.")
    return rest


def check_destination(parsed: Any, consumer_url: str, request_id: str | None) -> None:
    """Refuse a response to another address or request, or an expired one. Raises SignInRefused.

    The library checks confirmations, too, but does not report the problem.
    """
    for name in TIMES:  # the library's error for invalid times is not specific
        for text in parsed.document.xpath(f"//@{name}"):
            parse_time(text)
    destination = parsed.document.get("Destination")
    if destination != consumer_url:
        raise SignInRefused("destination", f"The destination is {destination or 'missing'}.")
    in_response_to = parsed.get_in_response_to()
    if in_response_to != request_id:
        detail = (
            "The response answers another request."
            if in_response_to
            else "InResponseTo is missing."
        )
        raise SignInRefused("InResponseTo", detail)
    _check_confirmations(parsed.document, consumer_url, request_id)


def check_strictly(connection: Connection, parsed: Any, request_id: str | None) -> None:
    """Refuse responses that only look valid. Raises SignInRefused with the check."""
    consumer_url = connections.saml_consumer_url(connection)
    document = parsed.document
    ids = document.xpath("//@ID")
    if len(ids) != len(set(ids)):
        raise SignInRefused("signature", "The document has duplicate ids.")
    assertion = get_assertion(parsed)
    for signature in document.iter(ds("Signature")):
        check_signature(signature)
    if assertion.get("ID") != _signed_id(assertion):
        raise SignInRefused("signature", "The signature does not cover the assertion.")
    _check_audiences(assertion, connections.saml_entity_id(connection))
    if parsed.get_issuers() != [connection.config["idp_entity_id"]]:
        raise SignInRefused("issuer", "The assertion has no issuer.")
    if not list(assertion.iter(tag("SubjectConfirmation"))):
        raise SignInRefused("recipient", "The assertion has no subject confirmation.")
    _check_times(assertion)
    _check_confirmations(assertion, consumer_url, request_id)


def _check_audiences(assertion: Any, entity_id: str) -> None:
    # We must be in each restriction (SAML core, section 2.5.1.4).
    restrictions = list(assertion.iter(tag("AudienceRestriction")))
    if not restrictions:
        raise SignInRefused("audience", "The assertion has no audience.")
    for restriction in restrictions:
        audiences = [(one.text or "").strip() for one in restriction.iter(tag("Audience"))]
        if entity_id not in audiences:
            named = ", ".join(audiences) or "missing"
            raise SignInRefused("audience", f"A restriction names another audience: {named}.")


def _check_times(assertion: Any) -> None:
    earliest, latest = clock.now() - LEEWAY, clock.now() + LEEWAY
    for conditions in assertion.iter(tag("Conditions")):
        starts, ends = conditions.get("NotBefore"), conditions.get("NotOnOrAfter")
        if starts and parse_time(starts) > latest:
            raise SignInRefused("time", f"The assertion is valid from {starts}.")
        if ends and parse_time(ends) <= earliest:
            raise SignInRefused("time", f"The assertion expired at {ends}.")
    for statement in assertion.iter(tag("AuthnStatement")):
        ends = statement.get("SessionNotOnOrAfter")
        if ends and parse_time(ends) <= earliest:
            raise SignInRefused("time", f"The provider's session ended at {ends}.")


def _check_confirmations(parent: Any, consumer_url: str, request_id: str | None) -> None:
    # One valid confirmation is enough; otherwise the last problem is reported.
    problem: tuple[str, str] | None = None
    for confirmation in parent.iter(tag("SubjectConfirmation")):
        problem = _confirmation_problem(confirmation, consumer_url, request_id)
        if problem is None:
            return
    if problem:
        raise SignInRefused(*problem)


def _confirmation_problem(
    confirmation: Any, consumer_url: str, request_id: str | None
) -> tuple[str, str] | None:
    data = confirmation.find(tag("SubjectConfirmationData"))
    if (
        confirmation.get("Method") != BEARER
        or data is None
        or data.get("Recipient") != consumer_url
    ):
        return "recipient", "The confirmation is for another recipient."
    if data.get("InResponseTo") != request_id:
        return "InResponseTo", "The confirmation answers another request."
    starts, expires, now = data.get("NotBefore"), data.get("NotOnOrAfter"), clock.now()
    has_ended = expires is None or parse_time(expires) <= now - LEEWAY
    if has_ended or (starts and parse_time(starts) > now + LEEWAY):
        return "time", "The confirmation is expired, not yet valid, or has no expiry."
    return None


def check_signature(signature: Any) -> None:
    """Refuse signatures other than RSA with SHA-2 of one element. Raises SignInRefused."""
    algorithms = {element.get("Algorithm") for element in signature.iter(ds("SignatureMethod"))}
    digests = {element.get("Algorithm") for element in signature.iter(ds("DigestMethod"))}
    transforms = {element.get("Algorithm") for element in signature.iter(ds("Transform"))}
    if not algorithms or not algorithms <= SIGNATURES or not digests <= DIGESTS:
        raise SignInRefused("algorithm", "A signature uses an algorithm other than RSA with SHA-2.")
    if len(list(signature.iter(ds("Reference")))) != 1 or not transforms <= {ENVELOPED, EXCLUSIVE}:
        raise SignInRefused("signature", "A signature does not have the form that SAML requires.")


def get_assertion(parsed: Any) -> Any:
    """Return the only assertion of a response, a child of its root."""
    (assertion,) = parsed.document.iter(tag("Assertion"))
    if assertion.getparent() is not parsed.document:
        raise SignInRefused("signature", "The assertion is not a child of the response.")
    return assertion


def _signed_id(assertion: Any) -> str | None:
    # From the signature that is the assertion's child.
    references = assertion.findall(f"{ds('Signature')}/{ds('SignedInfo')}/{ds('Reference')}")
    return references[0].get("URI", "")[1:] if len(references) == 1 else None


def parse_time(text: str) -> datetime:
    """Parse a SAML timestamp in UTC (`Z`). Raises SignInRefused."""
    try:
        return datetime.fromtimestamp(OneLogin_Saml2_Utils.parse_SAML_to_time(text), UTC)
    except Exception:  # noqa: BLE001 - the library raises nothing narrower
        raise SignInRefused("time", f"{text} is not a UTC timestamp.") from None


def ds(name: str) -> str:
    """Return the tag of an element of signatures."""
    return f"{{{Names.NS_DS}}}{name}"


def tag(name: str) -> str:
    """Return the tag of an element of assertions."""
    return f"{{{Names.NS_SAML}}}{name}"
