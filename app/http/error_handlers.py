"""Turns errors into answers: in the contract's shape, or as pages below paths that have pages."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import Any

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

from app.db.errors import UNAVAILABLE, error_summary, unavailable, violation_of
from app.errors import AppError, Conflict, NotFound, Unavailable, error_location

log = structlog.get_logger()
# Of disks and open files; a large upload, say, is put by in a temporary file.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE)
TOO_LARGE = "The body is too large: this route takes at most {}."
FORMS = ("multipart/", "application/x-www-form-urlencoded")
# A row that was there when its request began.
GONE = (NoResultFound, ObjectDeletedError, StaleDataError)
AT_ONCE = "Somebody has changed what this relies on at the same moment. Look again."
GONE_AT_ONCE = "Somebody has deleted this, or what it relies on, at the same moment."


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
    """Answer errors at a path and below it, unknown paths included, by pages."""
    app.extensions.setdefault("atrium.error_pages", {})[path] = page


def error_response(error: AppError) -> Response:
    """The response that tells a client of `error`: a page where there are pages, else JSON."""
    pages: Mapping[str, Any] = current_app.extensions.get("atrium.error_pages", {})
    if request_ctx.url_adapter is None:
        pages = {}  # sent to a host that cannot be: no browser does, and no page could link from it
    for path, page in pages.items():
        if f"{request.path}/".startswith(f"{path}/"):
            response: Response = page(error)
            return response
    return json_error(error)


def json_error(error: AppError) -> Response:
    """The response that tells a client of the API."""
    response = jsonify(error.body())
    response.status_code = error.status
    response.headers.update(error.headers)
    return response


def http_error_response(error: HTTPException) -> Response:
    """The framework's own errors, in our shape."""
    if error.code is None or error.code >= 500:
        return error_response(AppError())
    told = TOO_LARGE.format(_bound()) if _is_too_large(error) else error.description
    translated = AppError(told, error=HTTP_ERRORS.get(error.code, "http_error"))
    translated.status = error.code
    allowed = getattr(error, "valid_methods", None)
    translated.headers = {"Allow": ", ".join(sorted(allowed))} if allowed else {}
    return error_response(translated)


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
    log.warning("database unavailable", reason=error_summary(error))
    return error_response(unavailable(error))


def _answer_no_room(error: OSError) -> Response:
    if error.errno not in NO_ROOM:
        return internal_error_response(error)
    log.warning("no room on the machine", reason=error.strerror)
    return error_response(Unavailable())


def internal_error_response(error: Exception) -> Response:
    """The response to a fault of ours."""
    log.error("unexpected error", **error_location(error), **_refused_by_server(error))
    return error_response(AppError())


def _refused_by_server(error: Exception) -> dict[str, str]:
    # That a server cannot do a statement at all is told without any value: an operator needs it.
    code = getattr(getattr(error, "orig", None), "pgcode", None) or ""
    return {"reason": error_summary(error)} if code.startswith("0A") else {}


def _answer_overtaken(error: IntegrityError) -> Response:
    broken = violation_of(error)
    if broken.kind not in ("unique", "foreign_key"):
        return internal_error_response(error)
    log.warning("overtaken by another change", **error_location(error))
    return error_response(Conflict(AT_ONCE))


def _answer_gone(error: Exception) -> Response:
    log.warning("deleted meanwhile", **error_location(error))
    return error_response(NotFound(GONE_AT_ONCE))


def init_app(app: Flask) -> None:
    """Register the error handlers."""
    app.register_error_handler(AppError, error_response)
    app.register_error_handler(HTTPException, http_error_response)
    for outage in UNAVAILABLE:
        app.register_error_handler(outage, _answer_unavailable)
    app.register_error_handler(IntegrityError, _answer_overtaken)
    for gone in GONE:
        app.register_error_handler(gone, _answer_gone)
    app.register_error_handler(OSError, _answer_no_room)
    app.register_error_handler(Exception, internal_error_response)
