"""Logs: JSON lines with the request's id, account, route and duration; no personal data."""

from __future__ import annotations

import logging
import re
import time
from contextlib import suppress
from typing import Any

import orjson
import structlog
from flask import Flask, Response, has_request_context
from uuid_utils import uuid4

from app import clock
from app.rest.current_request import get_g, get_header, get_request

CORRELATION_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")

log = structlog.get_logger()


def init_app(app: Flask) -> None:
    """Give every request an id, and every answer a line."""
    structlog.configure(
        processors=PROCESSORS,
        logger_factory=Printer,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )
    app.before_request(_start)
    app.after_request(_finish)


class Printer(structlog.PrintLogger):
    """Prints lines. Where nobody reads them, or a disk is full, the work goes on without them."""

    def msg(self, message: str) -> None:
        """Print one."""
        with suppress(OSError):
            super().msg(message)

    debug = info = warning = error = critical = msg


def _line(logger: Any, level: str, told: Any) -> str | bytes:
    """One step, as each that the library goes through costs as much as what it does."""
    if has_request_context():
        known = get_g()
        told["request_id"] = known.get("correlation_id")
        caller = known.get("principal")
        if caller is not None:
            told["account"], told["user"] = caller.account_id, caller.user_id
    told["level"], told["timestamp"] = level, clock.iso(clock.now())
    try:
        text = orjson.dumps(told).decode()
    except TypeError:
        text = ""
    # What is in ASCII can be written whatever the locale; the library's own way takes all else.
    return text if text.isascii() and text else _rendered(logger, level, told)


_rendered = structlog.processors.JSONRenderer()
PROCESSORS: list[Any] = [_line]  # one list for all: loggers keep the one that they first met


def _start() -> None:
    given, known = get_header("X-Correlation-ID") or "", get_g()
    known.correlation_id = given if CORRELATION_ID.fullmatch(given) else str(uuid4())
    known.started = time.perf_counter()


def _finish(response: Response) -> Response:
    request, known = get_request(), get_g()
    response.headers.add("X-Correlation-ID", known.correlation_id)
    response.headers.add("X-Content-Type-Options", "nosniff")
    # The route's rule, not the path: a path may carry a token.
    rule = request.url_rule.rule if request.url_rule else None
    milliseconds = round((time.perf_counter() - known.started) * 1000, 1)
    log.info(
        "request", method=request.method, route=rule, status=response.status_code, ms=milliseconds
    )
    return response
