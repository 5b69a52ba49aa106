"""Signatures that prove where a delivery comes from (https://www.standardwebhooks.com).

The key of both signatures is the UTF-8 text of the secret. `signing_secret` is the same key in
the format of Standard Webhooks libraries.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence

SECRET_BYTES = 32


def new_secret() -> str:
    """A random secret of 64 hex characters."""
    return secrets.token_hex(SECRET_BYTES)


def signing_secret(secret: str) -> str:
    """The secret in the format of Standard Webhooks libraries."""
    return f"whsec_{base64.b64encode(secret.encode()).decode()}"


def headers(
    keys: Sequence[str], *, delivery_id: str, timestamp: int, body: bytes
) -> Mapping[str, str]:
    """The signature headers of a body for each valid key, newest first."""
    signed = f"{delivery_id}.{timestamp}.".encode() + body
    result = {
        "X-Service-Signature": f"sha256={_digest(keys[0], body).hex()}",
        "webhook-id": delivery_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(
            f"v1,{base64.b64encode(_digest(key, signed)).decode()}" for key in keys
        ),
    }
    for previous_key in keys[1:]:
        result["X-Service-Signature-Previous"] = f"sha256={_digest(previous_key, body).hex()}"
    return result


def _digest(key: str, text: bytes) -> bytes:
    return hmac.new(key.encode(), text, hashlib.sha256).digest()
