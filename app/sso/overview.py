"""Provider settings of all accounts, for superadmins."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from app import db
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.sso.models import CATEGORIES, ProviderSetting
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
