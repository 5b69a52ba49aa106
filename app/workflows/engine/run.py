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

from app import clock, config, db
from app.auth.principal import Principal
from app.context import actor, tenancy, trigger_depth
from app.db import errors, versioned_cache
from app.db.errors import UNAVAILABLE
from app.errors import AppError
from app.outbound import mail
from app.records.write import conflicts
from app.types import JSONObject
from app.workflows import serialization, versions
from app.workflows.engine import (
    control_steps,
    event_waits,
    external_execution,
    external_steps,
    queue,
)
from app.workflows.engine.concurrency import Slots
from app.workflows.engine.control_steps import Failed, Outcome
from app.workflows.engine.position import Place, Position
from app.workflows.engine.step_log import LONGEST_MESSAGE, Entry, rows
from app.workflows.language.definition import WAIT_EVENT
from app.workflows.language.templates import Rendering, TooLarge
from app.workflows.models import COMPLETED, FAILED, LARGEST_CONTEXT, RUNNING, WAITING

RERUNS = 5
STEPS_PER_SLOT = 20  # then others have their turn
MOST_VISITS = 10_000
MOST_WRITTEN = 2**30  # bytes of context and position, over all steps
REFUSED = "The database rejected the step."
GONE = "This version of the workflow no longer exists."


class Run:
    """A claimed instance that runs until it waits or finishes."""

    def __init__(self, row: Any, slots: Slots) -> None:
        self.account_id, self.id, self.claim = row.account_id, row.id, row.claim
        self.row, self.slots = row, slots
        self.holds_pii, self.given = row.holds_pii, None
        self.root_id = row.root_id or row.id
        self.sender: mail.Sender | None = None  # of its mails
        self._begun, self._now = time.monotonic(), row.now
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
        # What its steps change continues the chain that led here.
        trigger_depth.set_current(self.row.depth, self.root_id)
        with self.slot():
            found = versions.get(self.account_id, self.row.workflow_id, self.row.version)
            if found is None:
                self._end(GONE)
                return
            self.version = found
            self.restore()
            if any(step.type == WAIT_EVENT for step in found.series.walk()):
                self.happened = event_waits.happened(self)
        while not self.stopped:
            if stop.is_set():
                with self.slot():
                    queue.release(self.account_id, self.id, self.claim)
                return
            self._turn(stop)

    def _turn(self, stop: threading.Event) -> None:
        within, reaching_out = self._ready()
        if reaching_out and not within:
            external_execution.reach_out(self, reaching_out)
            return
        with self.slot():
            for _ in range(STEPS_PER_SLOT):
                if within:
                    self._attempt(within[0].path)
                else:
                    with db.transaction():
                        self._save([])
                if self.stopped or stop.is_set():
                    return
                within, reaching_out = self._ready()
                if reaching_out and not within:
                    return

    def _ready(self) -> tuple[list[Place], list[Place]]:
        """The steps that can run now: those without and those with external effects."""
        ready = [place for place in self.position.places() if self._is_ready(place)]
        out = [place for place in ready if place.step.action in external_steps.ACTIONS]
        return [place for place in ready if place not in out], out

    def _is_ready(self, place: Place) -> bool:
        until = place.spot.get("until")
        arrived = place.spot.get("subscription") in self.happened
        return until is None or arrived or until <= serialization.plain(self.now)

    def _attempt(self, path: str) -> None:
        """Run one step in a transaction; retry with fresh data if something was stale."""
        for reruns in range(RERUNS):
            try:
                anew = versioned_cache.reloading() if reruns else nullcontext()
                with anew, conflicts.explain_refusals(), db.transaction():
                    place = self.place_at(path)
                    self.given, self.step_began = None, self.now
                    self.apply(place, control_steps.done(self, place))
            except (versioned_cache.Stale, DBAPIError) as error:
                self.restore()
                if not _is_passing(error):
                    _check_database(error)
                    self.fail([(self.place_at(path), Failed(REFUSED))])
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
        """The principal of the steps, who becomes the current actor. Raises Forbidden."""
        found = self.version.owner()
        id, email = found.user_id or "", found.email
        who = actor.Actor(id, email, found.name or email, request_id=self.id)
        actor.set_source(lambda: who)
        tenancy.set_source(lambda: found.tenancy)
        return found

    def rendering(self, place: Place) -> Rendering:
        """The renderer of a step's templates."""
        return Rendering(self.names(place), self.now)

    def names(self, place: Place) -> JSONObject:
        """The names that expressions may use at a place."""
        return {"trigger": None, "steps": {}, **self.context, **place.names}

    def place_at(self, path: str) -> Place:
        """The place with this path."""
        return next(one for one in self.position.places() if one.path == path)

    def apply(self, place: Place, outcome: Outcome) -> None:
        """Store the step's output, and move on. Raises Failed, Lost."""
        if outcome.waits:
            self._save([Entry(place, WAITING, outcome.given)] if outcome.given else [])
            return
        if outcome.entered:
            place.spot["since"] = serialization.plain(self.now)
            self._save([])
            return
        entries = [Entry(place, COMPLETED, outcome.given, outcome.output)]
        self._put(place.step.name, outcome.output)
        for ended in self.position.finish(place, outcome.target):
            output = control_steps.output_of(ended)
            self._put(ended.step.name, output)
            entries.append(Entry(ended, COMPLETED, None, output))
        if self.position.kept["visits"] > MOST_VISITS:
            raise Failed(f"Stopped after {MOST_VISITS:,} steps: possible infinite loop.")
        self._save(entries)

    def _put(self, name: str, output: object) -> None:
        self.context.setdefault("steps", {})[name] = {"output": output}

    def _save(self, entries: Sequence[Entry]) -> None:
        told = rows(entries, self)
        at, context = self.position_text(), serialization.dumps(self.context)
        if max(len(context), len(at)) > LARGEST_CONTEXT:
            raise Failed(f"The outputs of the steps are larger than {LARGEST_CONTEXT} bytes.")
        self._count_written(len(at) + len(context))
        values = {"position": at, "context": context, "holds_pii": self.holds_pii, **self._state()}
        queue.write(self, values, told.new, told.old)
        self.stopped = values["status"] != RUNNING
        db.on_commit(self.keep)

    def _count_written(self, size: int) -> None:
        counts = self.position.kept
        counts["written"] = counts.get("written", 0) + size
        if counts["written"] > MOST_WRITTEN:
            raise Failed(f"The steps have stored more than {MOST_WRITTEN} bytes in all.")

    def keep(self) -> None:
        """Remember the committed state for `restore`."""
        self._texts = (self.position_text(), serialization.dumps(self.context))

    def restore(self) -> None:
        """Return to the last committed state."""
        at, context = self._texts
        self.context: JSONObject = serialization.loads(context)
        self.position = Position(self.version.series, serialization.loads(at))
        self.stopped = False

    def _state(self) -> JSONObject:
        places = self.position.places()
        if not places:
            done = {"status": COMPLETED, "due_at": None, "current_step": None}
            return {**done, "completed_at": self.now, "error_message": None}
        if any(self._is_ready(place) for place in places):
            seconds = config.current().workflow_lease_seconds
            lease = {"due_at": self.now + timedelta(seconds=seconds)}
            return {"status": RUNNING, "current_step": self.current_step(), **lease}
        until = min(place.spot["until"] for place in places)
        later = {"look_again": clock.parse(until), "seen": self.row.nudges}
        return {"status": WAITING, "current_step": self.current_step(), **later}

    def position_text(self) -> str:
        """The position as stored JSON."""
        return serialization.dumps(self.position.kept)

    def current_step(self) -> str:
        """The names of the next steps."""
        return ", ".join(place.step.name for place in self.position.places())

    def fail(self, failures: Sequence[tuple[Place, Exception]]) -> None:
        """Record failed steps; a resume runs them again."""
        entries = [Entry(place, FAILED, self.given, error=said(error)) for place, error in failures]
        told = rows(entries, self)
        with db.transaction():
            for place, _ in failures:
                event_waits.forget(self, place)
                visit = {name: place.spot[name] for name in ("step", "visit")}
                attempt = place.spot.get("attempt", 0) + 1
                place.spot.clear()
                place.spot.update(visit, attempt=attempt)
            names = ", ".join(place.step.name for place, _ in failures)
            values = {"position": self.position_text(), "current_step": names}
            self._over(entries[0].error or "", {**values, "holds_pii": self.holds_pii}, told)

    def _end(self, message: str) -> None:
        with db.transaction():
            self._over(message, {}, rows([], self))

    def _over(self, message: str, values: JSONObject, told: Any) -> None:
        over: JSONObject = {
            "status": FAILED,
            "error_message": message[:LONGEST_MESSAGE],
            "due_at": None,
        }
        over["completed_at"] = self.now
        queue.write(self, {**values, **over}, told.new, told.old)
        self.stopped = True

    def slot(self) -> AbstractContextManager[None]:
        """A slot for database work."""
        return self.slots.one()


def said(error: Exception) -> str:
    """The error message of a step, with its details."""
    if isinstance(error, TooLarge):
        return "The rendered templates are too large."
    if not isinstance(error, AppError):
        return str(error)
    details = error.extra.get("details") or ()
    told = [f"{one.get('field')}: {one.get('message')}" for one in details]
    return " ".join([error.message, *told])


def _is_passing(error: Exception) -> bool:
    if isinstance(error, DBAPIError):
        return errors.was_lock_conflict(error) or errors.is_stale_schema(error)
    return True


def _check_database(error: Exception) -> None:
    # It is away: whoever has the instance when it is back tries again.
    if isinstance(error, UNAVAILABLE):
        raise error
