"""Back references: the records that refer to one, as `comments_via_ticket` names them.

That is the records of `comments` whose field `ticket` refers to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definitions
from app.collections.access import Access
from app.collections.definitions import Definition
from app.errors import NotFound

VIA = "_via_"


class BackReference(NamedTuple):
    """A field whose values refer to records, and the caller's access to list those that have it."""

    collection: Definition
    field: str
    listed: Access

    @property
    def name(self) -> str:
        return f"{self.collection.name}{VIA}{self.field}"


def to(definition: Definition, by: Principal) -> Iterator[BackReference]:
    """Those to a collection that the caller sees."""
    for other in definitions.get_all():
        for field in other.fields:
            yield from _seen(definition, other, field, by)


def named(access: Access, name: str) -> Iterator[BackReference]:
    """What a name may mean of those that the caller sees.

    Raises ScopeDenied for an API key that lacks what its user has.
    """
    definition, caller = access.definition, access.caller
    places = (at for at in range(1, len(name)) if name.startswith(VIA, at))
    for collection, field in ((name[:at], name[at + len(VIA) :]) for at in places):
        try:
            is_own = collection.lower() == definition.name.lower()
            other = definition if is_own else definitions.get(collection)
        except NotFound:
            continue
        for one in _seen(definition, other, field, replace(caller, scopes=None)):
            accesses.check_scope(caller, other, "list")
            yield one._replace(listed=accesses.for_operation(caller, other, "list"))


def _seen(
    definition: Definition, other: Definition, field: str, by: Principal
) -> Iterator[BackReference]:
    spec = other.fields.get(field)
    if spec is None or (spec.collection or "").lower() != definition.name.lower():
        return
    listed = accesses.if_open(by, other, "list")
    if listed is not None and field in listed.comparable:
        yield BackReference(other, field, listed)
