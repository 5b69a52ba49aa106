"""The SDK of OpenTelemetry: a batch of spans per process, exported by OTLP over HTTP.

The SDK reads its own variables (OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS
...). Its thread starts with the first span of a process, so that no fork loses it. Leans on
`_batch_processor` of the SDK: nothing else limits how long a collector that hangs delays a stop
(`tests/test_tracing.py` holds the contract).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextvars import Token
from types import TracebackType

import structlog
from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode, Tracer, format_span_id, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.context.spans import Attributes, Span

log = structlog.get_logger()

CLOSE_SECONDS = 1
LOG_SECONDS = 60
SERVICE = "atrium"
NO_PARENT = Context()


class _Recorded(Span):
    """A span of the SDK, current inside its block."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def __enter__(self) -> Span:
        self._token: Token[Context] = attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.fail(kind.__name__)  # the message may quote personal data
        detach(self._token)
        self._span.end()

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def set(self, name: str, value: str | int) -> None:
        self._span.set_attribute(name, value)

    def fail(self, error_type: str) -> None:
        self._span.set_attribute("error.type", error_type)
        self._span.set_status(StatusCode.ERROR)


class Exporting:
    """Records spans, and exports them to an endpoint.

    Raises ValueError for variables that the SDK cannot use.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        sdk = logging.getLogger("opentelemetry")
        sdk.addHandler(_StructlogHandler())
        sdk.propagate = False
        # Raises now instead of in the first request.
        _create_processor(endpoint)._batch_processor.shutdown()
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._tracer: Tracer | None = None
        self._processor: BatchSpanProcessor | None = None

    def request_span(self, name: str, attributes: Attributes, traceparent: str | None) -> Span:
        """Return the span of a request.

        `tracestate` does not go on: it has values of the client (W3C Trace Context, 3.3).
        """
        headers = {"traceparent": traceparent or ""}
        parent = TraceContextTextMapPropagator().extract(headers, NO_PARENT)
        return self._span(name, SpanKind.SERVER, attributes, parent)

    def client_span(self, name: str, attributes: Attributes) -> Span:
        """Return a span of a call to something else."""
        return self._span(name, SpanKind.CLIENT, attributes)

    def inner_span(self, name: str, attributes: Attributes) -> Span:
        """Return a span of a part of the work."""
        return self._span(name, SpanKind.INTERNAL, attributes)

    def job_span(self, name: str, attributes: Attributes) -> Span:
        return self._span(name, SpanKind.CONSUMER, attributes, NO_PARENT)

    def is_recording(self) -> bool:
        """Whether the current context has a span that is sampled."""
        return trace.get_current_span().is_recording()

    def ids(self) -> dict[str, str]:
        """Return the ids of the current trace and span."""
        context = trace.get_current_span().get_span_context()
        if not context.is_valid:
            return {}
        return {
            "trace_id": format_trace_id(context.trace_id),
            "span_id": format_span_id(context.span_id),
        }

    def close(self) -> None:
        """Export what is recorded, within CLOSE_SECONDS."""
        if self._processor is not None:
            self._processor._batch_processor.shutdown(CLOSE_SECONDS * 1000)

    def _span(
        self, name: str, kind: SpanKind, attributes: Attributes, parent: Context | None = None
    ) -> Span:
        tracer = self._tracer or self._start()
        return _Recorded(tracer.start_span(name, parent, kind, dict(attributes)))

    def _start(self) -> Tracer:
        with self._lock:
            if self._tracer is None:
                provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
                self._processor = _create_processor(self._endpoint)
                provider.add_span_processor(self._processor)
                self._tracer = provider.get_tracer(SERVICE)
            return self._tracer


def _create_processor(endpoint: str) -> BatchSpanProcessor:
    return BatchSpanProcessor(OTLPSpanExporter(endpoint))


def _resource() -> Resource:
    found = Resource.create()
    if str(found.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return found.merge(Resource({SERVICE_NAME: SERVICE}))
    return found


class _StructlogHandler(logging.Handler):
    """Forwards the SDK's log to ours: each message once in LOG_SECONDS, without its texts.

    They may quote OTEL_EXPORTER_OTLP_HEADERS.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        template, now = str(record.msg), time.monotonic()
        if now < self._next.get(template, 0):
            return
        self._next[template] = now + LOG_SECONDS
        arguments = record.args if isinstance(record.args, tuple) else ()
        message = template % tuple(map(_without_text, arguments)) if arguments else template
        log.warning("tracing", message=message)


def _without_text(argument: object) -> object:
    if isinstance(argument, int | float):
        return argument
    return type(argument).__name__ if isinstance(argument, Exception) else "..."
