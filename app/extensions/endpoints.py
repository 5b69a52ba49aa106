"""What an endpoint, a console page or a command of an extension may declare."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.extensions.registry import LoadError
from app.web.access import AccessLevel, ViewAccess

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
BODILESS = ("GET", "DELETE")
LEVELS = {
    AccessLevel.ANONYMOUS: "anonymous",
    AccessLevel.SIGNED_IN: "signed_in",
    AccessLevel.ACCOUNT_ADMIN: "account_admin",
    AccessLevel.SUPERADMIN: "superadmin",
}
PARAMETER = r"<(?:(?:uuid|string|integer):)?[a-z][a-z0-9_]*>"
READ: Mapping[str, Callable[[str], object]] = {"uuid": str.lower, "integer": int}
"""How a handler gets what the path has: ids are in small letters everywhere."""
PATH = re.compile(rf"(?:/(?:[A-Za-z0-9][A-Za-z0-9._~-]*|{PARAMETER}))+")
COMMAND = re.compile("[a-z][a-z0-9]*(-[a-z0-9]+)*", re.ASCII)
TAKEN = ("query", "account_id")


def check_path(path: str) -> None:
    """Raise LoadError for a path that is no part of an address."""
    names = re.findall(r"([a-z0-9_]+)>", path)
    if not PATH.fullmatch(path):
        raise LoadError(f"{path!r} is no path such as /quotes/<uuid:quote_id>.")
    if len(names) != len({*names}) or {*names} & {*TAKEN}:
        raise LoadError(f"a parameter of {path} is named twice, or {' or '.join(TAKEN)}.")


def arguments(path: str, parts: Mapping[str, str]) -> dict[str, object]:
    """The parts of an address as a handler gets them."""
    kinds = {name: kind for kind, name in re.findall("<([a-z]+):([a-z0-9_]+)>", path)}
    return {name: READ.get(kinds.get(name, ""), str)(part) for name, part in parts.items()}


def check_access(access: object, *, levels: tuple[AccessLevel, ...] = tuple(LEVELS)) -> None:
    """Raise LoadError unless the access is a level for callers of an account."""
    is_open = isinstance(access, ViewAccess) and (
        access.across_accounts or access.query_credentials or access.beyond_quota
    )
    if not isinstance(access, ViewAccess) or access.level not in levels or is_open:
        names = ", ".join(LEVELS[one] for one in levels)
        raise LoadError(f"access must be one of {names}, with their own options.")


def check_endpoint(
    method: str, path: str, *, body: Any, answer: Any, query: Any, access: ViewAccess, status: Any
) -> None:
    """Raise LoadError for a declaration that no route can be made of."""
    check_path(path)
    check_access(access)
    if method not in METHODS:
        raise LoadError(f"{method!r} {path} must be one of {', '.join(METHODS)}.")
    if method in BODILESS and body is not None:
        raise LoadError(f"{method} {path} has no body: declare a query instead.")
    if status is not None and status not in range(200, 300):
        raise LoadError(f"{method} {path} must answer a status from 200 to 299.")
    if status == 204 and answer is not None:
        raise LoadError(f"{method} {path} answers 204, which has no content.")


def check_page(path: str, title: str, access: ViewAccess, methods: Sequence[str]) -> None:
    """Raise LoadError for a declaration that no page can be made of."""
    check_path(path)
    check_access(access, levels=tuple(LEVELS)[1:])
    if not isinstance(title, str) or not title.strip():
        raise LoadError(f"the page {path} needs a title.")
    if tuple(methods) not in (("GET",), ("POST",), ("GET", "POST")):
        raise LoadError(f"the methods of the page {path} are GET, POST, or both.")


def check_command(name: str) -> None:
    """Raise LoadError for a name that no command may have."""
    if not COMMAND.fullmatch(name):
        raise LoadError(f"{name!r} is no name of a command such as import-prices.")
