"""Structured logs: JSON lines, with the id, account and user of the request; or text for people."""

from __future__ import annotations

import logging
from contextlib import suppress

import orjson
import structlog
from flask import has_request_context
from structlog.typing import EventDict, Processor, WrappedLogger

from app import clock
from app.context import tracing
from app.web.app import get_g


def configure(*, as_text: bool = False, with_trace: bool = False) -> None:
    """Configure structlog, as JSON or as text, and silence what would log secrets.

    With spans, lines have the ids of the trace and the span.
    """
    render = _render_text if as_text else _render
    PROCESSORS[:] = [_add_trace, render] if with_trace else [render]
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
        with suppress(OSError):
            super().msg(message)

    debug = info = warning = error = critical = msg


def line(level: str, event: EventDict) -> str:
    """A line of a log that is not structlog's, in the format of its lines."""
    return str(PROCESSORS[-1](None, level, event))


def _add_trace(logger: WrappedLogger, level: str, event: EventDict) -> EventDict:
    event.update(tracing.ids())
    return event


def _render(logger: WrappedLogger, level: str, event: EventDict) -> str | bytes:
    """The only processor: each further one would cost as much as it does."""
    _add_request(event)
    event["level"], event["timestamp"] = level, clock.iso(clock.now())
    try:
        text = orjson.dumps(event).decode()
    except TypeError:
        text = ""
    # ASCII prints in any locale; structlog's renderer escapes everything else.
    return text if text.isascii() and text else _render_json(logger, level, event)


def _render_text(logger: WrappedLogger, level: str, event: EventDict) -> str:
    """The same for people: time, level, event, then the rest."""
    name, when = event.pop("event"), clock.now().astimezone().strftime("%H:%M:%S")
    words = [when, f"{level:7}", str(name)]
    if name == "request":
        words = [when, f"{level:7}", *(str(event.pop(key, "")) for key in ("method", "route"))]
        words += [str(event.pop("status", "")), f"{event.pop('ms', '')} ms"]
    else:
        _add_request(event)
    trace = str(event.pop("traceback", "")).splitlines()
    words += [f"{key}={value!s}" for key, value in event.items() if value is not None]
    lines = (" ".join(words), *(f"    {one}" for one in trace))
    return "\n".join(one.encode("unicode_escape").decode() for one in lines)


def _add_request(event: EventDict) -> None:
    if has_request_context():
        g = get_g()
        event["request_id"] = g.get("correlation_id")
        caller = g.get("principal")
        if caller is not None:
            event["account"], event["user"] = caller.account_id, caller.user_id


_render_json = structlog.processors.JSONRenderer()
PROCESSORS: list[Processor] = [_render]  # one list for all apps: loggers cache the first they see
