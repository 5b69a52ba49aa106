"""The scopes of API keys: which operations on which collections a key is restricted to.

Pairs name the operations of each collection: `{"tickets": ["create", "list"]}`. The older form has
two lists, `{"collections": [...], "operations": [...]}`, each of which may be absent. An object
that has no other property than these two is of the older form, so pairs for collections of these
very names need one more collection beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from app.errors import Forbidden
from app.web import access

COLLECTIONS, OPERATIONS = "collections", "operations"
LACKING = "This operator key lacks the scope {}."
Scopes = Mapping[str, Sequence[str]]


class ScopeDenied(Forbidden):
    """An API key whose scopes do not include what it is used for."""

    error = "scope_denied"
    message = "This API key is restricted to records."


def is_older_form(scopes: Scopes) -> bool:
    """Whether scopes are two lists, of collections and operations, instead of pairs."""
    return scopes.keys() <= {COLLECTIONS, OPERATIONS}


def include(scopes: Scopes | None, collection: str, operation: str) -> bool:
    """Whether scopes include an operation on a collection; those of a key without do."""
    if scopes is None:
        return True
    if not is_older_form(scopes):
        pairs = ((name.lower(), allowed) for name, allowed in scopes.items())
        return any(name == collection.lower() and operation in allowed for name, allowed in pairs)
    names = [name.lower() for name in scopes.get(COLLECTIONS, (collection,))]
    return collection.lower() in names and operation in scopes.get(OPERATIONS, (operation,))


def include_any(scopes: Scopes | None, operations: Iterable[str]) -> bool:
    """Whether scopes include one of the operations on some collection."""
    if scopes is None:
        return True
    if is_older_form(scopes):
        allowed = set(scopes.get(OPERATIONS, operations))
    else:
        allowed = {operation for listed in scopes.values() for operation in listed}
    return not allowed.isdisjoint(operations)


def of_operator(scopes: Iterable[str]) -> frozenset[str]:
    """The scopes of an operator key, with the reading that goes with writing."""
    given = set(scopes)
    written = {scope.partition(":")[0] for scope in given if scope.endswith(f":{access.WRITE}")}
    return frozenset(given | {f"{resource}:{access.READ}" for resource in written})


def denied(collection: str, operation: str) -> ScopeDenied:
    """The refusal of an operation on a collection that a key's scopes leave out."""
    return ScopeDenied(f"This API key may not {operation} {collection}.")


def by_collection(scopes: Scopes | list[str] | None) -> list[tuple[str | None, Sequence[str]]]:
    """The operations of each collection, for people; no name stands for all collections."""
    if not scopes or isinstance(scopes, list):
        return []
    if not is_older_form(scopes):
        return sorted(scopes.items())
    names: Sequence[str | None] = scopes.get(COLLECTIONS) or [None]
    return [(name, scopes.get(OPERATIONS, ())) for name in names]


def renamed(scopes: Scopes, former: str, name: str) -> dict[str, list[str]]:
    """Scopes in which a collection has a new name."""
    if not is_older_form(scopes):
        pairs = {
            name if one.lower() == former.lower() else one: list(listed)
            for one, listed in scopes.items()
            # Another pair with the new name is of a collection that was deleted.
            if one.lower() == former.lower() or one.lower() != name.lower()
        }
        # What is named as the lists of the older form would open other collections.
        return pairs | {former: []} if is_older_form(pairs) else pairs
    lists = {one: list(listed) for one, listed in scopes.items()}
    if COLLECTIONS in lists:
        lists[COLLECTIONS] = [
            name if one.lower() == former.lower() else one for one in lists[COLLECTIONS]
        ]
    return lists
