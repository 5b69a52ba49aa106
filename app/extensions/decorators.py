"""The decorators by which extensions register; each returns what it decorates."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from app.extensions import endpoints, field_types, registry
from app.extensions.registry import Kind, LoadError
from app.operator import types
from app.web import access as levels
from app.web.access import ViewAccess
from app.web.schemas import Schema
from app.workflows.language import cron as schedules
from app.workflows.language.definition import PROPERTIES

STEP_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
F = TypeVar("F", bound=Callable[..., Any])


def _register(kind: Kind, subject: str, **options: Any) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        registry.add(kind, function, subject, **options)
        return function

    return decorate


def before_create(collection: str) -> Callable[[F], F]:
    """Call `(caller, record)` before a record is created, in its transaction.

    `record` is a dict in the form of the API, changed in place; what is returned is ignored.
    """
    return _register(Kind.BEFORE_CREATE, collection)


def before_update(collection: str) -> Callable[[F], F]:
    """Call `(caller, old, record)` before a record is updated, in its transaction.

    `record` is the whole record as it will be, changed in place; `old` is it as it is.
    """
    return _register(Kind.BEFORE_UPDATE, collection)


def before_delete(collection: str) -> Callable[[F], F]:
    """Call `(caller, record)` before a record is deleted, in its transaction."""
    return _register(Kind.BEFORE_DELETE, collection)


def after_create(collection: str) -> Callable[[F], F]:
    """Call `(caller, record)` in a job once a record is created; retried until it returns."""
    return _register(Kind.AFTER_CREATE, collection)


def after_update(collection: str) -> Callable[[F], F]:
    """Call `(caller, old, record)` in a job once a record is updated; retried until it returns."""
    return _register(Kind.AFTER_UPDATE, collection)


def after_delete(collection: str) -> Callable[[F], F]:
    """Call `(caller, record)` in a job once a record is deleted; retried until it returns."""
    return _register(Kind.AFTER_DELETE, collection)


def on(event: str) -> Callable[[F], F]:
    """Call `(caller, event)` in a job once an event happened, such as `user.joined`.

    `user.*` stands for all of a noun (docs/events.md).
    """
    if event not in types.WRITTEN:
        near = get_close_matches(str(event), types.WRITTEN, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise LoadError(f"there is no event {event}.{hint}")
    return _register(Kind.ON, event)


def endpoint(
    method: str,
    path: str,
    *,
    body: type[Schema] | Schema | None = None,
    answer: type[Schema] | Schema | None = None,
    query: type[Schema] | Schema | None = None,
    access: ViewAccess = levels.signed_in,
    status: int | None = None,
) -> Callable[[F], F]:
    """Answer requests to `/api/v1/x/{extension}{path}` with what `(caller, body)` returns.

    Parts of the path such as `<uuid:id>` and the `query` are further arguments, by name. `answer`
    is the schema of what is returned; without one the status is 204. A GET must not write, nor a
    POST whose access says `reads=True`.
    """
    options: dict[str, Any] = {
        "body": body,
        "answer": answer,
        "query": query,
        "access": access,
        "status": status,
    }
    endpoints.check_endpoint(method, path, **options)
    return _register(Kind.ENDPOINT, f"{method} {path}", method=method, path=path, **options)


def periodic(cron: str, *, accounts: bool = False) -> Callable[[F], F]:
    """Call `(caller)` at the times of a cron line, in UTC: once, or for each active account."""
    if wrong := schedules.problem(cron):
        raise LoadError(f"@periodic({cron!r}): {wrong}")
    return _register(Kind.PERIODIC, cron, accounts=accounts)


def workflow_step(name: str) -> Callable[[F], F]:
    """Add a step to workflows: `(caller, input)` returns its output."""
    if not STEP_NAME.fullmatch(name) or name in PROPERTIES:
        raise LoadError(f"{name!r} is no name for a step: use lower-case letters, digits and _.")
    return _register(Kind.WORKFLOW_STEP, name)


def field_type(name: str) -> Callable[[F], F]:
    """Add a type of fields: a class with `clean(value, options)`, `schema` and `label`.

    Optional are `example`, `options` (names of further options) and `check_options(options)`.
    """

    def decorate(kind: F) -> F:
        field_types.check(name, kind)
        registry.add(Kind.FIELD_TYPE, kind, name)
        return kind

    return decorate


def command(name: str) -> Callable[[F], F]:
    """Add a command to `bin/atrium`, called with the words after it; prints a text it returns."""
    endpoints.check_command(name)
    return _register(Kind.COMMAND, name)


def console_page(
    path: str,
    *,
    title: str,
    access: ViewAccess = levels.account_admin,
    methods: Sequence[str] = ("GET",),
    menu: bool = True,
) -> Callable[[F], F]:
    """Add a page to the console: `(caller, request)` returns the HTML of its part.

    It is escaped unless a template rendered it (`render`). With `methods=("GET", "POST")` it takes
    forms, too. Its place is `/console/x/{extension}{path}`, and in the menu unless `menu=False`.
    """
    endpoints.check_page(path, title, access, methods)
    options = {"title": title, "access": access, "methods": tuple(methods), "menu": menu}
    return _register(Kind.CONSOLE_PAGE, path, path=path, **options)
