"""Decrypts encrypted assertions: AES by RSA-OAEP, with one of the account's keys (XML Encryption).

The result is a response with a plain assertion, which all other checks then read: encryption proves
nothing about the sender.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from lxml import etree
from onelogin.saml2.constants import OneLogin_Saml2_Constants as Names
from onelogin.saml2.utils import OneLogin_Saml2_Utils
from onelogin.saml2.xml_utils import OneLogin_Saml2_XML

from app.sso.refusals import SignInRefused
from app.sso.saml import checks

XENC, XENC_1_1 = "http://www.w3.org/2001/04/xmlenc#", "http://www.w3.org/2009/xmlenc11#"
BLOCK, NONCE, MAX_KEYS = 16, 12, 4
# Bytes of the key.
GCM = {f"{XENC_1_1}aes{bits}-gcm": bits // 8 for bits in (128, 192, 256)}
CBC_MODES = {f"{XENC}aes{bits}-cbc": bits // 8 for bits in (128, 192, 256)}
OAEP_SHA1, OAEP = f"{XENC}rsa-oaep-mgf1p", f"{XENC_1_1}rsa-oaep"
DIGESTS: dict[str, hashes.HashAlgorithm] = {
    Names.SHA1: hashes.SHA1(),
    Names.SHA256: hashes.SHA256(),
    Names.SHA384: hashes.SHA384(),
    Names.SHA512: hashes.SHA512(),
    f"{XENC}sha512": hashes.SHA512(),
}
MASKS: dict[str, hashes.HashAlgorithm] = {
    f"{XENC_1_1}mgf1sha1": hashes.SHA1(),
    f"{XENC_1_1}mgf1sha256": hashes.SHA256(),
    f"{XENC_1_1}mgf1sha384": hashes.SHA384(),
    f"{XENC_1_1}mgf1sha512": hashes.SHA512(),
}
SIGNATURE = "/samlp:Response/ds:Signature"
FORM = "The response must have one encrypted assertion, and no other."
WRONG_KEY = (
    "The assertion is encrypted for another key. Give the identity provider our present metadata."
)


class _Undecryptable(Exception):
    """Raised if a key does not decrypt."""


def decrypt(
    raw: bytes, keys: Sequence[rsa.RSAPrivateKey], certificates: Sequence[str], max_bytes: int
) -> bytes:
    """Return a response with its assertion decrypted. Raises SignInRefused with the check.

    A signature of the response covers the encrypted form: it is verified by the identity provider's
    `certificates`, and removed. The assertion's own signature stays.
    """
    root = OneLogin_Saml2_XML.to_etree(raw)
    children = root.findall(checks.tag("EncryptedAssertion"))
    names = ("EncryptedAssertion", "Assertion")
    everywhere = [element for name in names for element in root.iter(checks.tag(name))]
    if root.tag != f"{{{Names.NS_SAMLP}}}Response" or len(children) != 1 or everywhere != children:
        raise SignInRefused("encryption", FORM)
    assertion = _decrypted(children[0], keys, max_bytes)
    for signature in root.findall(checks.ds("Signature")):
        checks.check_signature(signature)
        pem = [OneLogin_Saml2_Utils.format_cert(certificate) for certificate in certificates]
        if not OneLogin_Saml2_Utils.validate_sign(raw, multicerts=pem, xpath=SIGNATURE):
            raise SignInRefused("signature", "The signature of the response is not valid.")
        root.remove(signature)
    root.replace(children[0], assertion)
    decrypted: bytes = etree.tostring(root)
    return decrypted


def _decrypted(encrypted: Any, keys: Sequence[rsa.RSAPrivateKey], max_bytes: int) -> Any:
    content = encrypted.findall(_xenc("EncryptedData"))
    transported = [*encrypted.iter(_xenc("EncryptedKey"))]
    if len(content) != 1 or not 1 <= len(transported) <= MAX_KEYS:
        raise SignInRefused("encryption", FORM)
    algorithm, ciphertext = _method(content[0]), _ciphertext(content[0])
    size = {**GCM, **CBC_MODES}.get(algorithm)
    if size is None:
        raise _unsupported(algorithm)
    for secret in _secrets(transported, keys, size):
        try:
            plain = _open(algorithm, secret, ciphertext)
            element = OneLogin_Saml2_XML.to_etree(checks.sanitize(plain, max_bytes))
        except (_Undecryptable, checks.UnsafeXml, etree.XMLSyntaxError):
            continue
        if element.tag != checks.tag("Assertion"):
            raise SignInRefused("encryption", "The decrypted element is not an assertion.")
        return element
    raise SignInRefused("encryption", WRONG_KEY)


def _secrets(
    transported: Sequence[Any], keys: Sequence[rsa.RSAPrivateKey], size: int
) -> list[bytes]:
    secrets = []
    for element in transported:
        scheme, ciphertext = _padding(element), _ciphertext(element)
        for key in keys:
            try:
                secrets.append(key.decrypt(ciphertext, scheme))
            except ValueError:  # of another key
                continue
    return [secret for secret in secrets if len(secret) == size]


def _padding(element: Any) -> padding.AsymmetricPadding:
    algorithm = _method(element)
    method = element.find(_xenc("EncryptionMethod"))
    digest = _algorithm(method, checks.ds("DigestMethod"), Names.SHA1)
    mask = _algorithm(method, f"{{{XENC_1_1}}}MGF", f"{XENC_1_1}mgf1sha1")
    if algorithm not in (OAEP, OAEP_SHA1) or method.find(_xenc("OAEPparams")) is not None:
        raise _unsupported(algorithm)
    if digest not in DIGESTS or mask not in MASKS:
        raise _unsupported(f"{digest} with {mask}")
    mask_digest = MASKS[mask] if algorithm == OAEP else hashes.SHA1()
    return padding.OAEP(padding.MGF1(mask_digest), DIGESTS[digest], None)


def _algorithm(method: Any, child: str, default: str) -> str:
    element = method.find(child)
    return default if element is None else str(element.get("Algorithm"))


def _method(element: Any) -> str:
    methods = element.findall(_xenc("EncryptionMethod"))
    if len(methods) != 1:
        raise _unsupported("none")
    return str(methods[0].get("Algorithm"))


def _ciphertext(element: Any) -> bytes:
    # Never a reference: nothing is fetched.
    texts = [
        value.text for value in element.findall(f"{_xenc('CipherData')}/{_xenc('CipherValue')}")
    ]
    try:
        (text,) = texts
        return b64decode("".join((text or "").split()), validate=True)
    except (binascii.Error, ValueError):
        raise SignInRefused("encryption", "The ciphertext is missing or not valid.") from None


def _open(algorithm: str, secret: bytes, ciphertext: bytes) -> bytes:
    if algorithm in GCM:
        try:
            return AESGCM(secret).decrypt(ciphertext[:NONCE], ciphertext[NONCE:], None)
        except (InvalidTag, ValueError):
            raise _Undecryptable from None
    if len(ciphertext) < 2 * BLOCK or len(ciphertext) % BLOCK:
        raise _Undecryptable
    decryptor = Cipher(AES(secret), CBC(ciphertext[:BLOCK])).decryptor()
    plain = decryptor.update(ciphertext[BLOCK:]) + decryptor.finalize()
    if not 1 <= plain[-1] <= BLOCK:
        raise _Undecryptable
    return plain[: -plain[-1]]


def _unsupported(algorithm: str) -> SignInRefused:
    detail = f"Unsupported algorithm {algorithm}: use AES (GCM or CBC) with RSA-OAEP."
    return SignInRefused("encryption", detail)


def _xenc(name: str) -> str:
    return f"{{{XENC}}}{name}"
