"""The application's errors and their HTTP responses."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from app.types import JSONMapping, JSONObject

MAX_LISTED = 100
Problem = JSONMapping


class AppError(Exception):
    """An error response: `status`, `error` (a stable code), `message` (a sentence)."""

    status = 500
    error = "internal_error"
    message = "Something went wrong on our side. Try again later."
    is_final = False
    """Whether the request has taken effect already, so that a retry must not run it again."""

    def __init__(
        self,
        message: str | None = None,
        *,
        error: str | None = None,
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        self.message = message or self.message
        self.error = error or self.error
        self.headers = dict(headers or {})
        self.extra = extra
        super().__init__(self.message)

    def body(self) -> JSONObject:
        return {"error": self.error, "message": self.message, **self.extra}


class BadRequest(AppError):
    """A well-formed request that breaks a validation rule."""

    status = 400
    error = "bad_request"
    message = "The request is not valid."


def truncated(name: str, problems: Sequence[Problem], count: int = 0) -> JSONObject:
    """Return the first problems under `name`, and the `count` of all if some are left out."""
    count = max(count, len(problems))
    return {name: list(problems[:MAX_LISTED])} | ({"count": count} if count > MAX_LISTED else {})


class TooExpensive(BadRequest):
    """A request that the database cannot serve within its deadline, however often it is sent."""

    error = "too_expensive"

    def __init__(self, seconds: float, names: Sequence[str] = ()) -> None:
        """`names` are the parameters of a read that may be to blame; a change has none."""
        if names:
            given = ", ".join(names)
            message = f"This took longer than {seconds} s: {given}. Simplify it, or ask for less."
        else:
            message = f"This took longer than {seconds} s and was undone. Send less at once."
        super().__init__(message)
        if names:
            self.extra["details"] = [problem(one, self.error, "Takes too long.") for one in names]


class InvalidValues(BadRequest):
    """All values that break validation rules: `details: [{field, message, code}]`.

    More than a hundred are cut, with their `count`.
    """

    error = "validation_error"
    message = "Some values are not valid."

    def __init__(self, details: Sequence[Problem], count: int = 0) -> None:
        super().__init__(**truncated("details", details, count))
        self.details = list(details)


class Unauthorized(AppError):
    """A missing or invalid credential."""

    status = 401
    error = "unauthorized"
    message = "Sign in, or send a valid access token or API key."

    def __init__(self, message: str | None = None, **options: Any) -> None:
        super().__init__(message, headers={"WWW-Authenticate": "Bearer"}, **options)


class Forbidden(AppError):
    """A caller without the permission."""

    status = 403
    error = "forbidden"
    message = "You may not do this."


class RecentSignInRequired(Forbidden):
    """A sensitive action that an open session or a stolen token must not allow."""

    error = "recent_sign_in_required"
    message = (
        "This needs a sign-in within the last 15 minutes. Confirm your password"
        " (POST /auth/reauthenticate), or sign in again."
    )


class Gone(AppError):
    """An address that was good for one use."""

    status = 410
    error = "gone"
    message = "This is no longer available."


class NotFound(AppError):
    """An object that does not exist, or belongs to another account."""

    status = 404
    error = "not_found"
    message = "Not found."


class Conflict(AppError):
    """A conflict with stored data."""

    status = 409
    error = "conflict"
    message = "This conflicts with existing data."


class FeedExpired(AppError):
    """A position in the change feed that is older than what is kept."""

    status = 410
    error = "feed_expired"
    message = "Changes after this one are not kept any more: read the collections anew."

    def __init__(self, oldest: int) -> None:
        super().__init__(oldest=oldest)


class PreconditionFailed(AppError):
    """A change based on an outdated version."""

    status = 412
    error = "precondition_failed"
    message = "This has changed since you read it: its ETag does not match If-Match."


class PayloadTooLarge(AppError):
    """A request body over the limit."""

    status = 413
    error = "payload_too_large"
    message = "The request body is too large."


class AnswerTooLarge(AppError):
    """A response over the limit."""

    status = 413
    error = "payload_too_large"
    message = (
        "The response would exceed 32 MiB. Request fewer records with `limit`, or fewer fields with"
        " `fields`."
    )


class UnsupportedMediaType(AppError):
    """A body of a media type that the route does not accept."""

    status = 415
    error = "unsupported_media_type"
    message = "Send the body as application/json in UTF-8."


class RangeNotSatisfiable(AppError):
    """A part that a file does not have."""

    status = 416
    error = "range_not_satisfiable"
    message = "The file has no such part."

    def __init__(self, size: int) -> None:
        super().__init__(headers={"Content-Range": f"bytes */{size}"})


class ViewReadOnly(Forbidden):
    """A change of the records of a view."""

    status = 405
    error = "view_read_only"
    message = "This collection is a view: its records are only read."

    def __init__(self) -> None:
        super().__init__(headers={"Allow": "GET"})


class UpgradeRequired(AppError):
    """A request that is not the WebSocket handshake that the route expects."""

    status = 426
    error = "upgrade_required"
    message = "This address speaks WebSocket: send an upgrade request of version 13."

    def __init__(self) -> None:
        super().__init__(headers={"Upgrade": "websocket", "Sec-WebSocket-Version": "13"})


class SignatureRequired(AppError):
    """A write without the electronic signature that the collection requires."""

    status = 428
    error = "signature_required"
    message = "Sign this write: send X-ES-Username, X-ES-Reason, and X-ES-Password or X-ES-Passkey."


class Malformed(AppError):
    """A request that does not match the documented schema: `detail: [{loc, msg, type}]`."""

    status = 422
    error = "validation_error"
    message = "The request does not match the documented schema."

    def __init__(self, detail: Sequence[Problem], count: int = 0) -> None:
        super().__init__(**truncated("detail", detail, count))

    @classmethod
    def at(cls, *loc: str | int, msg: str, type: str = "value_error") -> Malformed:
        """Return the error for one place in the request."""
        return cls([{"loc": list(loc), "msg": msg, "type": type}])


class TooManyRequests(AppError):
    status = 429
    error = "rate_limited"
    message = "Too many attempts. Try again later."

    def __init__(self, seconds: int, message: str | None = None) -> None:
        super().__init__(message, headers={"Retry-After": str(seconds)})


class RealtimeUnavailable(AppError):
    """A server that does not hand its connections over to streams."""

    status = 501
    error = "realtime_unavailable"
    message = "This server cannot serve streams. Run Atrium with gunicorn, and TLS in a proxy."


class Unavailable(AppError):
    """A database or queue that is temporarily unavailable."""

    status = 503
    error = "unavailable"
    message = "The service is briefly unavailable. Try again in a moment."

    def __init__(self, message: str | None = None, **options: Any) -> None:
        super().__init__(message, headers={"Retry-After": "1"}, **options)


def problem(field: str | None, code: str, message: str, **extra: object) -> JSONObject:
    """Return an entry of `details`."""
    return {"field": field, "message": message, "code": code, **extra}


def error_location(error: BaseException) -> JSONObject:
    """Return type and traceback of an error for logs; its message may quote personal data."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return {"type": type(error).__name__, "where": where}
