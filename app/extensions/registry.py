"""What the loaded extensions have registered: of a process, and empty without any."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from app.config import ConfigError
from app.types import cached_property

F = TypeVar("F", bound=Callable[..., Any])


class LoadError(ConfigError):
    """An extension that cannot be loaded, in one sentence: the application does not start."""


class Kind(StrEnum):
    """What a handler is called for; `Handler.subject` says what exactly."""

    BEFORE_CREATE = "before_create"
    BEFORE_UPDATE = "before_update"
    BEFORE_DELETE = "before_delete"
    AFTER_CREATE = "after_create"
    AFTER_UPDATE = "after_update"
    AFTER_DELETE = "after_delete"
    ON = "on"
    ENDPOINT = "endpoint"
    PERIODIC = "periodic"
    WORKFLOW_STEP = "workflow_step"
    FIELD_TYPE = "field_type"
    COMMAND = "command"
    CONSOLE_PAGE = "console_page"
    SETTING = "setting"
    TABLE = "table"


OF_COLLECTIONS = tuple(kind for kind in Kind if kind.startswith(("before_", "after_")))
"""Kinds whose subject is a collection."""
UNIQUE = (Kind.WORKFLOW_STEP, Kind.FIELD_TYPE, Kind.COMMAND, Kind.SETTING, Kind.TABLE)
"""Kinds whose subject only one extension may register."""
UNIQUE_WITHIN = (Kind.ENDPOINT, Kind.CONSOLE_PAGE)
"""Kinds whose subject an extension may register once: its name is part of the address."""
ONE_EACH = (Kind.PERIODIC, Kind.CONSOLE_PAGE)
"""Kinds of which a function may have one, as its name stands for it."""
ARGUMENTS: Mapping[Kind, str] = {
    **dict.fromkeys(OF_COLLECTIONS, "caller, record"),
    **dict.fromkeys((Kind.BEFORE_UPDATE, Kind.AFTER_UPDATE), "caller, old, record"),
    Kind.ON: "caller, event",
    Kind.ENDPOINT: "caller, body",
    Kind.PERIODIC: "caller",
    Kind.WORKFLOW_STEP: "caller, input",
    Kind.CONSOLE_PAGE: "caller, request",
}
"""What handlers are called with."""
PATH_PARAMETER = re.compile("([a-z0-9_]+)>")


@dataclass(frozen=True, eq=False)
class Extension:
    """A loaded extension."""

    name: str
    version: str
    """Empty if it says none."""
    package: str
    """The name that it is imported by."""
    folder: Path | None
    inside_imports: Sequence[str] = ()
    """Modules of the product, other than `app.extend`, that its sources import."""


@dataclass(frozen=True, eq=False)
class Handler:
    """A function of an extension, and what it is called for."""

    kind: Kind
    extension: str
    function: Callable[..., Any]
    """A class, for a field type."""
    subject: str
    """A collection, type of events, "POST /quotes", cron line, step, type, command or path."""
    options: Mapping[str, Any]

    @cached_property
    def name(self) -> str:
        """The name of its function behind that of its extension, as logs and metrics have it."""
        return f"{self.extension}.{self.function.__name__}"


@dataclass
class _Registered:
    extensions: dict[str, Extension] = field(default_factory=dict)
    handlers: dict[Kind, dict[str, list[Handler]]] = field(default_factory=dict)

    def copy(self) -> _Registered:
        lists = {
            kind: {subject: [*found] for subject, found in subjects.items()}
            for kind, subjects in self.handlers.items()
        }
        return _Registered(dict(self.extensions), lists)


_registered = _Registered()
EXTENSIONS = _registered.extensions
"""The loaded extensions by name."""
_loading: Extension | None = None
_listeners: list[Callable[[], None]] = []


def of(kind: Kind) -> Mapping[str, Sequence[Handler]]:
    """The handlers of a kind by subject, in the order in which they were registered."""
    return _registered.handlers.get(kind, {})


def handlers(extension: str | None = None) -> Iterator[Handler]:
    """All handlers, or those of one extension."""
    for subjects in _registered.handlers.values():
        for found in subjects.values():
            yield from (one for one in found if extension in (None, one.extension))


def find(kind: Kind, name: str) -> Handler | None:
    """The handler with this name ("shop.price"); None if no loaded extension has one."""
    return next((one for one in handlers() if (one.kind, one.name) == (kind, name)), None)


def on_change(callback: F) -> F:
    """Call a function whenever extensions were loaded or removed; decorates it."""
    _listeners.append(callback)
    return callback


def announce() -> None:
    """Call what asked for it by `on_change`."""
    for callback in _listeners:
        callback()


def current(name: str) -> Extension:
    """The extension that is being loaded. Raises LoadError with a name that needs one."""
    if _loading is None:
        raise LoadError(
            f"{name} is registered outside of an extension: SERVICE_EXTENSIONS loads them,"
            " and app.extend.testing in tests."
        )
    return _loading


def add(kind: Kind, function: Callable[..., Any], subject: str, **options: Any) -> None:
    """Register a handler of the extension that is being loaded.

    Raises LoadError if none is, if what it is called for or its name is taken, or for a function
    that cannot be called as it will be.
    """
    name = getattr(function, "__name__", "a handler")
    extension = current(name)
    if not isinstance(subject, str) or not subject or not callable(function):
        raise LoadError(f"@{kind} of {name} needs a text and a function.")
    check_runs(function, f"@{kind} of {name}")
    if kind in ARGUMENTS:
        named = PATH_PARAMETER.findall(options.get("path", ""))
        _check_arguments(kind, function, [*named, *(["query"] if options.get("query") else [])])
    handler = Handler(kind, extension.name, function, subject, options)
    for other in handlers():
        is_same = (other.kind, other.subject) == (kind, subject)
        is_own = other.extension == handler.extension
        if is_same and (kind in UNIQUE or (is_own and kind in UNIQUE_WITHIN)):
            raise LoadError(f"{other.name} and {handler.name} are both @{kind} {subject}.")
        if is_own and other.name == handler.name and other.function is not function:
            raise LoadError(f"two of its handlers are named {name}, which logs cannot tell apart.")
        if is_own and other.kind == kind in ONE_EACH and other.function is function:
            raise LoadError(f"{name} is @{kind} twice: write a function for each.")
    _registered.handlers.setdefault(kind, {}).setdefault(subject, []).append(handler)


def check_runs(function: Callable[..., Any], called: str) -> None:
    """Raise LoadError for what has no name, and for what does not run when it is called."""
    if not hasattr(function, "__name__"):
        raise LoadError(f"{called} needs a function: def one that calls it.")
    never = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(one(function) for one in never):
        raise LoadError(f"{called} must not be async, nor have a yield: nothing would run it.")


def _check_arguments(kind: Kind, function: Callable[..., Any], named: Sequence[str]) -> None:
    given = ARGUMENTS[kind].split(", ")
    try:
        inspect.signature(function, follow_wrapped=False).bind(*given, **dict.fromkeys(named))
    except TypeError as error:
        expected = ", ".join([*given, *named])
        name = function.__name__
        raise LoadError(f"@{kind} of {name} is called with ({expected}): {error}.") from None
    except ValueError:  # a built-in function that does not say what it takes
        return


@contextmanager
def loading(extension: Extension) -> Iterator[None]:
    """Register what the block imports as the extension's; nothing of it stays if that fails."""
    global _loading
    if extension.name in EXTENSIONS:
        raise LoadError("an extension of that name is loaded already.")
    if _loading is not None:
        raise LoadError(f"{_loading.name} loads it: only SERVICE_EXTENSIONS does that.")
    outer, _loading = _loading, extension
    try:
        with restored(unless_done=True):
            yield
            EXTENSIONS[extension.name] = extension
    finally:
        _loading = outer


@contextmanager
def restored(*, unless_done: bool = False) -> Iterator[None]:
    """Remove at the end of the block what was registered within it; or only if that fails."""
    before, is_done = _registered.copy(), False
    try:
        yield
        is_done = unless_done
    finally:
        if not is_done:
            EXTENSIONS.clear()
            EXTENSIONS.update(before.extensions)
            _registered.handlers = before.handlers
            announce()
