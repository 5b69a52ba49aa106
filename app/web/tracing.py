"""The span of each request, if spans are exported: its route, status, account and user.

It ends when the response begins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from flask import Flask, Request

from app.context import tracing
from app.context.spans import Span
from app.web.app import get_g, get_request

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

    View = Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
OTHER = "_OTHER"
SPAN = "atrium.span"  # in the WSGI environment
ARGUMENT = re.compile(r"<(?:[^<>]*:)?(\w+)>")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SHOWN_ARGUMENTS = ("collection", "collection_name")


def init_app(app: Flask, endpoint: str) -> None:
    """Export spans to an endpoint of OTLP, one of each request. Raises ConfigError."""
    tracing.start(endpoint)
    app.wsgi_app = TracingMiddleware(app.wsgi_app)  # type: ignore[method-assign]
    app.teardown_request(_describe)


class TracingMiddleware:
    """WSGI middleware that runs a request in a span."""

    def __init__(self, application: View) -> None:
        self._application = application

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        traceparent = environ.get("HTTP_TRACEPARENT")
        with tracing.request(method if method in METHODS else OTHER, traceparent) as span:
            environ[SPAN] = span

            def start(status: str, *rest: Any) -> Callable[[bytes], object]:
                _set_status(span, status[:3])
                return start_response(status, *rest)

            return self._application(environ, start)


def _set_status(span: Span, status: str) -> None:
    span.set("http.response.status_code", int(status))
    if status.startswith("5"):
        span.fail(status)


def _describe(error: BaseException | None) -> None:
    request, g = get_request(), get_g()
    span: Span = request.environ.get(SPAN, tracing.NOT_RECORDED)
    span.set("url.scheme", request.scheme)
    if request.url_rule:
        route = request.url_rule.rule
        method = request.method if request.method in METHODS else "HTTP"
        span.rename(f"{method} {route}")
        span.set("http.route", route)
        span.set("url.path", _path(request, route))
    caller = g.get("principal") or g.get("console_caller")
    if caller:
        for name, value in (
            ("atrium.account_id", caller.account_id),
            ("atrium.user_id", caller.user_id),
        ):
            if value:
                span.set(name, value)


def _path(request: Request, route: str) -> str:
    """The path with ids and names of collections; other arguments may be tokens."""
    values = request.view_args or {}

    def fill(argument: re.Match[str]) -> str:
        value = str(values.get(argument[1], ""))
        is_shown = argument[1] in SHOWN_ARGUMENTS or _is_id(argument[1], value)
        return value if is_shown else argument[0]

    return ARGUMENT.sub(fill, route)


def _is_id(name: str, value: str) -> bool:
    return name.endswith("_id") and UUID.fullmatch(value) is not None
