"""Encrypts the assertions of the tests' identity provider, also by what nobody should use."""

from __future__ import annotations

import base64
import re
import secrets
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC

XENC, XENC_1_1 = "http://www.w3.org/2001/04/xmlenc#", "http://www.w3.org/2009/xmlenc11#"
DS = "http://www.w3.org/2000/09/xmldsig#"
GCM, CBC_MODE = f"{XENC_1_1}aes256-gcm", f"{XENC}aes256-cbc"
OAEP_SHA1, OAEP, PKCS1 = f"{XENC}rsa-oaep-mgf1p", f"{XENC_1_1}rsa-oaep", f"{XENC}rsa-1_5"
ASSERTION = re.compile(r"<saml:Assertion.*</saml:Assertion>", re.DOTALL)
SHA1, SHA256 = f"{DS}sha1", f"{XENC}sha256"


@dataclass
class Encrypt:
    """Encrypts the assertion of a response for a certificate."""

    certificate: str
    content: str = GCM
    transport: str = OAEP_SHA1
    sha256: bool = False
    beside: bool = False
    """Whether the key stands beside the content, not inside."""

    def __call__(self, response: str) -> str:
        """The response with its assertion encrypted."""
        return ASSERTION.sub(lambda found: self.element(found[0].encode()), response)

    def element(self, plain: bytes) -> str:
        """The encrypted form of an assertion."""
        secret = secrets.token_bytes(32)
        key = (
            f'<xenc:EncryptedKey xmlns:xenc="{XENC}">{self._method()}<xenc:CipherData>'
            f"<xenc:CipherValue>{_text(self._transported(secret))}</xenc:CipherValue>"
            "</xenc:CipherData></xenc:EncryptedKey>"
        )
        info = "" if self.beside else f'<ds:KeyInfo xmlns:ds="{DS}">{key}</ds:KeyInfo>'
        return (
            f'<saml:EncryptedAssertion><xenc:EncryptedData xmlns:xenc="{XENC}"'
            f' Type="{XENC}Element"><xenc:EncryptionMethod Algorithm="{self.content}"/>{info}'
            f"<xenc:CipherData><xenc:CipherValue>{_text(self._hidden(secret, plain))}"
            "</xenc:CipherValue></xenc:CipherData></xenc:EncryptedData>"
            f"{key if self.beside else ''}</saml:EncryptedAssertion>"
        )

    def _hidden(self, secret: bytes, plain: bytes) -> bytes:
        if self.content.endswith("gcm"):
            nonce = secrets.token_bytes(12)
            return nonce + AESGCM(secret).encrypt(nonce, plain, None)
        start, missing = secrets.token_bytes(16), 16 - len(plain) % 16
        padded = plain + secrets.token_bytes(missing - 1) + bytes([missing])
        encryptor = Cipher(AES(secret), CBC(start)).encryptor()
        return start + encryptor.update(padded) + encryptor.finalize()

    def _transported(self, secret: bytes) -> bytes:
        key: Any = x509.load_der_x509_certificate(base64.b64decode(self.certificate)).public_key()
        if self.transport == PKCS1:
            return bytes(key.encrypt(secret, padding.PKCS1v15()))
        digest = hashes.SHA256() if self.sha256 else hashes.SHA1()
        mask = digest if self.transport == OAEP else hashes.SHA1()
        return bytes(key.encrypt(secret, padding.OAEP(padding.MGF1(mask), digest, None)))

    def _method(self) -> str:
        digest = f'<ds:DigestMethod xmlns:ds="{DS}" Algorithm="{SHA256 if self.sha256 else SHA1}"/>'
        mask = f'<x:MGF xmlns:x="{XENC_1_1}" Algorithm="{XENC_1_1}mgf1sha256"/>'
        inner = digest + (mask if self.transport == OAEP and self.sha256 else "")
        return (
            f'<xenc:EncryptionMethod Algorithm="{self.transport}">{inner}</xenc:EncryptionMethod>'
        )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
