"""Runs a claimed instance: each step in its own transaction.

A step's work, output, log and the new position commit together: a finished step never runs
again, and an interrupted one has no effect.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.exc import DBAPIError

from app import clock, config, db, jobs
from app.auth.principal import Principal
from app.context import actor, deadline, tenancy, trigger_depth
from app.context.actor import ActorKind
from app.db import errors, versioned_cache
from app.db.errors import UNAVAILABLE
from app.errors import AppError
from app.jobs import leases
from app.jobs.rq_queues import WORKFLOWS
from app.outbound import mail
from app.records.write import changes
from app.types import JSONObject, cached_property
from app.web import serialization
from app.workflows import versions
from app.workflows.engine import (
    control_steps,
    event_waits,
    external_execution,
    external_steps,
    for_each,
    queue,
)
from app.workflows.engine.control_steps import Failed, Outcome
from app.workflows.engine.position import Frame, Place, Position
from app.workflows.engine.queue import Slots
from app.workflows.engine.step_log import LONGEST_MESSAGE, Entry, rows
from app.workflows.language.definition import CONTINUE, FOR_EACH, WAIT_EVENT
from app.workflows.language.templates import Rendering, TooLarge
from app.workflows.models import LARGEST_CONTEXT, QUEUE, InstanceState

MAX_RERUNS = 5
STEPS_PER_SLOT = 20  # then other instances may run
TURN_SECONDS = 2  # then it gives way to those that nobody runs
MAX_VISITS = 10_000
MAX_WRITTEN_BYTES = 2**30  # bytes of context and position, over all steps
DATABASE_REFUSED = "The database rejected the step."
LONGEST_ERROR = 200  # characters that the output of a `for_each` has of each
VERSION_GONE = "This version of the workflow no longer exists."


class Run:
    """A claimed instance that runs until it waits or finishes."""

    def __init__(self, row: Any, slots: Slots) -> None:
        self.account_id, self.id, self.claim = row.account_id, row.id, row.claim
        self.row, self.slots = row, slots
        self.holds_pii: bool = row.holds_pii
        self.input: JSONObject | None = None
        self.root_id = row.root_id or row.id
        self.sender: mail.Sender | None = None  # of its mails
        self._begun, self._now = time.monotonic(), row.now
        self._turn_began = self._begun
        self.pages: dict[str, for_each.Page] = {}
        self._texts = (row.position, row.context)
        self.step_began = self.now
        self.happened: JSONObject = {}
        self.stopped = False

    @property
    def now(self) -> datetime:
        """The current time by the database's clock."""
        passed: datetime = self._now + timedelta(seconds=time.monotonic() - self._begun)
        return passed

    def carry_out(self, stop: threading.Event) -> None:
        """Run steps until all are waiting or done, or `stop` is set."""
        # Changes by its steps continue the chain of triggers.
        trigger_depth.chain.set(trigger_depth.Chain(self.row.depth, self.root_id))
        with self.slot():
            version = versions.get(self.account_id, self.row.workflow_id, self.row.version)
            if version is None:
                with db.transaction():
                    self._over(VERSION_GONE, {}, rows([], self))
                return
            self.version = version
            self.restore()
            if any(step.type == WAIT_EVENT for step in version.series.walk()):
                self.happened = event_waits.arrived_events(self)
        while not self.stopped:
            if stop.is_set():
                with self.slot():
                    leases.release(QUEUE, self.account_id, [(self.id, self.claim)])
                return
            self._turn(stop)
            if not self.stopped and time.monotonic() - self._turn_began > TURN_SECONDS:
                self._give_way()

    def _give_way(self) -> None:
        """Wait for another turn if other instances are due: it may have many steps to run."""
        with self.slot(), db.transaction():
            self._turn_began = time.monotonic()
            if queue.is_any_due():
                values = {"status": InstanceState.PENDING, "due_at": self.now}
                queue.write(self, values, (), {})
                jobs.announce_on_commit(WORKFLOWS, self.account_id)
                self.stopped = True

    def _turn(self, stop: threading.Event) -> None:
        internal, external = self._ready()
        if external and not internal:
            external_execution.run_steps(self, external)
            return
        with self.slot():
            for _ in range(STEPS_PER_SLOT):
                if internal:
                    self._attempt(internal[0].path)
                else:
                    with db.transaction():
                        self._save([])
                if self.stopped or stop.is_set():
                    return
                internal, external = self._ready()
                if external and not internal:
                    return

    def _ready(self) -> tuple[list[Place], list[Place]]:
        """The steps that can run now: those without and those with external effects."""
        ready = [place for place in self.position.places() if self._is_ready(place)]
        external = [place for place in ready if external_steps.is_external(place.step)]
        return [place for place in ready if place not in external], external

    def _is_ready(self, place: Place) -> bool:
        until = place.spot.get("until")
        arrived = place.spot.get("subscription") in self.happened
        return until is None or arrived or until <= serialization.plain(self.now)

    def _attempt(self, path: str) -> None:
        """Run one step in a transaction; retry with fresh data if something was stale."""
        for reruns in range(MAX_RERUNS):
            try:
                cache = versioned_cache.reloading() if reruns else nullcontext()
                limit = deadline.Limit(config.current().statement_seconds)
                refusals = changes.explain_refusals()
                with cache, deadline.within(limit), refusals, db.transaction():
                    place = self.place_at(path)
                    self.input, self.step_began = None, self.now
                    self.apply(place, control_steps.run_step(self, place))
            except (versioned_cache.Stale, DBAPIError) as error:
                self.restore()
                if isinstance(error, DBAPIError) and errors.passed_deadline(error):
                    seconds = config.current().statement_seconds
                    self.fail([(self.place_at(path), Failed(f"Took longer than {seconds} s."))])
                    return
                if not _is_transient(error):
                    # The database is unavailable: the next worker to claim the instance retries.
                    if isinstance(error, UNAVAILABLE):
                        raise error
                    self.fail([(self.place_at(path), Failed(DATABASE_REFUSED))])
                    return
            except (AppError, TooLarge, Failed) as error:
                self.restore()
                if reruns or not isinstance(error, AppError):
                    self.fail([(self.place_at(path), error)])
                    return
            else:
                return
        busy = Failed("Too many concurrent changes; retries exhausted.")
        self.fail([(self.place_at(path), busy)])

    def owner(self) -> Principal:
        """The principal of the steps, for whom the workflow acts from now on. Raises Forbidden."""
        principal = self.version.owner()
        id, email = principal.user_id or "", principal.email
        owner = actor.Actor(id, email, principal.name or email, request_id=self.id)
        acting = owner._replace(kind=ActorKind.WORKFLOW, id=self.version.workflow_id)
        actor.source.set(lambda: acting._replace(name=self._name))
        tenancy.source.set(lambda: principal.tenancy)
        return principal

    @cached_property
    def _name(self) -> str | None:
        # Of now, as it may change without a new version; only for runs that write.
        return versions.name_of(self.account_id, self.version.workflow_id)

    def rendering(self, place: Place) -> Rendering:
        """The renderer of a step's templates."""
        return Rendering(self.names(place), self.now)

    def names(self, place: Place) -> JSONObject:
        """The names that expressions may use at a place."""
        return {"trigger": None, "steps": {}, **self.context, **place.names}

    def place_at(self, path: str) -> Place:
        return next(place for place in self.position.places() if place.path == path)

    def apply(self, place: Place, outcome: Outcome) -> None:
        """Store the step's output, and move on. Raises Failed, Lost."""
        if outcome.waits:
            self._save(
                [Entry(place, InstanceState.WAITING, outcome.input)] if outcome.input else []
            )
            return
        if outcome.entered:
            place.spot.setdefault("since", serialization.plain(self.now))
            self._save([])
            return
        entries = [Entry(place, InstanceState.COMPLETED, outcome.input, outcome.output)]
        self._put(place.step.name, outcome.output)
        for finished in self.position.finish(place, outcome.target):
            output = control_steps.summarize_inner(finished)
            self._put(finished.step.name, output)
            entries.append(Entry(finished, InstanceState.COMPLETED, None, output))
        self._check_steps(place)
        self._save(entries)

    def _check_steps(self, place: Place) -> None:
        steps = self.position.steps_run
        walks = [one.spot["inner"] for one in place.frames[:-1] if one.step.type == FOR_EACH]
        limit = for_each.MAX_STEPS_PER_RECORD
        if walks and steps - walks[-1]["steps"] > limit:
            raise Failed(f"Stopped after {limit:,} steps for one record: possible infinite loop.")
        if steps > MAX_VISITS:
            raise Failed(f"Stopped after {MAX_VISITS:,} steps: possible infinite loop.")

    def _next_record(self, place: Place) -> tuple[object, Sequence[object]] | None:
        return for_each.next_record(self, place)

    def _put(self, name: str, output: object) -> None:
        self.context.setdefault("steps", {})[name] = {"output": output}

    def _save(self, entries: Sequence[Entry]) -> None:
        log_rows = rows(entries, self)
        position, context = self.position_text(), serialization.dumps_text(self.context)
        if max(len(context), len(position)) > LARGEST_CONTEXT:
            raise Failed(f"The outputs of the steps are larger than {LARGEST_CONTEXT} bytes.")
        counts = self.position.state
        counts["written"] = counts.get("written", 0) + len(position) + len(context)
        if counts["written"] > MAX_WRITTEN_BYTES:
            raise Failed(f"The steps have stored more than {MAX_WRITTEN_BYTES} bytes in total.")
        values = {
            "position": position,
            "context": context,
            "holds_pii": self.holds_pii,
            **self._state(),
        }
        queue.write(self, values, log_rows.new, log_rows.old)
        self.stopped = values["status"] != InstanceState.RUNNING
        if values["status"] == InstanceState.WAITING:
            seconds = (values["look_again"] - self.now).total_seconds()
            jobs.announce_on_commit(WORKFLOWS, self.account_id, seconds=seconds)
        db.on_commit(self.remember_state)

    def remember_state(self) -> None:
        """Remember the committed state for `restore`."""
        self._texts = (self.position_text(), serialization.dumps_text(self.context))

    def restore(self) -> None:
        """Return to the last committed state."""
        position, context = self._texts
        self.context: JSONObject = serialization.loads(context)
        state = serialization.loads(position)
        self.position = Position(self.version.series, state, self._next_record)
        self.pages.clear()
        self.stopped = False

    def _state(self) -> JSONObject:
        places = self.position.places()
        if not places:
            completed = {"status": InstanceState.COMPLETED, "due_at": None, "current_step": None}
            return {**completed, "completed_at": self.now, "error_message": None}
        if any(self._is_ready(place) for place in places):
            seconds = config.current().workflow_lease_seconds
            lease = {"due_at": self.now + timedelta(seconds=seconds)}
            return {"status": InstanceState.RUNNING, "current_step": self.current_step(), **lease}
        next_time = min(place.spot["until"] for place in places)
        waiting = {"look_again": clock.parse(next_time), "seen": self.row.nudges}
        return {"status": InstanceState.WAITING, "current_step": self.current_step(), **waiting}

    def position_text(self) -> str:
        """The position as stored JSON."""
        return serialization.dumps_text(self.position.state)

    def current_step(self) -> str:
        """The names of the next steps."""
        return ", ".join(place.step.name for place in self.position.places())

    def fail(self, failures: Sequence[tuple[Place, Exception]]) -> None:
        """Record failed steps; a resume runs them again.

        Within a `for_each` that continues, its next record is next.
        """
        entries = [
            Entry(place, InstanceState.FAILED, self.input, error=error_text(error))
            for place, error in failures
        ]
        continuing = [_continuing(place, error) for place, error in failures]
        if all(continuing):
            try:
                self._skip_records(entries, continuing)
            except Failed:  # nothing more can be stored
                self.restore()
            else:
                return
        log_rows = rows(entries, self)
        with db.transaction():
            for place, _ in failures:
                event_waits.unsubscribe(self, place)
                visit = {name: place.spot[name] for name in ("step", "visit")}
                if place.step.type == FOR_EACH and "inner" in place.spot:
                    visit["inner"] = place.spot["inner"]
                    visit["inner"].pop("ends_at", None)
                attempt = place.spot.get("attempt", 0) + 1
                place.spot.clear()
                place.spot.update(visit, attempt=attempt)
            names = ", ".join(place.step.name for place, _ in failures)
            values = {"position": self.position_text(), "current_step": names}
            self._over(entries[0].error or "", {**values, "holds_pii": self.holds_pii}, log_rows)

    def _skip_records(
        self, entries: Sequence[Entry], continuing: Sequence[Sequence[Frame]]
    ) -> None:
        with db.transaction():
            skipped = {id(frames[-1].spot): frames for frames in continuing}
            failed = {entry.place.path for entry in entries}
            others = [
                place
                for place in self.position.places()
                if place.path not in failed
                and any(id(frame.spot) in skipped for frame in place.frames)
            ]
            for place in others:
                event_waits.unsubscribe(self, place)
            for entry, frames in zip(entries, continuing, strict=True):
                if skipped.pop(id(frames[-1].spot), None):
                    item = frames[-1].spot["inner"]["item"]
                    error = (entry.error or "")[:LONGEST_ERROR]
                    failure = {"id": item["id"], "step": entry.place.step.name, "error": error}
                    self.position.skip(frames, failure)
            cancelled = [
                Entry(place, InstanceState.CANCELLED) for place in others if "log" in place.spot
            ]
            self._save([*entries, *cancelled])

    def _over(self, message: str, values: JSONObject, log_rows: Any) -> None:
        result: JSONObject = {
            "status": InstanceState.FAILED,
            "error_message": message[:LONGEST_MESSAGE],
            "due_at": None,
        }
        result["completed_at"] = self.now
        queue.write(self, {**values, **result}, log_rows.new, log_rows.old)
        self.stopped = True

    def slot(self) -> AbstractContextManager[None]:
        """A slot for database work."""
        return self.slots.acquire()


def error_text(error: Exception) -> str:
    """The error message of a step, with its details."""
    if isinstance(error, TooLarge):
        return "The rendered templates are too large."
    if not isinstance(error, AppError):
        return str(error)
    details = error.extra.get("details") or ()
    texts = [f"{detail.get('field')}: {detail.get('message')}" for detail in details]
    return " ".join([error.message, *texts])


def _continuing(place: Place, error: Exception) -> Sequence[Frame]:
    """The steps around a failed one up to the `for_each` that goes on with its next record, if any.

    Without an owner who may act, the steps would fail for every record.
    """
    if str(error) in (versions.OWNER_GONE, versions.NOT_ADMIN):
        return ()
    for number in range(len(place.frames) - 1, 0, -1):
        step = place.frames[number - 1].step
        if step.type == FOR_EACH and step.settings.get("on_error") == CONTINUE:
            return place.frames[:number]
    return ()


def _is_transient(error: Exception) -> bool:
    if isinstance(error, DBAPIError):
        return errors.was_lock_conflict(error) or errors.is_stale_schema(error)
    return True
