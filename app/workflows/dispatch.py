"""The workflow dispatcher: one thread claims due instances, others run their steps.

With RQ, it claims instances of accounts that a job runs for (`app/jobs/turns.py`), else those of
all. A thread holds an instance only while it has steps to run; a waiting instance is a row. Few
threads use the database at once, many may wait for receivers.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from flask import current_app
from sqlalchemy.exc import DBAPIError

from app import db
from app.context import actor, tenancy, tracing, trigger_depth
from app.db import engine
from app.jobs import leases, turns, worker
from app.jobs import task as job_task
from app.jobs.rq_queues import WORKFLOWS
from app.jobs.turns import Turns
from app.workflows.engine import queue
from app.workflows.engine.queue import Slots
from app.workflows.engine.run import Run
from app.workflows.models import QUEUE
from app.workflows.triggers import schedules

log = structlog.get_logger()

THREADS = 64
DATABASE_SLOTS = 4  # connections of the pool that instances may use
POLL_SECONDS = 1
TURN_SECONDS = 0.2


class Dispatcher:
    """Claims due instances and runs each in a thread."""

    def __init__(self, woken: threading.Event, turns: Turns | None = None) -> None:
        self._woken, self._turns, self._lock = woken, turns, threading.Lock()
        self._stop, self._running = threading.Event(), Counter[str]()
        on_sqlite = engine.current_engine().dialect.name == "sqlite"
        self._slots = Slots(1 if on_sqlite else DATABASE_SLOTS)
        self._app = current_app._get_current_object()  # type: ignore[attr-defined]

    @property
    def busy(self) -> bool:
        """Whether any instance is running."""
        with self._lock:
            return self._running.total() > 0

    def turn(self) -> None:
        """Fire the schedules, and start due instances."""
        requests = self._turns.requests() if self._turns else None
        accounts = None if requests is None else sorted(requests)
        if accounts == []:
            return
        schedules.fire(accounts=accounts)
        claimed_all = self._claim_due(accounts)
        if self._turns and requests is not None:
            with self._lock:
                running = set(self._running)
            self._turns.end(requests if claimed_all else {}, (), running)

    def _claim_due(self, accounts: Sequence[str] | None) -> bool:
        """Start due instances; whether nothing is left that could be started now."""
        full_accounts: set[str] = set()
        while (free := min(THREADS - self._running.total(), self._slots.room)) > 0:
            due_by_account = queue.look(full_accounts, accounts)
            if not due_by_account:
                return True
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
        return False

    def patience(self) -> float:
        """Seconds to wait without a notification."""
        if self._turns and self._turns.any:
            return TURN_SECONDS
        return worker.patience(
            lambda: min(leases.seconds_to_next(QUEUE), schedules.seconds_to_next()), POLL_SECONDS
        )

    def close(self, seconds: float) -> None:
        """Wait until running instances finish their step, up to a time limit."""
        self._stop.set()
        waiter = threading.Event()
        while self.busy and seconds > 0:
            waiter.wait(0.05)
            seconds -= 0.05

    def _begin(self, row: Any) -> None:
        with self._lock:
            self._running[row.account_id] += 1
        self._slots.count(1)
        threading.Thread(target=self._serve, args=[row], daemon=True).start()

    def _serve(self, row: Any) -> None:
        with self._app.app_context(), tenancy.in_account(row.account_id):
            try:
                with tracing.job("workflow", row.account_id, row.id):
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
                    self._running[row.account_id] -= 1
                    self._running += Counter()  # without zeros
                if self._turns:
                    self._turns.finished(row.account_id)
                self._woken.set()


@worker.loop("workflows", WORKFLOWS)
def work(stop: threading.Event, woken: threading.Event) -> None:
    """Run due instances until `stop` is set."""
    _run(turns.served(WORKFLOWS), woken, lambda: not stop.is_set())


def accounts_due() -> list[tuple[str]]:
    """The accounts with due instances or schedules."""
    return sorted({*leases.accounts_due(QUEUE), *schedules.accounts_due()})


@job_task(WORKFLOWS, accounts_due)
def run(account_id: str) -> None:
    """Run due schedules and instances of an account."""
    turns.take(WORKFLOWS, account_id, _run)


def _run(served: Turns, woken: threading.Event, goes_on: Callable[[], bool]) -> None:
    dispatcher = Dispatcher(woken, served)
    while goes_on():
        woken.clear()
        _log_errors(dispatcher.turn)
        seconds = dispatcher.patience()
        db.db.session.remove()
        if goes_on():
            woken.wait(seconds)
    _log_errors(lambda: dispatcher.close(worker.STOP_SECONDS / 2))


def _log_errors(step: Callable[[], None]) -> None:
    try:
        step()
    except Exception as error:  # noqa: BLE001 - the loop must survive database failures
        log.warning("workflows wait", error=type(error).__name__)
        # Do not reuse a broken connection.
        db.db.session.remove()
