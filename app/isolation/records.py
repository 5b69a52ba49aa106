"""A record of each collection, of which each value is the mark of its account."""

from __future__ import annotations

from collections.abc import Callable

from app import clock
from app.collections import definition as definitions
from app.collections.definition import Definition
from app.isolation.tenants import MAIL_DOMAIN, Tenant


def imagine(tenant: Tenant) -> list[Definition]:
    """Make up a record for each collection; returns these, those that others refer to first."""
    remaining, made = definitions.get_all(), list[Definition]()
    while remaining:
        ready = [one for one in remaining if not _waits(tenant, one)]
        for one in ready or remaining:
            tenant.records[one.name] = _record(tenant, one)
        made += ready or remaining
        remaining = [one for one in remaining if one.name not in tenant.records]
    return made


def _waits(tenant: Tenant, one: Definition) -> bool:
    wanted = {
        target.name
        for name, spec in one.fields.items()
        if spec.collection and (target := one.target(name)) and target.name != one.name
    }
    return not wanted <= tenant.records.keys()


def _record(tenant: Tenant, one: Definition) -> dict[str, object]:
    id, now, user = tenant.new_id(one.table_name), clock.now(), tenant.id_of("users")
    row = {"id": id, "account_id": tenant.account_id, "created_at": now, "updated_at": now}
    row |= {"created_by": user, "updated_by": user}
    return row | {name: _content(tenant, one, name) for name in one.fields}


def _content(tenant: Tenant, one: Definition, name: str) -> object:
    text = f"{tenant.mark}-{one.table_name}-{name}"
    target = one.target(name)
    made: dict[str, Callable[[], object]] = {
        "text": lambda: text,
        "email": lambda: f"{text}@{MAIL_DOMAIN}",
        "url": lambda: f"https://{MAIL_DOMAIN}/{text}",
        "number": tenant.number,
        "boolean": lambda: True,
        "datetime": clock.now,
        "date": lambda: clock.now().date(),
        "json": lambda: {"value": text},
        "reference": lambda: tenant.ids.get(target.table_name) if target else None,
    }
    return made[one.fields[name].type]()
