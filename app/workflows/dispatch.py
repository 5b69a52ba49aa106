"""The workflow dispatcher: one thread claims due instances, others run their steps.

A thread holds an instance only while it has steps to run; a waiting instance is a row. Few
threads use the database at once, many may wait for receivers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import structlog
from flask import current_app
from sqlalchemy.exc import DBAPIError

from app import db
from app.context import actor, tenancy, trigger_depth
from app.db import engine
from app.jobs import worker
from app.workflows.engine import queue
from app.workflows.engine.concurrency import Slots
from app.workflows.engine.run import Run
from app.workflows.triggers import schedules

log = structlog.get_logger()

THREADS = 64
DATABASE_SLOTS = 4  # connections of the pool that instances may use
POLL_SECONDS = 1  # time-based waits and schedules send no wake-up


class Dispatcher:
    """Claims due instances and runs each in a thread."""

    def __init__(self, woken: threading.Event) -> None:
        self._woken, self._lock = woken, threading.Lock()
        self._stop, self._running = threading.Event(), 0
        on_sqlite = engine.current_engine().dialect.name == "sqlite"
        self._slots = Slots(1 if on_sqlite else DATABASE_SLOTS)
        self._app = current_app._get_current_object()  # type: ignore[attr-defined]

    @property
    def busy(self) -> bool:
        """Whether any instance is running."""
        with self._lock:
            return self._running > 0

    def turn(self) -> None:
        """Fire the schedules, and start due instances."""
        schedules.fire()
        full_accounts: set[str] = set()
        while (free := min(THREADS - self._running, self._slots.room)) > 0:
            due_by_account = queue.look(full_accounts)
            if not due_by_account:
                return
            fair = free // len(due_by_account)
            for account_id, due in due_by_account.items():
                share = min(max(1, fair), free)
                if share == 0:
                    break
                rows = queue.claim(account_id, due, share)
                free -= len(rows)
                for row in rows:
                    self._begin(row)
                # The account has reached its limit of running instances.
                if not rows or len(rows) < min(len(due), share):
                    full_accounts.add(account_id)

    def close(self, seconds: float) -> None:
        """Wait until running instances finish their step, up to a time limit."""
        self._stop.set()
        waiter = threading.Event()
        while self.busy and seconds > 0:
            waiter.wait(0.05)
            seconds -= 0.05

    def _begin(self, row: object) -> None:
        with self._lock:
            self._running += 1
        self._slots.count(1)
        threading.Thread(target=self._serve, args=[row], daemon=True).start()

    def _serve(self, row: Any) -> None:
        with self._app.app_context(), tenancy.in_account(row.account_id):
            try:
                Run(row, self._slots).carry_out(self._stop)
            except (queue.Lost, DBAPIError) as error:
                # Another worker has it, or takes it over when the lease expires.
                log.info("workflow left", instance=row.id, error=type(error).__name__)
            except Exception as error:  # noqa: BLE001 - it must not be retried forever
                log.error("workflow broke", instance=row.id, error=type(error).__name__)
                _log_errors(lambda: queue.give_up(row, "The service failed."))
            finally:
                actor.source.set(actor.system)
                trigger_depth.chain.set(trigger_depth.NO_CHAIN)
                db.db.session.remove()
                self._slots.count(-1)
                with self._lock:
                    self._running -= 1
                self._woken.set()


@worker.loop("workflows")
def work(stop: threading.Event, woken: threading.Event) -> None:
    """Run due instances until `stop` is set."""
    dispatcher = Dispatcher(woken)
    while not stop.is_set():
        woken.clear()
        _log_errors(dispatcher.turn)
        db.db.session.remove()
        woken.wait(min(worker.sweep_seconds(), POLL_SECONDS))
    _log_errors(lambda: dispatcher.close(worker.STOP_SECONDS / 2))


def _log_errors(step: Callable[[], None]) -> None:
    try:
        step()
    except Exception as error:  # noqa: BLE001 - the loop must survive database failures
        log.warning("workflows wait", error=type(error).__name__)
        # Do not reuse a broken connection.
        db.db.session.remove()
