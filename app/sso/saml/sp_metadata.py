"""Our SAML metadata: what an identity provider needs to know of an account as service provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lxml import etree
from onelogin.saml2.constants import OneLogin_Saml2_Constants as Names

from app.sso import connections
from app.sso.connections import Connection
from app.sso.providers import EMAIL_ADDRESS, NAME_ID_FORMATS, PERSISTENT
from app.sso.saml import keys
from app.sso.saml.encryption import CBC_MODES, GCM, OAEP_SHA1

NAMESPACES = {"md": Names.NS_MD, "ds": Names.NS_DS}
BINDINGS = (Names.BINDING_HTTP_REDIRECT, Names.BINDING_HTTP_POST)
# The best first, as providers choose.
ALGORITHMS = (*reversed(GCM), *reversed(CBC_MODES), OAEP_SHA1)


def render(connection: Connection) -> bytes:
    """Return the metadata as XML, with all certificates of the account.

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
        _add_certificate(descriptor, key.certificate)
    _add_services(descriptor, connection)
    document: bytes = etree.tostring(root, xml_declaration=True, encoding="UTF-8")
    return document


def name_id_formats(connection: Connection) -> Sequence[str]:
    """Return the NameID formats that we accept, the requested one first."""
    requested = NAME_ID_FORMATS[connection.name_id_format]
    accepted = (requested, NAME_ID_FORMATS[PERSISTENT], NAME_ID_FORMATS[EMAIL_ADDRESS])
    return list(dict.fromkeys(accepted))


def _add_services(descriptor: Any, connection: Connection) -> None:
    for binding in BINDINGS:
        logout_url = connections.saml_logout_url(connection)
        etree.SubElement(
            descriptor, _md("SingleLogoutService"), Binding=binding, Location=logout_url
        )
    for name_format in name_id_formats(connection):
        etree.SubElement(descriptor, _md("NameIDFormat")).text = name_format
    etree.SubElement(
        descriptor,
        _md("AssertionConsumerService"),
        Binding=Names.BINDING_HTTP_POST,
        Location=connections.saml_consumer_url(connection),
        index="1",
        isDefault="true",
    )


def _add_certificate(descriptor: Any, certificate: str) -> None:
    for use, algorithms in (("signing", ()), ("encryption", ALGORITHMS)):
        element = etree.SubElement(descriptor, _md("KeyDescriptor"), use=use)
        data = etree.SubElement(etree.SubElement(element, _ds("KeyInfo")), _ds("X509Data"))
        etree.SubElement(data, _ds("X509Certificate")).text = certificate
        for algorithm in algorithms:
            etree.SubElement(element, _md("EncryptionMethod"), Algorithm=algorithm)


def _md(name: str) -> str:
    return f"{{{Names.NS_MD}}}{name}"


def _ds(name: str) -> str:
    return f"{{{Names.NS_DS}}}{name}"
