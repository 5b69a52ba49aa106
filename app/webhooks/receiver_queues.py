"""The deliveries that a process holds for one receiver, and how many it may send at once.

A receiver that responds well may have many concurrent requests, an unknown one few, a slow one
only one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from app.webhooks.delivery import Result, Target, Work

SLOW_SECONDS = 3
PROVEN_LIMIT, UNKNOWN_LIMIT, SLOW_LIMIT = 16, 2, 1
CLAIMED_AHEAD = 144
FRESH_SECONDS = 0.2


@dataclass
class Lane:
    """The claimed deliveries of one webhook."""

    account_id: str = ""
    webhook_id: str = ""
    waiting: deque[tuple[Work, float]] = field(default_factory=deque)  # with the lease's end
    running: dict[str, float] = field(default_factory=dict)  # since when
    proven: bool = False
    slow: bool = False
    target: Target | None = None
    fresh_until: float = 0
    """Until when `target` may be used without reading it again."""

    def is_slow(self, now: float) -> bool:
        """Whether the last request was slow or a running one is."""
        return self.slow or any(now - since > SLOW_SECONDS for since in self.running.values())

    def is_good(self, now: float) -> bool:
        """Whether the receiver responds well."""
        return self.proven and not self.is_slow(now)

    def limit(self, now: float) -> int:
        """The maximum of concurrent requests."""
        if self.is_slow(now):
            return SLOW_LIMIT
        return PROVEN_LIMIT if self.proven else UNKNOWN_LIMIT

    def room(self, now: float) -> int:
        """How many more deliveries to claim."""
        limit = self.limit(now)
        if limit < PROVEN_LIMIT:
            return limit - len(self.running) - len(self.waiting)
        return CLAIMED_AHEAD + limit - len(self.waiting) if self.wants_more else 0

    @property
    def wants_more(self) -> bool:
        """Whether a receiver that responds well will soon run out of deliveries."""
        return len(self.waiting) <= CLAIMED_AHEAD // 2

    @property
    def characters(self) -> int:
        """The size of the waiting payloads."""
        return sum(len(work.payload) for work, _ in self.waiting)

    def may_go_on(self, now: float) -> bool:
        """Whether a thread may take the next delivery without reading the target again."""
        return self.is_good(now) and now < self.fresh_until

    def learn(self, target: Target | None, now: float) -> None:
        """Store the current target."""
        self.target, self.fresh_until = target, now + FRESH_SECONDS

    def take(self, now: float, needed: float) -> Work | None:
        """The next delivery to attempt, if the limit and its lease allow one."""
        while self.waiting and len(self.running) < self.limit(now):
            work, lease_ends = self.waiting.popleft()
            if lease_ends - now >= needed:  # else it waited too long here; it is due again soon
                self.running[work.id] = now
                return replace(work, target=self.target)
        return None

    def note(self, result: Result) -> None:
        """Update the state of the receiver after an attempt."""
        self.running.pop(result.work.id, None)
        self.slow = result.duration_ms > SLOW_SECONDS * 1000
        self.proven = result.delivered and not self.slow
