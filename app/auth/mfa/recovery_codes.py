"""Ten codes for the day when the phone is lost; each works once."""

from __future__ import annotations

import base64
import re
import secrets
from typing import Any

import sqlalchemy as sa

from app import db
from app.accounts.models import User
from app.accounts.types import Condition
from app.auth import tokens
from app.auth.mfa.models import RecoveryCode

COUNT, BYTES, GROUP = 10, 10, 4


def replace(user: User) -> list[str]:
    """Ten new codes, in the open transaction; older ones stop working."""
    codes = []
    for _ in range(COUNT):
        text = base64.b32encode(secrets.token_bytes(BYTES)).decode().lower()
        codes.append("-".join(text[i : i + GROUP] for i in range(0, len(text), GROUP)))
    session = db.db.session
    session.execute(sa.delete(RecoveryCode).where(*_of(user)))
    session.add_all(
        RecoveryCode(account_id=user.account_id, user_id=user.id, code_hash=_hash(code))
        for code in codes
    )
    return codes


def accept(user: User, code: str) -> bool:
    """Use a code; false if it is wrong or was used before."""
    same = RecoveryCode.code_hash == _hash(code)
    result: Any = db.db.session.execute(sa.delete(RecoveryCode).where(*_of(user), same))
    return bool(result.rowcount)


def count(user: User) -> int:
    """The number of unused codes."""
    query = sa.select(sa.func.count()).select_from(RecoveryCode).where(*_of(user))
    return db.db.session.scalar(query) or 0


def delete(user: User, *conditions: Condition) -> None:
    """Delete the user's codes, in the open transaction."""
    db.db.session.execute(sa.delete(RecoveryCode).where(*_of(user), *conditions))


def _of(user: User) -> tuple[Condition, ...]:
    return (RecoveryCode.account_id == user.account_id, RecoveryCode.user_id == user.id)


def _hash(code: str) -> str:
    return tokens.digest(re.sub(r"[\s-]", "", code).lower())
