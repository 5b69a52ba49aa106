"""The rules that name a role, their number, and the number of its users."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.accounts import users
from app.accounts.models import Role
from app.collections import definitions
from app.collections.definitions import Definition
from app.console.records.operation_names import OPERATION_NAMES
from app.console.shell import lists
from app.rules import OPERATIONS

ABOUT_ROLES = re.compile(r"@(?:has_role|has_any_role|request\.auth\.role)\b")


@dataclass(frozen=True)
class NamingCollection:
    collection: Definition
    rules: dict[str, str]


def naming(role: Role) -> list[NamingCollection]:
    found = ((one, dict(_rules(one, role.name))) for one in definitions.get_all())
    return [NamingCollection(collection, rules) for collection, rules in found if rules]


def user_counts(roles: Sequence[Role]) -> dict[int, str]:
    """The number of users of each role, such as `5+` if not all users were counted."""
    numbers, is_cut = users.count_by_role(lists.MAX_SCANNED)
    more = "+" if is_cut else ""
    return {role.id: lists.format_number(numbers.get(role.id, 0)) + more for role in roles}


def rule_counts(roles: Sequence[Role]) -> dict[int, int]:
    """The number of rules that name each role."""
    about_roles = [
        rule
        for collection in definitions.get_all()
        for operation in OPERATIONS
        if ABOUT_ROLES.search(rule := collection.rule(operation) or "")
    ]
    patterns = {role.id: _pattern(role.name) for role in roles}
    return {id: sum(map(bool, map(name.search, about_roles))) for id, name in patterns.items()}


def _rules(collection: Definition, role: str) -> Iterator[tuple[str, str]]:
    name = _pattern(role)
    for operation in OPERATIONS:
        rule = collection.rule(operation) or ""
        if ABOUT_ROLES.search(rule) and name.search(rule):
            yield str(OPERATION_NAMES[operation]), rule


def _pattern(role: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-]){re.escape(role)}(?![\w-])")
