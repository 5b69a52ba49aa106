"""A SAML identity provider: responses signed with its own key, and every way to spoil them."""

from __future__ import annotations

import base64
import datetime as dt
import uuid
import zlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from lxml import etree
from onelogin.saml2.constants import OneLogin_Saml2_Constants as Names
from onelogin.saml2.utils import OneLogin_Saml2_Utils

from tests.sso import loopback, saml_encryption

ENTITY = "https://idp.example/entity"
SSO = "https://idp.example/sso"
NAMESPACES = {"md": Names.NS_MD, "ds": Names.NS_DS, "saml": Names.NS_SAML, "samlp": Names.NS_SAMLP}


@lru_cache
def pair(name: str) -> tuple[str, str]:
    """A private key and its certificate in PEM, made once for each name."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=365))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private.decode(), certificate.public_bytes(serialization.Encoding.PEM).decode()


def config(**more: Any) -> dict[str, Any]:
    """The settings of this identity provider."""
    found = {"idp_entity_id": ENTITY, "idp_sso_url": SSO, "idp_x509_cert": pair("idp")[1]}
    return {**found, **more}


def metadata(key: str = "idp", slo: str | None = None) -> str:
    """The identity provider's metadata."""
    binding = f'Binding="{Names.BINDING_HTTP_REDIRECT}"'
    logout = f'<md:SingleLogoutService {binding} Location="{slo}"/>' if slo else ""
    lines = pair(key)[1].strip().splitlines()[1:-1]
    return f"""<md:EntityDescriptor xmlns:md="{Names.NS_MD}" entityID="{ENTITY}">
<md:IDPSSODescriptor protocolSupportEnumeration="{Names.NS_SAMLP}"><md:KeyDescriptor use="signing">
<ds:KeyInfo xmlns:ds="{Names.NS_DS}"><ds:X509Data><ds:X509Certificate>{"".join(lines)}
</ds:X509Certificate></ds:X509Data></ds:KeyInfo></md:KeyDescriptor>{logout}
<md:SingleSignOnService Binding="{Names.BINDING_HTTP_REDIRECT}" Location="{SSO}"/>
</md:IDPSSODescriptor></md:EntityDescriptor>"""


@dataclass
class Asked:
    """A request that a browser brought."""

    id: str
    consumer: str
    issuer: str
    relay_state: str


def asked(address: str) -> Asked:
    """Read the request in an address of ours."""
    query = parse_qs(urlsplit(address).query)
    xml = zlib.decompress(base64.b64decode(query["SAMLRequest"][0]), -15)
    request = etree.fromstring(xml)
    (issuer,) = request.xpath("//*[local-name()='Issuer']/text()")
    consumer = request.get("AssertionConsumerServiceURL")
    return Asked(request.get("ID"), consumer, issuer, query["RelayState"][0])


@dataclass
class Response:
    """A response; each property can be another than it should be."""

    consumer: str
    audience: str
    in_response_to: str | None
    subject: str = "dora@acme.example"
    issuer: str = ENTITY
    destination: str | None = None
    recipient: str | None = None
    begins: int = -60
    ends: int = 300
    confirmed_to: str | None = ""
    confirmed_for: int | None = None
    times: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, list[str]] = field(default_factory=dict)
    format: str = "urn:oasis:names:tc:SAML:1.1:nameid-format:emailAddress"
    status: str = Names.STATUS_SUCCESS
    key: str = "idp"
    sha1: bool = False
    sign: str = "assertion"
    context: str = "urn:oasis:names:tc:SAML:2.0:ac:classes:Password"
    session_index: str | None = None
    encrypt: saml_encryption.Encrypt | None = None
    conditions: str = ""
    id: str = field(default_factory=lambda: f"_{uuid.uuid4().hex}")

    def xml(self) -> str:
        """The response, signed as it says."""
        unsigned = self._response(self._assertion())
        if self.sign == "nothing":
            return self._encrypted(unsigned)
        if self.sign == "response":
            return self._signed(self._encrypted(unsigned))
        # Signed in its place: the namespaces around it belong to what is signed.
        response = self._encrypted(self._response(self._signed(self._assertion())))
        return self._signed(response) if self.sign == "both" else response

    def _encrypted(self, response: str) -> str:
        return self.encrypt(response) if self.encrypt else response

    def encoded(self) -> str:
        """As it is posted."""
        return base64.b64encode(self.xml().encode()).decode()

    def _signed(self, xml: str) -> str:
        algorithms = (Names.RSA_SHA1, Names.SHA1) if self.sha1 else (Names.RSA_SHA256, Names.SHA256)
        signed = OneLogin_Saml2_Utils.add_sign(xml, *pair(self.key), False, *algorithms)
        return signed.decode() if isinstance(signed, bytes) else str(signed)

    def _response(self, assertion: str) -> str:
        answers = f' InResponseTo="{self.in_response_to}"' if self.in_response_to else ""
        target = _quoted(self.destination or self.consumer)
        return (
            f'<samlp:Response xmlns:samlp="{Names.NS_SAMLP}" xmlns:saml="{Names.NS_SAML}"'
            f' ID="_r{uuid.uuid4().hex}" Version="2.0" IssueInstant="{moment(0)}"'
            f' Destination="{target}"{answers}>'
            f"<saml:Issuer>{self.issuer}</saml:Issuer><samlp:Status><samlp:StatusCode"
            f' Value="{self.status}"/></samlp:Status>{assertion}</samlp:Response>'
        )

    def _assertion(self) -> str:
        to = self.in_response_to if self.confirmed_to == "" else self.confirmed_to
        answers = f' InResponseTo="{to}"' if to else ""
        until = moment(self.ends if self.confirmed_for is None else self.confirmed_for)
        times = {
            "confirmed": f'NotOnOrAfter="{until}"',
            "begins": f'NotBefore="{moment(self.begins)}"',
            "ends": f'NotOnOrAfter="{moment(self.ends)}"',
            "session": f'SessionIndex="{self.session_index}"' if self.session_index else "",
            **self.times,
        }
        recipient = _quoted(self.recipient or self.consumer)
        values = "".join(
            f'<saml:Attribute Name="{name}">'
            + "".join(f"<saml:AttributeValue>{one}</saml:AttributeValue>" for one in several)
            + "</saml:Attribute>"
            for name, several in self.attributes.items()
        )
        told = f"<saml:AttributeStatement>{values}</saml:AttributeStatement>" if values else ""
        return (
            f'<saml:Assertion xmlns:saml="{Names.NS_SAML}" ID="{self.id}" Version="2.0"'
            f' IssueInstant="{moment(0)}"><saml:Issuer>{self.issuer}</saml:Issuer><saml:Subject>'
            f'<saml:NameID Format="{self.format}">{self.subject}</saml:NameID>'
            f'<saml:SubjectConfirmation Method="{Names.CM_BEARER}"><saml:SubjectConfirmationData'
            f' {times["confirmed"]} Recipient="{recipient}"{answers}/>'
            f"</saml:SubjectConfirmation></saml:Subject>"
            f"<saml:Conditions {times['begins']} {times['ends']}>"
            f"<saml:AudienceRestriction><saml:Audience>{_quoted(self.audience)}</saml:Audience>"
            f"</saml:AudienceRestriction>{self.conditions}</saml:Conditions>"
            f'<saml:AuthnStatement AuthnInstant="{moment(0)}" {times["session"]}>'
            f"<saml:AuthnContext><saml:AuthnContextClassRef>{self.context}"
            f"</saml:AuthnContextClassRef></saml:AuthnContext></saml:AuthnStatement>{told}"
            "</saml:Assertion>"
        )


def moment(seconds: int) -> str:
    """A moment so many seconds from now."""
    at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def answer(request: Asked, **changes: Any) -> Response:
    """The response to a request."""
    return replace(Response(request.consumer, request.issuer, request.id), **changes)


def _quoted(text: str) -> str:
    return escape(text, {'"': "&quot;"})


class Server(loopback.Server):
    """The identity provider's page, on loopback: a button that posts the response."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes
        super().__init__()
        self.url = f"{self.address}/sso"

    def answer(self, path: str, body: str | None) -> loopback.Answer:
        """The page that a request leads to."""
        if not path.startswith("/sso?"):
            return loopback.Answer(204)
        request = asked(path)
        response = answer(request, **self.changes).encoded()
        return loopback.Answer(
            200,
            f'<!doctype html><title>Provider</title><form method="post" action="'
            f'{_quoted(request.consumer)}"><input type="hidden" name="SAMLResponse" value="'
            f'{response}"><input type="hidden" name="RelayState" value="{request.relay_state}">'
            "<button>Continue</button></form>",
        )
