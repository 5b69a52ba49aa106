"""`expand`: the records that references lead to, beside their ids.

The answer gets an `expand` of what the caller may view, as it may view it; the rest is absent. One
statement reads all records of a collection that one level of names leads to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from app.audit.security_log.reads import by_path
from app.collections import access as accesses
from app.collections.access import Access
from app.collections.definitions import Definition
from app.db.versioned_cache import VersionCheck
from app.errors import problem
from app.records.read import views
from app.records.store import Row, reads
from app.records.store.sizes import SizeLimit
from app.types import JSONObject
from app.web.serialization import dumps

NAME = "expand"
MAX_DEPTH = 3
MAX_NAMES = 50

View = JSONObject


@dataclass(frozen=True)
class Branch:
    """A reference that is to be shown in full, and those of its target that are."""

    target: Definition
    access: Access | None
    """What the caller may view of the target; None where that is nothing."""
    below: dict[str, Branch]


Tree = Mapping[str, Branch]
Place = tuple[Tree, Row, View]
"""A record as it is stored and as it is shown, and what is to be expanded of it."""
Rendered = dict[tuple[int, str, str], View]
"""What is shown of a branch's record already, by the branch and by account and id."""
RowsByCollection = dict[str, dict[tuple[str, str], Row]]
"""The records of a level, by the id of their collection, and by account and id."""


def parse(access: Access, text: str | None, problems: list[JSONObject]) -> Tree:
    """The references that dotted names lead along, each name checked."""
    if not text:
        return {}
    names = set(names_in(text, NAME, problems)) - {""}
    if len(names) > MAX_NAMES:
        problems.append(_problem(f"At most {MAX_NAMES} names."))
        return {}
    tree: dict[str, Branch] = {}
    for name in sorted(names):
        steps = name.split(".")
        if len(steps) > MAX_DEPTH:
            problems.append(_problem(f"{name[:200]} follows more than {MAX_DEPTH} references."))
        else:
            _add_branch(tree, access, steps, problems)
    return tree


def names_in(text: str, parameter: str, problems: list[JSONObject]) -> list[str]:
    """The names between the commas of a parameter; an empty one goes to `found`."""
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    if "" in names:
        problems.append(problem(parameter, "invalid_option", "A name between the commas is empty."))
    return names


def check_room(names: Iterable[str], problems: list[JSONObject]) -> None:
    """Refuse to hide a field that has the name under which records are expanded."""
    if NAME in names:
        message = "A field of these records is called expand; pick others with `fields`."
        problems.append(_problem(message))


def version_checks(tree: Tree) -> Iterator[VersionCheck]:
    """The versions of the collections that the names lead to."""
    for branch in tree.values():
        yield from branch.target.version_checks
        yield from version_checks(branch.below)


def add(tree: Tree, rows: Sequence[Row], items: Sequence[View], room: SizeLimit) -> None:
    """Put `expand` into what is shown of the records, as written JSON: each target once.

    Raises Stale and AnswerTooLarge.
    """
    if not tree:
        return
    places: list[Place] = [(tree, *pair) for pair in zip(rows, items, strict=True)]
    levels: list[list[Place]] = []
    rendered: Rendered = {}
    while places:
        levels.append(places)
        targets = _read(places, room)
        places = [inner for place in places for inner in _attach(place, targets, rendered)]
    texts: dict[int, bytes] = {}
    for level in reversed(levels):
        for _, _, item in level:
            _write(item, texts)


def _write(item: View, texts: dict[int, bytes]) -> None:
    """Put what the record leads to into it as JSON, written once for all that lead there."""
    targets = item[NAME]
    for target in targets.values():
        if id(target) not in texts:
            texts[id(target)] = dumps(target)
    SizeLimit().take(sum(len(texts[id(target)]) for target in targets.values()))
    item[NAME] = {name: orjson.Fragment(texts[id(one)]) for name, one in targets.items()}


def _add_branch(
    tree: dict[str, Branch], access: Access, steps: Sequence[str], problems: list[JSONObject]
) -> None:
    name, *further = steps
    target = access.definition.target(name) if name in access.comparable else None
    if target is None:
        problems.append(_no_reference(access, name))
        return
    if name not in tree:
        is_open = accesses.is_open(access.caller, target, "view")
        view = accesses.for_operation(access.caller, target, "view") if is_open else None
        tree[name] = Branch(target, view, {})
    view = tree[name].access
    # Of what it may not view the caller learns nothing, not even which names it has.
    if further and view is not None:
        if not tree[name].below:
            check_room(view.readable, problems)
        _add_branch(tree[name].below, view, further, problems)


def _no_reference(access: Access, name: str) -> JSONObject:
    if name not in access.readable:
        return problem(NAME, "unknown_field", f"There is no field {name[:80]}.")
    if name in access.masked:
        return _problem("You see this field masked, so it cannot be expanded.")
    return _problem(f"{name[:80]} is no reference.")


def _problem(message: str) -> JSONObject:
    return problem(NAME, "invalid_option", message)


def _read(places: Sequence[Place], room: SizeLimit) -> RowsByCollection:
    keys_by_collection: dict[str, set[tuple[str, str]]] = {}
    accesses_: dict[str, Access] = {}
    for tree, row, _ in places:
        for name, branch in tree.items():
            if branch.access is not None and row[name] is not None:
                accesses_[branch.target.id] = branch.access
                keys_by_collection.setdefault(branch.target.id, set()).add(
                    (row["account_id"], row[name])
                )
    return {
        id: _read_viewable(accesses_[id], keys, room) for id, keys in keys_by_collection.items()
    }


def _read_viewable(
    access: Access, keys: Iterable[tuple[str, str]], room: SizeLimit
) -> dict[tuple[str, str], Row]:
    ids = sorted({record_id for _, record_id in keys})
    selection = reads.Selection(access, names=frozenset(access.readable), room=room)
    rows = reads.read_by_ids(selection, ids)
    return {(row["account_id"], row["id"]): row for row in rows}


def _attach(
    place: Place, rows_by_collection: RowsByCollection, rendered: Rendered
) -> Iterator[Place]:
    tree, row, item = place
    item[NAME] = {}
    for name, branch in tree.items():
        target = rows_by_collection.get(branch.target.id, {}).get((row["account_id"], row[name]))
        if target is None or branch.access is None:
            continue
        key = (id(branch), target["account_id"], target["id"])
        if key in rendered:
            item[NAME][name] = rendered[key]
            continue
        with by_path(NAME):
            view = views.render(target, list(branch.access.readable), branch.access)
        rendered[key] = view
        item[NAME][name] = view
        if branch.below:
            yield branch.below, target, view
