"""Temporary accounts in the database: created, compared and removed.

Rows are inserted directly, not through the services, so that a new table needs no code here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from io import BytesIO
from typing import Any

import sqlalchemy as sa

from app import clock, db
from app import rules as rule_language
from app.accounts import service as accounts
from app.accounts.models import ADMIN, EDITOR, PII_GROUP, VIEWER, Account
from app.accounts.usage import request_counter
from app.audit import append, sealing
from app.audit.models import AuditHead
from app.collections import definitions, links, search_words
from app.collections.definitions import Definition
from app.collections.fields import PEOPLE
from app.collections.fields.file import files_in
from app.db import Base, citus
from app.db.policy import OnClose
from app.files import purge, storage
from app.ids import new_id
from app.isolation import rows
from app.isolation.tenants import Tenant, trash_name
from app.records.store import trash, writes
from app.rules.nodes import Caller, Comparison, Literal

ROLES = (ADMIN, EDITOR, VIEWER)


def tenant_tables() -> list[sa.Table]:
    """Return the tables with rows of accounts; referenced tables come first."""
    return [table for table in Base.metadata.sorted_tables if "account_id" in table.c]


def kept_tables() -> set[str]:
    """Return the names of tables that are append-only, or changed by the whole instance."""
    return {name for name, one in db.policies().items() if one.on_close is OnClose.KEPT}


def create_tenant(tenant: Tenant) -> None:
    """Create the account with a row in every table, a record per collection, and an audit entry."""
    with db.transaction():
        account = accounts.create_account(f"{tenant.mark}-name", tenant.slug)
        tenant.account_id, tenant.code = account.id, account.account_code
        tenant.ids["accounts"] = account.id
        for role in reversed(ROLES):
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
        tables = [table for table in tenant_tables() if table.name not in kept_tables() | {"users"}]
        for table in tables:
            tenant.new_id(table.name)
        for table in tables:
            _write(table, rows.row(tenant, table))
        _write(Base.metadata.tables["workflows"], rows.hook(tenant))
        file_ids = [tenant.ids["files"]]
        for definition in build_records(tenant):
            row = tenant.records[definition.name]
            _write(definition.table, row)
            links.rebuild(definition, account.id)
            search_words.store_all(definition, account.id)
            if definition.trash_days:
                deleted = row | {"id": tenant.new_id(trash_name(definition))}
                trash.put_away(definition, [deleted], tenant.id_of("users"))
            file_ids += [
                file["id"] for name in definition.files for file in files_in(str(row[name]))
            ]
        for file_id in file_ids:
            key = storage.key_of(account.id, file_id)
            storage.put_stream(key, BytesIO(tenant.mark.encode()))
        value = f"{tenant.mark}-audited"
        target = (append.UPDATE, "groups", tenant.ids["groups"])
        append.record(append.Change(account.id, target, [("name", value, value)]))
    sealing.settle(tenant.account_id)
    head = db.db.session.get_one(AuditHead, tenant.account_id)
    tenant.ids["audit_entries"] = str(head.last_id)


def plant_memberships(victim: Tenant, of: Tenant) -> None:
    """Give the victim records that let `of`'s admin pass each `@any` of a rule.

    For the victim itself they open its records. For another account, they have to open nothing.
    """
    with db.transaction():
        for definition in definitions.get_all():
            for condition in filter(None, dict.fromkeys(definition.conditions.values())):
                for part in rule_language.walk(condition):
                    if isinstance(part, rule_language.Subquery):
                        _plant(victim, of, definition, part)


def _plant(
    victim: Tenant, of: Tenant, judged: Definition, subquery: rule_language.Subquery
) -> None:
    related, record = definitions.get(subquery.collection), of.records[judged.name]
    id = new_id()
    planting = replace(victim, mark=f"{victim.mark}-{id[-12:]}", ids=dict(victim.ids))
    row = _record(planting, related) | {"id": id}
    for part in rule_language.walk(subquery.condition):
        if not isinstance(part, Comparison) or part.operator != "=":
            continue
        for inner, outer in ((part.left, part.right), (part.right, part.left)):
            if not isinstance(inner, rule_language.Inner) or inner.path[0] not in related.fields:
                continue
            if related.fields[inner.path[0]].leads_to and of is not victim:
                continue  # the database keeps such ids in their account
            if isinstance(outer, rule_language.Name):
                row[inner.path[0]] = record.get(outer.path[0])
            elif isinstance(outer, Caller) and outer.attribute in ("id", "email"):
                row[inner.path[0]] = getattr(of.users[ADMIN], outer.attribute)
            elif isinstance(outer, Literal):
                row[inner.path[0]] = outer.value
    _write(related.table, row)
    links.rebuild(related, victim.account_id)
    search_words.store_all(related, victim.account_id)


def _write(table: sa.Table, row: Mapping[str, object]) -> None:
    # Directly: no audit entry, no webhook.
    db.connection().execute(sa.insert(table), row)


def digest_tables(tenant: Tenant) -> dict[str, str]:
    """Return a digest of the account's rows for each table."""
    request_counter.current().collect_all()  # or any request would store what was counted before
    sealing.settle(tenant.account_id)
    tables = [*tenant_tables(), *(definition.table for definition in definitions.get_all())]
    digests = {
        table.name: _digest(table, table.c.account_id == tenant.account_id) for table in tables
    }
    # Checkpoints cover all chains and may be created at any moment; refused sign-ins in the account
    # are events of its log.
    for name in kept_tables() - {"audit_changes", "audit_starts"}:
        del digests[name]
    account: Any = Account.__table__
    return digests | {"accounts": _digest(account, account.c.id == tenant.account_id)}


def _digest(table: Any, condition: Any) -> str:
    rows = db.connection().execute(sa.select(table).where(condition).order_by(*table.primary_key))
    return hashlib.sha256(repr(rows.all()).encode()).hexdigest()


def remove_tenants(tenants: Iterable[Tenant]) -> None:
    """Remove everything except the audit log."""
    ids = [tenant.account_id for tenant in tenants]
    collections = [tenant.table for tenant in definitions.get_all()]
    with db.transaction() as session:
        citus.use_one_connection_per_node(db.connection())
        if collections:
            writes.execute_deletes(
                [sa.delete(tenant).where(tenant.c.account_id.in_(ids)) for tenant in collections]
            )
        for table in reversed(tenant_tables()):
            if table.name not in kept_tables():
                db.connection().execute(sa.delete(table).where(table.c.account_id.in_(ids)))
        session.expunge_all()
        session.execute(sa.delete(Account).where(Account.id.in_(ids)))
    for account_id in ids:
        purge.remove_account({"prefix": f"{account_id}/"})


def build_records(tenant: Tenant) -> list[Definition]:
    """Build a record for each collection; returns the collections, referenced ones first."""
    remaining, ordered = definitions.get_all(), list[Definition]()
    while remaining:
        ready = [definition for definition in remaining if not _waits(tenant, definition)]
        for definition in ready or remaining:
            tenant.records[definition.name] = _record(tenant, definition)
        ordered += ready or remaining
        remaining = [
            definition for definition in remaining if definition.name not in tenant.records
        ]
    return ordered


def _waits(tenant: Tenant, definition: Definition) -> bool:
    targets = {
        target.name
        for name, spec in definition.fields.items()
        if spec.collection
        and (target := definition.target(name))
        and target.name != definition.name
    }
    return not targets <= tenant.records.keys()


def _record(tenant: Tenant, definition: Definition) -> dict[str, object]:
    id, now, user = tenant.new_id(definition.table_name), clock.now(), tenant.id_of("users")
    row = {"id": id, "account_id": tenant.account_id, "created_at": now, "updated_at": now}
    row |= {"created_by": user, "updated_by": user}
    return row | {name: _content(tenant, definition, name) for name in definition.fields}


def _content(tenant: Tenant, definition: Definition, name: str) -> object:
    field, target = definition.fields[name], definition.target(name)
    mark = f"{tenant.mark}-{definition.table_name}-{name}"
    if field.leads_to:
        table_name = "users" if field.leads_to == PEOPLE else target.table_name if target else ""
        id = tenant.ids.get(table_name)
        return [id] if field.multiple and id else id
    if name in definition.files:
        file = {
            "id": new_id(),
            "name": f"{mark}.txt",
            "size": len(tenant.mark),  # `create_tenant` stores the mark as its bytes
            "mime_type": "text/plain",
            "sha256": mark,
        }
        return definition.files[name].stored([file])
    return field.marked(mark, tenant.number)
