"""Restores the records of an account to a moment, by the stored changes, as audited changes.

Works in batches of records. What cannot be done yet, such as a reference to a record that is not
back, waits for the next round. Memory holds one batch, and the ids of the records that wait.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, StrEnum
from typing import NamedTuple

import orjson
import sqlalchemy as sa

from app import db
from app.audit import sealing
from app.audit.entries import CHANGES, is_of
from app.auth.principal import Principal
from app.collections import definitions
from app.collections.definitions import Definition
from app.collections.fields import entries
from app.db import versioned_cache
from app.errors import AppError, NotFound
from app.records import batch, store
from app.records.history import audit_view
from app.records.history.audit_view import RecordHistory
from app.records.store import reads
from app.records.write import changes
from app.records.write.changes import WriteRefused
from app.types import JSONObject

BATCH_SIZE, MAX_CHANGES = 500, 5000
Counts = Mapping[tuple[str, "Action"], int]


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


class References(Enum):
    """What a round does with steps that refer to records that are not back yet."""

    AWAIT = "await"
    """They wait for the next round."""
    OMIT = "omit"
    """Records come back without these references, and wait for them."""
    KEEP = "keep"
    """They are tried as they are: they fail, with the error that the caller gets."""


class Attempt(NamedTuple):
    """Rounds that go on while they restore something."""

    references: References = References.OMIT
    batch_size: int = BATCH_SIZE
    max_rounds: int = sys.maxsize


# Each is more lenient than the one before. One step that fails undoes its batch, so batches get
# smaller, about an eighth each time.
ATTEMPTS = (
    Attempt(References.AWAIT, max_rounds=3),
    *(Attempt(batch_size=size) for size in (BATCH_SIZE, 62, 7, 1)),
    Attempt(References.KEEP, batch_size=1),
)


class Batch(NamedTuple):
    """Changed records of a collection."""

    definition: Definition
    ids: Sequence[str]


@versioned_cache.reloading()
def plan(moment: datetime, *, by: Principal) -> Counts:
    """Return the number of steps that restore the account acted in, by collection and action."""
    return Counter(
        (definition.name, step.action)
        for definition, ids in _changed_records(moment, by)
        for step in _load_steps(definition, ids, moment, by)
    )


@versioned_cache.reloading()
def apply(moment: datetime, *, by: Principal) -> Counts:
    """Restore the account acted in, all or nothing; returns the numbers of steps.

    Raises the error of the first step that cannot be done in any order.
    """
    with db.transaction():
        counts = plan(moment, by=by)
        restoration = Restoration(moment, by)
        batches: Iterable[Batch] = _changed_records(moment, by)
        for attempt in ATTEMPTS:
            for _ in range(attempt.max_rounds):
                round = restoration.run_round(batches, attempt.references)
                if not round.waiting:
                    return counts
                batches = round.batches(attempt.batch_size)
                if not round.steps_done:
                    break
        if isinstance(round.error, WriteRefused):
            raise changes.explained(round.error)
        raise round.error or LookupError("a step waits without an error")


@dataclass
class Round:
    """What a round has done, and left."""

    steps_done: int = 0
    waiting: dict[str, dict[str, None]] = field(default_factory=dict)
    """The ids of records that wait, by collection, in the order of their steps."""
    error: AppError | WriteRefused | None = None
    """That of the first step that failed."""

    def leave(self, definition: Definition, steps: Iterable[Step]) -> None:
        """Leave steps to the next round."""
        waiting = self.waiting.setdefault(definition.name, {})
        waiting.update(dict.fromkeys(step.record_id for step in steps))

    def batches(self, size: int) -> Iterable[Batch]:
        """The records that wait, for the next round."""
        return [
            Batch(definitions.get(name), list(ids)[first : first + size])
            for name, ids in self.waiting.items()
            for first in range(0, len(ids), size)
        ]


@dataclass(frozen=True)
class Restoration:
    """Who restores to which moment, in rounds."""

    moment: datetime
    by: Principal
    incomplete: set[str] = field(default_factory=set)
    """The records that came back without some references."""

    def run_round(self, batches: Iterable[Batch], references: References) -> Round:
        """Restore the records of the batches as far as they can be restored now."""
        round = Round()
        for definition, ids in batches:
            steps = _load_steps(definition, ids, self.moment, self.by)
            if references is not References.KEEP:
                lost = _lost_references(definition, steps, self.by)
                omits = references is References.OMIT
                steps = list(self._steps_without(lost, definition, steps, round, omits=omits))
            self._do(definition, steps, round)
            db.flush_before_commit()
        return round

    def _steps_without(
        self,
        lost: Mapping[str, set[str]],
        definition: Definition,
        steps: Iterable[Step],
        round: Round,
        *,
        omits: bool,
    ) -> Iterator[Step]:
        """Yield the steps, or parts of them, that need no lost reference; the others wait."""
        for step in steps:
            names = lost.get(step.record_id)
            if not names:
                yield step
                continue
            round.leave(definition, [step])
            is_required = any(definition.fields[name].required for name in names)
            if omits and not is_required and step.record_id not in self.incomplete:
                self.incomplete.add(step.record_id)
                body = {name: value for name, value in step.body.items() if name not in names}
                if body or step.action is Action.CREATE:
                    yield replace(step, body=body)

    def _do(self, definition: Definition, steps: Sequence[Step], round: Round) -> None:
        """Change the records, one action after the other; steps that fail wait."""
        name, by = definition.name, self.by
        for action in (Action.DELETE, Action.CREATE, Action.CHANGE):
            chosen = [step for step in steps if step.action is action]
            if not chosen:
                continue
            ids, bodies = [step.record_id for step in chosen], [step.body for step in chosen]
            try:
                with db.savepoint():
                    if action is Action.DELETE:
                        batch.delete(name, ids, by=by)
                    elif action is Action.CREATE:
                        batch.create(name, bodies, by=by, record_ids=ids)
                    else:
                        items = [{"id": step.record_id, "data": step.body} for step in chosen]
                        batch.update(name, items, by=by)
                round.steps_done += len(chosen)
            except (AppError, WriteRefused) as error:
                round.error = round.error or error
                round.leave(definition, chosen)


def _lost_references(
    definition: Definition, steps: Sequence[Step], by: Principal
) -> dict[str, set[str]]:
    """The names of each record's fields that refer to records that are not there."""
    lost: dict[str, set[str]] = {}
    for name, spec in definition.fields.items():
        if not spec.collection:
            continue
        wanted = {step.record_id: entries(spec, step.body.get(name)) for step in steps}
        targets = {id for ids in wanted.values() for id in ids}
        target = definitions.get(spec.collection)
        scope = store.scope(target, by.require_account_id())
        present = reads.existing_ids(target, scope, targets)
        for record_id, ids in wanted.items():
            if not present.issuperset(ids):
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
