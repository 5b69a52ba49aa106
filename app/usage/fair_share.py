"""The share of a process's threads that one account may take while others have requests.

An account alone may use all threads. Once another has sent a request within the last second, it may
have so many requests at a time as `SERVICE_ACCOUNT_CONCURRENCY` says, and gets a 429 beyond.
"""

from __future__ import annotations

import sys
import threading
import time

from app import config
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.usage.quotas import QuotaExceeded

QUOTA = "concurrent_requests"
RECENT_SECONDS = 1
UNLIMITED = sys.maxsize
RETRY_SECONDS = 1


class Shares:
    """The accounts that a process serves now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active: dict[str, int] = {}
        # The account of the newest request, and when another one sent its last.
        self._newest, self._newest_at, self._other_at = "", 0.0, 0.0

    def enter(self, account_id: str, most: int) -> bool:
        """Begin a request; returns whether the account may have one more. If so, it must `leave`.

        An account has at most `most` at a time while others send some, too.
        """
        now = time.monotonic()
        with self._lock:
            if account_id != self._newest:
                self._newest, self._other_at = account_id, self._newest_at
            self._newest_at = now
            active = self._active.get(account_id, 0)
            if active >= most and self._other_at > now - RECENT_SECONDS:
                return False
            self._active[account_id] = active + 1
            return True

    def leave(self, account_id: str) -> None:
        """End a request."""
        with self._lock:
            active = self._active[account_id] - 1
            if active:
                self._active[account_id] = active
            else:
                del self._active[account_id]


_shares = Shares()


def enter(account_id: str) -> None:
    """Begin a request of an account, which must `leave`. Raises QuotaExceeded."""
    is_system = account_id == SYSTEM_ACCOUNT_ID  # superadmins must get in
    most = UNLIMITED if is_system else config.current().account_concurrency
    if not _shares.enter(account_id, most):
        raise QuotaExceeded(QUOTA, most, RETRY_SECONDS)


def leave(account_id: str) -> None:
    """End a request of an account."""
    _shares.leave(account_id)
