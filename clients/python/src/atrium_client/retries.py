"""Which requests are sent again, and when."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass

import httpx

from atrium_client.errors import AtriumError

KEY = "Idempotency-Key"
IDEMPOTENT = {"GET", "HEAD", "OPTIONS", "PUT", "DELETE"}
UNAVAILABLE = {429, 502, 503, 504}
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True)
class Retries:
    """How often a request is sent, and how long the client waits in between.

    Requests that may have been processed are repeated only if they are idempotent: GET, PUT, DELETE
    and each POST with an `Idempotency-Key`. Others are repeated if they never reached the
    application.
    """

    attempts: int = 4
    first_delay: float = 0.25
    max_delay: float = 30
    """The longest wait; a longer `Retry-After` is an error at once."""

    def delay(self, request: httpx.Request, error: AtriumError, attempt: int) -> float | None:
        """Return the seconds to wait before another attempt, or None to give up."""
        if attempt >= self.attempts or not _may_repeat(request, error, attempt):
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= self.max_delay else None
        return self.backoff(attempt)

    def backoff(self, attempt: int) -> float:
        """Return a random delay, whose bound doubles with each attempt."""
        bound = min(self.first_delay * 2 ** min(attempt - 1, 20), self.max_delay)
        return random.uniform(bound / 2, bound)


def add_idempotency_key(request: httpx.Request) -> None:
    """Let the server recognize a POST that is sent again.

    Sign-ins do not take keys. With a key the server reads a whole body into memory, which uploads
    are too large for.
    """
    is_form = request.headers.get("Content-Type", "").startswith("multipart/")
    if request.method == "POST" and not is_form and "/api/v1/auth/" not in request.url.path:
        request.headers.setdefault(KEY, str(uuid.uuid4()))


def is_repeatable(request: httpx.Request) -> bool:
    """Return whether the body can be sent again; that of a pipe cannot."""
    return not request.extensions.get("unrepeatable")


def _may_repeat(request: httpx.Request, error: AtriumError, attempt: int) -> bool:
    if not is_repeatable(request):
        return False
    if error.status == 429 or isinstance(error.__cause__, NOT_SENT):
        return True
    if error.code == "in_progress":  # the first attempt, cut off before its response
        return attempt > 1
    is_safe = request.method in IDEMPOTENT or KEY in request.headers
    return is_safe and (error.status in UNAVAILABLE or _is_cut(error))


def _is_cut(error: AtriumError) -> bool:
    return isinstance(error.__cause__, httpx.TransportError)
