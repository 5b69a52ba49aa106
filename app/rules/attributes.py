"""The types of the attributes that expressions may name: the application tells them.

Expressions are checked wherever one is saved or compiled, and their attributes are the same
everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.rules.nodes import Type

Types = Callable[[str], Mapping[str, Type]]
"""From `attributes.` or `account.`: the types of those attributes by name."""
_types: list[Types] = []


def provide(types: Types) -> Types:
    """Have expressions use these types."""
    _types.append(types)
    return types


def types_of(prefix: str) -> Mapping[str, Type]:
    """The types of the attributes of callers or accounts."""
    return {name: kind for types in _types for name, kind in types(prefix).items()}
