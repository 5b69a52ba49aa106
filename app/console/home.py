"""What the home page tells: what there is for this caller, and what to do next."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from app.accounts.models import Account, User
from app.auth.principal import Principal
from app.collections import service as collections
from app.collections.models import Collection
from app.console import dashboard
from app.console.places import Place
from app.db import db


def summary(caller: Principal) -> dict[str, Any]:
    """Figures and next steps for the home page."""
    return _of_instance() if caller.is_superadmin else _of_account(caller)


def _of_instance() -> dict[str, Any]:
    rows, total = collections.page(0, 100)
    counts = collections.record_counts(rows)
    figures = {
        "Accounts": _count(Account) - 1,
        "Users": _count(User),
        "Collections": total,
        "Records": sum(counts.values()),
    }
    return {
        "figures": figures,
        "collections": [
            {
                "id": row.id,
                "name": row.name,
                "fields": len(row.schema),
                "records": counts[row.id],
            }
            for row in rows
        ],
    }


def _of_account(caller: Principal) -> dict[str, Any]:
    figures = {
        "People": _count(User, User.account_id == caller.account_id),
        "Collections": _count(Collection),
    }
    told = {"figures": figures, "collections": []}
    if caller.is_admin and caller.account:
        told["dashboard"] = dashboard.of(Place(caller.account, caller))
    return told


def _count(model: Any, *where: Any) -> int:
    counted = sa.select(sa.func.count()).select_from(model).where(*where)
    return db.session.scalar(counted) or 0
