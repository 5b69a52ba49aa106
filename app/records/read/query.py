"""Parses the query parameters of a list: conditions, order, fields, and the cursor."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from app import db, rules
from app.auth.principal import Principal
from app.collections import access as accesses
from app.collections import definitions, indexes
from app.collections.access import Access
from app.collections.definitions import Definition
from app.collections.fields import Field, InvalidValue
from app.collections.indexes import IndexField
from app.collections.trash import of as trash_of
from app.db import filters
from app.db.versioned_cache import VersionCheck
from app.errors import InvalidValues, problem
from app.records.read import cursor, search, views
from app.records.read.cursor import CursorPosition, Key
from app.records.read.paths import PathError, Paths
from app.records.read.search import Search
from app.records.read.views import Branch, names_in
from app.records.store.reads import Part, Selection
from app.rules.elements import CodePoints
from app.types import JSONMapping, JSONObject, cached_property

MAX_SORT_KEYS = 8
MAX_VALUES = 100
PAGING = {"skip", "limit", "page", "page_size", "include_total", "include_count", "sort", "fields"}
DIRECTIONS = frozenset(cursor.DIRECTIONS)
FALSE = {"", "0", "false", "f", "no", "n", "off"}
SEARCHING = {search.NAME, search.HIGHLIGHT}
LIST_PARAMETERS = PAGING | {"filter", "expand", "file_links"} | DIRECTIONS | SEARCHING
NO_TRASH = "This collection has no trash, and no field of that name."
VIEW_HAS_NO_TRASH = "This is a view: list the trash of the collection that it reads."
NO_WORDS_IN_TRASH = "The trash is not searched by words: filter it."


@dataclass(frozen=True)
class Conditions:
    """The conditions of a list's records, besides the rule."""

    where: Sequence[Any]
    bound: JSONMapping
    """The parameters of the conditions."""
    version_checks: Collection[VersionCheck]
    """Versions of other collections, on whose rules the conditions depend."""
    is_recurring: bool
    """Whether the same request gets the same objects again, so that its statement can be cached."""
    presupposed: frozenset[str] = frozenset()
    """Fields that are not null in any matching record."""
    fixed: frozenset[str] = frozenset()
    """Fields that have the same value in all matching records."""
    search: Search | None = None
    """What else the records have to meet."""

    @property
    def indexed(self) -> Sequence[Any]:
        """The conditions, with that of the search."""
        return [*self.where, *(self.search.indexed if self.search else ())]


@dataclass(frozen=True)
class Query:
    """A list's parsed parameters, checked against the caller's access."""

    access: Access
    conditions: Conditions
    keys: Sequence[Key]
    names: Sequence[str]
    expanded: Mapping[str, Branch]
    walk: CursorPosition | None
    """The position of the cursor; None without one."""
    paths: Paths | None = None
    """Those of the order; None if it is that of the records' own fields."""
    highlights: bool = False
    """Whether each record is shown with where it has what is searched."""

    @cached_property
    def selection(self) -> Selection:
        """The records, with the fields that are shown or sorted by."""
        own = (key.name for key in self.keys if key.value is None)
        names = frozenset([*self.names, *own])
        checks = {*self.conditions.version_checks, *views.expanded_checks(self.expanded)}
        where, searched = tuple(self.conditions.where), self.conditions.search
        bound = self.conditions.bound
        found = Selection(self.access, where, bound, checks, names, search=searched)
        return found if self.paths is None else self.paths.joined(found)

    def parts_from(self, position: CursorPosition) -> Sequence[Part]:
        """The ranges of the list from a position on."""
        if self.conditions.search:
            return search.parts(self.conditions.search, self.keys, position)
        return cursor.parts(self.keys, position)

    @property
    def is_recurring(self) -> bool:
        """Whether conditions and order recur, so that the statement can be cached."""
        are_columns = all(isinstance(key.expression, sa.Column) for key in self.keys)
        return self.conditions.is_recurring and are_columns and self.paths is None

    @property
    def order_by(self) -> Sequence[sa.ColumnElement[Any]]:
        return [key.ordered() for key in self.keys]


def parse(
    access: Access,
    parameters: Mapping[str, Sequence[str]],
    limit: int = 1,
    *,
    ranks: bool = True,
) -> Query:
    """Read the parameters of a list of so many records. Raises InvalidValues with every problem.

    Unless it `ranks`, what a search finds comes in the order of a list.
    """
    problems: list[JSONObject] = []
    conditions = parse_conditions(access, parameters, LIST_PARAMETERS, problems)
    last_values = {name: texts[-1] for name, texts in parameters.items() if texts}
    order = last_values.get("sort") or ""
    paths = Paths(access) if "." in order else None
    keys = _sort(access, paths, order, conditions, problems)
    found = conditions.search
    if ranks and found and not order.strip():
        found = replace(found, keys=keys)
        conditions = replace(conditions, search=found)
        keys = [search.rank_key(found), *keys]
    names, expanded = parse_shape(
        access, last_values.get("fields"), last_values.get("expand"), problems, limit
    )
    walk = None
    if keys and not DIRECTIONS.isdisjoint(last_values):
        # A cursor is valid only for the list that it was made for.
        values = sorted(
            (name, sorted(texts))
            for name, texts in parameters.items()
            if name not in LIST_PARAMETERS
        )
        own_conditions = [values, last_values.get("filter", "").strip()]
        if found:
            own_conditions += [last_values[search.NAME].strip(), *found.fields]
        binding = cursor.binding(access.definition, access.caller.account_id, keys, own_conditions)
        walk = cursor.read(last_values, keys, binding, problems)
        if found and keys[0].name == search.RANK:
            keys = [search.rank_key(found, walk), *keys[1:]]
    highlights = search.HIGHLIGHT in last_values and _highlights(last_values, problems)
    if problems:
        raise InvalidValues(problems)
    return Query(access, conditions, keys, names, expanded, walk, paths, highlights)


def _highlights(last_values: Mapping[str, str], problems: list[JSONObject]) -> bool:
    if last_values[search.HIGHLIGHT].lower() in FALSE:
        return False
    if search.NAME not in last_values and not problems:
        message = "Only what is searched for is highlighted."
        problems.append(problem(search.HIGHLIGHT, "invalid_option", message))
    return True


def parse_trash(
    definition: Definition, parameters: Mapping[str, Sequence[str]], limit: int, by: Principal
) -> Query:
    """The parameters of a list of the trash: of what the caller may list, and delete."""
    parameters = {**parameters}
    wanted = parameters.pop("trash")[-1:]
    if wanted == ["false"]:
        return parse(accesses.for_operation(by, definition, "list"), parameters, limit)
    if wanted != ["true"]:
        raise InvalidValues([problem("trash", "invalid_option", "Must be true or false.")])
    if search.NAME in parameters and definition.searched:
        raise InvalidValues([problem(search.NAME, "invalid_option", NO_WORDS_IN_TRASH)])
    trash = trash_of(definition)
    parsed = parse(accesses.for_operation(by, trash, "list"), parameters, limit)
    deleting = accesses.for_operation(by, trash, "delete")
    rule = sa.true() if deleting.where is None else deleting.where
    conditions = replace(
        parsed.conditions,
        where=[*parsed.conditions.where, trash.table.c.deleted_at.is_not(None), rule],
        bound={**parsed.conditions.bound, **deleting.parameters},
        is_recurring=False,
    )
    return replace(parsed, conditions=conditions)


def parse_shape(
    access: Access,
    fields: str | None,
    expanded: str | None,
    problems: list[JSONObject],
    records: int = 1,
) -> tuple[Sequence[str], Mapping[str, Branch]]:
    """Return the fields to show of so many records, and the references to expand."""
    names = parse_fields(access.readable, fields, problems) or list(access.readable)
    tree = views.parse_expand(access, expanded, problems, records)
    if tree:
        views.check_expand_is_free(names, problems)
    return names, tree


def parse_conditions(
    access: Access,
    parameters: Mapping[str, Sequence[str]],
    excluded: Collection[str],
    problems: list[JSONObject],
) -> Conditions:
    """Return the conditions of `filter`, `search` and `<field>=<value>`.

    Skips the `excluded` parameters.
    """
    found = None
    if search.NAME in access.readable and not access.definition.searched:
        excluded = {*excluded} - SEARCHING  # a field of this name, where nothing is searched
    elif texts := parameters.get(search.NAME):
        found = search.parse(access, texts[-1], problems)
    where = _field_values(access, parameters, excluded, problems)
    text = (parameters.get("filter") or [""])[-1]
    filter_ = None
    if text.strip():
        try:
            filter_ = accesses.read_filter(access, text)
        except rules.RuleError as error:
            position = error.position
            problems.append(
                problem("filter", error.code or "filter_invalid", str(error), position=position)
            )
    fixed = access.fixed | {
        name
        for name, texts in parameters.items()
        if name not in excluded and name in access.comparable and len(texts) == 1
    }
    if filter_ is None:
        is_recurring = not where and found is None
        return Conditions(where, {}, (), is_recurring=is_recurring, fixed=fixed, search=found)
    compiled = accesses.filter_condition(access, filter_)
    referenced = definitions.referenced_definitions(access.definition, text)
    return Conditions(
        [*where, compiled.expression],
        bound=compiled.parameters(access.subject, account_id=access.caller.account_id),
        version_checks={check for one in referenced for check in one.version_checks},
        is_recurring=not where and found is None and filter_.is_cached,
        presupposed=filter_.presupposed,
        fixed=filter_.fixed | fixed,
        search=found,
    )


def parse_fields(
    readable: Mapping[str, Field], text: str | None, problems: list[JSONObject]
) -> Sequence[str] | None:
    """Return the fields that an answer is limited to, with `id`; None means all."""
    if text is None:
        return None
    requested = names_in(text, "fields", problems)
    problems += [_unknown(name, "fields") for name in requested if name and name not in readable]
    return [name for name in readable if name == "id" or name in requested]


def _unknown(name: str, parameter: str | None = None, message: str | None = None) -> JSONObject:
    # The same words whether the field is hidden from the caller or does not exist.
    message = message or f"There is no field {name[:80]}."
    return problem(parameter or name[:80], "unknown_field", message)


def _field_values(
    access: Access,
    parameters: Mapping[str, Sequence[str]],
    excluded: Collection[str],
    problems: list[JSONObject],
) -> list[object]:
    conditions = []
    for name, texts in parameters.items():
        if name in excluded:
            continue
        field = access.readable.get(name)
        if field is None:
            no_trash = NO_TRASH if access.definition.view is None else VIEW_HAS_NO_TRASH
            problems.append(_unknown(name, message=no_trash if name == "trash" else None))
        elif name in access.masked:
            problems.append(problem(name, "filter_invalid", accesses.MASKED.format(name)))
        elif not field.filterable:
            problems.append(problem(name, "filter_invalid", f"A {field.type} cannot be compared."))
        elif len(texts) > MAX_VALUES:
            problems.append(problem(name, "filter_invalid", f"At most {MAX_VALUES} values."))
        else:
            values = [
                value for text in texts if (value := _value(field, text, problems)) is not None
            ]
            column = access.definition.expressions[name]
            conditions.append(column == values[0] if len(values) == 1 else column.in_(values))
    return conditions


def _value(field: Field, text: str, problems: list[JSONObject]) -> Any:
    text = rules.composed(text)
    try:
        return field.from_text(text)
    except InvalidValue as error:
        if error.code not in ("too_short", "too_long", "pattern_mismatch", "invalid_option"):
            problems.append(problem(field.name, error.code, str(error)))
            return None
        return text


def _is_sortable(access: Access, name: str) -> bool:
    return name in access.comparable and access.comparable[name].filterable


def _sort(
    access: Access,
    paths: Paths | None,
    text: str,
    conditions: Conditions,
    problems: list[JSONObject],
) -> list[Key]:
    keys: dict[str, Key] = {}
    # A "+" that was not escaped arrives as a space.
    texts = [key for key in names_in(text, "sort", problems) if key]
    texts = texts or [
        key
        for key in access.definition.default_sort
        if access.definition.view is None or _is_sortable(access, key.removeprefix("-"))
    ]
    if len(texts) > MAX_SORT_KEYS:
        problems.append(problem("sort", "invalid_option", f"At most {MAX_SORT_KEYS} sort keys."))
    for key in texts[:MAX_SORT_KEYS]:
        sign, name = re.fullmatch(r"([+-]?)(.*)", key, re.DOTALL).groups()  # type: ignore[union-attr]
        found, field = None, access.readable.get(name)
        if paths is not None and "." in name:
            try:
                found = paths.value(name)
            except PathError as error:
                problems.append(problem("sort", error.code, str(error)))
                continue
            field = found.field
        if field is None:
            problems.append(_unknown(name, "sort"))
        elif name in access.masked:
            problems.append(problem("sort", "invalid_option", accesses.MASKED.format(name)))
        elif not field.filterable:
            problems.append(
                problem("sort", "invalid_option", f"A {field.type} cannot be sorted by.")
            )
        elif found is not None:
            value = found.expression
            keys.setdefault(name, Key.of(field, value, sign == "-", nullable=True, value=value))
        else:
            present = name in conditions.presupposed
            keys.setdefault(name, _key(access, name, descending=sign == "-", present=present))
    # Ids are unique within an account.
    for name in ("id",) if access.caller.account_id else ("id", "account_id"):
        keys.setdefault(name, _key(access, name))
    return _as_indexed(access, list(keys.values()), conditions.fixed)


def _as_indexed(access: Access, keys: list[Key], fixed: frozenset[str]) -> list[Key]:
    """Return the keys, with nulls ordered as the index has them that serves most keys."""
    if access.caller.account_id is None or not access.definition.all_indexes:
        return keys  # across all accounts no index serves
    order = [IndexField(key.name, key.descending) for key in keys]
    # SQLite would read all records of the account in their order.
    if _has_rarer_index(access, order, fixed) and db.has_one_writer():
        return [replace(keys[0], expression=filters.without_index(keys[0].expression)), *keys[1:]]
    forward, backward = indexes.serving(access.definition.all_indexes, order, fixed)
    if backward > forward:
        return [replace(keys[0], backward=True), *keys[1:]]
    places = [place for place, key in enumerate(keys) if key.name not in fixed][:forward]
    columns = access.definition.table.c
    return [
        replace(key, nulls_last=True)
        if place in places and key.descending and columns[key.name].nullable
        else key
        for place, key in enumerate(keys)
    ]


def _has_rarer_index(access: Access, order: Sequence[IndexField], fixed: frozenset[str]) -> bool:
    """Whether another index than that of the order leads to the records, which are few.

    A value of a list of choices is taken to be frequent, so that the order finds it soon.
    """
    leading = [index for index in access.definition.all_indexes if index.names[0] in fixed]
    is_rare = any(not access.definition.columns[index.names[0]].choices for index in leading)
    return is_rare and not any(indexes.serving(leading, order, fixed))


def _key(access: Access, name: str, *, descending: bool = False, present: bool = False) -> Key:
    definition = access.definition
    column, field = definition.expressions[name], definition.columns[name]
    if name in definition.computed and isinstance(column.type, sa.Text):
        column = CodePoints(column)
    nullable = not present and getattr(column, "nullable", True)
    like = field.like
    order = like.sort_expression(column) if like.has_order else column
    return Key(like, name, like.rule_type, order, descending, nullable)
