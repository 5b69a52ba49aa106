"""Restores the records of an account to a moment, by the stored changes, as audited changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import orjson
import sqlalchemy as sa

from app import db
from app.audit.entries import CHANGES, is_of
from app.auth.principal import Principal
from app.collections import definition as definitions
from app.collections.definition import Definition
from app.db import versioned_cache
from app.errors import AppError, NotFound
from app.records import service as records
from app.records.history import audit_view
from app.types import JSONObject

CREATE, CHANGE, DELETE, ERASED = "create", "change", "delete", "erased"


@dataclass(frozen=True)
class Step:
    """What makes a record again what it was: nothing, if its former state is erased."""

    action: str
    collection: str
    record_id: str
    body: JSONObject


def plan(moment: datetime, *, by: Principal) -> list[Step]:
    """The steps that restore the account acted in; each record is compared with its state then."""
    with versioned_cache.reloading():
        return [step for one in definitions.get_all() for step in _steps(one, moment, by)]


def counts(steps: list[Step]) -> dict[tuple[str, str], int]:
    """The number of steps by collection and action."""
    return dict(sorted(Counter((step.collection, step.action) for step in steps).items()))


@versioned_cache.reloading()
def apply(moment: datetime, *, by: Principal) -> list[Step]:
    """Restore the account acted in, all or nothing; returns the steps.

    Raises the error of the first step that cannot be done, whatever is done before it.
    """
    with db.transaction():
        steps = plan(moment, by=by)
        pending = [step for step in steps if step.action != ERASED]
        while pending:
            failed = _round(pending, by)
            if len(failed) == len(pending):
                raise failed[0][1]
            pending = [step for step, _ in failed]
        return steps


def _round(steps: list[Step], by: Principal) -> list[tuple[Step, AppError]]:
    """The steps that fail, for example since what they refer to is still missing."""
    failed = []
    for step in steps:
        try:
            with db.savepoint():
                _take(step, by)
        except AppError as error:
            failed.append((step, error))
    return failed


def _take(step: Step, by: Principal) -> None:
    if step.action == CREATE:
        records.create(step.collection, step.body, record_id=step.record_id, by=by)
    elif step.action == CHANGE:
        records.patch(step.collection, step.record_id, step.body, by=by)
    else:
        records.delete(step.collection, step.record_id, by=by)


def _steps(definition: Definition, moment: datetime, by: Principal) -> Iterator[Step]:
    changed = sa.select(CHANGES.c.record_id).where(
        CHANGES.c.account_id == by.require_account_id(),
        CHANGES.c.occurred_at > moment,
        CHANGES.c.record_id != definition.id,  # changes of the collection itself
        is_of(definition, CHANGES.c.table_name, CHANGES.c.occurred_at),
    )
    for record_id in db.connection().scalars(changed.distinct().order_by(CHANGES.c.record_id)):
        step = _step(definition, record_id, moment, by)
        if step is not None:
            yield step


def _step(definition: Definition, record_id: str, moment: datetime, by: Principal) -> Step | None:
    past = audit_view.load_history(definition, record_id, by, audit_view.load_all_entries)
    try:
        state = past.at(moment)
    except NotFound:
        return Step(ERASED, definition.name, record_id, {})
    if state is None:
        return Step(DELETE, definition.name, record_id, {}) if past.present else None
    present = past.present or {}
    body: JSONObject = {
        name: None if state.get(name) is None else field.shown(state[name])
        for name, field in definition.fields.items()
        if state.get(name) != present.get(name) and not (field.required and state[name] is None)
    }
    if past.present and not body:
        return None
    action = CHANGE if past.present else CREATE
    # JSON round trip: JSON fields are still unparsed texts.
    return Step(action, definition.name, record_id, orjson.loads(orjson.dumps(body)))
