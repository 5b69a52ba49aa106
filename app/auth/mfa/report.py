"""Reports which users of an account have second factors, and which need one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from app import db
from app.accounts import sign_in_settings
from app.accounts.models import User, UserKind
from app.auth.mfa.models import SecondFactor

WITH, WITHOUT = "with", "without"
STATES = (WITH, WITHOUT)


@dataclass(frozen=True)
class UserFactors:
    """A user, the kinds of their factors, and from when they need one."""

    user: User
    methods: list[str]
    required_from: datetime | None


def page(
    account_id: str, skip: int, limit: int, state: str | None = None
) -> tuple[list[UserFactors], int]:
    """One page of an account's active users, newest first, and the total."""
    has_factor = sa.exists().where(
        SecondFactor.account_id == User.account_id,
        SecondFactor.user_id == User.id,
        SecondFactor.confirmed_at.is_not(None),
    )
    is_person = User.kind == UserKind.PERSON
    conditions = [User.account_id == account_id, User.is_active, is_person]
    if state is not None:
        conditions.append(has_factor if state == WITH else ~has_factor)
    count = sa.select(sa.func.count()).select_from(User).where(*conditions)
    query = sa.select(User).where(*conditions).order_by(User.id.desc()).offset(skip).limit(limit)
    users = list(db.db.session.scalars(query))
    kinds = (
        sa.select(SecondFactor.user_id, SecondFactor.kind)
        .where(SecondFactor.account_id == account_id, SecondFactor.confirmed_at.is_not(None))
        .where(SecondFactor.user_id.in_([user.id for user in users]))
        .distinct()
        .order_by(SecondFactor.kind)
    )
    methods = defaultdict[str, list[str]](list)
    for user_id, kind in db.connection().execute(kinds):
        methods[user_id].append(kind)
    found = [
        UserFactors(
            user,
            methods[user.id],
            sign_in_settings.required_from(user.account.settings, user.role.name, user.created_at),
        )
        for user in users
    ]
    return found, db.db.session.scalar(count) or 0
