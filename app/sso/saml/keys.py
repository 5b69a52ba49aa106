"""Key pairs of accounts as SAML service providers: they sign requests and decrypt assertions."""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
import structlog
from cryptography import x509
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID
from sqlalchemy.exc import IntegrityError

from app import clock, crypto, db, events
from app.auth.principal import Principal
from app.db.errors import conflict_on_unique
from app.errors import Conflict, NotFound
from app.ids import new_id
from app.sso.models import SamlKey
from app.sso.saml import certificates
from app.types import JSONObject

log = structlog.get_logger()
BITS = 3072
LIFETIME = timedelta(days=3653)
CLOCK_DRIFT = timedelta(hours=1)
FULL = "The account already has a second key pair. Activate it, or delete one."
# A generation takes a good part of a second of a processor.
_generation = threading.Lock()


@dataclass(frozen=True)
class NewPair:
    """A generated key pair: the certificate in base64, the key in PEM."""

    certificate: str
    private_key: str


def generate() -> NewPair:
    """Generate a key pair with a self-signed certificate for ten years."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=BITS)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Atrium SAML")])
    now = clock.now()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_DRIFT)
        .not_valid_after(now + LIFETIME)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return NewPair(b64encode(certificate.public_bytes(Encoding.DER)).decode(), pem.decode())


def get_all(account_id: str) -> Sequence[SamlKey]:
    """Return the key pairs of an account, the active one first."""
    query = sa.select(SamlKey).where(SamlKey.account_id == account_id)
    return db.db.session.scalars(query.order_by(SamlKey.is_active.desc())).all()


def require(account_id: str) -> Sequence[SamlKey]:
    """Return the key pairs of an account, the active one first; creates one if there is none."""
    keys = get_all(account_id)
    if keys:
        return keys
    with _generation:
        if not get_all(account_id):
            row = _row(account_id, 1, generate(), is_active=True)
            try:
                with db.transaction() as session:
                    session.add(row)
                    session.flush()
            except IntegrityError:  # another process was faster
                log.info("SAML key exists already", account=account_id)
    return get_all(account_id)


def signing_key(account_id: str) -> rsa.RSAPrivateKey:
    """Return the active private key of an account. Raises NotFound if no key decrypts it."""
    key = _load(require(account_id)[0])
    if key is None:
        raise NotFound("The account's SAML key cannot be read. Delete it to get a new one.")
    return key


def decryption_keys(account_id: str) -> list[rsa.RSAPrivateKey]:
    """Return the readable private keys of an account."""
    keys = (_load(row) for row in get_all(account_id))
    return [key for key in keys if key is not None]


def describe(key: SamlKey) -> JSONObject:
    """Return a key pair as in responses, without the private key."""
    return {
        "id": key.id,
        "is_active": key.is_active,
        "certificate": key.certificate,
        "fingerprint": certificates.fingerprint(key.certificate),
        "expires_at": certificates.expires_at(key.certificate),
        "created_at": key.created_at,
    }


def create(by: Principal) -> SamlKey:
    """Create the next key pair of the caller's account. Raises Conflict if there are two."""
    by.require_recent_sign_in()
    account_id = by.require_account_id()
    present = get_all(account_id)
    slots = {1, 2} - {key.slot for key in present}
    if not slots:
        raise Conflict(FULL)
    with _generation:
        pair = generate()
    with db.transaction() as session, conflict_on_unique("saml_keys", "slot", "slot", FULL):
        row = _row(account_id, min(slots), pair, is_active=not present)
        session.add(row)
        session.flush()
    return row


def activate(key_id: str, by: Principal) -> SamlKey:
    """Sign with this key pair from now on. Raises NotFound."""
    by.require_recent_sign_in()
    account_id = by.require_account_id()
    with db.transaction() as session:
        rows = {row.id: row for row in _locked(account_id)}
        if key_id.lower() not in rows:
            raise NotFound("There is no such key pair.")
        for row in rows.values():
            row.is_active = row.id == key_id.lower()
        session.flush()
    return rows[key_id.lower()]


def delete(key_id: str, by: Principal) -> None:
    """Delete a key pair. Raises NotFound, or Conflict for the active one of two."""
    by.require_recent_sign_in()
    with db.transaction() as session:
        rows = {row.id: row for row in _locked(by.require_account_id())}
        row = rows.get(key_id.lower())
        if row is None:
            raise NotFound("There is no such key pair.")
        if row.is_active and len(rows) > 1:
            raise Conflict("This key pair signs requests. Activate the other one first.")
        session.delete(row)


def _locked(account_id: str) -> Sequence[SamlKey]:
    query = sa.select(SamlKey).where(SamlKey.account_id == account_id).order_by(SamlKey.id)
    locked = query.with_for_update().execution_options(populate_existing=True)
    return db.db.session.scalars(locked).all()


def _row(account_id: str, slot: int, pair: NewPair, *, is_active: bool) -> SamlKey:
    return SamlKey(
        account_id=account_id,
        id=new_id(),
        slot=slot,
        is_active=is_active,
        certificate=pair.certificate,
        private_key=crypto.encrypt(pair.private_key),
        created_at=clock.now(),
    )


def _load(row: SamlKey) -> rsa.RSAPrivateKey | None:
    try:
        pem = crypto.decrypt(row.private_key).encode()
        # It is ours, and Fernet signs what it encrypts: the primes need no test at each sign-in.
        key = load_pem_private_key(pem, None, unsafe_skip_rsa_key_validation=True)
    except InvalidToken:  # its key was removed from the settings
        log.error("SAML key cannot be read", account=row.account_id, key=row.id)
        return None
    return key if isinstance(key, rsa.RSAPrivateKey) else None


@events.subscribe(events.AccountClosed)
def _remove(event: events.AccountClosed) -> None:
    table: Any = SamlKey.__table__
    db.connection().execute(sa.delete(table).where(table.c.account_id == event.account_id))
