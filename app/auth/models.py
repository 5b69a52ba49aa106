"""Sessions and the tokens of mailed links (spec section 2, contract section 3)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app import clock
from app.db import Base, Id, Moment, Text, new_id


def _of_user() -> Any:
    return sa.ForeignKeyConstraint(
        ["account_id", "user_id"], ["users.account_id", "users.id"], ondelete="CASCADE"
    )


class SignInSession(Base):
    """One sign-in, and the family of refresh tokens that grows from it.

    Only the hash of the newest token is kept: an older one of the family is thereby known to have
    been used before.
    """

    __tablename__ = "sessions"
    __table_args__ = (
        _of_user(),
        sa.Index("ix_sessions_user", "account_id", "user_id"),
        sa.Index("ix_sessions_hash", "account_id", "token_hash"),
        sa.Index("ix_sessions_expires_at", "expires_at"),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    user_id: Mapped[str] = mapped_column(Id)
    kind: Mapped[str] = mapped_column(Text)  # "api" or "console"
    token_hash: Mapped[str] = mapped_column(Text)
    ip_address: Mapped[str | None] = mapped_column(Text)
    user_agent: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(Moment, default=clock.now)
    last_used_at: Mapped[datetime] = mapped_column(Moment, default=clock.now)
    expires_at: Mapped[datetime] = mapped_column(Moment)
    revoked_at: Mapped[datetime | None] = mapped_column(Moment)


class EmailVerificationToken(Base):
    """The hash of a token that proves an e-mail address; the token itself is only in the mail."""

    __tablename__ = "email_verification_tokens"
    __table_args__ = (
        _of_user(),
        sa.Index("ix_email_verification_tokens_hash", "account_id", "token_hash"),
        sa.Index("ix_email_verification_tokens_user", "account_id", "user_id"),
    )

    account_id: Mapped[str] = mapped_column(Id, primary_key=True)
    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    user_id: Mapped[str] = mapped_column(Id)
    token_hash: Mapped[str] = mapped_column(Text)
    expires_at: Mapped[datetime] = mapped_column(Moment)
    created_at: Mapped[datetime] = mapped_column(Moment, default=clock.now)
