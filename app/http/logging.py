"""Structured logs: JSON lines, with the id, account and user of the request."""

from __future__ import annotations

import logging
from contextlib import suppress

import orjson
import structlog
from flask import has_request_context
from structlog.typing import EventDict, Processor, WrappedLogger

from app import clock
from app.rest.current_request import get_g


def configure() -> None:
    """Configure structlog, and silence what would log secrets."""
    # Its warnings quote URLs.
    logging.getLogger("urllib3").setLevel(logging.CRITICAL)
    structlog.configure(
        processors=PROCESSORS,
        logger_factory=Printer,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )


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
