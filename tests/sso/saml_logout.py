"""The single logout of the tests' identity provider: signed messages by both bindings."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from lxml import etree
from onelogin.saml2.constants import OneLogin_Saml2_Constants as Names
from onelogin.saml2.utils import OneLogin_Saml2_Utils

from app.sso.saml import redirect_binding
from tests.sso import saml_idp
from tests.sso.saml_idp import ENTITY, moment

SLO = "https://idp.example/slo"
HERE = "http://atrium.test/saml/okta/slo?account=acme"


@dataclass
class Message:
    """A request or response of the identity provider; each property can be a wrong one."""

    subject: str = "dora@acme.example"
    session_index: str | None = None
    in_response_to: str | None = None
    issuer: str = ENTITY
    destination: str = HERE
    issued: int = 0
    ends: int | None = 300
    end_date: str | None = None
    key: str = "idp"
    status: str = Names.STATUS_SUCCESS
    sha1: bool = False
    id: str = field(default_factory=lambda: f"_{uuid.uuid4().hex}")

    @property
    def name(self) -> str:
        """The name of its parameter."""
        return redirect_binding.RESPONSE if self.in_response_to else redirect_binding.REQUEST

    def xml(self) -> str:
        """The message without a signature."""
        index = self.session_index
        session = f"<samlp:SessionIndex>{index}</samlp:SessionIndex>" if index else ""
        end = self.end_date or (None if self.ends is None else moment(self.ends))
        ends = f' NotOnOrAfter="{end}"' if end else ""
        if self.in_response_to:
            tag, attributes = "LogoutResponse", f' InResponseTo="{self.in_response_to}"'
            body = f'<samlp:Status><samlp:StatusCode Value="{self.status}"/></samlp:Status>'
        else:
            tag, attributes = "LogoutRequest", ends
            body = f"<saml:NameID>{self.subject}</saml:NameID>{session}"
        return (
            f'<samlp:{tag} xmlns:samlp="{Names.NS_SAMLP}" xmlns:saml="{Names.NS_SAML}"'
            f' ID="{self.id}" Version="2.0" IssueInstant="{moment(self.issued)}"'
            f' Destination="{self.destination}"{attributes}>'
            f"<saml:Issuer>{self.issuer}</saml:Issuer>{body}</samlp:{tag}>"
        )

    def query(self, relay_state: str = "") -> str:
        """The message by HTTP-Redirect, as a path of ours."""
        key = load_pem_private_key(saml_idp.pair(self.key)[0].encode(), None)
        assert isinstance(key, RSAPrivateKey)
        encoded = redirect_binding.encode(self.xml().encode())
        url = redirect_binding.url(HERE, self.name, encoded, relay_state, key)
        return url.removeprefix("http://atrium.test")

    def form(self, relay_state: str = "") -> dict[str, str]:
        """The message by HTTP-POST."""
        algorithms = (Names.RSA_SHA1, Names.SHA1) if self.sha1 else (Names.RSA_SHA256, Names.SHA256)
        pair = saml_idp.pair(self.key)
        signed = OneLogin_Saml2_Utils.add_sign(self.xml(), *pair, False, *algorithms)
        signed = signed if isinstance(signed, bytes) else str(signed).encode()
        return {self.name: base64.b64encode(signed).decode(), "RelayState": relay_state}


def received(address: str, name: str, certificates: list[str]) -> tuple[etree._Element, str]:
    """The message of ours in an address, whose signature is verified, and its relay state."""
    parts = urlsplit(address)
    message = redirect_binding.read(parts.query, name, certificates)
    assert set(parse_qs(parts.query)) <= {name, "RelayState", "SigAlg", "Signature"}
    return etree.fromstring(message.xml), message.relay_state
