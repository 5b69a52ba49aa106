"""Runs handlers: measured, bounded, in their extension's name, with their errors as the product's.

All handlers of a request together have the time that a statement of it has. Past it, an exception
ends their Python code; a call into C is not interrupted, and ends when it ends
(docs/extensions.md).
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import lru_cache, partial
from types import CodeType, FrameType
from typing import Any, Protocol

import structlog
from prometheus_client import Histogram
from sqlalchemy.exc import SQLAlchemyError

from app import config
from app.accounts.usage.quotas import QuotaExceeded
from app.audit.security_log import reads
from app.context import actor, deadline, metrics, tracing
from app.context.actor import ActorKind
from app.context.deadline import Client, Limit
from app.db.versioned_cache import Stale
from app.db.watch import STEP_SECONDS, Watch
from app.errors import (
    AppError,
    Forbidden,
    InvalidValues,
    SignatureRequired,
    TooExpensive,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    error_location,
    problem,
)
from app.extensions import registry
from app.extensions.registry import Handler
from app.types import JSONObject

log = structlog.get_logger()

SLOW_SECONDS = 1
REPEAT_SECONDS = 1
"""Seconds until a handler that goes on after its time is up is interrupted again."""
LONGEST_MESSAGE, LONGEST_FIELD, LONGEST_CODE = 1000, 200, 80
PRODUCT = str(config.PROJECT / "app") + "/"
OF_ANSWERS = tuple(
    PRODUCT + one for one in ("extensions/endpoint_routes.py", "web/fields.py", "web/schemas.py")
)
"""Modules that only read what a handler has returned, which may have no end either."""

SECONDS = Histogram(
    "atrium_extension_seconds",
    "Time of calls of extensions' handlers: done, refused, interrupted by the database, failed.",
    ("extension", "handler", "result"),
    registry=None,
)
_used: ContextVar[tuple[Limit | None, float]] = ContextVar("handlers' time", default=(None, 0))
"""A limit, such as that of a request, and how long handlers have run under it."""


class Refused(InvalidValues):
    """A record or a value that a handler refuses: 400 `validation_error` for the caller.

    `field` names the one to blame; None stands for the whole record. `code` is a word for
    programs, `message` a sentence for people.
    """

    def __init__(self, field: str | None = None, *, code: str, message: str) -> None:
        limits = (field or "-", LONGEST_FIELD), (code, LONGEST_CODE), (message, LONGEST_MESSAGE)
        for text, longest in limits:
            if not isinstance(text, str) or not text or len(text) > longest or "\0" in text:
                raise TypeError(f"Refused takes texts of 1 to {longest} characters")
            text.encode()  # raises UnicodeEncodeError for lone surrogates
        super().__init__([problem(field, code, message)])
        self.field, self.code, self.message = field, code, message


class Misuse(ValueError):
    """What an extension asked for and cannot have, in words without values, which the log has."""


class HandlerFailed(AppError):
    """A handler that raised something else than a refusal: 500, logged in its extension's name."""

    message = "An extension of this service failed. Try again later."


class HandlerTimeout(BaseException):
    """Raised in a handler whose time is up."""


REFUSALS = (
    *(InvalidValues, Forbidden, Unauthorized, QuotaExceeded, TooManyRequests),
    *(SignatureRequired, TooExpensive, Unavailable, HandlerFailed),
)
"""What a handler may raise to answer the caller."""
BEFORE = (Refused, *(one for one in REFUSALS if one is not InvalidValues))
"""The same before a write: other invalid values than the caller's are the handler's fault."""


class Ending(Protocol):
    """What a handler acts by, which ends with its call."""

    def _end(self) -> None: ...


def run(
    handler: Handler,
    caller: Ending | None,
    *arguments: Any,
    passing: tuple[type[Exception], ...] = REFUSALS,
    seconds: float | None = None,
    is_incomplete: bool = False,
    named: Mapping[str, Any] | None = None,
    function: Callable[..., Any] | None = None,
    then: Callable[[Any], Any] | None = None,
) -> Any:
    """Call a handler with its caller, which ends with the call, and return what it returns.

    Or what `then` makes of that, whose errors are the handler's, too. `named` are more arguments;
    `function` is called in its place. Raises what is of `passing`, what makes the request run
    again, and what says that the database is away; HandlerFailed for everything else. `seconds`
    bounds it outside of requests, in which it has the time that those before it have left, and
    raises TooExpensive past that. What it raises when it `is_incomplete` is the fault of what it is
    given, and not counted as a failure.
    """
    limit, used = deadline.limit.get(), 0.0
    if limit is None:
        limit = Limit(config.current().statement_seconds)
        most = limit.seconds if seconds is None else seconds
    else:
        of, before = _used.get()
        used = before if of is limit else 0.0
        most = limit.seconds - used
        if most <= 0:
            raise TooExpensive(limit.seconds)
    given = arguments if caller is None else (caller, *arguments)
    call = partial(function or handler.function, *given, **(named or {}))
    started, result, failure = time.monotonic(), "interrupted", None
    try:
        if tracing.is_on():
            with tracing.handler(handler.name, handler.kind):
                returned = copy_context().run(_call, handler, call, then, limit, most)
        else:
            returned = copy_context().run(_call, handler, call, then, limit, most)
        result = "done"
    except (Stale, SQLAlchemyError):
        raise
    except passing as error:
        result = "failed" if isinstance(error, HandlerFailed) else "refused"
        raise
    except BaseException as error:  # a worker must not end by what a handler raises
        if is_incomplete and isinstance(error, Exception):
            result = "refused"
        else:
            result, failure = "failed", error
        if used and isinstance(error, HandlerTimeout):
            raise TooExpensive(limit.seconds) from error
        raise HandlerFailed from error
    finally:
        if caller is not None:
            caller._end()
        took = time.monotonic() - started
        _used.set((limit, used + took))
        _count(handler, result, took, failure)
    return returned


def _call(
    handler: Handler,
    call: Callable[[], Any],
    then: Callable[[Any], Any] | None,
    limit: Limit,
    seconds: float | None,
) -> Any:
    # In a copy of the context, so that it leaves nothing behind in that of the request.
    if deadline.limit.get() is not limit:  # setting what is set already costs, too
        deadline.limit.set(limit)
    if not reads.is_shown.get():
        reads.is_shown.set(True)
    replaced, extension = actor.source.get(), handler.extension
    actor.source.set(
        lambda: replaced()._replace(kind=ActorKind.EXTENSION, id=extension, name=extension)
    )
    watch = _running.watch
    if seconds is None or watch.is_running:  # one within another has the time of that
        result = call()
        return then(result) if then else result
    try:
        watch.start(seconds, None)
        try:
            result = call()
            return then(result) if then else result
        finally:
            watch.end()
    except HandlerTimeout:
        watch.end()  # it may have come just before
        raise


def failed(handler: Handler, reason: Exception) -> HandlerFailed:
    """Count and log what is wrong with what a handler has done; returns the error to raise."""
    _count(handler, "failed", 0, reason)
    return HandlerFailed()


def _count(handler: Handler, result: str, seconds: float, error: BaseException | None) -> None:
    metrics.observe(_metric(handler.extension, handler.name, result), seconds)
    if error is None and seconds < SLOW_SECONDS:
        return
    about: JSONObject = {"extension": handler.extension, "handler": handler.name}
    about |= {"kind": handler.kind, "ms": round(seconds * 1000)}
    if error is None:
        log.warning("extension is slow", **about)
    elif config.current().env == "development":
        trace = "".join(traceback.format_exception(error))
        log.error("extension failed", **about, traceback=trace)
    else:
        reason = {"reason": str(error)} if isinstance(error, Misuse) else {}
        log.error("extension failed", **about, **reason, **error_location(error))


def check_time() -> None:
    """Raise HandlerTimeout if the time of the running handler is up."""
    watch = _running.watch
    if watch.is_running and time.monotonic() > watch.ends:
        raise HandlerTimeout


class _Watch(Watch):
    """Watches over the Python code of handlers in a thread."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self._thread = threading.get_ident()
        self.is_running = self._has_raised = False
        self.ends = 0.0

    def start(self, seconds: float, client: Client | None) -> None:
        """Watch a handler that begins now."""
        super().start(seconds, client)
        self.is_running, self.ends = True, self._started + seconds

    def check(self) -> float | None:
        """Raise HandlerTimeout in its code if its time is up."""
        with self._lock:
            if self.until is None:
                return None
            left = self.until - time.monotonic()
            if left > 0:
                return min(STEP_SECONDS, left + 0.001)
            if _is_in_extension(sys._current_frames().get(self._thread)):
                _hide_dropped_timeouts()
                _raise_in(self._thread, HandlerTimeout)
                self._has_raised = True
                self.until = time.monotonic() + REPEAT_SECONDS
            return STEP_SECONDS

    def end(self) -> None:
        """Raise nothing from now on, also not what is under way."""
        self.stop()
        if self._has_raised:
            _raise_in(self._thread, None)
            self._has_raised = False
        self.is_running = False


class _Running(threading.local):
    def __init__(self) -> None:
        self.watch = _Watch()


_running = _Running()


@lru_cache
def _metric(extension: str, handler: str, result: str) -> Histogram:
    return SECONDS.labels(extension, handler, result)


def _is_in_extension(frame: FrameType | None) -> bool:
    """Whether code of an extension runs, or what it has called, but not the product.

    The product's code must not be interrupted anywhere, except where it calls an extension's again,
    such as a template. It looks at the time itself: `check_time`, and `app/db/watch.py`.
    """
    extensions = [*registry.EXTENSIONS.values()]
    while frame is not None and frame.f_code is not _CALL:
        file, module = frame.f_code.co_filename, f"{frame.f_globals.get('__name__')}."
        for one in extensions:
            is_inside = one.folder is not None and file.startswith(f"{one.folder}/")
            if is_inside or module.startswith(f"{one.package}."):
                return True
        if file.startswith(PRODUCT) and file not in OF_ANSWERS:
            return False
        frame = frame.f_back
    return frame is not None


_CALL: CodeType = _call.__code__
_hook: Callable[[sys.UnraisableHookArgs], object] | None = None


def _hide_dropped_timeouts() -> None:
    """Have Python report no timeout that comes where it drops exceptions, such as in a destructor.

    The handler goes on then, and is interrupted again.
    """
    global _hook
    others = sys.unraisablehook
    if others is _hook:
        return

    def hook(dropped: sys.UnraisableHookArgs) -> None:
        if dropped.exc_type is not HandlerTimeout:
            others(dropped)

    sys.unraisablehook = _hook = hook


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    import ctypes  # few processes need it

    with suppress(ValueError):
        given = ctypes.py_object(error) if error else None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), given)
