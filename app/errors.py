"""The error tree, and the only place that turns errors into answers (contract section 1)."""

from __future__ import annotations

import errno
import sqlite3
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg2
import structlog
from flask import Flask, Response, current_app, jsonify, request
from flask.globals import request_ctx
from flask.sansio.app import App
from sqlalchemy.exc import (
    DisconnectionError,
    InterfaceError,
    OperationalError,
    PendingRollbackError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

log = structlog.get_logger()
MOST_LISTED = 100

TOO_LONG = (
    "This took longer than one request may keep others from writing"
    " (SERVICE_SQLITE_TRANSACTION_SECONDS), and was undone. Send less at once."
)


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


# A connection that broke while idle fails before SQLAlchemy could wrap its driver's error.
UNAVAILABLE = (
    OperationalError,
    InterfaceError,
    DisconnectionError,
    PendingRollbackError,
    PoolTimeout,
    psycopg2.OperationalError,
    psycopg2.InterfaceError,
    sqlite3.OperationalError,
)
# Of disks and open files; a large upload, say, is put by in a temporary file.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE)
TOO_LARGE = "The body is too large: this route takes at most {}."
FORMS = ("multipart/", "application/x-www-form-urlencoded")
HTTP_ERRORS = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    408: "request_timeout",
    413: "payload_too_large",
    414: "uri_too_long",
    415: "unsupported_media_type",
    416: "range_not_satisfiable",
    429: "rate_limited",
    431: "headers_too_large",
}


def tell_by_pages(app: App, path: str, page: Callable[[AppError], Response]) -> None:
    """Answer errors at a path and below it, unknown paths included, by pages."""
    app.extensions.setdefault("atrium.error_pages", {})[path] = page


def answer(error: AppError) -> Response:
    """The response that tells a client of `error`: a page where there are pages, else JSON."""
    pages: Mapping[str, Any] = current_app.extensions.get("atrium.error_pages", {})
    if request_ctx.url_adapter is None:
        pages = {}  # sent to a host that cannot be: no browser does, and no page could link from it
    for path, page in pages.items():
        if f"{request.path}/".startswith(f"{path}/"):
            response: Response = page(error)
            return response
    return as_json(error)


def as_json(error: AppError) -> Response:
    """The response that tells a client of the API."""
    response = jsonify(error.body())
    response.status_code = error.status
    response.headers.update(error.headers)
    return response


def answer_http(error: HTTPException) -> Response:
    """The framework's own errors, in our shape."""
    if error.code is None or error.code >= 500:
        return answer(AppError())
    told = TOO_LARGE.format(_bound()) if _is_too_large(error) else error.description
    translated = AppError(told, error=HTTP_ERRORS.get(error.code, "http_error"))
    translated.status = error.code
    allowed = getattr(error, "valid_methods", None)
    translated.headers = {"Allow": ", ".join(sorted(allowed))} if allowed else {}
    return answer(translated)


def _is_too_large(error: HTTPException) -> bool:
    # One with words of its own names another bound.
    return error.code == 413 and error.description == RequestEntityTooLarge.description


def _bound() -> str:
    most = request.max_content_length or 0
    if (request.content_length or 0) > most or not request.mimetype.startswith(FORMS):
        return f"{most:,} bytes"
    fields, parts = request.max_form_memory_size or 0, request.max_form_parts or 0
    return f"{fields:,} bytes in its fields, and {parts:,} parts"


def _answer_unavailable(error: Exception) -> Response:
    log.warning("database unavailable", reason=reason(error))
    return answer(unavailable(error))


def unavailable(error: Exception) -> Unavailable:
    """What tells a client that the database did not do it."""
    return Unavailable(TOO_LONG if is_too_long(error) else None)


def is_too_long(error: Exception) -> bool:
    """Whether SQLite refused a statement because its transaction had lasted for too long."""
    original = getattr(error, "orig", None) or error
    return getattr(original, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT


def _answer_no_room(error: OSError) -> Response:
    if error.errno not in NO_ROOM:
        return answer_unexpected(error)
    log.warning("no room on the machine", reason=error.strerror)
    return answer(Unavailable())


def reason(error: Exception) -> str:
    """Why a database cannot be used, without anything that it keeps."""
    original = getattr(error, "orig", None) or error
    told = getattr(original, "diag", None)
    if told and told.message_primary:
        return f"{told.message_primary} ({told.sqlstate})"
    return str(original).partition("\n")[0]  # what follows may quote what was written


def answer_unexpected(error: Exception) -> Response:
    """The response to a fault of ours."""
    log.error("unexpected error", **place_of(error), **_refused_by_server(error))
    return answer(AppError())


def _refused_by_server(error: Exception) -> dict[str, str]:
    # That a server cannot do a statement at all is told without any value: an operator needs it.
    code = getattr(getattr(error, "orig", None), "pgcode", None) or ""
    return {"reason": reason(error)} if code.startswith("0A") else {}


def place_of(error: Exception) -> dict[str, Any]:
    """What a log may tell of an error: its message may quote personal data."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return {"type": type(error).__name__, "where": where}


def init_app(app: Flask) -> None:
    """Register the error handlers."""
    app.register_error_handler(AppError, answer)
    app.register_error_handler(HTTPException, answer_http)
    for unavailable in UNAVAILABLE:
        app.register_error_handler(unavailable, _answer_unavailable)
    app.register_error_handler(OSError, _answer_no_room)
    app.register_error_handler(Exception, answer_unexpected)
