"""Spans of requests, jobs, statements and outgoing requests, for a collector of OpenTelemetry.

Unless `start` was called, every function here returns a span that does nothing, and no package of
OpenTelemetry is loaded. Spans have no values of clients: no headers, bodies, parameters of
statements, query strings or messages of exceptions.
"""

from __future__ import annotations

import atexit
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from app.config import ConfigError
from app.context.spans import Attributes, Span

if TYPE_CHECKING:
    from app.context.otel import Exporting

MAX_TEXT = 4000
QUOTED = re.compile(r"'(?:[^']|'')*(?:'|$)")
MISSING = (
    "OTEL_EXPORTER_OTLP_ENDPOINT is set, but the packages that send traces are missing: run"
    " pip install --require-hashes -r requirements-otel.txt"
)
NOT_RECORDED = Span()
_exporting: Exporting | None = None


def start(endpoint: str) -> None:
    """Export spans from now on, also those of later forks.

    Raises ConfigError if the packages are missing, or a variable of the SDK cannot be used.
    """
    global _exporting
    if _exporting is not None:
        return
    try:
        from app.context.otel import Exporting
    except ModuleNotFoundError as error:
        raise ConfigError(MISSING) from error
    try:
        _exporting = Exporting(f"{endpoint}/v1/traces")
    except ValueError as error:
        raise ConfigError(f"An OTEL_ variable cannot be used: {error}") from error
    atexit.register(close)


def close() -> None:
    """Export what this process has recorded, within a second; drop what it records afterwards."""
    if _exporting is not None:
        _exporting.close()


def is_on() -> bool:
    """Whether spans are recorded; asked where even a span that does nothing costs too much."""
    return _exporting is not None


def request(method: str, traceparent: str | None) -> Span:
    """Return the span of a request, which continues the trace of its header `traceparent`."""
    if _exporting is None:
        return NOT_RECORDED
    attributes = {"http.request.method": method}
    return _exporting.request_span(method, attributes, traceparent)


def outgoing(method: str, host: str, port: int) -> Span:
    """Return the span of a request to another host, without its URL: that may have secrets."""
    if _exporting is None:
        return NOT_RECORDED
    attributes: Attributes = {
        "http.request.method": method,
        "server.address": host,
        "server.port": port,
    }
    return _exporting.client_span(method, attributes)


def job(kind: str, account_id: str, id: str) -> Span:
    """Return the span of a job, a delivery or a step of a workflow: the root of a trace."""
    if _exporting is None:
        return NOT_RECORDED
    attributes = {"atrium.job.kind": kind, "atrium.job.id": id, "atrium.account_id": account_id}
    return _exporting.job_span(f"job {kind}", attributes)


def handler(name: str, kind: str) -> Span:
    """Return the span of a call of an extension's handler."""
    if _exporting is None:
        return NOT_RECORDED
    attributes = {"atrium.extension.handler": name, "atrium.extension.kind": kind}
    return _exporting.inner_span(f"extension {name}", attributes)


def statement(system: str, text: str) -> Span:
    """Return the span of an SQL statement inside a recorded request or job.

    `text` has placeholders instead of parameters; quoted constants are left out.
    """
    if _exporting is None or not _exporting.is_recording():
        return NOT_RECORDED
    operation, shown = _described(text[:MAX_TEXT])
    attributes = {"db.system.name": system, "db.operation.name": operation, "db.query.text": shown}
    return _exporting.client_span(operation, attributes)


def ids() -> dict[str, str]:
    """Return the ids of the current trace and span, for log lines; nothing outside of spans."""
    return _exporting.ids() if _exporting else {}


@lru_cache(1000)
def _described(text: str) -> tuple[str, str]:
    """The operation of the last statement, and the text without quoted constants."""
    shown = QUOTED.sub("?", text)
    words = shown.rpartition("; ")[2].split(maxsplit=1)
    return (words[0].upper() if words else "SQL"), shown
