"""Certificates of identity providers, and keys that sign for us."""

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

# Base64 has no dash: so a frame that does not end is left at the next one, in linear time.
FRAMED = re.compile(r"-----BEGIN CERTIFICATE-----([^-]*)-----END CERTIFICATE-----")
SHORTEST_RSA = 2048
MOST = 10
LONGEST = 50_000


def parse(text: str) -> list[str]:
    """Every certificate in a text, as base64 without its frame. Raises ValueError saying why."""
    if len(text) > LONGEST:
        raise ValueError(f"The certificates have more than {LONGEST:,} characters in all.")
    framed_texts = FRAMED.findall(text)
    if not framed_texts:
        raise ValueError("This is no certificate in PEM.")
    if len(framed_texts) > MOST:
        raise ValueError(f"At most {MOST} certificates.")
    return list(dict.fromkeys(map(_one, framed_texts)))


def to_pem(text: str) -> str:
    """A certificate in base64 with its frame, as PEM has it."""
    return f"-----BEGIN CERTIFICATE-----{text}-----END CERTIFICATE-----"


def _one(inner: str) -> str:
    try:
        certificate = x509.load_der_x509_certificate(
            b64decode("".join(inner.split()), validate=True)
        )
        key = certificate.public_key()
    except (ValueError, binascii.Error, UnsupportedAlgorithm):
        raise ValueError("This is no certificate in PEM.") from None
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size < SHORTEST_RSA:
        raise ValueError(f"A certificate must be of an RSA key of {SHORTEST_RSA} bits or more.")
    return b64encode(certificate.public_bytes(Encoding.DER)).decode()


def describe(certificate: str) -> str:
    """The name, the fingerprint and the last day of a certificate, for an admin to compare."""
    parsed = x509.load_der_x509_certificate(b64decode(certificate))
    names = parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    name = str(names[0].value)[:60] if names else "no name"
    return f"{name} ({fingerprint(certificate)}, until {parsed.not_valid_after_utc:%Y-%m-%d})"


def fingerprint(certificate: str) -> str:
    """The beginning of a certificate's fingerprint; of what is no base64, that it is none."""
    try:
        digest = hashlib.sha256(b64decode("".join(certificate.split()), validate=True)).hexdigest()
    except ValueError:
        return "no certificate"
    return f"SHA-256 {digest[:16]}..."


def expires_at(certificate: str) -> datetime:
    """Until when a certificate is good."""
    return x509.load_der_x509_certificate(b64decode(certificate)).not_valid_after_utc


def is_signing_key(text: str) -> bool:
    """Whether a text is a private key of the kind that Apple gives out."""
    try:
        key = load_pem_private_key(text.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp256r1"
