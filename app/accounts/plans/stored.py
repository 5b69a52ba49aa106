"""The plans of the instance, which are a setting of it, and the terms of an account by its plan.

The terms travel with the cached caller: a change gives the accounts concerned new versions, so that
it holds on the next request of every process, and a request reads nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

import sqlalchemy as sa

from app import db
from app.accounts.models import InstanceSetting
from app.db import citus
from app.types import JSONMapping, JSONObject

NAME = "plans"


class Limits(TypedDict, total=False):
    """The limits of a meter, as stored: a hard one refuses, a soft one only sends mails."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True)
class Plan:
    """The limits of meters, and the names of flags, that accounts of this plan have."""

    quotas: Mapping[str, Limits] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    @property
    def body(self) -> JSONObject:
        """The plan as it is stored and shown."""
        return {"quotas": dict(self.quotas), "flags": list(self.flags)}


NO_PLAN = Plan()
Plans = Mapping[str, Plan]


def load(*, lock: bool = False) -> Plans:
    """Return the plans by name; with `lock`, they keep their names until the transaction ends."""
    query = sa.select(InstanceSetting.value).where(InstanceSetting.id == NAME)
    # On Citus a shared lock of a shared table is one on all its rows, and two at once deadlock.
    if lock and db.in_transaction() and not citus.is_sharded(db.connection()):
        query = query.with_for_update(read=True, key_share=True)
    return of(db.db.session.scalar(query) or {})


def of(value: JSONMapping) -> Plans:
    """Return the plans of a stored value."""
    return {name: Plan(one["quotas"], tuple(one["flags"])) for name, one in sorted(value.items())}


def of_account(plan: str | None, known: Plans | None = None) -> Plan:
    """Return what an account has by its plan."""
    if plan is None:
        return NO_PLAN
    return (load() if known is None else known).get(plan, NO_PLAN)


def flags(plan: Plan, overrides: Mapping[str, bool]) -> frozenset[str]:
    """Return the flags of an account: those of its plan, but for what is given or taken beside."""
    given = {name for name, has in overrides.items() if has}
    return frozenset({*plan.flags} - overrides.keys() | given)


def all_flags(known: Plans) -> frozenset[str]:
    """Return the names of all flags: those that some plan has."""
    return frozenset(name for plan in known.values() for name in plan.flags)
