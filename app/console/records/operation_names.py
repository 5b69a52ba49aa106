"""The names of the operations on records, as pages show them."""

from __future__ import annotations

from collections.abc import Iterable

from app.web.languages import lazy_gettext

OPERATION_NAMES = {
    "list": lazy_gettext("list"),
    "view": lazy_gettext("view"),
    "create": lazy_gettext("create"),
    "update": lazy_gettext("update"),
    "delete": lazy_gettext("delete"),
}


def listed(operations: Iterable[str]) -> str:
    return ", ".join(str(OPERATION_NAMES[operation]) for operation in operations)
