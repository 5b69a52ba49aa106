"""Reads SAML settings from the metadata of an identity provider."""

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
    'The identity provider requires signed requests (WantAuthnRequestsSigned="true"), which Atrium'
    " does not support. Turn that off at the identity provider, and paste its metadata again."
)


class InvalidMetadata(ValueError):
    """Raised for unusable metadata, with the reason."""


def parse(text: str) -> JSONObject:
    """`idp_entity_id`, `idp_sso_url` and `idp_x509_cert`. Raises InvalidMetadata."""
    try:
        raw = xml_precheck.sanitize(text.encode(), LONGEST, strip_comments=True)
        document = OneLogin_Saml2_XML.to_etree(raw)
        parsed = OneLogin_Saml2_IdPMetadataParser.parse(document)
    except xml_precheck.UnsafeXml as error:
        raise InvalidMetadata(str(error)) from None
    except (etree.XMLSyntaxError, DTDForbidden, EntitiesForbidden, ValueError):
        raise InvalidMetadata("This is not valid XML.") from None
    idp = parsed.get("idp", {})
    if _demands_signatures(document):
        raise InvalidMetadata(DEMANDS_SIGNATURES)
    address = idp.get("singleSignOnService", {}).get("url", "")
    if not idp.get("entityId"):
        raise InvalidMetadata("This is not the metadata of an identity provider.")
    if not tenants.is_safe_url(address):
        raise InvalidMetadata("The metadata has no sign-in address for the HTTP-Redirect binding.")
    return {
        "idp_entity_id": idp["entityId"],
        "idp_sso_url": address,
        "idp_x509_cert": _certificates(idp),
    }


def _demands_signatures(document: Any) -> bool:
    # In the first descriptor, which the library reads; it ignores the form `1`.
    path = "(//*[local-name()='IDPSSODescriptor'])[1]/@WantAuthnRequestsSigned"
    return any(text.strip() in ("true", "1") for text in document.xpath(path))


def _certificates(idp: JSONObject) -> list[str]:
    single = idp.get("x509cert")
    multiple = idp.get("x509certMulti", {})
    texts = [single] if single else multiple.get("signing") or multiple.get("encryption") or []
    try:
        return certificates.parse("\n".join(map(certificates.to_pem, texts)))
    except ValueError as error:
        raise InvalidMetadata(str(error)) from None
