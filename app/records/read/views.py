"""Renders records for a caller: visible rows, visible fields, masks, expanded references.

With `expand`, a view gets what the caller may view of the referenced records; the others are
absent. One statement per level and collection reads all of them. People are shown as `shown_fields`
says: null if they are gone, and as their ids to callers who may see no more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import orjson

from app.audit.security_log import reads as personal_reads
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import back_references, masking, people
from app.collections.access import Access
from app.collections.back_references import VIA
from app.collections.definitions import Definition
from app.collections.fields import SYSTEM_FIELDS, Field, encoders_of, entries
from app.collections.people import People
from app.db.versioned_cache import VersionCheck
from app.errors import InvalidValues, problem
from app.records import store
from app.records.store import Row, SizeLimit, reads, references
from app.types import JSONMapping, JSONObject
from app.web.serialization import dumps

SYSTEM_COLUMNS = {name: one.like for name, one in SYSTEM_FIELDS.items()}
SYSTEM_ENCODERS = encoders_of(SYSTEM_COLUMNS)
EMPTY: JSONMapping = {}
ETAG_BYTES = 16
EXPAND = "expand"
MAX_DEPTH = 3
MAX_NAMES = 50
NEWEST = 100  # of the records that refer to one
MAX_REFERRING = 30_000  # records of an answer, if as many refer as may be shown

View = JSONObject


class RecordView(JSONObject):
    """A record as one caller sees it, or some of its fields."""

    def __init__(self, whole: JSONMapping, unsettled: frozenset[str]) -> None:
        super().__init__(whole)
        self._whole, self._unsettled = whole, unsettled
        self._etag: str | None = None

    def keep(self, names: Iterable[str]) -> None:
        """Remove all other fields."""
        for name in self._whole.keys() - set(names):
            del self[name]

    @property
    def is_settled(self) -> bool:
        """Whether only a write can change it; a field computed from the time is not settled."""
        return not self._unsettled

    @property
    def etag(self) -> str:
        """The ETag of the whole view, without fields that change with time."""
        if self._etag is None:
            view, unsettled = self._whole, self._unsettled
            if unsettled:
                view = {name: value for name, value in view.items() if name not in unsettled}
            digest = hashlib.blake2b(dumps(view), digest_size=ETAG_BYTES)
            self._etag = f'"{digest.hexdigest()}"'
        return self._etag


def rule_matches(
    access: Access, rows: Sequence[store.Row], sent: Sequence[JSONMapping] = ()
) -> list[bool]:
    """Whether each record meets the rule, given the body sent for it."""
    if access.condition is None:
        return [True] * len(rows)
    followed = references.resolve(access.definition, rows, access.follows)
    followed = references.judged(access, followed, sent)
    bodies = sent or [EMPTY] * len(rows)
    return [access.allows(row, body) for row, body in zip(followed, bodies, strict=True)]


def view_access(definition: Definition, by: Principal) -> Access | None:
    """The caller's access for `view`; None if it is closed."""
    return accesses.if_open(by, definition, "view")


def masked_fields(
    definition: Definition, rows: Sequence[store.Row], by: Principal
) -> list[frozenset[str]]:
    """The fields of each record that the caller sees masked when viewing or listing it."""
    result = [frozenset[str]()] * len(rows)
    for operation in ("view", "list"):
        access = accesses.if_open(by, definition, operation)
        if access is not None and access.masked:
            matches = zip(result, rule_matches(access, rows), strict=True)
            result = [
                names | access.masked if is_visible else names for names, is_visible in matches
            ]
    return result


def unmasked_fields(
    definition: Definition, rows: Sequence[store.Row], by: Principal
) -> list[set[str]]:
    """The fields of each record that the caller sees unmasked when viewing or listing it."""
    result = [set[str]() for _ in rows]
    for operation in ("view", "list"):
        access = accesses.if_open(by, definition, operation)
        if access is not None:
            for names, is_visible in zip(result, rule_matches(access, rows), strict=True):
                names.update(access.comparable if is_visible else ())
    return result


def render_written(
    definition: Definition, rows: Sequence[store.Row], by: Principal
) -> list[RecordView]:
    """Records that the caller has written, as it may view them.

    A caller who may not view them gets the system fields only.
    """
    access = view_access(definition, by)
    matches = rule_matches(access, rows) if access else [False] * len(rows)
    return [
        render_full(row, access if is_visible else None)
        for row, is_visible in zip(rows, matches, strict=True)
    ]


def render_full(row: store.Row, access: Access | None) -> RecordView:
    """All readable fields of a record; without an access, the system fields."""
    if access is None:
        return RecordView(render(row, list(SYSTEM_FIELDS), None), frozenset())
    unsettled = access.definition.unsettled & access.readable.keys()
    return RecordView(render(row, list(access.readable), access), unsettled)


def render(row: store.Row, names: Sequence[str], access: Access | None) -> JSONObject:
    """Some fields of a record as JSON values, masked as the access requires."""
    return render_all([row], names, access)[0]


def render_all(
    rows: Sequence[store.Row], names: Sequence[str], access: Access | None
) -> list[JSONObject]:
    """Some fields of several records as JSON values, masked as the access requires."""
    encoders, masked = SYSTEM_ENCODERS, {}
    if access is not None:
        encoders = access.definition.encoders
        masked = {name: access.readable[name] for name in access.masked.intersection(names)}
    items = []
    for row in rows:
        item = {name: row[name] for name in names}
        for name, encode, json_type in encoders:
            value = item.get(name)
            if value is not None and value.__class__ is not json_type:
                item[name] = encode(value)
        for name, field in masked.items():
            item[name] = masking.masked(field, item[name])
        items.append(item)
    if access is not None and (access.exposed or access.caller.is_superadmin):
        personal_reads.note_rows(access, rows, names)
    return items


def access_of_row(definition: Definition, row: Row | None, by: Principal | None) -> Access | None:
    """The user's access to view a row, stored or not; None if it is not visible."""
    access = view_access(definition, by) if by else None
    if access is None or row is None:
        return None
    return access if references.allows(access, row) else None


@dataclass(frozen=True)
class Branch:
    """A reference to expand, with the references to expand in its target."""

    target: Definition | People
    access: Access | None
    """The caller's access to view the target; None if it is closed, and for people.

    To list it, if its records refer to the one that is shown.
    """
    below: dict[str, Branch]
    shown: Sequence[str] = ()
    """The fields of people that the caller sees."""
    field: Field | None = None
    """The field, if it is not one of the system's."""
    via: str = ""
    """The field of the target by which its records refer to the one that is shown."""

    @property
    def is_list(self) -> bool:
        return self.field is not None and self.field.multiple

    def entries(self, value: Any) -> list[str]:
        """The ids in a value of the field."""
        return entries(self.field, value)


Tree = Mapping[str, Branch]
"""References to expand, by the name of their field."""


class Shown(NamedTuple):
    """A record as an answer shows it, and the access by which it does."""

    access: Access
    row: Row
    view: View


Rendered = dict[tuple[int, str, str], Shown]
"""Referenced and referring records, by the id of their branch, account and id."""
RowsByCollection = dict[str, dict[tuple[str, str], Row]]
"""Referenced records, by the id of their collection, then by account and id."""
Referring = dict[tuple[str, str], dict[tuple[str, str], list[Row]]]
"""Records by the id of their collection and their field, then by what they refer to."""


class Newest(NamedTuple):
    """The newest records that refer to one, and whether there are more."""

    items: Sequence[View]
    has_more: bool


class Expansion(NamedTuple):
    """A record with its view, which is to get an `expand` for the references of a tree."""

    tree: Tree
    row: Row
    view: View


def parse_expand(
    access: Access, text: str | None, problems: list[JSONObject], records: int = 1
) -> Tree:
    """Return the references that dotted names follow, of so many records at most.

    Adds problems of the names.
    """
    if not text:
        return {}
    names = set(names_in(text, EXPAND, problems)) - {""}
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
    problems += _too_many(_most_referring(tree, records))
    return tree


def _most_referring(tree: Tree, records: int) -> int:
    """How many records that refer to others an answer may have, with so many records itself."""
    result = 0
    for branch in tree.values():
        most = records * NEWEST if branch.via else records
        result += _most_referring(branch.below, most) + (most if branch.via else 0)
    return result


def _too_many(referring: int) -> Iterator[JSONObject]:
    if referring > MAX_REFERRING:
        message = (
            f"May expand to {referring:,} records that refer to others; at most"
            f" {MAX_REFERRING:,}. Request fewer records."
        )
        yield _problem(message)


def _add_branch(
    tree: dict[str, Branch], access: Access, steps: Sequence[str], problems: list[JSONObject]
) -> None:
    name, *further = steps
    if VIA in name and name not in access.readable and name not in tree:
        found = list(back_references.named(access, name))
        if len(found) > 1:
            problems.append(_problem(f"{name[:80]} may mean several fields."))
            return
        for one in found:
            tree[name] = Branch(one.collection, one.listed, {}, via=one.field)
    if name in tree and tree[name].via:
        _add_further(tree[name], further, problems)
        return
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
            problems.append(problem(EXPAND, "unknown_field", f"There is no field {name[:80]}."))
        elif name in access.masked:
            problems.append(_problem("You see this field masked, so it cannot be expanded."))
        else:
            problems.append(_problem(f"{name[:80]} is no reference."))
        return
    if name not in tree:
        accesses.check_scope(access.caller, target, "view")
        is_open = accesses.is_open(access.caller, target, "view")
        view = accesses.for_operation(access.caller, target, "view") if is_open else None
        tree[name] = Branch(target, view, {}, field=access.definition.fields.get(name))
    _add_further(tree[name], further, problems)


def _add_further(branch: Branch, further: Sequence[str], problems: list[JSONObject]) -> None:
    # A caller who may not view the target learns nothing of it, not even which names it has.
    if further and branch.access is not None:
        if not branch.below:
            check_expand_is_free(branch.access.readable, problems)
        _add_branch(branch.below, branch.access, further, problems)


def names_in(text: str, parameter: str, problems: list[JSONObject]) -> list[str]:
    """Return the names between the commas of a parameter; an empty one is a problem."""
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    if "" in names:
        problems.append(problem(parameter, "invalid_option", "A name between the commas is empty."))
    return names


def check_expand_is_free(names: Iterable[str], problems: list[JSONObject]) -> None:
    """Add a problem if a field is called `expand`, which would hide it."""
    if EXPAND in names:
        message = "A field of these records is called expand; pick others with `fields`."
        problems.append(_problem(message))


def expanded_checks(tree: Tree) -> Iterator[VersionCheck]:
    """Yield the version checks of the referenced collections."""
    for branch in tree.values():
        if not isinstance(branch.target, People):
            yield from branch.target.version_checks
        yield from expanded_checks(branch.below)


def add_expanded(
    tree: Tree,
    shown: Sequence[Shown],
    room: SizeLimit,
    before: Callable[[Iterable[Shown]], None] | None = None,
) -> None:
    """Add `expand` to the views of records, as JSON that is written once for each target.

    `before` gets them all before that, and what they expand to. Raises Stale, AnswerTooLarge.
    """
    if not tree:
        if before is not None:
            before(shown)
        return
    level = [Expansion(tree, one.row, one.view) for one in shown]
    levels: list[list[Expansion]] = []
    rendered: Rendered = {}
    while level:
        levels.append(level)
        found = _Found(
            _read_targets(level, room), _read_people(level), _read_referring(level, room)
        )
        level = [inner for one in level for inner in _attach(one, found, rendered)]
    if before is not None:
        before([*shown, *rendered.values()])
    # Innermost first: a view can be written when what it expands is.
    texts: dict[int, bytes] = {}

    def text_of(target: Any) -> bytes:
        if isinstance(target, Newest):
            ending = b',"has_more":true}' if target.has_more else b',"has_more":false}'
            return b'{"items":' + text_of(target.items) + ending
        if isinstance(target, list):
            return b"[" + b",".join(map(text_of, target)) + b"]"
        if not isinstance(target, dict):
            return dumps(target)
        if id(target) not in texts:
            texts[id(target)] = dumps(target)
        return texts[id(target)]

    for level in reversed(levels):
        for _, _, view in level:
            written = {name: text_of(target) for name, target in view[EXPAND].items()}
            SizeLimit().take(sum(map(len, written.values())))
            view[EXPAND] = {name: orjson.Fragment(text) for name, text in written.items()}


def _read_targets(level: Sequence[Expansion], room: SizeLimit) -> RowsByCollection:
    """Read the records that a level refers to and the caller may view."""
    access_by_collection: dict[str, Access] = {}
    ids: dict[str, set[str]] = {}
    for tree, row, _ in level:
        for name, branch in tree.items():
            if branch.access is not None and not branch.via and row[name] is not None:
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


def _read_referring(level: Sequence[Expansion], room: SizeLimit) -> Referring:
    """Read the newest records that refer to those of a level and that the caller may list."""
    branches: dict[tuple[str, str], Branch] = {}
    ids: dict[tuple[str, str], set[str]] = {}
    for tree, row, _ in level:
        for branch in tree.values():
            if branch.access is not None and branch.via:
                key = (branch.access.definition.id, branch.via)
                branches[key] = branch
                ids.setdefault(key, set()).add(row["id"])
    result: Referring = {}
    for key, branch in branches.items():
        if branch.access is None:
            continue
        if problems := list(_too_many(len(ids[key]) * NEWEST)):  # lists refer to many
            raise InvalidValues(problems)
        names = frozenset(branch.access.readable)
        selection = reads.Selection(branch.access, names=names, room=room)
        # One more tells that there are more.
        result[key] = reads.read_referring(selection, branch.via, sorted(ids[key]), NEWEST + 1)
    return result


class _Found(NamedTuple):
    """What was read for the expansions of a level."""

    targets: RowsByCollection
    persons: Mapping[people.Key, View]
    referring: Referring


def _attach(expansion: Expansion, found: _Found, rendered: Rendered) -> Sequence[Expansion]:
    """Put the views of its targets into a view; returns those that are expanded further."""
    tree, row, view = expansion
    view[EXPAND] = {}
    further = list[Expansion]()
    for name, branch in tree.items():
        shown = partial(_shown, branch, rendered, further)
        if branch.via:
            key = (row["account_id"], row["id"])
            rows = found.referring[branch.target.id, branch.via].get(key, [])
            items = [shown(one) for one in rows[:NEWEST]]
            view[EXPAND][name] = Newest(items, len(rows) > NEWEST)
            continue
        if row[name] is None:
            continue
        values = list[Any]()
        for target_id in branch.entries(row[name]):
            target_key = (row["account_id"], target_id)
            if isinstance(branch.target, People):
                values.append(found.persons.get(target_key) if branch.shown else target_id)
                continue
            target = found.targets.get(branch.target.id, {}).get(target_key)
            if target is not None and branch.access is not None:
                values.append(shown(target))
        if branch.is_list:
            view[EXPAND][name] = values
        elif values:
            view[EXPAND][name] = values[0]
    return further


def _shown(branch: Branch, rendered: Rendered, further: list[Expansion], row: Row) -> View:
    """The view of a record, which is rendered once for each branch."""
    key = (id(branch), row["account_id"], row["id"])
    if key not in rendered and branch.access is not None:
        with personal_reads.by_path(EXPAND):
            view = render(row, list(branch.access.readable), branch.access)
        rendered[key] = Shown(branch.access, row, view)
        if branch.below:
            further.append(Expansion(branch.below, row, view))
    return rendered[key].view


def _problem(message: str) -> JSONObject:
    return problem(EXPAND, "invalid_option", message)
