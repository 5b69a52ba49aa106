"""Restores the records of an account to a moment, by the stored changes, as audited changes.

Works in batches of records. What cannot be done yet, such as a reference to a record that is not
back, waits for the next round. Memory holds one batch, and the ids of the records that wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import orjson
import sqlalchemy as sa

from app import db
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

CREATE, CHANGE, DELETE, ERASED = "create", "change", "delete", "erased"
BATCH_SIZE, MAX_CHANGES = 500, 5000
SHRINK = 8
PATIENT_ROUNDS = 3
"""After so many, records come back without references to others that are not back yet."""

Counts = Mapping[tuple[str, str], int]
Batch = tuple[Definition, Sequence[str]]
"""The ids of changed records of a collection."""


@dataclass(frozen=True)
class Step:
    """What makes a record again what it was: nothing, if its former state is erased."""

    action: str
    record_id: str
    body: JSONObject


def plan(moment: datetime, *, by: Principal) -> Counts:
    """The number of steps that restore the account acted in, by collection and action."""
    with versioned_cache.reloading():
        return _counts(moment, by)


@versioned_cache.reloading()
def apply(moment: datetime, *, by: Principal) -> Counts:
    """Restore the account acted in, all or nothing; returns the numbers of steps.

    Raises the error of the first step that cannot be done, whatever is done before it.
    """
    with db.transaction():
        counts = _counts(moment, by)
        _Restoration(moment, by).run()
        return counts


def _counts(moment: datetime, by: Principal) -> Counts:
    return Counter(
        (definition.name, step.action)
        for definition, ids in _batches(moment, by)
        for step in _steps(definition, ids, moment, by)
    )


class _Restoration:
    def __init__(self, moment: datetime, by: Principal) -> None:
        self._moment, self._by = moment, by
        self._waiting: dict[str, dict[str, None]] = {}
        self._error: AppError | WriteRefused | None = None
        self._done = 0
        self._is_patient, self._is_final = True, False
        self._incomplete: set[str] = set()

    def run(self) -> None:
        """Restore everything, in rounds, until nothing waits."""
        batches: Iterable[Batch] = _batches(self._moment, self._by)
        size, rounds = BATCH_SIZE, 0
        while self._has_waiting_after(batches):
            rounds += 1
            if self._is_patient:
                self._is_patient = bool(self._done) and rounds < PATIENT_ROUNDS
            elif not self._done and size > 1:
                size = max(size // SHRINK, 1)
            elif not self._done and not self._is_final:
                self._is_final = True
            elif not self._done:
                raise _explained(self._error)
            batches = list(self._cut(size))

    def _has_waiting_after(self, batches: Iterable[Batch]) -> bool:
        self._waiting, self._error, self._done = {}, None, 0
        for definition, ids in batches:
            self._restore(definition, ids)
            db.flush_before_commit()
        return bool(self._waiting)

    def _cut(self, size: int) -> Iterator[Batch]:
        for name, waiting in self._waiting.items():
            ids = list(waiting)
            for first in range(0, len(ids), size):
                yield definitions.get(name), ids[first : first + size]

    def _restore(self, definition: Definition, ids: Sequence[str]) -> None:
        name, by = definition.name, self._by
        by_action: dict[str, list[Step]] = {}
        for step in self._ready(definition, _steps(definition, ids, self._moment, by)):
            by_action.setdefault(step.action, []).append(step)
        for action, change in (
            (DELETE, lambda steps: batch.delete(name, _ids(steps), by=by)),
            (
                CREATE,
                lambda steps: batch.create(
                    name, [one.body for one in steps], by=by, record_ids=_ids(steps)
                ),
            ),
            (
                CHANGE,
                lambda steps: batch.update(
                    name, [{"id": one.record_id, "data": one.body} for one in steps], by=by
                ),
            ),
        ):
            self._run(name, by_action.get(action, ()), change)

    def _run(self, name: str, steps: Sequence[Step], change: Callable[..., object]) -> None:
        if not steps:
            return
        try:
            with db.savepoint():
                change(steps)
        except (AppError, WriteRefused) as error:
            self._error = self._error or error
            self._wait(name, steps)
        else:
            self._done += len(steps)

    def _ready(self, definition: Definition, steps: Sequence[Step]) -> Iterator[Step]:
        """What of the steps can be done now; the rest waits."""
        lost = {} if self._is_final else _lost_references(definition, steps, self._by)
        for step in steps:
            names = lost.get(step.record_id)
            if not names:
                yield step
                continue
            self._wait(definition.name, [step])
            is_required = any(definition.fields[name].required for name in names)
            if self._is_patient or is_required or step.record_id in self._incomplete:
                continue
            self._incomplete.add(step.record_id)
            body = {name: value for name, value in step.body.items() if name not in names}
            if body or step.action == CREATE:
                yield replace(step, body=body)

    def _wait(self, name: str, steps: Iterable[Step]) -> None:
        self._waiting.setdefault(name, {}).update(dict.fromkeys(_ids(steps)))


def _explained(error: AppError | WriteRefused | None) -> Exception:
    if isinstance(error, WriteRefused):
        return conflicts.explained(error)
    return error or LookupError("a step waits without an error")


def _ids(steps: Iterable[Step]) -> list[str]:
    return [step.record_id for step in steps]


def _lost_references(
    definition: Definition, steps: Sequence[Step], by: Principal
) -> dict[str, set[str]]:
    """The references of each record to records that are not there."""
    lost: dict[str, set[str]] = {}
    for name, field in definition.fields.items():
        wanted = {step.record_id: step.body[name] for step in steps if step.body.get(name)}
        if not field.collection or not wanted:
            continue
        target = definitions.get(field.collection)
        scope = store.scope(target, by.require_account_id())
        present = reads.existing_ids(target, scope, set(wanted.values()))
        for record_id, id in wanted.items():
            if id not in present:
                lost.setdefault(record_id, set()).add(name)
    return lost


def _batches(moment: datetime, by: Principal) -> Iterator[Batch]:
    """The records that have changed since, by collection."""
    for definition in definitions.get_all():
        last = ""
        while page := _changed_after(definition, last, moment, by):
            last = page[-1][0]
            ids, changes = list[str](), 0
            for record_id, count in page:
                if ids and changes + count > MAX_CHANGES:
                    yield definition, ids
                    ids, changes = [], 0
                ids.append(record_id)
                changes += count
            yield definition, ids


def _changed_after(
    definition: Definition, last: str, moment: datetime, by: Principal
) -> Sequence[tuple[str, int]]:
    """The next records that have changed since, and how often."""
    changed = sa.select(CHANGES.c.record_id, sa.func.count()).where(
        CHANGES.c.account_id == by.require_account_id(),
        CHANGES.c.occurred_at > moment,
        CHANGES.c.record_id > last,
        CHANGES.c.record_id != definition.id,  # changes of the collection itself
        is_of(definition, CHANGES.c.table_name, CHANGES.c.occurred_at),
    )
    grouped = changed.group_by(CHANGES.c.record_id).order_by(CHANGES.c.record_id)
    rows = db.connection().execute(grouped.limit(BATCH_SIZE)).all()
    return [(row[0], row[1]) for row in rows]


def _steps(
    definition: Definition, ids: Sequence[str], moment: datetime, by: Principal
) -> list[Step]:
    histories = audit_view.load_histories(definition, ids, moment, by)
    return [step for past in histories if (step := _step(past, moment)) is not None]


def _step(past: RecordHistory, moment: datetime) -> Step | None:
    try:
        state = past.at(moment)
    except NotFound:
        return Step(ERASED, past.record_id, {})
    if state is None:
        return Step(DELETE, past.record_id, {}) if past.present else None
    body: JSONObject = {
        name: None if state.get(name) is None else field.shown(state[name])
        for name, field in past.definition.fields.items()
        if past.present is None or state.get(name) != past.present.get(name)
        if not (field.required and state.get(name) is None)
    }
    if past.present and not body:
        return None
    # JSON round trip: JSON fields are still unparsed texts.
    return Step(
        CHANGE if past.present else CREATE, past.record_id, orjson.loads(orjson.dumps(body))
    )
