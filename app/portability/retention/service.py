"""Deletes by retention policies, and counts what a policy would delete."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
import structlog

from app import clock, db, jobs
from app.audit.chain import cut
from app.audit.chain.log import Log
from app.audit.log import AUDIT
from app.audit.security_log.log import SECURITY
from app.auth import principal as principals
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import search_words
from app.collections.access import Access
from app.collections.definitions import Definition
from app.context import actor, tenancy
from app.context.actor import Actor
from app.db import counts, versioned_cache
from app.errors import AppError, Conflict, Forbidden
from app.portability.retention import policy as policies
from app.portability.retention.policy import Policy, RecordRule
from app.records import batch
from app.rules import Type
from app.types import JSONMapping
from app.webhooks import purge as deliveries
from app.webhooks.models import DELIVERIES
from app.workflows import purge as instances
from app.workflows.models import INSTANCES

log = structlog.get_logger()
PIECE = 100
"""Records that are deleted in one transaction."""
MAX_IN_A_RUN = 5_000
"""Records of a rule that a run deletes: the rest waits for the next hour."""
MAX_HELD = 10_000
"""Records that others refer to, which a run passes over."""
MAX_COUNTED = 100_000
ACTOR = Actor("retention", "retention", "retention")


@dataclass(frozen=True)
class Plan:
    """The numbers that a policy would delete now, counted up to `MAX_COUNTED`."""

    records: list[tuple[str, int]]
    deliveries: int
    instances: int
    audit_entries: int
    security_events: int


def plan(policy: Policy, *, by: Principal) -> Plan:
    """Count what a policy would delete if it were saved now."""
    account_id = by.require_account_id()
    records = []
    for rule, definition, access in _rules(policy, by):
        due = sa.select(definition.table.c.id).where(*_due(rule, definition, access, account_id))
        records.append((definition.name, _count(due, access)))
    completed = finished = 0
    if policy.deliveries_days:
        old = deliveries.completed_before(account_id, _cutoff(policy.deliveries_days))
        completed = counts.count_up_to(DELIVERIES, old, MAX_COUNTED)
    if policy.instances_days:
        old = instances.finished_before(account_id, _cutoff(policy.instances_days))
        finished = counts.count_up_to(INSTANCES, old, MAX_COUNTED)
    days = policy.audit_days
    entries = cut.count(AUDIT, account_id, _cutoff(days)) if days else 0
    days = policy.security_days
    security = cut.count(SECURITY, account_id, _cutoff(days)) if days else 0
    return Plan(records, completed, finished, entries, security)


@jobs.periodic(3600, "retention.apply")
def apply_all(payload: JSONMapping) -> None:
    """Enqueue a run for each account with a policy."""
    with db.transaction():
        for account_id in policies.accounts_with_policy():
            jobs.enqueue("retention.apply_account", {}, account_id=account_id)


@jobs.job("retention.apply_account")
def _apply_account(payload: JSONMapping) -> None:
    account_id = payload["account_id"]
    with versioned_cache.reloading():
        policy = policies.of_account(account_id)
        _delete_records(account_id, policy)
    if policy.deliveries_days:
        deliveries.remove_completed(account_id, _cutoff(policy.deliveries_days))
    if policy.instances_days:
        instances.remove_finished(account_id, _cutoff(policy.instances_days))
    for rule, chained in ((policies.Log.AUDIT, AUDIT), (policies.Log.SECURITY, SECURITY)):
        if days := policy.log_days[rule]:
            _cut_log(account_id, rule, days, chained)


def _cut_log(account_id: str, rule: policies.Log, days: int, chained: Log) -> None:
    least, _ = policies.bounds()[rule]
    names = {"account": account_id, "rule": rule.value}
    try:
        removed = cut.cut(chained, account_id, _cutoff(max(days, least)))
    except Conflict as error:
        log.warning("log not cut", **names, reason=error.message)
        return
    log.info("retention", **names, entries=removed)


def holder(account_id: str, policy: Policy) -> Principal | None:
    """The admin with whose rights records are deleted; None if they are no longer admin."""
    found = principals.for_user_in_account(account_id, policy.saved_by)
    return found if found is not None and found.is_admin else None


def _delete_records(account_id: str, policy: Policy) -> None:
    by = holder(account_id, policy) if policy.records else None
    if by is None:
        if policy.records:
            log.warning("retention paused", account=account_id, reason="its admin lost the role")
        return
    with actor.acting(ACTOR), tenancy.in_account(account_id):
        for rule, definition, access in _rules(policy, by):
            number, held = _delete_due(rule, definition, access, by)
            if number:
                with db.transaction():
                    search_words.forget_deleted(definition.name)
            names = {"account": account_id, "collection": definition.name}
            log.info("retention", deleted=number, held=held, **names)


def _rules(policy: Policy, by: Principal) -> Iterator[tuple[RecordRule, Definition, Access]]:
    """The rules that still hold, with what `by` may delete."""
    for rule in policy.records:
        definition = rule.find_collection()
        if definition is None or definition.options.get("require_signature"):
            continue
        try:
            yield rule, definition, accesses.for_operation(by, definition, "delete")
        except Forbidden:
            continue


def _due(
    rule: RecordRule, definition: Definition, access: Access, account_id: str
) -> list[sa.ColumnElement[bool]]:
    table = definition.table
    field = definition.columns[rule.field]
    cutoff = rule.cutoff.date() if field.rule_type is Type.DATE else rule.cutoff
    where = [table.c.account_id == account_id, table.c[rule.field] < cutoff]
    return where if access.where is None else [*where, access.where]


def _count(query: sa.Select[str], access: Access) -> int:
    some = query.limit(MAX_COUNTED).subquery()
    counted = sa.select(sa.func.count()).select_from(some)
    return db.connection().scalar(counted, access.parameters) or 0


def _delete_due(
    rule: RecordRule, definition: Definition, access: Access, by: Principal
) -> tuple[int, int]:
    """Delete what is due, oldest first; returns the number, and that of records others need."""
    table, number, held = definition.table, 0, 0
    key = (table.c[rule.field], table.c.id)
    due = sa.select(*key).where(*_due(rule, definition, access, by.require_account_id()))
    after: list[sa.ColumnElement[bool]] = []  # where the last piece ended
    while number < MAX_IN_A_RUN and held < MAX_HELD:
        query = due.where(*after).order_by(*key).limit(PIECE)
        rows = db.connection().execute(query, access.parameters).all()
        if not rows:
            break
        places = (sa.literal(rows[-1][0], key[0].type), sa.literal(rows[-1][1], key[1].type))
        after = [sa.tuple_(*key) > sa.tuple_(*places)]
        ids = [row[1] for row in rows]
        try:
            number += _delete(definition, due, access, ids, by)
        except (AppError, versioned_cache.Stale):
            gone, refused = _delete_singly(definition, due, access, ids, by)
            number, held = number + gone, held + refused
    return number, held


def _delete(
    definition: Definition, due: sa.Select[Any], access: Access, ids: list[str], by: Principal
) -> int:
    """Delete those of the records that are still due."""
    table = definition.table
    with db.transaction() as session:
        locked = due.where(table.c.id.in_(ids)).with_for_update()
        still = [row[1] for row in session.execute(locked, access.parameters).all()]
        if still:
            batch.delete(definition.name, still, by=by, permanently=True)
    return len(still)


def _delete_singly(
    definition: Definition, due: sa.Select[Any], access: Access, ids: list[str], by: Principal
) -> tuple[int, int]:
    gone = refused = 0
    for id in ids:
        try:
            gone += _delete(definition, due, access, [id], by)
        except (AppError, versioned_cache.Stale):  # referred to, or changed meanwhile
            refused += 1
    return gone, refused


def _cutoff(days: int) -> datetime:
    return clock.now() - timedelta(days=days)
