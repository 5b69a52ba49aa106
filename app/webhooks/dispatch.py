"""The line of work that delivers: one thread for the database, many for the receivers.

Each webhook has a lane. A receiver that answers well may have many requests at once, an unknown
one few, a slow one a single one; and slow and unknown ones together never take all the threads.
So receivers that hang delay nobody else.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue

import structlog

from app import clock, config, db, jobs, outgoing
from app.webhooks import delivery, queue, upkeep
from app.webhooks.queue import Result, Work

log = structlog.get_logger()

THREADS = 64
UNPROVEN_THREADS = 48
SLOW_SECONDS = 3
PROVEN_LIMIT, UNKNOWN_LIMIT, SLOW_LIMIT = 16, 2, 1
CLAIMED_AHEAD = 48
LARGEST_LOOK = 200
LARGEST_HOLDING = 16 * 2**20  # characters of payloads
LOOKS_PER_TURN = 50
LANES = 5000
MARGIN_SECONDS = 5
PAUSE_SECONDS = 0.02


@dataclass
class Lane:
    """What this process has to deliver to one webhook, and how its receiver does."""

    waiting: deque[tuple[Work, float]] = field(default_factory=deque)  # with the lease's end
    running: dict[str, float] = field(default_factory=dict)  # since when
    proven: bool = False
    slow: bool = False

    def is_slow(self, now: float) -> bool:
        """Whether the receiver took long lately, or is doing so."""
        return self.slow or any(now - since > SLOW_SECONDS for since in self.running.values())

    def limit(self, now: float) -> int:
        """How many requests it may have at once."""
        if self.is_slow(now):
            return SLOW_LIMIT
        return PROVEN_LIMIT if self.proven else UNKNOWN_LIMIT

    def room(self, now: float) -> int:
        """How many more deliveries to claim for it."""
        limit = self.limit(now)
        ahead = CLAIMED_AHEAD if limit == PROVEN_LIMIT else 0
        return limit + ahead - len(self.running) - len(self.waiting)

    def note(self, result: Result) -> None:
        """Learn from an attempt."""
        self.running.pop(result.work.id, None)
        self.slow = result.duration_ms > SLOW_SECONDS * 1000
        self.proven = result.delivered and not self.slow


class Dispatcher:
    """Claims due deliveries, has them tried, and writes down what came of it."""

    def __init__(self, allowed: outgoing.Rules, woken: threading.Event) -> None:
        self._allowed, self._woken = allowed, woken
        self._lease = round(2 * allowed.seconds) + 2 * MARGIN_SECONDS
        self._lanes: dict[str, Lane] = {}
        self._finished: SimpleQueue[Result] = SimpleQueue()
        self._unwritten: list[Result] = []
        self._look_after = 0.0

    def turn(self, *, claiming: bool = True) -> None:
        """Write down what is finished, and begin what is due."""
        self._collect()
        self._write()
        if claiming and len(self._unwritten) < LARGEST_LOOK:
            self._claim_due()
            self._begin()

    @property
    def busy(self) -> bool:
        """Whether anything is being tried, or not yet written down."""
        return bool(self._unwritten) or any(lane.running for lane in self._lanes.values())

    def close(self, seconds: float) -> None:
        """Give back what is not begun, and wait for what is."""
        waiting = [work for lane in self._lanes.values() for work, _ in lane.waiting]
        for lane in self._lanes.values():
            lane.waiting.clear()
        queue.release(waiting)
        end = time.monotonic() + seconds
        while self.busy and time.monotonic() < end:
            self._woken.wait(0.1)
            self._woken.clear()
            self.turn(claiming=False)

    def _collect(self) -> None:
        for result in _all_of(self._finished):
            self._lanes.setdefault(result.work.webhook_id, Lane()).note(result)
            self._unwritten.append(result)

    def _write(self) -> None:
        work = [result.work for result in self._unwritten]
        for account_id in queue.by_account(work):
            # What cannot be written now is kept: better a late word than a second delivery.
            _survive(partial(self._write_account, account_id))

    def _write_account(self, account_id: str) -> None:
        mine = [r for r in self._unwritten if r.work.account_id == account_id]
        queue.record(account_id, mine)
        self._unwritten = [r for r in self._unwritten if r.work.account_id != account_id]
        upkeep.disable_failing(account_id, mine)

    def patience(self) -> float:
        """How long it may wait when nobody wakes it."""
        throttled = self._look_after - time.monotonic()
        return min(throttled, jobs.sweep_seconds()) if throttled > 0 else jobs.sweep_seconds()

    def _claim_due(self) -> None:
        now = time.monotonic()
        if now < self._look_after:
            return
        for _ in range(LOOKS_PER_TURN):
            if not self._claim_page(time.monotonic()):
                break
        end = time.monotonic()
        # Passing over many rows of busy webhooks takes time: never more than a part of it.
        passed_over = any(lane.room(end) <= 0 for lane in self._lanes.values())
        self._look_after = end + 3 * (end - now) if passed_over else end
        self._forget_idle()

    def _claim_page(self, now: float) -> bool:
        full = [id for id, lane in self._lanes.items() if lane.room(now) <= 0]
        page = queue.look(LARGEST_LOOK, full)
        rooms: dict[str, int] = {}
        chosen: dict[str, list[str]] = {}
        held = self._held()
        for row in page:
            lane = self._lanes.setdefault(row.webhook_id, Lane())
            room = rooms.setdefault(row.webhook_id, lane.room(now))
            if room > 0 and (held == 0 or held + row.size <= LARGEST_HOLDING):
                rooms[row.webhook_id] -= 1
                held += row.size
                chosen.setdefault(row.account_id, []).append(row.id)
        for account_id in sorted(chosen):
            for work in queue.claim(account_id, chosen[account_id], self._lease):
                self._lanes[work.webhook_id].waiting.append((work, now + self._lease))
        return bool(chosen) and len(page) == LARGEST_LOOK

    def _held(self) -> int:
        lanes = self._lanes.values()
        return sum(len(work.payload) for lane in lanes for work, _ in lane.waiting)

    def _begin(self) -> None:
        now = time.monotonic()
        running = sum(len(lane.running) for lane in self._lanes.values())
        unproven = sum(len(one.running) for one in self._lanes.values() if not _is_good(one, now))
        for lane in self._lanes.values():
            good = _is_good(lane, now)
            while lane.waiting and len(lane.running) < lane.limit(now) and running < THREADS:
                if not good and unproven >= UNPROVEN_THREADS:
                    break
                work, lease_ends = lane.waiting.popleft()
                if lease_ends - now < self._allowed.seconds + MARGIN_SECONDS:
                    continue  # it waited too long here; it is due again soon
                lane.running[work.id] = now
                running, unproven = running + 1, unproven + (not good)
                # A thread of its own, which does not keep a process from ending.
                threading.Thread(target=self._try, args=[work], daemon=True).start()

    def _try(self, work: Work) -> None:
        try:
            result = delivery.attempt(work, self._allowed)
        except Exception as error:  # noqa: BLE001 - a lane must never wait for a thread that died
            log.error("delivery broke", delivery=work.id, error=type(error).__name__)
            result = Result(work, db.new_id(), clock.now(), 0, error="The service failed.")
        self._finished.put(result)
        self._woken.set()

    def _forget_idle(self) -> None:
        if len(self._lanes) > LANES:
            self._lanes = {k: v for k, v in self._lanes.items() if v.running or v.waiting}


def _is_good(lane: Lane, now: float) -> bool:
    return lane.proven and not lane.is_slow(now)


def _all_of(results: SimpleQueue[Result]) -> Iterator[Result]:
    while True:
        try:
            yield results.get_nowait()
        except Empty:
            return


@jobs.line("deliveries")
def work(stop: threading.Event, woken: threading.Event) -> None:
    """Deliver what is due until told to stop."""
    dispatcher = Dispatcher(delivery.rules(config.current()), woken)
    while not stop.is_set():
        woken.clear()
        _survive(dispatcher.turn)
        db.db.session.remove()
        woken.wait(dispatcher.patience())
        if dispatcher.busy:
            # What is finished within a moment is written down together.
            stop.wait(PAUSE_SECONDS)
    _survive(lambda: dispatcher.close(jobs.STOP_SECONDS / 2))


def _survive(step: Callable[[], None]) -> None:
    try:
        step()
    except Exception as error:  # noqa: BLE001 - the line outlives its database
        log.warning("deliveries wait", error=type(error).__name__)
        # A connection that broke must not stay with a worker that goes on.
        db.db.session.remove()
