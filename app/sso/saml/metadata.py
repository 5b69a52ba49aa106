"""Settings of SAML from the metadata of the identity provider."""

from __future__ import annotations

from typing import Any

from lxml import etree
from onelogin.saml2.idp_metadata_parser import OneLogin_Saml2_IdPMetadataParser
from onelogin.saml2.xml_utils import OneLogin_Saml2_XML
from onelogin.saml2.xmlparser import DTDForbidden, EntitiesForbidden

from app.accounts import tenants
from app.sso.saml import certificates, xml_precheck
from app.types import JSONObject

LONGEST = 500_000
DEMANDS_SIGNATURES = (
    'The identity provider demands signed requests (WantAuthnRequestsSigned="true"), and Atrium'
    " signs none. Switch that off at the identity provider, and paste its metadata again."
)


class InvalidMetadata(ValueError):
    """Metadata that cannot be used; the text says why."""


def parse(text: str) -> JSONObject:
    """`idp_entity_id`, `idp_sso_url` and `idp_x509_cert`. Raises Unreadable."""
    try:
        raw = xml_precheck.sanitize(text.encode(), LONGEST, commented=True)
        document = OneLogin_Saml2_XML.to_etree(raw)
        parsed = OneLogin_Saml2_IdPMetadataParser.parse(document)
    except xml_precheck.UnsafeXml as error:
        raise InvalidMetadata(str(error)) from None
    except (etree.XMLSyntaxError, DTDForbidden, EntitiesForbidden, ValueError):
        raise InvalidMetadata("This is no XML.") from None
    found = parsed.get("idp", {})
    if _demands_signatures(document):
        raise InvalidMetadata(DEMANDS_SIGNATURES)
    address = found.get("singleSignOnService", {}).get("url", "")
    if not found.get("entityId"):
        raise InvalidMetadata("This is no metadata of an identity provider.")
    if not tenants.is_safe_url(address):
        raise InvalidMetadata("It names no sign-in address for the HTTP-Redirect binding.")
    return {
        "idp_entity_id": found["entityId"],
        "idp_sso_url": address,
        "idp_x509_cert": _certificates(found),
    }


def _demands_signatures(document: Any) -> bool:
    # Of the descriptor that is read, the first; the library takes `true` alone, not its other form.
    path = "(//*[local-name()='IDPSSODescriptor'])[1]/@WantAuthnRequestsSigned"
    return any(text.strip() in ("true", "1") for text in document.xpath(path))


def _certificates(found: JSONObject) -> list[str]:
    one = found.get("x509cert")
    several = found.get("x509certMulti", {})
    texts = [one] if one else several.get("signing") or several.get("encryption") or []
    try:
        return certificates.parse("\n".join(map(certificates.to_pem, texts)))
    except ValueError as error:
        raise InvalidMetadata(str(error)) from None
