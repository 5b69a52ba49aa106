"""A row of each table whose values contain the account's mark.

A new table needs no code here, unless its columns need particular values (`COLUMN_VALUES`).
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, crypto
from app.accounts.models import VIEWER
from app.auth import tokens
from app.collections import definitions
from app.db import Base
from app.db.types import UtcDateTime
from app.isolation.tenants import Tenant, table_by_parameter
from app.portability.bundle.models import READY
from app.sso.saml import keys as saml_keys

LATER = timedelta(days=3650)
RESUMED = "2026-01-31T10:00:00.000000Z"
STEPS = [{"name": "rest", "type": "wait_delay", "duration": "1h"}]
WRITERS = ("uploaded_by", "created_by", "owner_id", "invited_by", "updated_by")


def _json(tenant: Tenant) -> str:
    return orjson.dumps({"value": tenant.mark}).decode()


def _secret(tenant: Tenant) -> str:
    return crypto.encrypt(orjson.dumps({"client_secret": tenant.mark}).decode())


def _certificate(tenant: Tenant) -> str:
    return saml_keys.generate().certificate


def _now(tenant: Tenant) -> object:
    return clock.now()


def _first_collection(tenant: Tenant) -> str:
    return next((definition.name for definition in definitions.get_all()), "posts")


# Columns that need particular values: a value, or a function that builds it for an account.
COLUMN_VALUES: dict[str, dict[str, object]] = {
    "invitations": {
        "email": lambda t: t.email("invited"),
        "email_key": lambda t: t.email("invited"),
        "state": "pending",
        "groups": [],
    },
    "api_keys": {"scopes": None, "ip_addresses": None, "key_hash": lambda t: tokens.digest(t.key)},
    # Ready, and empty, as no bundle was written.
    "account_exports": {"status": READY, "size": 0, "expires_at": lambda t: clock.now() + LATER},
    "scim_tokens": {
        "token_hash": lambda t: tokens.digest(t.scim_token),
        "last_used_at": lambda t: clock.now() + LATER,  # or its list would change when it is used
    },
    "setup_links": {"features": ["sso"]},
    "directory_users": {
        "attributes": lambda t: {"displayName": t.mark},
        "given_role_id": None,
    },
    "sessions": {"kind": "api"},
    "second_factors": {"kind": "totp", "secret": _secret},
    "provider_settings": {
        "category": "auth_providers",
        "provider_name": "google",
        "kind": None,
        "config": lambda t: {"client_id": t.mark},
        "secrets": _secret,
    },
    "identities": {"groups": lambda t: [t.mark], "given_role_id": None},
    "saml_keys": {"certificate": _certificate, "private_key": _secret},
    "sso_flows": {"verifier": _secret, "outcome": _secret},
    "jobs": {"status": "failed"},
    "idempotency_keys": {
        "caller": lambda t: t.ids["users"],
        "status": 200,
        "answer": _json,
    },
    "files": {
        "mime_type": "text/plain",
        "size": lambda t: len(t.mark),
        "collection_id": None,
        "record_id": None,
        "released_at": None,
        "removed_at": None,
    },
    "saved_views": {
        "collection_id": lambda t: next((one.id for one in definitions.get_all()), t.mark),
        "filter": None,
        "state": lambda t: {"columns": [t.mark]},
        "is_default": False,
    },
    "webhooks": {
        "url": lambda t: f"https://{t.mark}.example/",
        "collection": _first_collection,
        "events": ["create", "update", "delete"],
        "filter": None,
        "headers": lambda t: {"X-Mark": t.mark},
        # The other account's actions must not trigger the victim's; its own must send nothing.
        "enabled": lambda t: t.name == "victim",
        "secret": lambda t: crypto.encrypt(t.mark),
        "previous_secret": None,
    },
    "security_streams": {
        "url": lambda t: f"https://{t.mark}.example/",
        "secret": lambda t: crypto.encrypt(t.mark),
        "is_enabled": False,
    },
    "webhook_deliveries": {
        "payload": _json,
        "status": "failed",
        "event": "records.create",
        "last_claim": 1,
    },
    "webhook_attempts": {
        "request": lambda t: {"method": "POST", "url": t.mark, "headers": {"X-Mark": t.mark}},
    },
    "workflows": {
        "kind": "workflow",
        "trigger_type": "manual",
        "trigger": {"type": "manual"},
        "steps": STEPS,
        "condition": None,
        "token": None,
        "token_key": None,
    },
    "workflow_versions": {"steps": STEPS, "awaits": []},
    "workflow_schedules": {"cron": "0 4 * * *", "next_at": lambda t: clock.now() + LATER},
    "workflow_instances": {
        "kind": "workflow",
        "trigger_type": "manual",
        "status": "failed",
        "started_at": _now,
        "completed_at": _now,
        "resumed_at": clock.parse(RESUMED),
        "position": "{}",
        "context": lambda t: orjson.dumps({"trigger": {"value": t.mark}}).decode(),
    },
    "workflow_step_logs": {
        "step_type": "wait_delay",
        "status": "failed",
        "completed_at": _now,
        "input": _json,
        "output": _json,
    },
    "workflow_subscriptions": {
        "event": "records.create",
        "collection": lambda t: _first_collection(t).lower(),
        "condition": None,
        "known": "{}",
        "happened": None,
    },
}


def row(tenant: Tenant, table: sa.Table) -> dict[str, object]:
    explicit = {
        name: _resolve(value, tenant) for name, value in COLUMN_VALUES.get(table.name, {}).items()
    }
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


def _resolve(value: object, tenant: Tenant) -> object:
    return value(tenant) if callable(value) else value


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
