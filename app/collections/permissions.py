"""What a role alone opens of collections, whatever the user's id, groups and account."""

from __future__ import annotations

from typing import Any

from app import rules
from app.collections.definitions import Definition
from app.rules import OPERATIONS, UNKNOWN

REACH = ALL, SOME, NONE = "all", "some", "none"
ANY_USER: Any = dict.fromkeys(("id", "email", "account_id", "groups", "mfa"), UNKNOWN)


def of_role(role: str, collection: Definition) -> dict[str, str]:
    """The records that each operation opens to users of a role: all, some or none."""
    user = rules.Subject(role=role, **ANY_USER)
    return {operation: _reach(collection, operation, user) for operation in OPERATIONS}


def _reach(collection: Definition, operation: str, user: rules.Subject) -> str:
    condition = collection.conditions[operation]
    if condition is None:
        return NONE if collection.rule(operation) is None else ALL
    opens = rules.truth(rules.partial_evaluate(condition, user))
    return {True: ALL, False: NONE, None: SOME}[opens]
