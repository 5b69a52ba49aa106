"""The application's errors, each with the answer that a client gets (contract section 1)."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any

JSONObject = dict[str, Any]  # a decoded JSON object

MOST_LISTED = 100


class AppError(Exception):
    """An answer other than success: `status`, `error` (a stable code), `message` (a sentence)."""

    status = 500
    error = "internal_error"
    message = "Something went wrong on our side."
    is_final = False
    """Whether something is done already, so that the request must not be carried out again."""

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

    def body(self) -> dict[str, Any]:
        """The answer's body."""
        return {"error": self.error, "message": self.message, **self.extra}


class BadRequest(AppError):
    """A well-formed request whose values break a rule of the domain."""

    status = 400
    error = "bad_request"
    message = "The request cannot be carried out as it is."


def first(name: str, found: Sequence[Mapping[str, Any]], count: int = 0) -> dict[str, Any]:
    """The first of a list of problems, and where there are more than are listed, their `count`."""
    count = max(count, len(found))
    return {name: list(found[:MOST_LISTED])} | ({"count": count} if count > MOST_LISTED else {})


class InvalidValues(BadRequest):
    """Values that break domain rules, all of them at once: `details: [{field, message, code}]`.

    Of more than a hundred the first, and their `count`.
    """

    error = "validation_error"
    message = "Some values are not valid."

    def __init__(self, details: Sequence[Mapping[str, Any]], count: int = 0) -> None:
        super().__init__(**first("details", details, count))
        self.details = list(details)


class Unauthorized(AppError):
    """No credential, or one that is not valid."""

    status = 401
    error = "unauthorized"
    message = "Sign in to use this, or send a valid access token or API key."

    def __init__(self, message: str | None = None, **options: Any) -> None:
        super().__init__(message, headers={"WWW-Authenticate": "Bearer"}, **options)


class Forbidden(AppError):
    """A caller who may not do this."""

    status = 403
    error = "forbidden"
    message = "You may not do this."


class RecentSignInRequired(Forbidden):
    """An act that needs more than a session that was left open, or a token that was found."""

    error = "recent_sign_in_required"
    message = (
        "This needs a sign-in of the last 15 minutes: give your password again"
        " (POST /auth/reauthenticate), or sign in anew."
    )


class NotFound(AppError):
    """What does not exist, or exists in another account."""

    status = 404
    error = "not_found"
    message = "There is no such thing here."


class Conflict(AppError):
    """A clash with what is stored already."""

    status = 409
    error = "conflict"
    message = "This clashes with something that exists already."


class PreconditionFailed(AppError):
    """A change of what is not any more as the caller has seen it."""

    status = 412
    error = "precondition_failed"
    message = "This has changed since you read it: its ETag is another than If-Match names."


class PayloadTooLarge(AppError):
    """More in one request than the service takes."""

    status = 413
    error = "payload_too_large"
    message = "The body is larger than this service takes."


class AnswerTooLarge(AppError):
    """An answer that is larger than any client should be sent."""

    status = 413
    error = "payload_too_large"
    message = (
        "The answer would have more than 32 MiB. Ask for fewer records with `limit`, or for fewer"
        " fields with `fields`."
    )


class UnsupportedMediaType(AppError):
    """A body in a form that the route does not read."""

    status = 415
    error = "unsupported_media_type"
    message = "Send the body as application/json in UTF-8."


class SignatureRequired(AppError):
    """A write to what may be changed with an electronic signature only."""

    status = 428
    error = "signature_required"
    message = "Sign this: send X-ES-Username, X-ES-Password and X-ES-Reason."


class Malformed(AppError):
    """A request that does not fit the documented shape: `detail: [{loc, msg, type}]`."""

    status = 422
    error = "validation_error"
    message = "The request does not have the documented shape."

    def __init__(self, detail: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(**first("detail", detail))

    @classmethod
    def at(cls, *loc: str | int, msg: str, type: str = "value_error") -> Malformed:
        """The error for a single place in the request."""
        return cls([{"loc": list(loc), "msg": msg, "type": type}])


class TooManyRequests(AppError):
    """What was tried too often."""

    status = 429
    error = "rate_limited"
    message = "Too many tries. Wait a while."

    def __init__(self, seconds: int) -> None:
        super().__init__(headers={"Retry-After": str(seconds)})


class Unavailable(AppError):
    """A database or queue that does not answer for the moment."""

    status = 503
    error = "unavailable"
    message = "The service is briefly unavailable. Try again in a moment."

    def __init__(self, message: str | None = None, **options: Any) -> None:
        super().__init__(message, headers={"Retry-After": "1"}, **options)


def problem(field: str | None, code: str, message: str, **extra: Any) -> dict[str, Any]:
    """One entry of `details`."""
    return {"field": field, "message": message, "code": code, **extra}


def place_of(error: Exception) -> dict[str, Any]:
    """What a log may tell of an error: its message may quote personal data."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return {"type": type(error).__name__, "where": where}
