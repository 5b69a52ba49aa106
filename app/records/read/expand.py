"""`expand`: the records that references lead to, beside their ids (contract section 5).

The answer gets an `expand` of what the caller may view, as it may view it; the rest is absent. One
statement reads all records of a collection that one level of names leads to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections.access import Access
from app.collections.definition import Definition
from app.db import versioned_cache
from app.db.versioned_cache import VersionCheck
from app.errors import problem
from app.records import store
from app.records.store import Row, reads
from app.records.store.sizes import SizeLimit
from app.rest.responses import dumps
from app.types import JSONObject

NAME = "expand"
DEEPEST = 3
MOST_NAMES = 50

Shown = JSONObject
Show = Callable[[Row, Sequence[str], Access], Shown]


@dataclass(frozen=True)
class Branch:
    """A reference that is to be shown in full, and those of its target that are."""

    target: Definition
    access: Access | None
    """What the caller may view of the target; None where that is nothing."""
    below: dict[str, Branch]


Tree = Mapping[str, Branch]
Place = tuple[Tree, Row, Shown]
"""A record as it is stored and as it is shown, and what is to be expanded of it."""
Once = dict[tuple[int, str, str], Shown]
"""What is shown of a branch's record already, by the branch and by account and id."""
Found = dict[str, dict[tuple[str, str], Row]]
"""The records of a level, by the id of their collection, and by account and id."""


def parse(access: Access, text: str | None, found: list[JSONObject]) -> Tree:
    """The references that dotted names lead along, each name checked."""
    if not text:
        return {}
    names = set(names_in(text, NAME, found)) - {""}
    if len(names) > MOST_NAMES:
        found.append(_refused(f"At most {MOST_NAMES} names."))
        return {}
    tree: dict[str, Branch] = {}
    for name in sorted(names):
        steps = name.split(".")
        if len(steps) > DEEPEST:
            found.append(_refused(f"{name[:200]} follows more than {DEEPEST} references."))
        else:
            _plant(tree, access, steps, found)
    return tree


def names_in(text: str, where: str, found: list[JSONObject]) -> list[str]:
    """The names between the commas of a parameter; an empty one goes to `found`."""
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    if "" in names:
        found.append(problem(where, "invalid_option", "A name between the commas is empty."))
    return names


def check_room(names: Iterable[str], found: list[JSONObject]) -> None:
    """Refuse to hide a field that has the name under which records are expanded."""
    if NAME in names:
        message = "A field of these records is called expand; pick others with `fields`."
        found.append(_refused(message))


def version_checks(tree: Tree) -> Iterator[VersionCheck]:
    """The versions of the collections that the names lead to."""
    for branch in tree.values():
        yield from branch.target.version_checks
        yield from version_checks(branch.below)


def add(
    tree: Tree,
    rows: Sequence[Row],
    items: Sequence[Shown],
    by: Principal,
    show: Show,
    room: SizeLimit,
) -> None:
    """Put `expand` into what is shown of the records, as written JSON: each target once.

    Raises Stale and AnswerTooLarge.
    """
    if not tree:
        return
    places: list[Place] = [(tree, *pair) for pair in zip(rows, items, strict=True)]
    levels: list[list[Place]] = []
    once: Once = {}
    while places:
        levels.append(places)
        found = _read(places, by, room)
        places = [deeper for place in places for deeper in _filled(place, found, show, once)]
    texts: dict[int, bytes] = {}
    for level in reversed(levels):
        for _, _, item in level:
            _write(item, texts)


def _write(item: Shown, texts: dict[int, bytes]) -> None:
    """Put what the record leads to into it as JSON, written once for all that lead there."""
    targets = item[NAME]
    for target in targets.values():
        if id(target) not in texts:
            texts[id(target)] = dumps(target)
    SizeLimit().take(sum(len(texts[id(target)]) for target in targets.values()))
    item[NAME] = {name: orjson.Fragment(texts[id(one)]) for name, one in targets.items()}


def _plant(
    tree: dict[str, Branch], access: Access, steps: Sequence[str], found: list[JSONObject]
) -> None:
    name, *further = steps
    target = access.definition.target(name) if name in access.comparable else None
    if target is None:
        found.append(_no_reference(access, name))
        return
    if name not in tree:
        seen = accesses.is_open(access.caller, target, "view")
        view = accesses.for_operation(access.caller, target, "view") if seen else None
        tree[name] = Branch(target, view, {})
    view = tree[name].access
    # Of what it may not view the caller learns nothing, not even which names it has.
    if further and view is not None:
        if not tree[name].below:
            check_room(view.readable, found)
        _plant(tree[name].below, view, further, found)


def _no_reference(access: Access, name: str) -> JSONObject:
    if name not in access.readable:
        return problem(NAME, "unknown_field", f"There is no field {name[:80]}.")
    if name in access.masked:
        return _refused("You see this field masked, so it cannot be expanded.")
    return _refused(f"{name[:80]} is no reference.")


def _refused(message: str) -> JSONObject:
    return problem(NAME, "invalid_option", message)


def _read(places: Sequence[Place], by: Principal, room: SizeLimit) -> Found:
    wanted: dict[str, set[tuple[str, str]]] = {}
    views: dict[str, Access] = {}
    for tree, row, _ in places:
        for name, branch in tree.items():
            if branch.access is not None and row[name] is not None:
                views[branch.target.id] = branch.access
                wanted.setdefault(branch.target.id, set()).add((row["account_id"], row[name]))
    return {id: _viewable(views[id], keys, by, room) for id, keys in wanted.items()}


def _viewable(
    view: Access, keys: Iterable[tuple[str, str]], by: Principal, room: SizeLimit
) -> dict[tuple[str, str], Row]:
    scoped = store.scope(view.definition, by.account_id, view.where)
    ids = sorted({record_id for _, record_id in keys})
    checked = versioned_cache.combine(*by.version_checks, *view.definition.version_checks)
    wanted = frozenset(view.readable)
    asked = (view.definition, scoped, ids, checked, view.parameters)
    rows = reads.read_by_ids(*asked, wanted=wanted, room=room)
    return {(row["account_id"], row["id"]): row for row in rows}


def _filled(place: Place, found: Found, show: Show, once: Once) -> Iterator[Place]:
    tree, row, item = place
    item[NAME] = {}
    for name, branch in tree.items():
        target = found.get(branch.target.id, {}).get((row["account_id"], row[name]))
        if target is None or branch.access is None:
            continue
        key = (id(branch), target["account_id"], target["id"])
        if key in once:
            item[NAME][name] = once[key]
            continue
        once[key] = shown = show(target, list(branch.access.readable), branch.access)
        item[NAME][name] = shown
        if branch.below:
            yield branch.below, target, shown
