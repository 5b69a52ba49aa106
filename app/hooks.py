"""Hooks before and after every request, in order.

CORS: allowed origins come from the settings and from the account of the caller. Credentials are
never allowed, as browser applications send tokens, not cookies.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from types import GeneratorType
from typing import Any

import structlog
from flask import Flask, Request, Response
from uuid_utils import uuid4

from app import config, web
from app.accounts.usage import request_counter
from app.audit.security_log import reads
from app.auth import guard
from app.auth import principal as principals
from app.auth.guard import replay
from app.auth.principal import Principal
from app.context import shown_accounts
from app.db.errors import UNAVAILABLE
from app.ops import metrics
from app.web import error_handlers
from app.web.app import get_g, get_request

CORRELATION_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
VARY = "Authorization, X-API-Key, X-Account-ID"
READING = ("GET", "HEAD")
ACCOUNT_ARGS = ("account_id", "account")
FIRST_REDIRECT, FIRST_ERROR = 300, 400
CORS_METHODS = "GET, POST, PUT, PATCH, DELETE"
CORS_HEADERS = "Authorization, Content-Type, If-Match, If-None-Match, Idempotency-Key, X-Account-ID"
CORS_HEADERS += ", X-API-Key, X-Correlation-ID, X-ES-Username, X-ES-Password, X-ES-Passkey"
CORS_HEADERS += ", X-ES-Reason, Range, If-Range, Last-Event-ID, Prefer"
CORS_HEADERS += ", traceparent, tracestate, baggage"  # browsers' tracing adds them to every call
CORS_EXPOSED = "ETag, X-Correlation-ID, Retry-After, WWW-Authenticate, Content-Disposition"
CORS_EXPOSED += ", Content-Range, Accept-Ranges, Idempotent-Replayed, Preference-Applied"
CORS_EXPOSED += ", X-Service-Masked-Fields, X-Service-Values-Masked, X-Service-Values-Erased"
PREFLIGHT_SECONDS = "600"

log = structlog.get_logger()


def init_app(app: Flask) -> None:
    app.before_request(_before)
    app.after_request(_after)
    app.teardown_request(_reset_context)


def _before() -> Response | None:
    request, g = get_request(), get_g()
    correlation_id = request.environ.get("HTTP_X_CORRELATION_ID", "")
    is_valid = CORRELATION_ID.fullmatch(correlation_id)
    g.correlation_id = correlation_id if is_valid else str(uuid4())
    g.started = time.perf_counter()
    rule = request.url_rule.rule if request.url_rule else ""
    reads.current_route.set(reads.Route(request.endpoint or "", request.method, rule))
    shown_accounts.current.set(set())
    if request.method == "OPTIONS":
        preflight = _answer_preflight(request)
        if preflight is not None:
            return preflight
    return guard.check(request, g)


def _stop_collecting() -> None:
    reads.current_route.set(None)
    reads.collector.set(None)
    shown_accounts.current.set(None)


def _reset_context(error: BaseException | None) -> None:
    _stop_collecting()
    guard.reset_context()


def _after(response: Response) -> Response:
    request, g = get_request(), get_g()
    try:
        _store_reads(request, g, response)
    except UNAVAILABLE as error:
        response = error_handlers.error_response(error_handlers.database_error(error))
    account_id = g.get("metered")
    # Without a credential only success counts: strangers could use up the quota of any account.
    # Counted before it is logged: if the process is killed in between, no logged request is missing
    # from the count.
    if account_id is not None and (response.status_code < 400 or g.principal.signed_in):
        request_counter.add(account_id)
    claim = g.pop("claim", None)
    if claim is not None:
        response = replay.finish(claim, request, response)
    # Add `Cache-Control` and `Vary` (RFC 9111); pages and static files set their own.
    environ, path = request.environ, request.path
    has_credential = "HTTP_AUTHORIZATION" in environ or "HTTP_X_API_KEY" in environ
    of_api = path.startswith(f"{web.PREFIX}/")
    vary = []
    if (of_api or has_credential) and request.endpoint != "static":
        vary.append(VARY)
        if "Cache-Control" not in response.headers:
            # A response with an ETag may be stored by its caller, and must be revalidated.
            has_etag = "ETag" in response.headers
            may_store = request.method in READING and (has_etag or not has_credential)
            response.headers["Cache-Control"] = "private, no-cache" if may_store else "no-store"
    if path.startswith(web.PREFIX):  # CORS
        vary.append("Origin")
    if vary:
        response.headers.add("Vary", ", ".join(vary))
    origin = request.environ.get("HTTP_ORIGIN")
    if origin:
        _allow_origin(origin, request, response)
    response.headers.add("X-Correlation-ID", g.correlation_id)
    response.headers.add("X-Content-Type-Options", "nosniff")
    by = g.get("principal") or g.get("console_caller")
    if by is not None and by.is_superadmin:
        response.headers.add("X-Atrium-Version", web.VERSION)
    _record(request, response, time.perf_counter() - g.started)
    return response


def _account_allows(origin: str) -> bool:
    # Preflights and sign-ins carry no credential, so the origin of any account may send them.
    # Data of an account is readable only from that account's origins.
    caller = None if get_request().method == "OPTIONS" else get_g().get("principal")
    if caller is None:
        return "\0" not in origin and principals.is_allowed_origin(origin)
    return caller.account is not None and origin in caller.account.cors_origins


def _store_reads(request: Request, g: Any, response: Response) -> None:
    """Record which personal data the response shows. If that fails, the response is not sent."""
    collector, route = reads.collector.get(), reads.current_route.get()
    shown, status = shown_accounts.current.get() or set(), response.status_code
    # What a stream shows from now on is stored at once.
    _stop_collecting()
    recorded = set[str]()
    if collector is not None and status < FIRST_REDIRECT:
        recorded = collector.store()
    elif collector is not None:
        collector.clear()
    by = g.get("principal") or g.get("console_caller")
    if by is None or not by.is_superadmin or route is None or status >= FIRST_ERROR:
        return
    shown |= _named_accounts(by, request)
    reads.note_request(by, shown - recorded, route)
    if isinstance(response.response, GeneratorType):
        known = shown | recorded
        response.response = reads.noting_accounts(response.response, known, by=by, route=route)


def _named_accounts(by: Principal, request: Request) -> set[str]:
    """The accounts that a request acts in, or that its path or query names."""
    named = {by.account_id, str((request.view_args or {}).get("account_id", "")).lower()}
    for reference in (text for name in ACCOUNT_ARGS for text in request.args.getlist(name)):
        if account := principals.find_account(reference):
            named.add(account.id)
    return {account_id for account_id in named if account_id}


def _record(request: Request, response: Response, seconds: float) -> None:
    # The URL rule, not the path: a path may contain a token.
    route = request.url_rule.rule if request.url_rule else None
    try:
        count, duration = metrics.of_request(request.method, route, response.status_code)
        count.inc()
        duration.observe(seconds)
    except OSError as error:  # the response matters more
        _log_uncounted(type(error).__name__)
    milliseconds = round(seconds * 1000, 1)
    log.info(
        "request", method=request.method, route=route, status=response.status_code, ms=milliseconds
    )


@lru_cache
def _log_uncounted(reason: str) -> None:
    # Cached, so that it logs each reason once.
    log.warning("requests are not counted", reason=reason)


def _answer_preflight(request: Request) -> Response | None:
    """The answer to a preflight request; None for other OPTIONS requests."""
    if not request.path.startswith(web.PREFIX):
        return None
    if "HTTP_ACCESS_CONTROL_REQUEST_METHOD" not in request.environ:
        return None
    response = Response(status=204)
    response.headers["Access-Control-Max-Age"] = PREFLIGHT_SECONDS
    return response


def _allow_origin(origin: str, request: Request, response: Response) -> None:
    """Let scripts of an allowed origin read the response."""
    if not request.path.startswith(web.PREFIX):
        return
    if origin in config.current().cors_origins or _account_allows(origin):
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = CORS_EXPOSED
        if request.method == "OPTIONS":
            response.headers["Access-Control-Allow-Methods"] = CORS_METHODS
            response.headers["Access-Control-Allow-Headers"] = CORS_HEADERS
