"""Certificates of identity providers, and keys that sign for us."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

FRAMED = re.compile(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
SHORTEST_RSA = 2048
MOST = 10


def read(text: str) -> list[str]:
    """Every certificate in a text, as base64 without its frame. Raises ValueError saying why."""
    found = [_one(inner) for inner in FRAMED.findall(text)]
    if not found:
        raise ValueError("This is no certificate in PEM.")
    if len(found) > MOST:
        raise ValueError(f"At most {MOST} certificates.")
    return list(dict.fromkeys(found))


def framed(text: str) -> str:
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


def last_day(certificate: str) -> datetime:
    """Until when a certificate is good."""
    return x509.load_der_x509_certificate(b64decode(certificate)).not_valid_after_utc


def is_signing_key(text: str) -> bool:
    """Whether a text is a private key of the kind that Apple gives out."""
    try:
        key = load_pem_private_key(text.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp256r1"
