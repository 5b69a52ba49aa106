"""Checkpoints and starts: signed statements of a chain's state, also stored outside the database.

Whoever controls the database could truncate a chain or rewrite it with matching hashes. Neither
matches a checkpoint stored elsewhere: in logs, exports or a mailbox.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from app import clock, config, db
from app.audit.chain import digest
from app.audit.chain.log import Log
from app.types import JSONMapping, JSONObject

Checkpoint = JSONMapping
SIGNED = ("account_id", "checksum", "created_at", "entry_id")
STORED_START = (*SIGNED, "removed", "public_key", "signature")
START = "start"
"""The `kind` of a start, which is part of what is signed: no checkpoint passes as a start."""


def fault(checkpoint: Checkpoint) -> str | None:
    """Why a checkpoint's signature is invalid, or None."""
    known = public_keys()
    # Without a key nobody can have cut the log.
    if (known or is_start(checkpoint)) and checkpoint["public_key"] not in known:
        return f"{_name(checkpoint)} is signed with an unknown key"
    if not is_signed(message(checkpoint), checkpoint["public_key"], checkpoint["signature"]):
        return f"{_name(checkpoint)}'s signature is invalid"
    return None


def sign(message: bytes) -> tuple[str, str] | None:
    """The public key and the signature of a message, in hex; None without a configured key."""
    for key in _keys()[:1]:
        return _public(key), key.sign(message).hex()
    return None


def is_signed(message: bytes, public_key: str, signature: str) -> bool:
    """Whether a signature of a message, both in hex, is valid."""
    try:
        signer = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        signer.verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_keys() -> list[str]:
    """The public keys of this instance, the newest first."""
    return [_public(key) for key in _keys()]


def _keys() -> list[Ed25519PrivateKey]:
    texts = config.current().audit_checkpoint_key
    return [Ed25519PrivateKey.from_private_bytes(urlsafe_b64decode(text)) for text in texts]


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def message(checkpoint: Checkpoint) -> bytes:
    """The bytes that a checkpoint or start is signed over."""
    names = (*SIGNED, "kind", "removed") if is_start(checkpoint) else SIGNED
    return digest.canonical({name: checkpoint[name] for name in names})


def is_start(checkpoint: Checkpoint) -> bool:
    """Whether the statement says that the chain begins after its entry."""
    return checkpoint.get("kind") == START


def _name(checkpoint: Checkpoint) -> str:
    return "a start" if is_start(checkpoint) else "a checkpoint"


def start_of(log: Log, account_id: str) -> JSONObject | None:
    """The start of an account's chain; None if it was never cut."""
    return next(starts(log, account_id), None)


def starts(log: Log, account_id: str | None = None) -> Iterator[JSONObject]:
    """The start of an account's chain (None: of all), where it was cut."""
    table = log.starts
    conditions = [table.c.account_id == account_id] if account_id else []
    query = sa.select(table).where(*conditions).order_by(table.c.account_id)
    for row in db.connection().execute(query).all():
        yield stored_start({**row._asdict(), "account_id": log.chain_id(row.account_id)})


def stored_start(row: Mapping[str, Any]) -> JSONObject:
    """The statement in a row of a table of starts."""
    values = {"checksum": row["checksum"].hex(), "created_at": clock.iso(row["created_at"])}
    return {**row, **values, "kind": START}


def start_row(start: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a table of starts for a statement."""
    values: dict[str, Any] = {name: start[name] for name in STORED_START}
    values["checksum"] = bytes.fromhex(values["checksum"])
    values["created_at"] = clock.parse(values["created_at"])
    return values


def sign_chain(
    account_id: str, entry_id: int, checksum: str, removed: int | None = None
) -> dict[str, object] | None:
    """A checkpoint of a chain, signed with the newest key; None without a key.

    With `removed`, the number of entries removed, it is a start.
    """
    checkpoint: dict[str, object] = {
        "account_id": account_id,
        "entry_id": entry_id,
        "checksum": checksum,
        "created_at": clock.iso(clock.now()),
    }
    if removed is not None:
        checkpoint |= {"kind": START, "removed": removed}
    signed = sign(message(checkpoint))
    if signed is None:
        return None
    return checkpoint | dict(zip(("public_key", "signature"), signed, strict=True))
