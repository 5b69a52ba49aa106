"""Structured logs: one JSON line per request, with id, account, route and duration."""

from __future__ import annotations

import logging
import re
import time
from contextlib import suppress

import orjson
import structlog
from flask import Flask, Response, has_request_context
from structlog.typing import EventDict, Processor, WrappedLogger
from uuid_utils import uuid4

from app import clock
from app.rest.current_request import get_g, get_header, get_request

CORRELATION_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")

log = structlog.get_logger()


def init_app(app: Flask) -> None:
    """Configure structlog, and log every request."""
    structlog.configure(
        processors=PROCESSORS,
        logger_factory=Printer,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )
    app.before_request(_start)
    app.after_request(_finish)


class Printer(structlog.PrintLogger):
    """Prints log lines; drops them if the disk is full or nobody reads the pipe."""

    def msg(self, message: str) -> None:
        """Print a line."""
        with suppress(OSError):
            super().msg(message)

    debug = info = warning = error = critical = msg


def _render(logger: WrappedLogger, level: str, event: EventDict) -> str | bytes:
    """The only processor: each further one would cost as much as it does."""
    if has_request_context():
        g = get_g()
        event["request_id"] = g.get("correlation_id")
        caller = g.get("principal")
        if caller is not None:
            event["account"], event["user"] = caller.account_id, caller.user_id
    event["level"], event["timestamp"] = level, clock.iso(clock.now())
    try:
        text = orjson.dumps(event).decode()
    except TypeError:
        text = ""
    # ASCII prints in any locale; structlog's renderer escapes everything else.
    return text if text.isascii() and text else _render_json(logger, level, event)


_render_json = structlog.processors.JSONRenderer()
PROCESSORS: list[Processor] = [_render]  # one list for all apps: loggers cache the first they see


def _start() -> None:
    correlation_id, g = get_header("X-Correlation-ID") or "", get_g()
    is_valid = CORRELATION_ID.fullmatch(correlation_id)
    g.correlation_id = correlation_id if is_valid else str(uuid4())
    g.started = time.perf_counter()


def _finish(response: Response) -> Response:
    request, g = get_request(), get_g()
    response.headers.add("X-Correlation-ID", g.correlation_id)
    response.headers.add("X-Content-Type-Options", "nosniff")
    # The URL rule, not the path: a path may contain a token.
    rule = request.url_rule.rule if request.url_rule else None
    milliseconds = round((time.perf_counter() - g.started) * 1000, 1)
    log.info(
        "request", method=request.method, route=rule, status=response.status_code, ms=milliseconds
    )
    return response
