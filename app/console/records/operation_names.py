"""The names of the operations on records, as pages show them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from app.http.languages import gettext, lazy_gettext

OPERATION_NAMES = {
    "list": lazy_gettext("list"),
    "view": lazy_gettext("view"),
    "create": lazy_gettext("create"),
    "update": lazy_gettext("update"),
    "delete": lazy_gettext("delete"),
}


def summary(operations: Collection[str]) -> str:
    """The names of allowed operations, or that all are allowed."""
    is_all = len(operations) == len(OPERATION_NAMES)
    return gettext("all") if is_all else listed(operations)


def listed(operations: Iterable[str]) -> str:
    """The names of operations in one text."""
    return ", ".join(str(OPERATION_NAMES[operation]) for operation in operations)
