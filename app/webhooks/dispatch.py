"""The webhook dispatcher: one thread uses the database, others send requests.

With RQ, it claims deliveries of accounts that a job runs for (`app/jobs/turns.py`), else those of
all. Each webhook has a lane (`receiver_queues.py`). Slow and unknown receivers together never use
all threads, so a hanging receiver delays no others, and no account has all of them. A thread
continues with the next delivery of a lane whose receiver responds well; results are written in
batches. The target and secret of a delivery are read again before each attempt, so changes by an
admin apply to the next one.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue

import structlog

from app import clock, config, db
from app.context import tracing
from app.context.metrics import observe
from app.ids import new_id
from app.jobs import leases, turns, worker
from app.jobs import task as job_task
from app.jobs.rq_queues import WEBHOOKS
from app.jobs.turns import Turns
from app.outbound.address_policy import Rules
from app.webhooks import delivery, metrics, purge, queue
from app.webhooks.delivery import Result, Target, Work
from app.webhooks.models import QUEUE
from app.webhooks.receiver_queues import Lane

log = structlog.get_logger()

THREADS = 64
UNPROVEN_THREADS = 48
ACCOUNT_THREADS = 48  # of one account, however many receivers it has
PAGE_SIZE = 200
MAX_CLAIMED_CHARACTERS = 16 * 2**20  # bytes of payloads, about
MAX_PAGES_PER_TURN = 50
MAX_LANES = 5000
MARGIN_SECONDS = 5
PAUSE_SECONDS = 0.02
BATCH_SIZE, BATCH_SECONDS = 64, 0.1


class Dispatcher:
    """Claims due deliveries, sends them and records the results."""

    def __init__(self, allowed: Rules, woken: threading.Event, turns: Turns | None = None) -> None:
        self._allowed, self._woken, self._turns = allowed, woken, turns
        self._lease = round(2 * allowed.seconds) + 2 * MARGIN_SECONDS
        self._lock = threading.Lock()  # of the lanes
        self._lanes: dict[str, Lane] = {}
        self._known: dict[str, tuple[int | None, Mapping[str, Target]]] = {}
        self._finished: SimpleQueue[Result] = SimpleQueue()
        self._unwritten: list[Result] = []
        self._written_at = 0.0
        self._look_after = self._looked = 0.0
        self._one_each = False
        """Whether threads should end after one delivery, as other lanes wait."""

    def turn(self, *, claiming: bool = True) -> None:
        """Record finished attempts, and start due deliveries."""
        self._unwritten += _drain(self._finished)
        is_time = (
            len(self._unwritten) >= BATCH_SIZE
            or time.monotonic() - self._written_at >= BATCH_SECONDS
        )
        if self._unwritten and (is_time or not claiming):
            self._write()
        if claiming and len(self._unwritten) < PAGE_SIZE:
            requests = self._turns.requests() if self._turns else None
            claimed_all = self._claim_due(None if requests is None else sorted(requests))
            self._learn_targets()
            self._begin()
            if self._turns and requests is not None:
                now, busy, slow = time.monotonic(), set[str](), set[str]()
                with self._lock:
                    for lane in self._lanes.values():
                        if lane.waiting or lane.running:
                            (busy if lane.is_good(now) else slow).add(lane.account_id)
                    # Deliveries that are not recorded yet may be due again at once.
                    busy.update(result.work.account_id for result in self._unwritten)
                self._turns.end(requests if claimed_all else {}, busy, slow)

    @property
    def busy(self) -> bool:
        """Whether any delivery is running or not yet recorded."""
        with self._lock:
            running = any(lane.running for lane in self._lanes.values())
            return running or bool(self._unwritten) or not self._finished.empty()

    def close(self, seconds: float) -> None:
        """Release deliveries that have not started, and wait for the others."""
        with self._lock:
            waiting = [work for lane in self._lanes.values() for work, _ in lane.waiting]
            for lane in self._lanes.values():
                lane.waiting.clear()
        queue.release(waiting)
        end = time.monotonic() + seconds
        while self.busy and time.monotonic() < end:
            self._woken.wait(0.1)
            self._woken.clear()
            self.turn(claiming=False)

    def patience(self) -> float:
        """Seconds to wait without a notification."""
        if self._unwritten or not self._finished.empty() or (self._turns and self._turns.any):
            return BATCH_SECONDS
        throttled = self._look_after - time.monotonic()
        if throttled > 0:
            return min(throttled, worker.sweep_seconds())
        if self.busy:  # some results wake nobody
            return worker.sweep_seconds()
        return worker.patience(partial(leases.seconds_to_next, QUEUE))

    def _write(self) -> None:
        work = [result.work for result in self._unwritten]
        for account_id in queue.by_account(work):
            # On failure the results are kept and written later, so that nothing is delivered twice.
            _log_errors(partial(self._write_account, account_id))
        self._written_at = time.monotonic()

    def _write_account(self, account_id: str) -> None:
        results = [r for r in self._unwritten if r.work.account_id == account_id]
        queue.record(account_id, results)
        for result in results:
            if not result.held:
                observe(metrics.SECONDS, result.duration_ms / 1000, delivery.outcome(result).status)
        self._unwritten = [r for r in self._unwritten if r.work.account_id != account_id]
        purge.disable_failing(account_id, results)
        if self._turns:
            self._turns.finished(account_id)

    def _claim_due(self, accounts: Sequence[str] | None) -> bool:
        """Claim due deliveries; whether nothing is left that could be claimed now."""
        if accounts == []:
            return True
        if time.monotonic() < self._look_after:
            return False
        self._looked, claimed_all = 0.0, False
        for _ in range(MAX_PAGES_PER_TURN):
            goes_on, claimed_all = self._claim_page(time.monotonic(), accounts)
            if not goes_on:
                break
        end = time.monotonic()
        # Skipping rows of busy webhooks takes time: limit it to a fraction of the total.
        with self._lock:
            passed_over = any(lane.room(end) <= 0 for lane in self._lanes.values())
        self._look_after = end + 3 * self._looked if passed_over else end
        if len(self._lanes) > MAX_LANES:
            with self._lock:
                active = {k: v for k, v in self._lanes.items() if v.running or v.waiting}
                self._lanes, self._known = active, {}
        return claimed_all

    def _claim_page(self, now: float, accounts: Sequence[str] | None) -> tuple[bool, bool]:
        """Claim from one page; whether there may be another, and whether nothing is left."""
        with self._lock:
            free_slots = {id: lane.room(now) for id, lane in self._lanes.items()}
            claimed_size = sum(lane.characters for lane in self._lanes.values())
        full = [id for id, free in free_slots.items() if free <= 0]
        page = queue.look(PAGE_SIZE, full, accounts)
        self._looked += time.monotonic() - now
        chosen: dict[str, list[str]] = {}
        too_large = False
        for row in page:
            if free_slots.setdefault(row.webhook_id, Lane().room(now)) <= 0:
                continue
            too_large = claimed_size > 0 and claimed_size + row.size > MAX_CLAIMED_CHARACTERS
            if not too_large:
                free_slots[row.webhook_id] -= 1
                claimed_size += row.size
                chosen.setdefault(row.account_id, []).append(row.id)
        for account_id in sorted(chosen):
            claimed = queue.claim(account_id, chosen[account_id], self._lease)
            with self._lock:
                for work in claimed:
                    new = Lane(work.account_id, work.webhook_id)
                    lane = self._lanes.setdefault(work.webhook_id, new)
                    lane.waiting.append((work, now + self._lease))
        is_last = len(page) < PAGE_SIZE
        return bool(chosen) and not is_last, is_last and not too_large

    def _learn_targets(self) -> None:
        lanes = [lane for lane in self._lanes.values() if lane.waiting]
        accounts = sorted({lane.account_id for lane in lanes})
        now, current_versions = time.monotonic(), queue.versions(accounts) if accounts else {}
        for account_id in accounts:
            if account_id not in self._known or self._known[account_id][0] != current_versions.get(
                account_id
            ):
                self._known[account_id] = (
                    current_versions.get(account_id),
                    queue.targets(account_id),
                )
        with self._lock:
            for lane in lanes:
                lane.learn(self._known[lane.account_id][1].get(lane.webhook_id), now)

    def _begin(self) -> None:
        now = time.monotonic()
        with self._lock:
            running = sum(len(lane.running) for lane in self._lanes.values())
            unproven_lanes = [lane for lane in self._lanes.values() if not lane.is_good(now)]
            unproven = sum(len(lane.running) for lane in unproven_lanes)
            by_account = Counter[str]()
            for lane in self._lanes.values():
                by_account[lane.account_id] += len(lane.running)
            ready = [lane for lane in self._lanes.values() if lane.waiting]
            while ready and running < THREADS:
                # Round-robin, least served account and receiver first.
                lane = min(ready, key=lambda one: (by_account[one.account_id], len(one.running)))
                if by_account[lane.account_id] >= ACCOUNT_THREADS:
                    ready = []  # the accounts of all others have as many
                    break
                is_good = lane.is_good(now)
                work = (
                    lane.take(now, self._needed) if is_good or unproven < UNPROVEN_THREADS else None
                )
                if work is None:
                    ready.remove(lane)
                    continue
                running, unproven = running + 1, unproven + (not is_good)
                by_account[lane.account_id] += 1
                # A daemon thread, which does not block the exit of the process.
                threading.Thread(target=self._serve, args=[lane, work], daemon=True).start()
            self._one_each = bool(ready)

    @property
    def _needed(self) -> float:
        return self._allowed.seconds + MARGIN_SECONDS

    def _serve(self, lane: Lane, work: Work | None) -> None:
        while work is not None:
            result = self._try(work)
            with self._lock:
                lane.note(result)
                self._finished.put(result)
                now = time.monotonic()
                may_continue = lane.may_go_on(now) and not self._one_each
                work = lane.take(now, self._needed) if may_continue else None
                needs_dispatcher = work is None or lane.wants_more
            if needs_dispatcher or self._finished.qsize() >= BATCH_SIZE:
                self._woken.set()

    def _try(self, work: Work) -> Result:
        try:
            with tracing.job("delivery", work.account_id, work.id):
                return delivery.attempt(work, self._allowed)
        except Exception as error:  # noqa: BLE001 - the lane would wait for a dead thread
            log.error("delivery broke", delivery=work.id, error=type(error).__name__)
            return Result(work, new_id(), clock.now(), 0, error="The service failed.")


def _drain(results: SimpleQueue[Result]) -> Iterator[Result]:
    while True:
        try:
            yield results.get_nowait()
        except Empty:
            return


@worker.loop("deliveries", WEBHOOKS)
def work(stop: threading.Event, woken: threading.Event) -> None:
    """Deliver due deliveries until `stop` is set."""
    _run(turns.served(WEBHOOKS), woken, lambda: not stop.is_set())


@job_task(WEBHOOKS, queue.accounts_due)
def deliver(account_id: str) -> None:
    """Deliver due deliveries of an account."""
    turns.take(WEBHOOKS, account_id, _run)


def _run(served: Turns, woken: threading.Event, goes_on: Callable[[], bool]) -> None:
    dispatcher = Dispatcher(delivery.rules(config.current()), woken, served)
    while goes_on():
        woken.clear()
        _log_errors(dispatcher.turn)
        seconds = dispatcher.patience()
        db.db.session.remove()
        if not goes_on():
            break
        woken.wait(seconds)
        if dispatcher.busy:
            # Batch results that finish within a moment.
            time.sleep(PAUSE_SECONDS)
    _log_errors(lambda: dispatcher.close(worker.STOP_SECONDS / 2))


def _log_errors(step: Callable[[], None]) -> None:
    try:
        step()
    except Exception as error:  # noqa: BLE001 - the loop must survive database failures
        log.warning("deliveries wait", error=type(error).__name__)
        # Do not reuse a broken connection.
        db.db.session.remove()
