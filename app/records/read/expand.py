"""`expand`: referenced records within the records of an answer.

Each view gets an `expand` with what the caller may view of the referenced records; the others are
absent. One statement per level and collection reads all of them. People are shown as `shown_fields`
says: null if they are gone, and as their ids to callers who may see no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from app.audit.security_log.reads import by_path
from app.collections import access as accesses
from app.collections import people
from app.collections.access import Access
from app.collections.definitions import Definition
from app.collections.fields import Field, entries
from app.collections.people import People
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
    """A reference to expand, with the references to expand in its target."""

    target: Definition | People
    access: Access | None
    """The caller's access to view the target; None if it is closed, and for people."""
    below: dict[str, Branch]
    shown: Sequence[str] = ()
    """The fields of people that the caller sees."""
    field: Field | None = None
    """The field, if it is not one of the system's."""

    @property
    def is_list(self) -> bool:
        return self.field is not None and self.field.multiple

    def entries(self, value: Any) -> list[str]:
        """The ids in a value of the field."""
        return entries(self.field, value)


Tree = Mapping[str, Branch]
"""References to expand, by the name of their field."""
Rendered = dict[tuple[int, str, str], View]
"""Views of referenced records, by the id of their branch, account and id."""
RowsByCollection = dict[str, dict[tuple[str, str], Row]]
"""Referenced records, by the id of their collection, then by account and id."""


class Expansion(NamedTuple):
    """A record with its view, which is to get an `expand` for the references of a tree."""

    tree: Tree
    row: Row
    view: View


def parse(access: Access, text: str | None, problems: list[JSONObject]) -> Tree:
    """Return the references that dotted names follow; adds problems of the names."""
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


def _add_branch(
    tree: dict[str, Branch], access: Access, steps: Sequence[str], problems: list[JSONObject]
) -> None:
    name, *further = steps
    target = access.definition.expanded(name) if name in access.comparable else None
    if isinstance(target, People):
        field = access.definition.fields.get(name)
        known = next((branch.shown for branch in tree.values() if branch.shown), None)
        shown = known or people.shown_fields(access.caller)  # once, however many fields name people
        tree.setdefault(name, Branch(target, None, {}, shown, field))
        for name in further[:1]:
            problems.append(_problem(f"{name[:80]} is no reference."))
        return
    if target is None:
        if name not in access.readable:
            problems.append(problem(NAME, "unknown_field", f"There is no field {name[:80]}."))
        elif name in access.masked:
            problems.append(_problem("You see this field masked, so it cannot be expanded."))
        else:
            problems.append(_problem(f"{name[:80]} is no reference."))
        return
    if name not in tree:
        is_open = accesses.is_open(access.caller, target, "view")
        view = accesses.for_operation(access.caller, target, "view") if is_open else None
        tree[name] = Branch(target, view, {}, field=access.definition.fields.get(name))
    view = tree[name].access
    # A caller who may not view the target learns nothing of it, not even which names it has.
    if further and view is not None:
        if not tree[name].below:
            check_name_is_free(view.readable, problems)
        _add_branch(tree[name].below, view, further, problems)


def names_in(text: str, parameter: str, problems: list[JSONObject]) -> list[str]:
    """Return the names between the commas of a parameter; an empty one is a problem."""
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    if "" in names:
        problems.append(problem(parameter, "invalid_option", "A name between the commas is empty."))
    return names


def check_name_is_free(names: Iterable[str], problems: list[JSONObject]) -> None:
    """Add a problem if a field is called `expand`, which would hide it."""
    if NAME in names:
        message = "A field of these records is called expand; pick others with `fields`."
        problems.append(_problem(message))


def version_checks(tree: Tree) -> Iterator[VersionCheck]:
    """Yield the version checks of the referenced collections."""
    for branch in tree.values():
        if not isinstance(branch.target, People):
            yield from branch.target.version_checks
        yield from version_checks(branch.below)


def add(tree: Tree, rows: Sequence[Row], items: Sequence[View], room: SizeLimit) -> None:
    """Add `expand` to the views of records, as JSON that is written once for each target.

    Raises Stale and AnswerTooLarge.
    """
    if not tree:
        return
    level = [Expansion(tree, row, view) for row, view in zip(rows, items, strict=True)]
    levels: list[list[Expansion]] = []
    rendered: Rendered = {}
    while level:
        levels.append(level)
        targets, persons = _read_targets(level, room), _read_people(level)
        level = [inner for one in level for inner in _attach(one, targets, persons, rendered)]
    # Innermost first: a view can be written when what it expands is.
    texts: dict[int, bytes] = {}

    def text_of(target: Any) -> bytes:
        if isinstance(target, list):
            return b"[" + b",".join(map(text_of, target)) + b"]"
        if not isinstance(target, dict):
            return dumps(target)
        if id(target) not in texts:
            texts[id(target)] = dumps(target)
        return texts[id(target)]

    for level in reversed(levels):
        for _, _, view in level:
            written = {name: text_of(target) for name, target in view[NAME].items()}
            SizeLimit().take(sum(map(len, written.values())))
            view[NAME] = {name: orjson.Fragment(text) for name, text in written.items()}


def _read_targets(level: Sequence[Expansion], room: SizeLimit) -> RowsByCollection:
    """Read the records that a level refers to and the caller may view."""
    access_by_collection: dict[str, Access] = {}
    ids: dict[str, set[str]] = {}
    for tree, row, _ in level:
        for name, branch in tree.items():
            if branch.access is not None and row[name] is not None:
                id = branch.access.definition.id
                access_by_collection[id] = branch.access
                ids.setdefault(id, set()).update(branch.entries(row[name]))
    result: RowsByCollection = {}
    for id, access in access_by_collection.items():
        selection = reads.Selection(access, names=frozenset(access.readable), room=room)
        rows = reads.read_by_ids(selection, sorted(ids[id]))
        result[id] = {(row["account_id"], row["id"]): row for row in rows}
    return result


def _read_people(level: Sequence[Expansion]) -> Mapping[people.Key, View]:
    """Read the users that a level refers to, as far as the caller sees them."""
    shown: Sequence[str] = ()
    keys = set()
    for tree, row, _ in level:
        for name, branch in tree.items():
            if branch.shown and row[name] is not None:
                shown = branch.shown
                keys |= {(row["account_id"], id) for id in branch.entries(row[name])}
    return people.read(keys, shown)


def _attach(
    expansion: Expansion,
    targets: RowsByCollection,
    persons: Mapping[people.Key, View],
    rendered: Rendered,
) -> Iterator[Expansion]:
    """Put the views of its targets into a view; yields those that are expanded further."""
    tree, row, view = expansion
    view[NAME] = {}
    for name, branch in tree.items():
        if row[name] is None:
            continue
        found = list[Any]()
        for target_id in branch.entries(row[name]):
            target_key = (row["account_id"], target_id)
            if isinstance(branch.target, People):
                found.append(persons.get(target_key) if branch.shown else target_id)
                continue
            target = targets.get(branch.target.id, {}).get(target_key)
            if target is None or branch.access is None:
                continue
            key = (id(branch), *target_key)
            if key not in rendered:
                names = list(branch.access.readable)
                with by_path(NAME):
                    rendered[key] = views.render(target, names, branch.access)
                if branch.below:
                    yield Expansion(branch.below, target, rendered[key])
            found.append(rendered[key])
        if branch.is_list:
            view[NAME][name] = found
        elif found:
            view[NAME][name] = found[0]


def _problem(message: str) -> JSONObject:
    return problem(NAME, "invalid_option", message)
