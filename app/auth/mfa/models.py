"""Second factors, recovery codes and used tokens."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock
from app.db import Base
from app.db.policy import Audited, Bundled, NotAudited, NotBundled, Noun, Sample, TablePolicy
from app.db.types import Id, Text, UtcDateTime
from app.ids import new_id
from app.web.languages import lazy_gettext


class Method(StrEnum):
    """A kind of second factor."""

    TOTP = "totp"
    PASSKEY = "passkey"
    RECOVERY_CODE = "recovery_code"


KINDS = (Method.TOTP, Method.PASSKEY)  # of factors


def _user_key() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["account_id", "user_id"], ["users.account_id", "users.id"], ondelete="CASCADE"
    )


class SecondFactor(Base):
    """An authenticator app or a passkey of a user."""

    __tablename__ = "second_factors"
    __table_args__ = (
        _user_key(),
        sa.UniqueConstraint("account_id", "credential_id"),
        sa.Index("ix_second_factors_user", "account_id", "user_id"),
    )
    __policy__ = TablePolicy(
        audit=Audited(
            ignored=("last_step", "sign_count", "on_verified_address", "last_used_at"),
            hidden=("secret", "credential_id", "public_key"),
        ),
        bundle=Bundled(order=80),
        encrypted=("secret",),
        noun=Noun(
            lazy_gettext("Second factor"),
            lazy_gettext("Second factors"),
            order=160,
            event="second_factor",
        ),
        id_names=("factor_id",),
        sample={"kind": "totp", "secret": Sample.SECRET},
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    user_id: Mapped[str] = mapped_column(Id)
    kind: Mapped[str] = mapped_column(Text)  # one of KINDS
    name: Mapped[str] = mapped_column(Text)
    secret: Mapped[str | None] = mapped_column(Text)  # of TOTP, encrypted
    # The newest time step used, so that no code works twice.
    last_step: Mapped[int | None] = mapped_column(sa.BigInteger)
    credential_id: Mapped[str | None] = mapped_column(Text)  # of a passkey, base64url
    public_key: Mapped[str | None] = mapped_column(Text)  # of a passkey, base64url COSE
    sign_count: Mapped[int | None] = mapped_column(sa.BigInteger)
    # Null until the user has shown a code of it.
    confirmed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # Whether the user's address was verified then; null in older releases.
    on_verified_address: Mapped[bool | None] = mapped_column()
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=clock.now)


class RecoveryCode(Base):
    """The hash of an unused recovery code."""

    __tablename__ = "recovery_codes"
    __table_args__ = (_user_key(),)
    __policy__ = TablePolicy(audit=NotAudited("tokens"), bundle=Bundled(order=90))

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    user_id: Mapped[str] = mapped_column(Id, primary_key=True)
    code_hash: Mapped[str] = mapped_column(Text, primary_key=True)
    # Null in older releases.
    created_at: Mapped[datetime | None] = mapped_column(UtcDateTime, default=clock.now)


class UsedToken(Base):
    """The hash of a used `mfa_token` or passkey challenge: each works once."""

    __tablename__ = "used_mfa_tokens"
    __table_args__ = (
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"]),
        sa.Index("ix_used_mfa_tokens_expires_at", "expires_at"),
    )
    __policy__ = TablePolicy(audit=NotAudited("tokens"), bundle=NotBundled("tokens of minutes"))

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    token_hash: Mapped[str] = mapped_column(Text, primary_key=True)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
