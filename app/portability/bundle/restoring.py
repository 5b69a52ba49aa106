"""Restores the records of an account to a moment, by the stored changes, as audited changes.

Works in batches of records. What cannot be done yet, such as a reference to a record that is not
back, waits for the next round. Memory holds one batch, and the ids of the records that wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from itertools import count
from typing import NamedTuple

import orjson
import sqlalchemy as sa

from app import db
from app.audit import sealing
from app.audit.entries import CHANGES, is_of
from app.auth.principal import Principal
from app.collections import definitions
from app.collections.definitions import Definition
from app.db import versioned_cache
from app.errors import AppError, NotFound
from app.records import batch, store
from app.records.history import audit_view
from app.records.history.audit_view import RecordHistory
from app.records.store import reads
from app.records.write import conflicts
from app.records.write.conflicts import WriteRefused
from app.types import JSONObject

BATCH_SIZE, MAX_CHANGES = 500, 5000


class Action(StrEnum):
    """The change that takes a record back to its former state."""

    DELETE = "delete"
    CREATE = "create"
    CHANGE = "change"
    ERASED = "erased"  # nothing to restore


@dataclass(frozen=True)
class Step:
    """A change of one record; the body has the fields that differ."""

    action: Action
    record_id: str
    body: JSONObject


@dataclass(frozen=True)
class Attempt:
    """The size of batches, and what rounds do with records whose references are not back yet."""

    batch_size: int = BATCH_SIZE
    max_rounds: int | None = None
    omits_references: bool = True
    """Records come back at once, but without these references."""
    ignores_references: bool = False
    """Records are tried with them: they fail, with the error that the caller gets."""


# An attempt runs rounds while they restore something; then the next, more lenient one. One step
# that fails undoes its batch, so batches get smaller, each about an eighth of the one before.
ATTEMPTS = (
    Attempt(max_rounds=3, omits_references=False),
    *(Attempt(batch_size) for batch_size in (BATCH_SIZE, 62, 7, 1)),
    Attempt(batch_size=1, ignores_references=True),
)

Counts = Mapping[tuple[str, Action], int]
Waiting = dict[str, dict[str, None]]
"""The ids of records by collection, in the order of their steps."""


class Batch(NamedTuple):
    """Changed records of a collection."""

    definition: Definition
    ids: Sequence[str]


@versioned_cache.reloading()
def plan(moment: datetime, *, by: Principal) -> Counts:
    """The number of steps that restore the account acted in, by collection and action."""
    return _count_steps(moment, by)


@versioned_cache.reloading()
def apply(moment: datetime, *, by: Principal) -> Counts:
    """Restore the account acted in, all or nothing; returns the numbers of steps.

    Raises the error of the first step that cannot be done in any order.
    """
    with db.transaction():
        counts = _count_steps(moment, by)
        _restore_all(moment, by)
        return counts


def _count_steps(moment: datetime, by: Principal) -> Counts:
    return Counter(
        (definition.name, step.action)
        for definition, ids in _changed_records(moment, by)
        for step in _load_steps(definition, ids, moment, by)
    )


def _restore_all(moment: datetime, by: Principal) -> None:
    """Restore everything, in rounds, until nothing waits."""
    incomplete = set[str]()
    waiting: Waiting = {}
    error: AppError | WriteRefused | None = None
    for attempt in ATTEMPTS:
        for number in count(1):
            batches: Iterable[Batch] = (
                _waiting_records(waiting, attempt.batch_size)
                if waiting
                else _changed_records(moment, by)
            )
            round_ = _Round(moment, by, attempt, incomplete)
            for definition, ids in batches:
                round_.restore(definition, ids)
                db.flush_before_commit()
            waiting, error = round_.waiting, round_.error
            if not waiting:
                return
            if not round_.steps_done or number == attempt.max_rounds:
                break
    if isinstance(error, WriteRefused):
        raise conflicts.explained(error)
    raise error or LookupError("a step waits without an error")


def _waiting_records(waiting: Waiting, batch_size: int) -> list[Batch]:
    return [
        Batch(definitions.get(name), list(ids)[first : first + batch_size])
        for name, ids in waiting.items()
        for first in range(0, len(ids), batch_size)
    ]


@dataclass
class _Round:
    """One pass over the records that are not restored yet."""

    moment: datetime
    by: Principal
    attempt: Attempt
    incomplete: set[str]
    """The records that came back without some references, in this round or an earlier one."""
    waiting: Waiting = field(default_factory=dict)
    error: AppError | WriteRefused | None = None
    steps_done: int = 0

    def restore(self, definition: Definition, ids: Sequence[str]) -> None:
        """Do the steps of records that can be done now; the others wait for the next round."""
        steps = _load_steps(definition, ids, self.moment, self.by)
        ready = list(self._ready(definition, steps))
        for action in (Action.DELETE, Action.CREATE, Action.CHANGE):
            chosen = [step for step in ready if step.action is action]
            if not chosen:
                continue
            try:
                with db.savepoint():
                    _change_records(definition.name, action, chosen, self.by)
            except (AppError, WriteRefused) as error:
                self.error = self.error or error
                self._wait(definition, chosen)
            else:
                self.steps_done += len(chosen)

    def _ready(self, definition: Definition, steps: Sequence[Step]) -> Iterator[Step]:
        """Yield the steps, or parts of them, that can be done now, and let the others wait."""
        ignored = self.attempt.ignores_references
        lost = {} if ignored else _lost_references(definition, steps, self.by)
        for step in steps:
            names = lost.get(step.record_id)
            if not names:
                yield step
                continue
            self._wait(definition, [step])
            is_required = any(definition.fields[name].required for name in names)
            is_incomplete = step.record_id in self.incomplete
            if self.attempt.omits_references and not is_required and not is_incomplete:
                self.incomplete.add(step.record_id)
                body = {name: value for name, value in step.body.items() if name not in names}
                if body or step.action is Action.CREATE:
                    yield replace(step, body=body)

    def _wait(self, definition: Definition, steps: Iterable[Step]) -> None:
        waiting = self.waiting.setdefault(definition.name, {})
        waiting.update(dict.fromkeys(step.record_id for step in steps))


def _change_records(name: str, action: Action, steps: Sequence[Step], by: Principal) -> None:
    ids = [step.record_id for step in steps]
    if action is Action.DELETE:
        batch.delete(name, ids, by=by)
    elif action is Action.CREATE:
        batch.create(name, [step.body for step in steps], by=by, record_ids=ids)
    else:
        batch.update(name, [{"id": step.record_id, "data": step.body} for step in steps], by=by)


def _lost_references(
    definition: Definition, steps: Sequence[Step], by: Principal
) -> dict[str, set[str]]:
    """The names of each record's fields that refer to records that are not there."""
    lost: dict[str, set[str]] = {}
    for name, spec in definition.fields.items():
        wanted = {step.record_id: step.body[name] for step in steps if step.body.get(name)}
        if not spec.collection or not wanted:
            continue
        target = definitions.get(spec.collection)
        scope = store.scope(target, by.require_account_id())
        present = reads.existing_ids(target, scope, set(wanted.values()))
        for record_id, target_id in wanted.items():
            if target_id not in present:
                lost.setdefault(record_id, set()).add(name)
    return lost


def _changed_records(moment: datetime, by: Principal) -> Iterator[Batch]:
    """The records that have changed since, by collection.

    A batch has at most BATCH_SIZE records, and MAX_CHANGES changes unless one record has more.
    """
    for definition in definitions.get_all():
        query = (
            sa.select(CHANGES.c.record_id, sa.func.count())
            .where(
                CHANGES.c.account_id == by.require_account_id(),
                CHANGES.c.occurred_at > moment,
                CHANGES.c.record_id != definition.id,  # changes of the collection itself
                is_of(definition, CHANGES.c.table_name, CHANGES.c.occurred_at),
            )
            .group_by(CHANGES.c.record_id)
            .order_by(CHANGES.c.record_id)
            .limit(BATCH_SIZE)
        )
        last = ""
        sealing.settle(by.require_account_id())
        while page := db.connection().execute(query.where(CHANGES.c.record_id > last)).all():
            ids, changes = list[str](), 0
            for record_id, changed in page:
                if ids and changes + changed > MAX_CHANGES:
                    yield Batch(definition, ids)
                    ids, changes = [], 0
                ids.append(record_id)
                changes += changed
            yield Batch(definition, ids)
            last = page[-1][0]


def _load_steps(
    definition: Definition, ids: Sequence[str], moment: datetime, by: Principal
) -> list[Step]:
    histories = audit_view.load_histories(definition, ids, moment, by)
    steps = (_step(history, moment) for history in histories)
    return [step for step in steps if step is not None]


def _step(history: RecordHistory, moment: datetime) -> Step | None:
    """The step that takes a record back; None if it is as it was."""
    try:
        state = history.at(moment)
    except NotFound:
        return Step(Action.ERASED, history.record_id, {})
    if state is None:
        return Step(Action.DELETE, history.record_id, {}) if history.present else None
    body: JSONObject = {}
    for name, spec in history.definition.fields.items():
        value = state.get(name)
        is_changed = history.present is None or value != history.present.get(name)
        if is_changed and not (value is None and spec.required):
            body[name] = None if value is None else spec.shown(value)
    if history.present and not body:
        return None
    # JSON round trip: JSON fields are still unparsed texts.
    action = Action.CHANGE if history.present else Action.CREATE
    return Step(action, history.record_id, orjson.loads(orjson.dumps(body)))
