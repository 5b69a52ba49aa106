"""What the client raises: one class per kind of failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx


class AtriumError(Exception):
    """A request that failed; the base of all errors of this package."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        body: Mapping[str, Any] = {},
        headers: Mapping[str, str] = {},
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.body = body
        self.code: str = body.get("error", "")
        """The stable code to branch on, such as `not_found`."""
        self.details: list[dict[str, Any]] = body.get("details") or body.get("detail") or []
        self.request_id = headers.get("X-Correlation-ID")
        """The id of the request in logs and in the audit log."""
        self._headers = headers

    @property
    def retry_after(self) -> float | None:
        """The seconds to wait before another attempt, if the server names them."""
        value = self._headers.get("Retry-After", "")
        return float(value) if value.isdecimal() else None


class NetworkError(AtriumError):
    """No complete response: the connection failed, was cut or timed out."""


class ValidationError(AtriumError):
    """400 or 422: values that the API refuses."""

    @property
    def fields(self) -> dict[str, str]:
        """The first problem of each field."""
        found: dict[str, str] = {}
        for problem in self.details:
            name = problem.get("field") or ".".join(map(str, problem.get("loc", ())[1:]))
            found.setdefault(name, problem.get("message") or problem.get("msg", ""))
        return found


class Unauthorized(AtriumError):
    """401: no valid credential."""


class Forbidden(AtriumError):
    """403: the caller is not allowed to do this."""


class NotFound(AtriumError):
    """404: no such object in this account."""


class Conflict(AtriumError):
    """409: a conflict with stored data."""

    @property
    def field(self) -> str | None:
        """The field that clashes, if it is one."""
        return self.body.get("field")


class FeedExpired(AtriumError):
    """410: the changes since this position are no longer stored."""


class PreconditionFailed(AtriumError):
    """412: somebody else has changed the record."""


class TooLarge(AtriumError):
    """413 or 414: the request is too large."""


class SignatureRequired(AtriumError):
    """428: the collection requires an electronic signature."""


class RateLimited(AtriumError):
    """429: too many requests; `retry_after` has the seconds to wait."""


class ServerError(AtriumError):
    """5xx: the server, or a proxy before it, failed."""


BY_STATUS: Mapping[int, type[AtriumError]] = {
    400: ValidationError,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: FeedExpired,
    412: PreconditionFailed,
    413: TooLarge,
    414: TooLarge,
    422: ValidationError,
    428: SignatureRequired,
    429: RateLimited,
}


def error_of(response: httpx.Response) -> AtriumError:
    """Return the error that a response, whose body has been read, describes."""
    status = response.status_code
    kind = BY_STATUS.get(status, ServerError if status >= 500 else AtriumError)
    body = _json_object(response)
    message = body.get("message") or f"HTTP {status} {response.reason_phrase}"
    return kind(message, status=status, body=body, headers=response.headers)


def _json_object(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:  # a proxy's page
        return {}
    return body if isinstance(body, dict) else {}
