"""Which collections a mark concerns: those of which a caller may see something else from there on.

Rights are those of now in all that is read, so that a mark can only say: list again, and drop the
rest. It says so of a collection that names what changed, as what the caller saw before is not
known any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.auth.principal import Principal
from app.collections.definitions import Definition
from app.collections.people import FIELDS, People
from app.realtime.feed import dependencies
from app.realtime.feed.marks import EVERYBODY, PLANS, ROLES, VALUES_OF, Mark
from app.rules import Name, Node, walk
from app.rules.nodes import Call, Caller, Inner

ASKING = {
    "@has_role": "role",
    "@has_any_role": "role",
    "@has_group": "groups",
    "@flag": "flags",
}


OF_INSTANCE = {ROLES: ("role",), PLANS: ("plan", "flags")}
"""What marks of the instance that are none of a collection concern."""


@dataclass(frozen=True)
class Reset:
    """A collection that a reader has to list again, and to drop the rest of."""

    change: int
    collection: str


@dataclass(frozen=True)
class Facets:
    """What the readers of a collection depend on, beside its records."""

    of_caller: frozenset[str]
    of_people: frozenset[str]
    """What rules read of the people in records."""


def resets(
    found: Sequence[Mark],
    caller: Principal,
    followed: Mapping[str, Iterable[Definition]],
    *,
    all_: bool,
) -> Iterator[Reset]:
    """What a caller has to list again for these marks.

    `followed` has the definitions that decide what a reader sees of a collection, by its name;
    `all_` says that it has all collections, so that one that is missing is gone.
    """
    for mark in found:
        names = {name for name, own in followed.items() if concerns(mark, caller, own)}
        if all_ and mark.collections:
            gone = mark.collections - followed.keys()
            names |= {name for name in gone if not name.startswith("@")}  # stands for others
        for name in sorted(names):
            yield Reset(mark.change, name)


def concerns(mark: Mark, caller: Principal, definitions: Iterable[Definition]) -> bool:
    """Whether a mark concerns what a caller sees through any of these definitions."""
    if mark.collections is not None:
        read = (other for one in definitions for other in dependencies.read_by(one).values())
        names = {one.name for one in definitions} | {f"{VALUES_OF}{one.id}" for one in read}
        if not mark.collections.isdisjoint(names):
            return True
        if caller.is_superadmin:
            return False
        asked = [one for name, of in OF_INSTANCE.items() if name in mark.collections for one in of]
        return bool(asked) and any(
            not (facets.of_caller | facets.of_people).isdisjoint(asked)
            for facets in map(facets_of, definitions)
        )
    if caller.is_superadmin and mark.subject != caller.api_key_id:
        return False
    is_own = mark.subject in (EVERYBODY, caller.user_id, caller.api_key_id)
    for one in map(facets_of, definitions):
        named = one.of_caller | one.of_people if is_own else one.of_people
        if named and (not mark.facets or not mark.facets.isdisjoint(named)):
            return True
    return False


def facets_of(definition: Definition) -> Facets:
    """What the readers of a collection depend on."""
    return definition.memo.get(_facets, definition)


def _facets(definition: Definition) -> Facets:
    nodes = [definition.conditions[operation] for operation in ("list", "view")]
    nodes += definition.rights["readable_if"].values()
    own, people = {"scopes"}, set[str]()
    for part in (part for node in nodes if node for part in walk(node)):
        if isinstance(part, Caller):
            own.add(part.attribute)
        elif isinstance(part, Call) and part.name in ASKING:
            own.add(ASKING[part.name])
        else:
            people.update(_of_people(definition, part))
    if definition.personal:
        own.add("groups")
    return Facets(frozenset(own), frozenset(people))


def _of_people(definition: Definition, part: Node) -> Iterator[str]:
    """What a name reads of a user."""
    if not isinstance(part, Name | Inner):
        return
    current: Definition | People | None = definition
    if isinstance(part, Inner):
        current = definition.related(part.collection)
    for place, step in enumerate(part.path[:-1], start=1):
        current = current.followed(step) if current is not None else None
        if isinstance(current, People):
            name = ".".join(part.path[place:])
            if name in FIELDS or name.startswith("attributes."):
                yield name
            return
