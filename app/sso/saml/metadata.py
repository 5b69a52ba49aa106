"""SAML metadata: reads the settings of identity providers, and renders ours as service provider."""

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
from app.sso import connections
from app.sso.connections import Connection
from app.sso.providers import EMAIL_ADDRESS, NAME_ID_FORMATS, PERSISTENT
from app.sso.refusals import SignInRefused
from app.sso.saml import certificates, checks, keys
from app.sso.saml.encryption import CBC_MODES, GCM, OAEP_SHA1
from app.types import JSONObject

LONGEST, LONGEST_ADDRESS = 500_000, 2000
NAMESPACES = {"md": Names.NS_MD, "ds": Names.NS_DS}
# The best first, as providers choose.
ALGORITHMS = (*reversed(GCM), *reversed(CBC_MODES), OAEP_SHA1)


class InvalidMetadata(ValueError):
    """Raised for unusable metadata, with the reason."""


def fetch(url: str, rules: Rules, entity_id: str | None = None) -> JSONObject:
    """Return the settings in the metadata at an address. Raises InvalidMetadata."""
    headers = {"Accept": "application/samlmetadata+xml, application/xml", "User-Agent": "Atrium"}
    try:
        request = client.Request("GET", url, headers)
        response = client.send(request, rules, max_characters=LONGEST + 1)
    except (RequestRefused, RequestFailed) as error:
        raise InvalidMetadata(str(error)) from None
    if response.status != 200:
        raise InvalidMetadata(f"The address answered {response.status}.")
    return parse(response.body, entity_id)


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
    # The library returns one certificate by itself, several as lists by their use.
    single, multiple = idp.get("x509cert"), idp.get("x509certMulti", {})
    texts = [single] if single else multiple.get("signing") or multiple.get("encryption") or []
    try:
        parsed = certificates.parse("\n".join(map(certificates.to_pem, texts)))
    except ValueError as error:
        raise InvalidMetadata(str(error)) from None
    return {
        "idp_entity_id": idp["entityId"],
        "idp_sso_url": address,
        "idp_x509_cert": parsed,
        **({"idp_slo_url": logout_address} if _is_address(logout_address) else {}),
    }


def _is_address(url: str) -> bool:
    # The settings form demands the same: browsers send names of users to this address.
    is_url = tenants.is_safe_url(url) and "#" not in url and len(url) <= LONGEST_ADDRESS
    return is_url and (url.startswith("https://") or not config.current().production)


def demands_signatures(text: str) -> bool:
    """Whether valid metadata requires signed requests."""
    # The library reads the first descriptor only, and takes the value `1` for false.
    path = "(//*[local-name()='IDPSSODescriptor'])[1]/@WantAuthnRequestsSigned"
    return any(value.strip() in ("true", "1") for value in _document(text).xpath(path))


def _document(text: str) -> Any:
    try:
        raw = checks.sanitize(text.encode(), LONGEST, strip_comments=True)
        return OneLogin_Saml2_XML.to_etree(raw)
    except checks.UnsafeXml as error:
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
        valid_until = element.get("validUntil")
        if valid_until is None:
            continue
        try:
            expires_at = checks.parse_time(valid_until)
        except SignInRefused as error:
            raise InvalidMetadata(f"validUntil: {error.detail}") from None
        if expires_at <= clock.now():
            raise InvalidMetadata(f"The metadata expired at {valid_until}.")
    # Only this entity: the library would read the first one of the document.
    return OneLogin_Saml2_XML.to_etree(etree.tostring(entities[0]))


def render(connection: Connection) -> bytes:
    """Return our metadata for an account as XML, with all its certificates.

    Without an expiry: providers import it once.
    """
    root = etree.Element(
        _md("EntityDescriptor"), nsmap=NAMESPACES, entityID=connections.saml_entity_id(connection)
    )
    descriptor = etree.SubElement(
        root,
        _md("SPSSODescriptor"),
        AuthnRequestsSigned=str(connection.signs_requests).lower(),
        WantAssertionsSigned="true",
        protocolSupportEnumeration=Names.NS_SAMLP,
    )
    for key in keys.require(connection.account.id):
        for use, algorithms in (("signing", ()), ("encryption", ALGORITHMS)):
            element = etree.SubElement(descriptor, _md("KeyDescriptor"), use=use)
            info = etree.SubElement(element, checks.ds("KeyInfo"))
            data = etree.SubElement(info, checks.ds("X509Data"))
            etree.SubElement(data, checks.ds("X509Certificate")).text = key.certificate
            for algorithm in algorithms:
                etree.SubElement(element, _md("EncryptionMethod"), Algorithm=algorithm)
    logout_url = connections.saml_logout_url(connection)
    for binding in (Names.BINDING_HTTP_REDIRECT, Names.BINDING_HTTP_POST):
        etree.SubElement(
            descriptor, _md("SingleLogoutService"), Binding=binding, Location=logout_url
        )
    # The requested format comes first.
    accepted = (connection.name_id_format, PERSISTENT, EMAIL_ADDRESS)
    for name_format in dict.fromkeys(NAME_ID_FORMATS[name] for name in accepted):
        etree.SubElement(descriptor, _md("NameIDFormat")).text = name_format
    etree.SubElement(
        descriptor,
        _md("AssertionConsumerService"),
        Binding=Names.BINDING_HTTP_POST,
        Location=connections.saml_consumer_url(connection),
        index="1",
        isDefault="true",
    )
    document: bytes = etree.tostring(root, xml_declaration=True, encoding="UTF-8")
    return document


def _md(name: str) -> str:
    return f"{{{Names.NS_MD}}}{name}"
