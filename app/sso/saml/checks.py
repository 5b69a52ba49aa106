"""What python3-saml leaves open: checked here, on a response that it has found valid.

The exact address, a recipient and an end to every confirmation, InResponseTo, the algorithms and
transforms of the signature, and that the assertion itself is signed, once.
"""

from __future__ import annotations

from datetime import UTC, datetime
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
BEARER = "urn:oasis:names:tc:SAML:2.0:cm:bearer"


def check_destination(parsed: Any, here: str, request_id: str | None) -> None:
    """Refuse a response to another address or request, or too late. Raises SignInRefused.

    The library checks the same of confirmations, but does not tell what is wrong with them.
    """
    for name in TIMES:  # the library's own error for one that it cannot read tells nothing
        for text in parsed.document.xpath(f"//@{name}"):
            parse_time(text)
    destination = parsed.document.get("Destination")
    if destination != here:
        raise SignInRefused("destination", f"It is for {destination or 'nowhere'}.")
    named = parsed.get_in_response_to()
    if named != request_id:
        detail = "The response answers another request." if named else "It answers no request."
        raise SignInRefused("InResponseTo", detail)
    _confirmed(parsed.document, here, request_id)


def check_strictly(connection: Connection, parsed: Any, request_id: str | None) -> None:
    """Refuse what only looks valid. Raises SignInRefused with the check."""
    here = connections.saml_consumer_url(connection)
    document = parsed.document
    ids = document.xpath("//@ID")
    if len(ids) != len(set(ids)):
        raise SignInRefused("signature", "An id stands twice.")
    assertion = assertion_of(parsed)
    for signature in document.iter(ds("Signature")):
        _check_signature(signature)
    if assertion.get("ID") != _reference(assertion):
        raise SignInRefused("signature", "The assertion is not what is signed.")
    if connections.saml_entity_id(connection) not in parsed.get_audiences():
        raise SignInRefused("audience", "The assertion is for nobody in particular.")
    if parsed.get_issuers() != [connection.config["idp_entity_id"]]:
        raise SignInRefused("issuer", "The assertion names no issuer.")
    if not list(assertion.iter(tag("SubjectConfirmation"))):
        raise SignInRefused("recipient", "The assertion is confirmed for nobody.")
    _confirmed(assertion, here, request_id)


def _confirmed(within: Any, here: str, request_id: str | None) -> None:
    # One that holds is enough. Of several that do not, the last is told of.
    wrong: tuple[str, str] | None = None
    for confirmation in within.iter(tag("SubjectConfirmation")):
        wrong = _wrong_with(confirmation, here, request_id)
        if wrong is None:
            return
    if wrong:
        raise SignInRefused(*wrong)


def _wrong_with(confirmation: Any, here: str, request_id: str | None) -> tuple[str, str] | None:
    data = confirmation.find(tag("SubjectConfirmationData"))
    if confirmation.get("Method") != BEARER or data is None or data.get("Recipient") != here:
        return "recipient", "The confirmation is for another place."
    if data.get("InResponseTo") != request_id:
        return "InResponseTo", "The confirmation answers another request."
    begin, until, now = data.get("NotBefore"), data.get("NotOnOrAfter"), clock.now()
    if until is None or parse_time(until) <= now or (begin and parse_time(begin) > now):
        return "time", "The confirmation is too old, too new, or without an end."
    return None


def _check_signature(signature: Any) -> None:
    algorithms = {one.get("Algorithm") for one in signature.iter(ds("SignatureMethod"))}
    digests = {one.get("Algorithm") for one in signature.iter(ds("DigestMethod"))}
    transforms = {one.get("Algorithm") for one in signature.iter(ds("Transform"))}
    if not algorithms or not algorithms <= SIGNATURES or not digests <= DIGESTS:
        raise SignInRefused("algorithm", "A signature of another algorithm than RSA with SHA-2.")
    if len(list(signature.iter(ds("Reference")))) != 1 or not transforms <= {ENVELOPED, EXCLUSIVE}:
        raise SignInRefused("signature", "A signature of another form than SAML's.")


def assertion_of(parsed: Any) -> Any:
    """The one assertion of a response, in its place."""
    (assertion,) = parsed.document.iter(tag("Assertion"))
    if assertion.getparent() is not parsed.document:
        raise SignInRefused("signature", "The assertion is not in its place.")
    return assertion


def _reference(assertion: Any) -> str | None:
    # Of the assertion's own signature, its child.
    found = assertion.findall(f"{ds('Signature')}/{ds('SignedInfo')}/{ds('Reference')}")
    return found[0].get("URI", "")[1:] if len(found) == 1 else None


def parse_time(text: str) -> datetime:
    """A moment as SAML writes it: in UTC, told by `Z`. Raises SignInRefused for any other."""
    try:
        return datetime.fromtimestamp(OneLogin_Saml2_Utils.parse_SAML_to_time(text), UTC)
    except Exception:  # noqa: BLE001 - the library raises nothing narrower
        raise SignInRefused("time", f"{text} is no time in UTC.") from None


def ds(name: str) -> str:
    """The tag of an element of signatures."""
    return f"{{{Names.NS_DS}}}{name}"


def tag(name: str) -> str:
    """The tag of an element of assertions."""
    return f"{{{Names.NS_SAML}}}{name}"
