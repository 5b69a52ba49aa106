"""Provider settings of all accounts, for superadmins."""

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
    """The number of the system's settings and of all accounts', by category."""
    of_system = ProviderSetting.account_id == SYSTEM_ACCOUNT_ID
    query = sa.select(of_system, ProviderSetting.category, sa.func.count())
    rows = db.db.session.execute(query.group_by(of_system, ProviderSetting.category)).all()
    counts = {(bool(row[0]), row[1]): row[2] for row in rows}
    return {"system_configs": _level(counts, True), "account_configs": _level(counts, False)}


def _level(counts: dict[tuple[bool, str], int], of_system: bool) -> JSONObject:
    by_category = {category: counts.get((of_system, category), 0) for category in CATEGORIES}
    return {"total": sum(by_category.values()), "by_category": by_category}


def recent(limit: int) -> Sequence[ProviderSetting]:
    """The settings of all accounts that were changed last."""
    order = ProviderSetting.updated_at.desc(), ProviderSetting.id.desc()
    return db.db.session.scalars(sa.select(ProviderSetting).order_by(*order).limit(limit)).all()


def provider_names(user: User) -> Sequence[str]:
    """The names of the providers that the user has signed in with."""
    own = (Identity.account_id == user.account_id, Identity.user_id == user.id)
    found = db.db.session.scalars(sa.select(Identity.provider_name).where(*own).distinct()).all()
    if not found:
        return ()
    rows = service.list_for_sign_in(user.account_id)[1]
    titles = {row.provider_name: row.display_name for row in rows}
    return sorted(titles.get(name, name) for name in found)


def by_provider(account_id: str) -> Mapping[str, datetime]:
    """When users of an account last signed in, by the name of the provider."""
    last = sa.func.max(Identity.last_used_at)
    query = sa.select(Identity.provider_name, last).where(Identity.account_id == account_id)
    rows = db.db.session.execute(query.group_by(Identity.provider_name))
    return {row[0]: row[1] for row in rows}
