"""A row of each table whose values contain the account's mark.

A new table needs no code here: columns that need particular values have samples in its policy.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, crypto
from app.accounts.models import VIEWER
from app.auth import tokens
from app.collections import definitions
from app.db import Base, policies
from app.db.policy import Sample
from app.db.types import UtcDateTime
from app.extensions import registry
from app.isolation.tenants import Tenant, table_by_parameter
from app.sso.saml import keys as saml_keys

LATER = timedelta(days=3650)
RESUMED = "2026-01-31T10:00:00.000000Z"
STEPS = [{"name": "rest", "type": "wait_delay", "duration": "1h"}]
WRITERS = ("uploaded_by", "created_by", "owner_id", "invited_by", "updated_by")


def _first_collection(tenant: Tenant) -> str:
    return next((definition.name for definition in definitions.get_all()), "posts")


SAMPLES: dict[Sample, Callable[[Tenant], object]] = {
    Sample.CERTIFICATE: lambda t: saml_keys.generate().certificate,
    Sample.COLLECTION: _first_collection,
    Sample.COLLECTION_ID: lambda t: next((one.id for one in definitions.get_all()), t.mark),
    Sample.COLLECTION_KEY: lambda t: _first_collection(t).lower(),
    Sample.EMAIL: lambda t: t.email("invited"),
    Sample.ENCRYPTED: lambda t: crypto.encrypt(t.mark),
    Sample.SECRET: lambda t: crypto.encrypt(orjson.dumps({"client_secret": t.mark}).decode()),
    Sample.JSON: lambda t: orjson.dumps({"value": t.mark}).decode(),
    Sample.IS_VICTIM: lambda t: t.name == "victim",
    Sample.KEY_HASH: lambda t: tokens.digest(t.key),
    Sample.SCIM_TOKEN_HASH: lambda t: tokens.digest(t.scim_token),
    Sample.NOW: lambda t: clock.now(),
    Sample.LATER: lambda t: clock.now() + LATER,
    Sample.LONG_AGO: lambda t: clock.parse(RESUMED),
    Sample.SIZE: lambda t: len(t.mark),
    Sample.STEPS: lambda t: STEPS,
    Sample.USER_ID: lambda t: t.ids["users"],
}


def row(tenant: Tenant, table: sa.Table) -> dict[str, object]:
    samples = policies()[table.name].sample
    explicit = {name: _resolve(value, tenant) for name, value in samples.items()}
    columns = (column for column in table.c if column.name not in explicit)
    return {column.name: _value(tenant, table, column) for column in columns} | explicit


def hook(tenant: Tenant) -> dict[str, object]:
    """Build a hook: a row of workflows with another kind."""
    step = {
        "name": "one",
        "type": "action",
        "action_type": "delete_record",
        "config": {"collection": _first_collection(tenant), "record_id": tenant.mark},
    }
    own = {"id": tenant.new_id("hooks"), "kind": "hook", "steps": [step]}
    return row(tenant, Base.metadata.tables["workflows"]) | own


@cache
def _referred_tables() -> dict[str, str]:
    return table_by_parameter() | dict.fromkeys(WRITERS, "users")


registry.on_change(_referred_tables.cache_clear)


def _resolve(value: object, tenant: Tenant) -> object:
    if isinstance(value, Sample):
        return SAMPLES[value](tenant)
    if isinstance(value, str):
        return value.replace("{mark}", tenant.mark)
    if isinstance(value, list):
        return [_resolve(item, tenant) for item in value]
    if isinstance(value, dict):
        return {key: _resolve(item, tenant) for key, item in value.items()}
    return value


def _value(tenant: Tenant, table: sa.Table, column: sa.Column[Any]) -> object:
    default = getattr(column.default, "arg", None)
    default = None if callable(default) else default
    if column.name in ("account_id", "owner_home"):
        return tenant.account_id
    if column.name == "id" and isinstance(column.type, sa.Text):
        return tenant.ids[table.name]
    if column.name in _referred_tables():
        return tenant.ids[_referred_tables()[column.name]]
    if isinstance(column.type, UtcDateTime):
        if column.nullable:
            return None
        return clock.now() + LATER if "expires" in column.name else clock.now()
    if isinstance(column.type, sa.Boolean):
        return bool(default)
    if isinstance(column.type, sa.Integer):
        return tenant.users[VIEWER].role_id if column.name == "role_id" else default or 1
    if isinstance(column.type, sa.JSON):
        return {"value": tenant.mark}
    if column.name in ("revoked_by", "replay_of"):
        return None
    return f"{tenant.mark}-{table.name}-{column.name}"
