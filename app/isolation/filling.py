"""Throw-away accounts in the database: filled, looked at, and removed.

The rows are written as they are stored, not through the services: so a new table is filled without
a line here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from app import db
from app.accounts import service as accounts
from app.accounts.models import ADMIN, EDITOR, PII_GROUP, VIEWER, Account
from app.audit import append
from app.collections import definition as definitions
from app.db import Base
from app.isolation import records, rows
from app.isolation.tenants import Tenant
from app.records.store import writes

ROLES = (ADMIN, EDITOR, VIEWER)
# Kept for ever, or changed by what goes on in the whole instance.
AUDIT = frozenset({"audit_log", "audit_changes", "audit_heads", "audit_checkpoints"})


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
            _write(table, rows.row(tenant, table))
        _write(Base.metadata.tables["workflows"], rows.hook(tenant))
        for one in records.imagine(tenant):
            _write(one.table, tenant.records[one.name])
        value = f"{tenant.mark}-audited"
        append.record(
            account.id, "UPDATE", "groups", tenant.ids["groups"], [("name", value, value)]
        )


def _write(table: sa.Table, row: Mapping[str, object]) -> None:
    # As it is: nothing is audited, and nobody is told.
    db.connection().execute(sa.insert(table), row)


def _make_user(tenant: Tenant, role: str) -> None:
    user = accounts.create_user(
        tenant.account_id,
        email=tenant.email(role),
        password_hash=None,
        role=role,
        name=f"{tenant.mark}-{role}",
        id=tenant.new_id("users"),
    )
    accounts.mark_verified(user)
    if role == ADMIN:
        accounts.join_group(user, PII_GROUP)
    tenant.users[role] = user


def state(tenant: Tenant) -> dict[str, str]:
    """A digest of the account's rows in each table."""
    tables = [*owned(), *(one.table for one in definitions.get_all())]
    found = {
        table.name: _digest(table, table.c.account_id == tenant.account_id) for table in tables
    }
    # Checkpoints are made of all chains, at any moment.
    del found["audit_checkpoints"], found["audit_heads"]
    account: Any = Account.__table__
    return found | {"accounts": _digest(account, account.c.id == tenant.account_id)}


def _digest(table: Any, mine: Any) -> str:
    found = db.connection().execute(sa.select(table).where(mine).order_by(*table.primary_key))
    return hashlib.sha256(repr(found.all()).encode()).hexdigest()


def remove(tenants: Iterable[Tenant]) -> None:
    """Remove all of it but the chains of the audit log, which nothing removes."""
    ids = [one.account_id for one in tenants]
    collections = [one.table for one in definitions.get_all()]
    with db.transaction() as session:
        if collections:
            writes.execute_deletes(
                [sa.delete(one).where(one.c.account_id.in_(ids)) for one in collections]
            )
        for table in reversed(owned()):
            if table.name not in AUDIT:
                db.connection().execute(sa.delete(table).where(table.c.account_id.in_(ids)))
        session.expunge_all()
        session.execute(sa.delete(Account).where(Account.id.in_(ids)))
