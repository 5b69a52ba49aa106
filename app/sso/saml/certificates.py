"""Certificates of identity providers, and signing keys."""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import b64decode, b64encode
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from app import clock

# Base64 has no dash, so an unterminated block ends at the next one: linear time.
FRAMED = re.compile(r"-----BEGIN CERTIFICATE-----([^-]*)-----END CERTIFICATE-----")
SHORTEST_RSA = 2048
MAX_CERTIFICATES = 10
MAX_CHARACTERS = 50_000


def parse(text: str) -> list[str]:
    """Parse PEM certificates to base64 without the PEM lines. Raises ValueError with a reason."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"The certificates have more than {MAX_CHARACTERS:,} characters in total.")
    framed_texts = FRAMED.findall(text)
    if not framed_texts:
        raise ValueError("Must be a PEM certificate.")
    if len(framed_texts) > MAX_CERTIFICATES:
        raise ValueError(f"At most {MAX_CERTIFICATES} certificates.")
    parsed = []
    for inner in framed_texts:
        try:
            der = b64decode("".join(inner.split()), validate=True)
            certificate = x509.load_der_x509_certificate(der)
            key = certificate.public_key()
        except (ValueError, binascii.Error, UnsupportedAlgorithm):
            raise ValueError("Must be a PEM certificate.") from None
        if not isinstance(key, rsa.RSAPublicKey) or key.key_size < SHORTEST_RSA:
            raise ValueError(f"A certificate must have an RSA key of at least {SHORTEST_RSA} bits.")
        parsed.append(b64encode(certificate.public_bytes(Encoding.DER)).decode())
    return list(dict.fromkeys(parsed))


def to_pem(text: str) -> str:
    """Add the PEM lines to a certificate in base64."""
    return f"-----BEGIN CERTIFICATE-----{text}-----END CERTIFICATE-----"


def describe(certificate: str) -> str:
    """Describe a certificate for admins: name, fingerprint and last day."""
    parsed = x509.load_der_x509_certificate(b64decode(certificate))
    names = parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    name = str(names[0].value)[:60] if names else "no name"
    expiry = parsed.not_valid_after_utc
    validity = "expired on" if expiry <= clock.now() else "until"
    return f"{name} ({fingerprint(certificate)}, {validity} {expiry:%Y-%m-%d})"


def fingerprint(certificate: str) -> str:
    """Return the start of a certificate's fingerprint, or `no certificate` for invalid base64."""
    try:
        digest = hashlib.sha256(b64decode("".join(certificate.split()), validate=True)).hexdigest()
    except ValueError:
        return "no certificate"
    return f"SHA-256 {digest[:16]}..."


def expires_at(certificate: str) -> datetime:
    """Return the expiry of a certificate."""
    return x509.load_der_x509_certificate(b64decode(certificate)).not_valid_after_utc


def is_signing_key(text: str) -> bool:
    """Whether a text is a P-256 private key, as Apple issues."""
    try:
        key = load_pem_private_key(text.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp256r1"
