"""Codes of authenticator apps: RFC 6238 with SHA-1, six digits, steps of 30 seconds."""

from __future__ import annotations

import hmac
import io
import re
from typing import Any

import pyotp
import sqlalchemy as sa

from app import clock, crypto, db
from app.accounts.models import User
from app.accounts.product import faces
from app.auth.mfa.models import Method, SecondFactor

SIZE = re.compile(r'width="(\d+)" height="(\d+)"')
STEP = 30
SKEW = (0, -1, 1)
"""Steps in which a code works: clocks of phones differ."""


def new_secret() -> str:
    """A random secret of 160 bits in base32."""
    return pyotp.random_base32()


def otpauth_url(secret: str, user: User) -> str:
    """The address that authenticator apps read."""
    issuer = faces.issuer(user.account_id, user.account.name)
    url: str = pyotp.TOTP(secret).provisioning_uri(name=user.email, issuer_name=issuer)
    return url


def qr_svg(url: str) -> str:
    """The address as a QR code: an SVG element."""
    import segno  # on use: large

    out = io.BytesIO()
    segno.make(url, error="m").save(
        out, kind="svg", scale=4, border=4, xmldecl=False, svgns=True, nl=False, light="#fff"
    )
    # So that pages may shrink it.
    return SIZE.sub(r'\g<0> viewBox="0 0 \1 \2"', out.getvalue().decode(), count=1)


def accept(user: User, code: str, *conditions: sa.ColumnElement[bool]) -> SecondFactor | None:
    """Use a code of the user's authenticator app; None if it is wrong or was used before."""
    rows = sa.select(SecondFactor).where(
        SecondFactor.account_id == user.account_id,
        SecondFactor.user_id == user.id,
        SecondFactor.kind == Method.TOTP,
        *conditions,
    )
    digits = "".join(code.split())  # phones group the digits, and pasting adds a line break
    now = int(clock.now().timestamp()) // STEP
    for factor in db.db.session.scalars(rows):
        generator = pyotp.HOTP(crypto.decrypt(factor.secret or ""))
        matching = [
            now + skew
            for skew in SKEW
            if hmac.compare_digest(generator.at(now + skew).encode(), digits.encode())
        ]
        if matching and _advance(factor, matching[0]):
            return factor
    return None


def _advance(factor: SecondFactor, step: int) -> bool:
    """Move to the step of a code; false if that or a later one was used."""
    table = SecondFactor.__table__.c
    is_newer = sa.or_(table.last_step.is_(None), table.last_step < step)
    statement = (
        sa.update(SecondFactor)
        .where(table.account_id == factor.account_id, table.id == factor.id, is_newer)
        .values(last_step=step, last_used_at=clock.now())
    )
    result: Any = db.db.session.execute(statement)
    return bool(result.rowcount)
