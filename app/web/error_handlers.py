"""Error handlers: JSON in the documented shape, or an HTML page below paths that have pages."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping

import structlog
from flask import Flask, Response, current_app, jsonify, request
from flask.globals import request_ctx
from flask.sansio.app import App
from sqlalchemy.exc import (
    IntegrityError,
    NoResultFound,
)
from sqlalchemy.orm.exc import ObjectDeletedError, StaleDataError
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from app.config import current
from app.db.errors import UNAVAILABLE, error_summary, passed_deadline, violation_of
from app.errors import (
    MAX_LISTED,
    AppError,
    Conflict,
    NotFound,
    TooExpensive,
    Unavailable,
    error_location,
)

log = structlog.get_logger()
# Full disks and too many open files; large uploads go to temporary files.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE)
TOO_LARGE = "The body is too large: this route takes at most {}."
FORMS = ("multipart/", "application/x-www-form-urlencoded")
# Parameters that make no read take longer.
PAGING = frozenset({"limit", "skip", "page", "page_size", "after", "before", "format"})
# A row was deleted while the request ran.
GONE = (NoResultFound, ObjectDeletedError, StaleDataError)
CONCURRENT_CHANGE = "This conflicts with a concurrent change. Reload and try again."
CONCURRENT_DELETE = "This, or something it depends on, was deleted by a concurrent request."


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


def register_error_page(app: App, path: str, page: Callable[[AppError], Response]) -> None:
    """Render errors at a path and below it, unknown paths included, as pages."""
    app.extensions.setdefault("atrium.error_pages", {})[path] = page


def error_response(error: AppError) -> Response:
    """Return the response for an error: a page below paths that have pages, else JSON."""
    pages: Mapping[str, Callable[[AppError], Response]]
    pages = current_app.extensions.get("atrium.error_pages", {})
    if request_ctx.url_adapter is None:
        pages = {}  # the Host header is invalid, so a page could not build its links
    for path, page in pages.items():
        if f"{request.path}/".startswith(f"{path}/"):
            return page(error)
    return json_error(error)


def json_error(error: AppError) -> Response:
    """Return the JSON response for an error."""
    response = jsonify(error.body())
    response.status_code = error.status
    response.headers.update(error.headers)
    return response


def http_error_response(error: HTTPException) -> Response:
    """Return the response for an error of Flask or werkzeug."""
    if error.code is None or error.code >= 500:
        return error_response(AppError())
    message = TOO_LARGE.format(_limit()) if _is_too_large(error) else error.description
    translated = AppError(message, error=HTTP_ERRORS.get(error.code, "http_error"))
    translated.status = error.code
    allowed = getattr(error, "valid_methods", None)
    translated.headers = {"Allow": ", ".join(sorted(allowed))} if allowed else {}
    return error_response(translated)


def _is_too_large(error: HTTPException) -> bool:
    # An error with its own description names another limit.
    return error.code == 413 and error.description == RequestEntityTooLarge.description


def _limit() -> str:
    most = request.max_content_length or 0
    if (request.content_length or 0) > most or not request.mimetype.startswith(FORMS):
        return f"{most:,} bytes"
    fields, parts = request.max_form_memory_size or 0, request.max_form_parts or 0
    return f"{fields:,} bytes in its fields, and {parts:,} parts"


def database_error(error: Exception) -> AppError:
    """The error for a database that is busy or away, or for what takes it too long, and log it.

    Clients repeat a 503: it is none where the request is to blame, as it would fail again.
    """
    if passed_deadline(error):
        is_read = request.method in ("GET", "HEAD")
        names = [name[:80] for name in request.args if name not in PAGING][:MAX_LISTED]
        if names or not is_read:
            log.warning("too expensive", reason=error_summary(error))
            return TooExpensive(current().statement_seconds, names if is_read else ())
    log.warning("database unavailable", reason=error_summary(error))
    return Unavailable()


def _database_unavailable(error: Exception) -> Response:
    return error_response(database_error(error))


def _no_room(error: OSError) -> Response:
    if error.errno not in NO_ROOM:
        return internal_error_response(error)
    log.warning("no room on the machine", reason=error.strerror)
    return error_response(Unavailable())


def internal_error_response(error: Exception) -> Response:
    """Return the response for an unexpected error, and log it."""
    log.error("unexpected error", **error_location(error), **_refused_by_server(error))
    return error_response(AppError())


def _refused_by_server(error: Exception) -> dict[str, str]:
    # "Feature not supported" (0A) quotes no values, and operators need to see it.
    code = getattr(getattr(error, "orig", None), "pgcode", None) or ""
    return {"reason": error_summary(error)} if code.startswith("0A") else {}


def _concurrent_change(error: IntegrityError) -> Response:
    violation = violation_of(error)
    if violation.kind not in ("unique", "foreign_key"):
        return internal_error_response(error)
    log.warning("overtaken by another change", **error_location(error))
    return error_response(Conflict(CONCURRENT_CHANGE))


def _concurrent_delete(error: Exception) -> Response:
    log.warning("deleted meanwhile", **error_location(error))
    return error_response(NotFound(CONCURRENT_DELETE))


def init_app(app: Flask) -> None:
    """Register the error handlers."""
    app.register_error_handler(AppError, error_response)
    app.register_error_handler(HTTPException, http_error_response)
    for outage in UNAVAILABLE:
        app.register_error_handler(outage, _database_unavailable)
    app.register_error_handler(IntegrityError, _concurrent_change)
    for gone in GONE:
        app.register_error_handler(gone, _concurrent_delete)
    app.register_error_handler(OSError, _no_room)
    app.register_error_handler(Exception, internal_error_response)
