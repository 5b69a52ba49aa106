"""Overviews: the settings of all accounts, and the providers that users sign in with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa

from app import db
from app.accounts.models import SYSTEM_ACCOUNT_ID, User
from app.sso import service
from app.sso.models import CATEGORIES, Identity, ProviderSetting
from app.types import JSONObject


def stats() -> JSONObject:
    """Count the settings of the system and of all accounts, by category."""
    is_system = (ProviderSetting.account_id == SYSTEM_ACCOUNT_ID).label("is_system")
    query = sa.select(is_system, ProviderSetting.category, sa.func.count().label("number"))
    of_system, of_accounts = dict.fromkeys(CATEGORIES, 0), dict.fromkeys(CATEGORIES, 0)
    for row in db.db.session.execute(query.group_by(is_system, ProviderSetting.category)):
        counts = of_system if row.is_system else of_accounts
        counts[row.category] = row.number
    return {
        "system_configs": {"total": sum(of_system.values()), "by_category": of_system},
        "account_configs": {"total": sum(of_accounts.values()), "by_category": of_accounts},
    }


def recent(limit: int) -> Sequence[ProviderSetting]:
    """Return the settings of all accounts that were changed last."""
    order = ProviderSetting.updated_at.desc(), ProviderSetting.id.desc()
    return db.db.session.scalars(sa.select(ProviderSetting).order_by(*order).limit(limit)).all()


def provider_names(user: User) -> Sequence[str]:
    """Return the names of the providers that a user has signed in with."""
    own = (Identity.account_id == user.account_id, Identity.user_id == user.id)
    names = db.db.session.scalars(sa.select(Identity.provider_name).where(*own).distinct()).all()
    if not names:
        return ()
    rows = service.list_for_sign_in(user.account_id)
    titles = {row.provider_name: row.display_name for row in rows}
    return sorted(titles.get(name, name) for name in names)


def last_sign_ins(account_id: str) -> Mapping[str, datetime]:
    """Return when users of an account last signed in, by the name of the provider."""
    last = sa.func.max(Identity.last_used_at).label("last")
    query = sa.select(Identity.provider_name, last).where(Identity.account_id == account_id)
    rows = db.db.session.execute(query.group_by(Identity.provider_name))
    return {row.provider_name: row.last for row in rows}
