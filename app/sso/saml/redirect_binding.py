"""SAML's HTTP-Redirect binding: deflated messages in signed query strings."""

from __future__ import annotations

import binascii
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote_plus, urlencode, urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from onelogin.saml2.constants import OneLogin_Saml2_Constants as Names

from app.sso.refusals import SignInRefused

REQUEST, RESPONSE = "SAMLRequest", "SAMLResponse"
LONGEST_MESSAGE = 64 * 1024
HASHES: dict[str, hashes.HashAlgorithm] = {
    Names.RSA_SHA256: hashes.SHA256(),
    Names.RSA_SHA384: hashes.SHA384(),
    Names.RSA_SHA512: hashes.SHA512(),
}


@dataclass(frozen=True)
class Message:
    """A message of a query string whose signature is verified."""

    xml: bytes
    relay_state: str


def encode(xml: bytes) -> str:
    """Deflate a message, in base64."""
    compressor = zlib.compressobj(wbits=-15)
    return b64encode(compressor.compress(xml) + compressor.flush()).decode()


def url(
    address: str, name: str, message: str, relay_state: str, key: rsa.RSAPrivateKey | None
) -> str:
    """Return the address that carries an encoded message, signed with a key if there is one."""
    values = {name: message, **({"RelayState": relay_state} if relay_state else {})}
    query = urlencode({**values, "SigAlg": Names.RSA_SHA256} if key else values)
    if key:
        signature = key.sign(query.encode(), padding.PKCS1v15(), hashes.SHA256())
        query = f"{query}&{urlencode({'Signature': b64encode(signature).decode()})}"
    return f"{address}{'&' if urlsplit(address).query else '?'}{query}"


def read(query: str, name: str, certificates: Iterable[str]) -> Message:
    """Read a message of a query string that one of the certificates verifies.

    Raises SignInRefused with the check.
    """
    pairs = [part.partition("=")[::2] for part in query.split("&")]
    values = {
        key: value for key, value in pairs if key in (name, "RelayState", "SigAlg", "Signature")
    }
    if len(values) != sum(key in values for key, _ in pairs):
        raise SignInRefused("document", "The query has a parameter twice.")
    _verify(name, values, certificates)
    return Message(inflate(_base64(values[name])), unquote_plus(values.get("RelayState", "")))


def inflate(compressed: bytes) -> bytes:
    """Inflate a message up to its limit. Raises SignInRefused."""
    inflater = zlib.decompressobj(-15)
    try:
        message = inflater.decompress(compressed, LONGEST_MESSAGE)
    except zlib.error:
        raise SignInRefused("document", "The message is not deflated.") from None
    if inflater.unconsumed_tail or not inflater.eof:
        raise SignInRefused("document", f"Incomplete, or more than {LONGEST_MESSAGE} bytes.")
    return message


def _verify(name: str, values: dict[str, str], certificates: Iterable[str]) -> None:
    if not {name, "SigAlg", "Signature"} <= values.keys():
        raise SignInRefused("signature", "The message is not signed.")
    algorithm = HASHES.get(unquote_plus(values["SigAlg"]))
    if algorithm is None:
        raise SignInRefused("algorithm", "The signature is not by RSA with SHA-2.")
    # As sent: another encoding of the same values has another signature.
    signed = "&".join(
        f"{key}={values[key]}" for key in (name, "RelayState", "SigAlg") if key in values
    ).encode()
    signature = _base64(values["Signature"])
    for certificate in certificates:
        key = x509.load_der_x509_certificate(b64decode(certificate)).public_key()
        if not isinstance(key, rsa.RSAPublicKey):
            continue
        with suppress(InvalidSignature):
            key.verify(signature, signed, padding.PKCS1v15(), algorithm)
            return
    raise SignInRefused("signature", "No certificate of the settings verifies the signature.")


def _base64(text: str) -> bytes:
    try:
        return b64decode("".join(unquote_plus(text).split()), validate=True)
    except (binascii.Error, ValueError):
        raise SignInRefused("document", "The message is not valid base64.") from None
