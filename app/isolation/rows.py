"""A row of each table, of which each value is the mark of its account.

A new table needs no line here, unless its columns mean more than their types say (`GIVEN`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, crypto, db
from app.accounts.models import VIEWER
from app.auth import tokens
from app.collections import definition as definitions
from app.db import Base
from app.isolation.tenants import THINGS, Tenant

LATER = timedelta(days=3650)
RESUMED = "2026-01-31T10:00:00.000000Z"
STEPS = [{"name": "rest", "type": "wait_delay", "duration": "1h"}]
WRITERS = ("created_by", "owner_id", "invited_by", "updated_by")
REFERS = THINGS | dict.fromkeys(WRITERS, "users")

Given = Callable[[Tenant], Any]


def _json(tenant: Tenant) -> str:
    return orjson.dumps({"value": tenant.mark}).decode()


def _secret(tenant: Tenant) -> str:
    return crypto.encrypt(orjson.dumps({"client_secret": tenant.mark}).decode())


def _now(tenant: Tenant) -> Any:
    return clock.now()


def _first_collection(tenant: Tenant) -> str:
    return next((one.name for one in definitions.everything()), "posts")


def _always(value: Any) -> Given:
    return lambda tenant: value


_failed, _manual = _always("failed"), _always("manual")
# Columns that mean more than their type says.
GIVEN: dict[str, dict[str, Given]] = {
    "invitations": {
        "email": lambda t: t.email("invited"),
        "email_key": lambda t: t.email("invited"),
        "state": _always("pending"),
        "groups": _always([]),
    },
    "api_keys": {"scopes": _always(None), "key_hash": lambda t: tokens.digest(t.key)},
    "sessions": {"kind": _always("api")},
    "provider_settings": {
        "category": _always("auth_providers"),
        "provider_name": _always("google"),
        "config": lambda t: {"client_id": t.mark},
        "secrets": _secret,
    },
    "identities": {"groups": lambda t: [t.mark], "given_role_id": _always(None)},
    "sso_flows": {"verifier": _secret, "outcome": _secret},
    "jobs": {"status": _failed},
    "idempotency_keys": {
        "caller": lambda t: t.ids["users"],
        "status": _always(200),
        "answer": _json,
    },
    "webhooks": {
        "url": lambda t: f"https://{t.mark}.example/",
        "collection": _first_collection,
        "events": _always(["create", "update", "delete"]),
        "filter": _always(None),
        "headers": lambda t: {"X-Mark": t.mark},
        # What the other account does must not reach the victim's; its own are not to be sent.
        "enabled": lambda t: t.name == "victim",
        "secret": lambda t: crypto.encrypt(t.mark),
        "previous_secret": _always(None),
    },
    "webhook_deliveries": {
        "payload": _json,
        "status": _failed,
        "event": _always("records.create"),
        "last_claim": _always(1),
    },
    "workflows": {
        "kind": _always("workflow"),
        "trigger_type": _manual,
        "trigger": _always({"type": "manual"}),
        "steps": _always(STEPS),
        "condition": _always(None),
        "token": _always(None),
        "token_key": _always(None),
    },
    "workflow_versions": {"steps": _always(STEPS), "awaits": _always([])},
    "workflow_schedules": {"cron": _always("0 4 * * *"), "next_at": lambda t: clock.now() + LATER},
    "workflow_instances": {
        "kind": _always("workflow"),
        "trigger_type": _manual,
        "status": _failed,
        "started_at": _now,
        "completed_at": _now,
        "resumed_at": _always(clock.parse(RESUMED)),
        "position": _always("{}"),
        "context": lambda t: orjson.dumps({"trigger": {"value": t.mark}}).decode(),
    },
    "workflow_step_logs": {
        "step_type": _always("wait_delay"),
        "status": _failed,
        "completed_at": _now,
        "input": _json,
        "output": _json,
    },
    "workflow_subscriptions": {
        "event": _always("records.create"),
        "collection": lambda t: _first_collection(t).lower(),
        "condition": _always(None),
        "known": _always("{}"),
        "happened": _always(None),
    },
}
# Hooks are workflows of a kind: a second row.
HOOK: dict[str, Given] = {
    "id": lambda t: t.new_id("hooks"),
    "kind": _always("hook"),
    "steps": lambda t: [
        {
            "name": "one",
            "type": "action",
            "action_type": "delete_record",
            "config": {"collection": _first_collection(t), "record_id": t.mark},
        }
    ],
}


def row(tenant: Tenant, table: sa.Table) -> dict[str, Any]:
    """A row of a table."""
    given = GIVEN.get(table.name, {})
    return {
        column.name: given[column.name](tenant)
        if column.name in given
        else _value(tenant, table, column)
        for column in table.c
    }


def hook(tenant: Tenant) -> dict[str, Any]:
    """A row of the table of workflows that is a hook."""
    workflow = row(tenant, Base.metadata.tables["workflows"])
    return workflow | {name: of(tenant) for name, of in HOOK.items()}


def _value(tenant: Tenant, table: sa.Table, column: sa.Column[Any]) -> Any:
    default = getattr(column.default, "arg", None)
    default = None if callable(default) else default
    if column.name in ("account_id", "owner_home"):
        return tenant.account_id
    if column.name == "id" and isinstance(column.type, sa.Text):
        return tenant.ids[table.name]
    if column.name in REFERS:
        return tenant.ids[REFERS[column.name]]
    if isinstance(column.type, db.Moment):
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
