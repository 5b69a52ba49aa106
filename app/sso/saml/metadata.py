"""Reads SAML settings from the metadata of an identity provider."""

from __future__ import annotations

from typing import Any

from lxml import etree
from onelogin.saml2.constants import OneLogin_Saml2_Constants as Names
from onelogin.saml2.idp_metadata_parser import OneLogin_Saml2_IdPMetadataParser
from onelogin.saml2.xml_utils import OneLogin_Saml2_XML
from onelogin.saml2.xmlparser import DTDForbidden, EntitiesForbidden

from app import clock, config
from app.accounts import tenants
from app.outbound import client
from app.outbound.address_policy import RequestFailed, RequestRefused, Rules
from app.sso.refusals import SignInRefused
from app.sso.saml import certificates, checks, xml_precheck
from app.types import JSONObject

LONGEST, LONGEST_ADDRESS = 500_000, 2000


class InvalidMetadata(ValueError):
    """Raised for unusable metadata, with the reason."""


def fetch(url: str, rules: Rules, entity_id: str | None = None) -> JSONObject:
    """Return the settings in the metadata at an address. Raises InvalidMetadata."""
    return parse(_get(url, rules), entity_id)


def _get(url: str, rules: Rules) -> str:
    headers = {"Accept": "application/samlmetadata+xml, application/xml", "User-Agent": "Atrium"}
    try:
        request = client.Request("GET", url, headers)
        response = client.send(request, rules, max_characters=LONGEST + 1)
    except (RequestRefused, RequestFailed) as error:
        raise InvalidMetadata(str(error)) from None
    if response.status != 200:
        raise InvalidMetadata(f"The address answered {response.status}.")
    return response.body


def parse(text: str, entity_id: str | None = None) -> JSONObject:
    """Return the settings in metadata, of an entity if it has several. Raises InvalidMetadata.

    They are `idp_entity_id`, `idp_sso_url`, `idp_x509_cert`, and `idp_slo_url` if there is one.
    """
    entity = _entity(text, entity_id)
    try:
        idp = OneLogin_Saml2_IdPMetadataParser.parse(entity).get("idp", {})
    except (AttributeError, LookupError, TypeError, ValueError):  # elements without their text
        raise InvalidMetadata("The metadata is incomplete.") from None
    address = idp.get("singleSignOnService", {}).get("url", "")
    logout_address = idp.get("singleLogoutService", {}).get("url", "")
    if not idp.get("entityId"):
        raise InvalidMetadata("This is not the metadata of an identity provider.")
    if not _is_address(address):
        raise InvalidMetadata("The metadata has no sign-in address for the HTTP-Redirect binding.")
    return {
        "idp_entity_id": idp["entityId"],
        "idp_sso_url": address,
        "idp_x509_cert": _certificates(idp),
        **({"idp_slo_url": logout_address} if _is_address(logout_address) else {}),
    }


def _is_address(url: str) -> bool:
    # As where an administrator enters it: names of users are sent there.
    is_url = tenants.is_safe_url(url) and "#" not in url and len(url) <= LONGEST_ADDRESS
    return is_url and (url.startswith("https://") or not config.current().production)


def demands_signatures(text: str) -> bool:
    """Whether valid metadata requires signed requests."""
    # In the first descriptor, which the library reads; it ignores the form `1`.
    path = "(//*[local-name()='IDPSSODescriptor'])[1]/@WantAuthnRequestsSigned"
    return any(value.strip() in ("true", "1") for value in _document(text).xpath(path))


def _document(text: str) -> Any:
    try:
        raw = xml_precheck.sanitize(text.encode(), LONGEST, strip_comments=True)
        return OneLogin_Saml2_XML.to_etree(raw)
    except xml_precheck.UnsafeXml as error:
        raise InvalidMetadata(str(error)) from None
    except (etree.XMLSyntaxError, DTDForbidden, EntitiesForbidden, ValueError):
        raise InvalidMetadata("This is not valid XML.") from None


def _entity(text: str, entity_id: str | None) -> Any:
    document = _document(text)
    entities = [
        entity
        for entity in document.iter(f"{{{Names.NS_MD}}}EntityDescriptor")
        if entity_id in (None, entity.get("entityID"))
    ]
    if not entities:
        known = f"no entity {entity_id}" if entity_id else "no identity provider"
        raise InvalidMetadata(f"The metadata describes {known}.")
    for element in (document, entities[0]):
        _check_validity(element.get("validUntil"))
    # Alone: the library would read the first of the document.
    return OneLogin_Saml2_XML.to_etree(etree.tostring(entities[0]))


def _check_validity(valid_until: str | None) -> None:
    if valid_until is None:
        return
    try:
        expires_at = checks.parse_time(valid_until)
    except SignInRefused as error:
        raise InvalidMetadata(f"validUntil: {error.detail}") from None
    if expires_at <= clock.now():
        raise InvalidMetadata(f"The metadata expired at {valid_until}.")


def _certificates(idp: JSONObject) -> list[str]:
    single = idp.get("x509cert")
    multiple = idp.get("x509certMulti", {})
    texts = [single] if single else multiple.get("signing") or multiple.get("encryption") or []
    try:
        return certificates.parse("\n".join(map(certificates.to_pem, texts)))
    except ValueError as error:
        raise InvalidMetadata(str(error)) from None
