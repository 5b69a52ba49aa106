"""What a caller may do with a collection's records: rules and field lists, compiled (contract 6).

This is the one place that decides. The records' service asks it before it touches a row, adds
`where` to every statement, and reads and writes only the fields that it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.auth.principal import Principal
from app.collections.definition import ALL_FIELDS, Definition
from app.collections.fields import SYSTEM_FIELDS, Field
from app.errors import Forbidden, Unauthorized, problem


@dataclass(frozen=True)
class Access:
    """What one operation opens to one caller."""

    readable: Mapping[str, Field]
    """The fields that the caller may see, filter and sort by; system fields always are."""
    writable: frozenset[str]
    """The declared fields that the caller may send."""
    where: Any = None
    """The rows that the caller may reach, beside those of the account; None means all of them."""


def of(caller: Principal, definition: Definition, operation: str) -> Access:
    """What an operation opens. Raises Unauthorized or Forbidden where it is closed."""
    if not _in_scope(caller, definition, operation):
        message = "This API key was not made for this collection and operation."
        raise Forbidden(message, error="scope_denied")
    if not caller.is_superadmin and not _is_open(definition.rule(operation), caller):
        raise _refusal(caller)
    reading = operation if operation == "list" else "view"
    return Access(
        readable=_readable(caller, definition, reading),
        writable=_writable(caller, definition, operation),
    )


def may(caller: Principal, definition: Definition, operation: str) -> bool:
    """Whether an operation is open at all."""
    if not _in_scope(caller, definition, operation):
        return False
    return caller.is_superadmin or _is_open(definition.rule(operation), caller)


def rule_problem(rule: str) -> dict[str, Any] | None:
    """Why a text is no rule, or None. Expressions come with the rule language."""
    if rule == "" or rule.strip() == "true":
        return None
    message = 'A rule is null (closed), "" (open to everyone) or true (open to the signed-in).'
    return problem(None, "rule_invalid", message, position=0)


def check_written(access: Access, definition: Definition, names: set[str]) -> None:
    """Refuse fields outside the operation's list. Raises Forbidden `field_denied` naming them."""
    denied = [n for n in definition.fields if n in names and n not in access.writable]
    if denied:
        message = f"You may not write: {', '.join(denied)}."
        details = [
            problem(name, "field_denied", "You may not write this field.") for name in denied
        ]
        raise Forbidden(message, error="field_denied", details=details)


def _in_scope(caller: Principal, definition: Definition, operation: str) -> bool:
    scopes = caller.scopes or {}
    names = [name.lower() for name in scopes.get("collections", (definition.name,))]
    return definition.name.lower() in names and operation in scopes.get("operations", (operation,))


def _is_open(rule: str | None, caller: Principal) -> bool:
    if rule is None:
        return False
    return rule == "" or (caller.signed_in and rule.strip() == "true")


def _refusal(caller: Principal) -> Exception:
    if not caller.signed_in:
        return Unauthorized()
    return Forbidden("The collection's rules do not allow this.", error="rule_denied")


def _readable(caller: Principal, definition: Definition, operation: str) -> Mapping[str, Field]:
    open_fields = definition.field_list(operation)
    if caller.is_superadmin or open_fields == ALL_FIELDS:
        return definition.columns
    return {
        name: field
        for name, field in definition.columns.items()
        if name in SYSTEM_FIELDS or name in open_fields
    }


def _writable(caller: Principal, definition: Definition, operation: str) -> frozenset[str]:
    open_fields = definition.field_list(operation)
    if caller.is_superadmin or open_fields == ALL_FIELDS:
        return frozenset(definition.fields)
    return frozenset(open_fields) & frozenset(definition.fields)
