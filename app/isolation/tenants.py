"""A throw-away account with something in every table and collection, each value its mark.

The rows are written as they are stored, not through the services: so a new table is filled without
a line here, unless its columns mean more than their types say (`GIVEN`).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import orjson
import sqlalchemy as sa

from app import clock, crypto, db
from app.accounts import service as accounts
from app.accounts.models import ADMIN, EDITOR, PII_GROUP, VIEWER, Account, User
from app.audit import append
from app.auth import api_keys, tokens
from app.collections import definition as definitions
from app.collections.definition import Definition
from app.db import Base
from app.records import store

ROLES = (ADMIN, EDITOR, VIEWER)
MAIL_DOMAIN = "isolation.example"
LATER = timedelta(days=3650)
# Kept for ever, or changed by what goes on in the whole instance.
AUDIT = frozenset({"audit_log", "audit_changes", "audit_heads", "audit_checkpoints"})
RESUMED = "2026-01-31T10:00:00.000000Z"
STEPS = [{"name": "rest", "type": "wait_delay", "duration": "1h"}]
# What columns of these names refer to.
REFERS = {
    **dict.fromkeys(("user_id", "created_by", "owner_id", "invited_by", "updated_by"), "users"),
    "group_id": "groups",
    "webhook_id": "webhooks",
    "delivery_id": "webhook_deliveries",
    "workflow_id": "workflows",
    "instance_id": "workflow_instances",
}


@dataclass
class Tenant:
    """An account of the check, or (`nobody`) ids and marks that nothing in the database has."""

    name: str
    mark: str = field(default_factory=lambda: f"isolation-{secrets.token_hex(10)}")
    tail: str = field(default_factory=lambda: secrets.token_hex(6))
    account_id: str = ""
    code: str = "ZZ9999"
    numbers: list[int] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    """Of each table the id of its row; of hooks and users by their role, too."""
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of each collection, by its name, the row of the record."""
    users: dict[str, User] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.account_id = self.account_id or self.new_id("accounts")
        random = hashlib.sha256(self.mark.encode()).hexdigest()
        self.key_random = random[: api_keys.RANDOM_CHARACTERS]

    @property
    def slug(self) -> str:
        """The slug of the account."""
        return f"{self.mark}-slug"

    @property
    def key(self) -> str:
        """The text of the API key."""
        return f"{api_keys.PREFIX}{self.code}_{self.key_random}"

    def new_id(self, name: str) -> str:
        """An id that ends like all of this account's, noted under a name."""
        self.ids[name] = db.new_id()[:24] + self.tail
        return self.ids[name]

    def id_of(self, name: str) -> str:
        """The id noted under a name, made where there is none: only nobody lacks one."""
        return self.ids.get(name) or self.new_id(name)

    def number(self) -> int:
        """A number that nobody guesses."""
        self.numbers.append(10**11 + secrets.randbelow(8 * 10**11))
        return self.numbers[-1]

    @property
    def needles(self) -> list[str]:
        """What in an answer would be a leak."""
        return [self.mark, self.tail, self.account_id, self.code, *map(str, self.numbers)]


Given = Callable[[Tenant], Any]


def _mail(local: str) -> Given:
    return lambda tenant: f"{tenant.mark}-{local}@{MAIL_DOMAIN}"


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
        "email": _mail("invited"),
        "email_key": _mail("invited"),
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


def owned() -> list[sa.Table]:
    """The tables whose rows belong to accounts, those that others refer to first."""
    return [table for table in Base.metadata.sorted_tables if "account_id" in table.c]


def fill(tenant: Tenant) -> None:
    """Make the account with a row in every table, a record in every collection, and a chain."""
    with db.transaction():
        account = accounts.create_account(f"{tenant.mark}-name", tenant.slug)
        tenant.account_id, tenant.code = account.id, account.account_code
        tenant.ids["accounts"] = account.id
        for role in reversed(ROLES):
            _make_user(tenant, role)
        tables = [table for table in owned() if table.name not in AUDIT | {"users"}]
        for table in tables:
            tenant.new_id(table.name)
        for table in tables:
            write(table, _row(tenant, table))
        workflows = Base.metadata.tables["workflows"]
        write(workflows, _row(tenant, workflows) | {name: of(tenant) for name, of in HOOK.items()})
        for one in imagine(tenant):
            write(one.table, tenant.records[one.name])
        value = f"{tenant.mark}-audited"
        append.note(account.id, "UPDATE", "groups", tenant.ids["groups"], [("name", value, value)])


def write(table: sa.Table, row: Mapping[str, Any]) -> None:
    """Store a row as it is: nothing is audited, and nobody is told."""
    db.connection().execute(sa.insert(table), row)


def _make_user(tenant: Tenant, role: str) -> None:
    user = accounts.create_user(
        tenant.account_id,
        email=_mail(role)(tenant),
        password_hash=None,
        role=role,
        name=f"{tenant.mark}-{role}",
        id=tenant.new_id("users"),
    )
    accounts.mark_verified(user)
    if role == ADMIN:
        accounts.join_group(user, PII_GROUP)
    tenant.users[role] = user


def _row(tenant: Tenant, table: sa.Table) -> dict[str, Any]:
    given = GIVEN.get(table.name, {})
    return {
        column.name: given[column.name](tenant)
        if column.name in given
        else _value(tenant, table, column)
        for column in table.c
    }


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
        return (
            None
            if column.nullable
            else clock.now() + (LATER if "expires" in column.name else 0 * LATER)
        )
    if isinstance(column.type, sa.Boolean):
        return bool(default)
    if isinstance(column.type, sa.Integer):
        return tenant.users[VIEWER].role_id if column.name == "role_id" else default or 1
    if isinstance(column.type, sa.JSON):
        return {"value": tenant.mark}
    if column.name in ("revoked_by", "replay_of"):
        return None
    return f"{tenant.mark}-{table.name}-{column.name}"


def _waits(tenant: Tenant, one: Definition) -> bool:
    wanted = {
        target.name
        for name, spec in one.fields.items()
        if spec.collection and (target := one.target(name)) and target.name != one.name
    }
    return not wanted <= tenant.records.keys()


def _record(tenant: Tenant, one: Definition) -> dict[str, Any]:
    id, now, user = tenant.new_id(one.table_name), clock.now(), tenant.id_of("users")
    row = {"id": id, "account_id": tenant.account_id, "created_at": now, "updated_at": now}
    row |= {"created_by": user, "updated_by": user}
    return row | {name: _content(tenant, one, name) for name in one.fields}


def _content(tenant: Tenant, one: Definition, name: str) -> Any:
    text = f"{tenant.mark}-{one.table_name}-{name}"
    target = one.target(name)
    made: dict[str, Callable[[], Any]] = {
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


def imagine(tenant: Tenant) -> list[Definition]:
    """Make up a record for each collection; returns these, those that others refer to first."""
    remaining, made = definitions.everything(), list[Definition]()
    while remaining:
        ready = [one for one in remaining if not _waits(tenant, one)]
        for one in ready or remaining:
            tenant.records[one.name] = _record(tenant, one)
        made += ready or remaining
        remaining = [one for one in remaining if one.name not in tenant.records]
    return made


def state(tenant: Tenant) -> dict[str, str]:
    """A digest of the account's rows in each table."""
    tables = [*owned(), *(one.table for one in definitions.everything())]
    found = {
        table.name: _digest(table, table.c.account_id == tenant.account_id) for table in tables
    }
    # Checkpoints are made of all chains, at any moment.
    del found["audit_checkpoints"], found["audit_heads"]
    account: Any = Account.__table__
    return found | {"accounts": _digest(account, account.c.id == tenant.account_id)}


def _digest(table: Any, mine: Any) -> str:
    rows = db.connection().execute(sa.select(table).where(mine).order_by(*table.primary_key))
    return hashlib.sha256(repr(rows.all()).encode()).hexdigest()


def remove(tenants: Iterable[Tenant]) -> None:
    """Remove all of it but the chains of the audit log, which nothing removes."""
    ids = [one.account_id for one in tenants]
    collections = [one.table for one in definitions.everything()]
    with db.transaction() as session:
        if collections:
            store.delete_at_once(
                [sa.delete(one).where(one.c.account_id.in_(ids)) for one in collections]
            )
        for table in reversed(owned()):
            if table.name not in AUDIT:
                db.connection().execute(sa.delete(table).where(table.c.account_id.in_(ids)))
        session.expunge_all()
        session.execute(sa.delete(Account).where(Account.id.in_(ids)))
